package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	// readAtOnce is how much is read in one request, about, in bytes.
	readAtOnce = 4 << 20
	// partitionsAtOnce is how many partitions one request is about at most.
	partitionsAtOnce = 1000
	readTries        = 3
)

// errMadeAnew says that what was read last of a partition is not there any more.
var errMadeAnew = errors.New("the partition was made anew")

// span is what is read of a partition: from next on, up to the end that it had when it was asked for.
type span struct {
	partition
	lead       lead
	first, end int64 // offset of the oldest record, and behind the newest that all in-sync replicas have
	known      bool  // lead, first and end are
	next       int64 // offset to go on with
	each       func(*kproto.Record) error

	identified bool // what was read last must still be there
	last       protocol.BatchID
}

func (s *span) left() bool { return s.next < s.end }

// goesOn says whether the batch before next is read once more, to see that it is last.
func (s *span) goesOn() bool { return s.identified && s.next > s.first }

// read calls the function of each span for its records, of one after the other. It asks each broker for many partitions at once.
// An offset that a partition does not have means its oldest record. No partition is in two spans. What a function returns ends
// it, and is returned as it is.
func (s *Sink) read(ctx context.Context, spans []*span) error {
	for try := 1; ; try++ {
		err := s.cluster.readOnce(ctx, spans)
		var said *callerError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &said):
			return said.err
		case errors.Is(err, kafka.TopicAuthorizationFailed):
			return fmt.Errorf("%w: grant READ and DESCRIBE on the topic, which tells what it holds", err)
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return s.explain(ctx, "", err)
		case try < readTries && ctx.Err() == nil:
		case protocol.FromBroker(err), errors.Is(err, errNoPartition):
			return err
		default:
			return s.explain(ctx, "", err)
		}
		for _, one := range spans {
			one.known = one.known && !one.left() // who leads it may be another one now
		}
	}
}

// callerError is what the function of a span said.
type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

// readOnce reads what is left of spans.
func (c *cluster) readOnce(ctx context.Context, spans []*span) error {
	unknown := slices.DeleteFunc(slices.Clone(spans), func(s *span) bool { return s.known })
	byLeader, err := c.locate(ctx, unknown)
	if err != nil {
		return err
	}
	for broker, all := range byLeader {
		if err := c.extents(ctx, broker, all); err != nil {
			return err
		}
		for _, s := range all {
			if s.known = true; s.next < s.first || s.next > s.end {
				s.next = s.first
			}
		}
		if err := c.fill(ctx, broker, all); err != nil {
			return err
		}
	}
	return nil
}

// locate asks who leads the partitions of spans.
func (c *cluster) locate(ctx context.Context, spans []*span) (byLeader map[int32][]*span, err error) {
	topics := make([]string, 0, len(spans))
	for _, s := range spans {
		topics = append(topics, s.topic)
	}
	slices.Sort(topics)
	found, _, err := c.describeAll(ctx, slices.Compact(topics))
	if err != nil {
		return nil, err
	}
	byLeader = map[int32][]*span{}
	for _, s := range spans {
		d := found[s.topic]
		if s.lead, err = (&layout{d.leads}).lead(s.index); d.err != nil {
			err = d.err
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.partition, err)
		}
		byLeader[s.lead.broker] = append(byLeader[s.lead.broker], s)
	}
	return byLeader, nil
}

// What offsets asks for (KIP-79).
const (
	latest   = -1 // up to where all in-sync replicas have the log
	earliest = -2
)

// extents asks the leader of some partitions where they begin and end. A leader that does not know the end yet, as it is new, says
// so (KIP-207).
func (c *cluster) extents(ctx context.Context, leader int32, spans []*span) error {
	if err := c.offsets(ctx, leader, spans, earliest, func(s *span, at int64) { s.first = at }); err != nil {
		return err
	}
	return c.offsets(ctx, leader, spans, latest, func(s *span, at int64) { s.end = at })
}

// extent is extents for a partition alone.
func (c *cluster) extent(ctx context.Context, by lead, p partition) (first, end int64, err error) {
	one := span{partition: p, lead: by}
	err = c.extents(ctx, by.broker, []*span{&one})
	return one.first, one.end, err
}

// endOf asks the leader of a partition for the offset behind the newest record that all in-sync replicas have.
func (c *cluster) endOf(ctx context.Context, by lead, p partition) (end int64, err error) {
	err = c.offsets(ctx, by.broker, []*span{{partition: p, lead: by}}, latest, func(_ *span, at int64) { end = at })
	return end, err
}

func (c *cluster) offsets(ctx context.Context, leader int32, spans []*span, which int64, is func(*span, int64)) error {
	for chunk := range slices.Chunk(spans, partitionsAtOnce) {
		request, of := &listoffsets.Request{ReplicaID: -1}, spansByPlace(chunk)
		for topic, all := range spansByTopic(chunk) {
			t := listoffsets.RequestTopic{Topic: topic}
			for _, s := range all {
				t.Partitions = append(t.Partitions, listoffsets.RequestPartition{Partition: s.index, CurrentLeaderEpoch: s.lead.epoch, Timestamp: which})
			}
			request.Topics = append(request.Topics, t)
		}
		answer, err := c.ask(ctx, leader, request)
		if err != nil {
			return err
		}
		for _, t := range answer.(*listoffsets.Response).Topics {
			for _, p := range t.Partitions {
				s := of[partition{t.Topic, p.Partition}]
				if s == nil {
					return protocol.ErrMalformed
				}
				if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
					return fmt.Errorf("reading %s: %w", s.partition, err)
				}
				is(s, p.Offset)
				delete(of, s.partition)
			}
		}
		if len(of) > 0 {
			return protocol.ErrMalformed
		}
	}
	return nil
}

func spansByPlace(spans []*span) map[partition]*span {
	by := make(map[partition]*span, len(spans))
	for _, s := range spans {
		by[s.partition] = s
	}
	return by
}

func spansByTopic(spans []*span) map[string][]*span {
	by := map[string][]*span{}
	for _, s := range spans {
		by[s.topic] = append(by[s.topic], s)
	}
	return by
}

// fill reads what is left of spans whose partitions one broker leads.
func (c *cluster) fill(ctx context.Context, leader int32, spans []*span) error {
	for {
		spans = slices.DeleteFunc(slices.Clone(spans), func(s *span) bool { return !s.left() })
		if len(spans) == 0 {
			return nil
		}
		progress, err := c.fetch(ctx, leader, spans[:min(len(spans), partitionsAtOnce)])
		if err == nil && !progress {
			err = protocol.ErrMalformed
		}
		if err != nil {
			return err
		}
	}
}

// fetch reads once, and says whether that brought anything.
func (c *cluster) fetch(ctx context.Context, leader int32, spans []*span) (progress bool, err error) {
	request, of := kmsg.NewPtrFetchRequest(), spansByPlace(spans)
	request.SetVersion(11) // KIP-392: of Kafka 2.3
	request.MinBytes, request.MaxBytes = 1, readAtOnce
	for topic, all := range spansByTopic(spans) {
		t := kmsg.NewFetchRequestTopic()
		t.Topic = topic
		for _, s := range all {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes, p.FetchOffset = s.index, s.lead.epoch, readAtOnce, s.next
			if s.goesOn() {
				p.FetchOffset--
			}
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	answer, err := askForeign[*kmsg.FetchResponse](ctx, c, leader, forReading, request)
	if err == nil {
		err = protocol.CodeError(answer.ErrorCode, "")
	}
	if err != nil {
		return false, err
	}
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := of[partition{t.Topic, p.Partition}]
			if s == nil {
				return progress, protocol.ErrMalformed
			}
			before := s.next
			if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.partition, err)
			}
			if err := s.take(protocol.Batches(p.RecordBatches)); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.partition, err)
			}
			progress = progress || s.next > before
		}
	}
	return progress, nil
}

// take calls the function of the span for records. What it was called for counts as read, whatever it returned.
func (s *span) take(records protocol.Batches) error {
	if s.goesOn() && len(records) > 0 && records.At(s.next-1) != s.last {
		return errMadeAnew
	}
	next, err := records.Each(s.next, func(r *kproto.Record) error {
		s.next = r.Offset + 1
		if err := s.each(r); err != nil {
			return &callerError{err}
		}
		return nil
	})
	if s.next = max(s.next, next); err == nil && len(records) > 0 {
		s.last = records.At(s.next - 1)
	}
	return err
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
