package cluster

import (
	"context"
	"errors"
	"fmt"
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

// ErrMadeAnew says that what was read last of a partition is not there any more.
var ErrMadeAnew = errors.New("the partition was made anew")

// Span is what is read of a partition: from next on, up to the end that it had when it was asked for.
type Span struct {
	Partition
	Lead       Lead
	First, End int64 // offset of the oldest record, and behind the newest that all in-sync replicas have
	Known      bool  // lead, first and end are
	Next       int64 // offset to go on with
	Each       func(*kproto.Record) error
	Taken      func() error // nil, or called behind the records of each answer, where Next and Last are behind them, too

	Identified bool // what was read last must still be there
	Last       protocol.BatchID
	confirmed  bool // it was, a request ago
}

func (s *Span) left() bool { return s.Next < s.End }

// goesOn says whether the batch before next is read once more, to see that it is last. An answer may have room for that one
// only, so the next request is about what is behind it.
func (s *Span) goesOn() bool { return s.Identified && !s.confirmed && s.Next > s.First }

// Read calls the function of each span for its records, side by side for spans of different brokers. It asks each broker for
// many partitions at once. An offset that a partition does not have means its oldest record. No partition is in two spans.
// What a function returns ends it, and is returned as it is. That one broker of several is away is an ordinary error.
func (c *Cluster) Read(ctx context.Context, spans []*Span) error {
	for try := 1; ; try++ {
		err := c.readOnce(ctx, spans)
		var said *CallerError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &said):
			return said.Err
		case errors.Is(err, kafka.TopicAuthorizationFailed):
			return fmt.Errorf("no right to read a topic, which tells what it holds: grant READ on it: %w", err)
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return c.Explain(ctx, "", err)
		case ctx.Err() != nil:
			return ctx.Err()
		case try == readTries:
			return err
		}
		for _, one := range spans {
			one.Known = one.Known && !one.left() // who leads it may be another one now
		}
	}
}

// CallerError is what the function of a span said.
type CallerError struct{ Err error }

func (e *CallerError) Error() string { return e.Err.Error() }

// readOnce reads what is left of spans.
func (c *Cluster) readOnce(ctx context.Context, spans []*Span) error {
	unknown := slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Known })
	byLeader, err := c.locate(ctx, unknown)
	if err != nil {
		return err
	}
	ended := make(chan error)
	for broker, all := range byLeader {
		go func() { ended <- c.readFrom(ctx, broker, all) }()
	}
	for range byLeader {
		err = errors.Join(err, <-ended)
	}
	return err
}

// readFrom reads what is left of spans whose partitions one broker leads.
func (c *Cluster) readFrom(ctx context.Context, broker int32, all []*Span) error {
	if err := c.Extents(ctx, broker, all); err != nil {
		return err
	}
	for _, s := range all {
		if s.Known = true; s.Next < s.First || s.Next > s.End {
			s.Next = s.First
		}
	}
	return c.Fill(ctx, broker, all)
}

// locate asks who leads the partitions of spans.
func (c *Cluster) locate(ctx context.Context, spans []*Span) (byLeader map[int32][]*Span, err error) {
	topics := make([]string, 0, len(spans))
	for _, s := range spans {
		topics = append(topics, s.Topic)
	}
	slices.Sort(topics)
	found, _, err := c.DescribeAll(ctx, slices.Compact(topics))
	if err != nil { // no broker answers, and not only one
		return nil, c.Explain(ctx, "", err)
	}
	byLeader = map[int32][]*Span{}
	for _, s := range spans {
		if s.Lead, err = found[s.Topic].Lead(s.Index); err != nil {
			return nil, fmt.Errorf("reading %s: %w", s.Partition, err)
		}
		byLeader[s.Lead.Broker] = append(byLeader[s.Lead.Broker], s)
	}
	return byLeader, nil
}

// What offsets asks for (KIP-79).
const (
	latest   = -1 // up to where all in-sync replicas have the log
	earliest = -2
)

// Extents asks the leader of some partitions where they begin and end. A leader that does not know the end yet, as it is
// new, says so (KIP-207).
func (c *Cluster) Extents(ctx context.Context, leader int32, spans []*Span) error {
	if err := c.offsets(ctx, leader, spans, earliest, func(s *Span, at int64) { s.First = at }); err != nil {
		return err
	}
	return c.offsets(ctx, leader, spans, latest, func(s *Span, at int64) { s.End = at })
}

// Extent is extents for a partition alone.
func (c *Cluster) Extent(ctx context.Context, by Lead, p Partition) (first, end int64, err error) {
	one := Span{Partition: p, Lead: by}
	err = c.Extents(ctx, by.Broker, []*Span{&one})
	return one.First, one.End, err
}

// EndOf asks the leader of a partition for the offset behind the newest record that all in-sync replicas have.
func (c *Cluster) EndOf(ctx context.Context, by Lead, p Partition) (end int64, err error) {
	err = c.offsets(ctx, by.Broker, []*Span{{Partition: p, Lead: by}}, latest, func(_ *Span, at int64) { end = at })
	return end, err
}

func (c *Cluster) offsets(ctx context.Context, leader int32, spans []*Span, which int64, is func(*Span, int64)) error {
	for chunk := range slices.Chunk(spans, partitionsAtOnce) {
		request, of := &listoffsets.Request{ReplicaID: -1}, spansByPlace(chunk)
		for topic, all := range spansByTopic(chunk) {
			t := listoffsets.RequestTopic{Topic: topic}
			for _, s := range all {
				t.Partitions = append(t.Partitions, listoffsets.RequestPartition{Partition: s.Index, CurrentLeaderEpoch: s.Lead.Epoch, Timestamp: which})
			}
			request.Topics = append(request.Topics, t)
		}
		answer, err := c.ask(ctx, leader, request)
		if err != nil {
			return err
		}
		for _, t := range answer.(*listoffsets.Response).Topics {
			for _, p := range t.Partitions {
				s := of[Partition{t.Topic, p.Partition}]
				if s == nil {
					return protocol.ErrMalformed
				}
				if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
					return fmt.Errorf("reading %s: %w", s.Partition, err)
				}
				is(s, p.Offset)
				delete(of, s.Partition)
			}
		}
		if len(of) > 0 {
			return protocol.ErrMalformed
		}
	}
	return nil
}

func spansByPlace(spans []*Span) map[Partition]*Span {
	by := make(map[Partition]*Span, len(spans))
	for _, s := range spans {
		by[s.Partition] = s
	}
	return by
}

func spansByTopic(spans []*Span) map[string][]*Span {
	by := map[string][]*Span{}
	for _, s := range spans {
		by[s.Topic] = append(by[s.Topic], s)
	}
	return by
}

// Fill reads what is left of spans whose partitions one broker leads.
func (c *Cluster) Fill(ctx context.Context, leader int32, spans []*Span) error {
	for {
		spans = slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return !s.left() })
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
func (c *Cluster) fetch(ctx context.Context, leader int32, spans []*Span) (progress bool, err error) {
	request, of := kmsg.NewPtrFetchRequest(), spansByPlace(spans)
	request.SetVersion(11) // KIP-392: of Kafka 2.3
	request.MinBytes, request.MaxBytes = 1, readAtOnce
	for topic, all := range spansByTopic(spans) {
		t := kmsg.NewFetchRequestTopic()
		t.Topic = topic
		for _, s := range all {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes, p.FetchOffset = s.Index, s.Lead.Epoch, readAtOnce, s.Next
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
			s := of[Partition{t.Topic, p.Partition}]
			if s == nil {
				return progress, protocol.ErrMalformed
			}
			before, confirmed := s.Next, s.confirmed
			if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			if err := s.take(protocol.Batches(p.RecordBatches)); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			progress = progress || s.Next > before || s.confirmed && !confirmed
		}
	}
	return progress, nil
}

// take calls the function of the span for records. What it was called for counts as read, whatever it returned.
func (s *Span) take(records protocol.Batches) error {
	looked := s.goesOn() && len(records) > 0
	if looked && records.At(s.Next-1) != s.Last {
		return ErrMadeAnew
	}
	s.confirmed = looked
	next, err := records.Each(s.Next, func(r *kproto.Record) error {
		s.Next = r.Offset + 1
		if err := s.Each(r); err != nil {
			return &CallerError{err}
		}
		return nil
	})
	if s.Next = max(s.Next, next); err == nil && len(records) > 0 {
		s.Last = records.At(s.Next - 1)
	}
	if err == nil && s.Taken != nil {
		if err := s.Taken(); err != nil {
			return &CallerError{err}
		}
	}
	return err
}
