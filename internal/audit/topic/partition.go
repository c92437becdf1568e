package topic

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/internal/audit"
)

// partition is one that is read.
type partition struct {
	*Topic
	id    int
	place string // under which its offset is stored
}

// read reads from the stored offset until something fails.
func (p *partition) read(ctx context.Context, added bool) error {
	d, err := p.dialer()
	if err != nil {
		return err
	}
	at, err := p.resume(ctx, d, added)
	if err != nil {
		return err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: p.Config.Brokers, Topic: p.Topic.Topic, Partition: p.id, Dialer: d, MinBytes: 1, MaxBytes: maxFetch,
		QueueCapacity: maxBatch, IsolationLevel: kafka.ReadCommitted,
		MaxWait: maxWait, ReadBackoffMin: maxWait, ReadBackoffMax: maxWait, // a stop waits for them
	})
	if err := reader.SetOffset(at); err != nil {
		return closed(reader, err)
	}
	return closed(reader, p.consume(ctx, d, reader, at))
}

// closed closes what was read from, after something failed.
func closed(c io.Closer, err error) error {
	_ = c.Close() // the error before says more
	return err
}

// resume returns the offset of the next record. It is stored before anything is read: after a restart, what came meanwhile
// is not taken for what was there before.
func (p *partition) resume(ctx context.Context, d *kafka.Dialer, added bool) (int64, error) {
	stored, err := p.Place(p.place)
	if err != nil {
		return 0, err
	}
	first, last, err := p.bounds(ctx, d)
	if err != nil {
		return 0, err
	}
	p.state.Become(readable, "", "")
	at, err := strconv.ParseInt(stored, 10, 64)
	switch {
	case err != nil && added:
		at = first
	case err != nil: // what was written before anybody asked for names is not gone through
		at = last
	case at >= first && at <= last:
		return at, nil
	default:
		p.Lost(fmt.Sprintf("partition %d of the audit topic %s does not go on where it was read to, at %d: it has %d to %d",
			p.id, p.Topic.Topic, at, first, last))
		at = first
	}
	return at, p.store(ctx, nil, at)
}

// bounds are the offsets of the first record and behind the last one.
func (p *partition) bounds(ctx context.Context, d *kafka.Dialer) (first, last int64, err error) {
	for _, broker := range p.Config.Brokers {
		var leader *kafka.Conn
		if leader, err = d.DialLeader(ctx, "tcp", broker, p.Topic.Topic, p.id); err == nil {
			first, last, err = leader.ReadOffsets()
			return first, last, closed(leader, err)
		}
	}
	return 0, 0, err
}

// consume takes records in batches of what has come.
func (p *partition) consume(ctx context.Context, d *kafka.Dialer, reader *kafka.Reader, at int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	come := make(chan kafka.Message, maxBatch)
	go func() {
		defer close(come)
		for {
			m, err := reader.FetchMessage(ctx)
			if err != nil {
				cancel(err)
				return
			}
			select {
			case come <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	for first := range come {
		if first.Offset > at {
			if err := p.skipped(ctx, d, at); err != nil {
				return err
			}
		}
		events := p.scan(nil, first)
		at = first.Offset + 1
		for n := 1; n < maxBatch && len(come) > 0; n++ {
			m, more := <-come
			if !more {
				break
			}
			events, at = p.scan(events, m), m.Offset+1
		}
		if err := p.store(ctx, events, at); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// skipped says so where the records at an offset are gone. Between the records of transactions offsets are missing anyway.
func (p *partition) skipped(ctx context.Context, d *kafka.Dialer, at int64) error {
	first, _, err := p.bounds(ctx, d)
	if err == nil && first > at {
		p.Lost(fmt.Sprintf("partition %d of the audit topic %s lost %d records before they were read", p.id, p.Topic.Topic, first-at))
	}
	return err
}

// scan appends the events of a record.
func (p *partition) scan(events []audit.Event, m kafka.Message) []audit.Event {
	before := len(events)
	err := audit.Each(m.Value, func(e audit.Event) error { events = append(events, e); return nil })
	if err != nil {
		p.malformed.Add(1)
		return events[:before]
	}
	return events
}

// store hands over events. It is not known which API server each is from, so they have no origin: no clocks are compared.
func (p *partition) store(ctx context.Context, events []audit.Event, at int64) error {
	if err := p.Take(ctx, "", events, p.place, strconv.FormatInt(at, 10)); err != nil {
		return &storeError{err}
	}
	return nil
}
