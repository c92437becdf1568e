package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// readAtOnce is how much of a partition is read at once, about, in bytes.
const readAtOnce = 4 << 20

// Tail is [sinks.Fenced.Tail].
func (s *Sink) Tail(ctx context.Context, lane sinks.Lane, from sinks.Place, emitted func(sinks.Emitted) error) error {
	p, ok := partitionOfLane(lane)
	if f := s.fence.Load(); !ok || f != nil && f.gone[p] {
		return nil // nothing that has records
	}
	_, err := s.scan(ctx, p, int64(from), func(r *kproto.Record) error {
		e, ours, err := emittedBy(r)
		if err != nil || !ours {
			return err
		}
		return emitted(sinks.Emitted{Emitted: e, Place: sinks.Place(r.Offset)})
	})
	return err
}

// emittedBy says which change a record tells of.
func emittedBy(r *kproto.Record) (e event.Emitted, ours bool, err error) {
	value, err := bytesOf(r.Value)
	if err != nil {
		return e, false, err
	}
	key, err := bytesOf(r.Key)
	if err != nil {
		return e, false, err
	}
	e, ours = format.ReadEmitted(value, func(name string) string {
		if name == format.BesideKey {
			return string(key)
		}
		return headerOf(r, name) // they have the names that ReadEmitted asks for
	})
	return e, ours, nil
}

// headerOf returns the value of a header; "" where there is none.
func headerOf(r *kproto.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// bytesOf reads a key or a value; nil for one that is null.
func bytesOf(b kproto.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	all := make([]byte, b.Len())
	_, err := io.ReadFull(b, all)
	return all, err
}

// scan calls each for the records of a partition from an offset on, up to the end that it has now, which it returns. An offset
// that the partition does not have means its oldest record.
func (s *Sink) scan(ctx context.Context, p partition, from int64, each func(*kproto.Record) error) (end int64, err error) {
	var said error // by each
	err = s.retryLayout(ctx, s.topic(p.topic), func(by *layout) error {
		lead, err := by.lead(p.index)
		if err != nil {
			return err
		}
		var first int64
		if first, end, err = s.cluster.extent(ctx, lead, p); err != nil {
			return err
		}
		if from < first || from > end {
			from = first
		}
		for from < end && said == nil {
			from, err = s.cluster.scanSome(ctx, lead, p, from, func(r *kproto.Record) error {
				said = each(r)
				return said
			})
			if err != nil && said == nil {
				return err
			}
		}
		return nil // also when each has said something, which is no reason to try again
	})
	switch {
	case said != nil:
		return 0, said
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		return 0, fmt.Errorf("no right to read topic %q, which tells what it holds: grant READ on it: %w", p.topic, err)
	case err != nil:
		return 0, fmt.Errorf("reading %s: %w", p, err)
	}
	return end, nil
}

// extent asks the leader of a partition for the offset of its oldest record, and for that behind the newest which all in-sync
// replicas have.
func (c *cluster) extent(ctx context.Context, by lead, p partition) (first, end int64, err error) {
	if first, err = c.offsetAt(ctx, by, p.topic, p.index, earliest); err != nil {
		return 0, 0, err
	}
	end, err = c.offsetAt(ctx, by, p.topic, p.index, latest)
	return first, end, err
}

// scanSome reads once, calls each for the records, and returns the offset to go on with. What each was called for counts as read,
// whatever it returned.
func (c *cluster) scanSome(ctx context.Context, by lead, p partition, from int64, each func(*kproto.Record) error) (next int64, err error) {
	fetched, err := c.fetch(ctx, by, p, from)
	if err != nil {
		return from, err
	}
	reached := from
	next, err = fetched.Each(from, func(r *kproto.Record) error {
		reached = r.Offset + 1
		return each(r)
	})
	if err == nil && next <= from {
		err = protocol.ErrMalformed
	}
	return max(reached, next), err
}

// fetch reads records of a partition, a few megabytes.
func (c *cluster) fetch(ctx context.Context, by lead, p partition, from int64) (protocol.Fetched, error) {
	answer, err := c.askOver(ctx, by.broker, forReading, protocol.NewFetch(p.topic, p.index, by.epoch, from, readAtOnce))
	if err != nil {
		return protocol.Fetched{}, err
	}
	return protocol.ReadFetch(answer.(*protocol.RawResponse))
}

// retryLayout asks something of brokers that a layout names, with another layout when that was not right any more.
func (s *Sink) retryLayout(ctx context.Context, t *topic, ask func(by *layout) error) error {
	const tries = 3
	for try := 1; ; try++ {
		seen := t.current.Load()
		err := ask(seen)
		if err == nil {
			return nil
		}
		if try == tries || ctx.Err() != nil || protocol.ClassifyError(err) == protocol.Unauthorized {
			return s.explain(ctx, t.name, err)
		}
		if _, err := s.refresh(ctx, t, seen); err != nil {
			return err
		}
	}
}
