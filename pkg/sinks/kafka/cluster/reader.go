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
	// maxFetchBytes is how much is read in one request, about, in bytes.
	maxFetchBytes = 4 << 20
	// maxPartitionsPerRequest is how many partitions one request is about at most.
	maxPartitionsPerRequest = 1000
	maxReadTries            = 3
)

// ErrRecreated says that what was read last of a partition is not there any more.
var ErrRecreated = errors.New("the partition was made anew")

// Span is what is read of a partition: from next on, up to the end that it had when it was asked for.
type Span struct {
	Partition
	Lead       Lead
	First, End int64 // offset of the oldest record, and behind the newest that all in-sync replicas have
	Known      bool  // lead, first and end are
	Next       int64 // offset to go on with
	Each       func(*kproto.Record) error
	AfterFetch func() error // nil, or called behind the records of each answer, where Next and Last are behind them, too

	VerifyLast bool // what was read last must still be there
	Last       protocol.BatchID
	verified   bool // it was, a request ago
}

func (s *Span) hasRemaining() bool { return s.Next < s.End }

// mustVerifyLast says whether the batch before next is read once more, to see that it is last. An answer may have room for that one
// only, so the next request is about what is behind it.
func (s *Span) mustVerifyLast() bool { return s.VerifyLast && !s.verified && s.Next > s.First }

// ReadSpans calls the function of each span for its records, side by side for spans of different brokers. It asks each broker for
// many partitions at once. An offset that a partition does not have means its oldest record. No partition is in two spans.
// What a function returns ends it, and is returned as it is. That one broker of several is away is an ordinary error.
func (c *Cluster) ReadSpans(ctx context.Context, spans []*Span) error {
	for try := 1; ; try++ {
		err := c.readOnce(ctx, spans)
		var said *CallbackError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &said):
			return said.Err
		case errors.Is(err, kafka.TopicAuthorizationFailed):
			return fmt.Errorf("no right to read a topic, which tells what it holds: grant READ on it: %w", err)
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return c.SinkError(ctx, "", err)
		case ctx.Err() != nil:
			return ctx.Err()
		case try == maxReadTries:
			return err
		}
		for _, one := range spans {
			one.Known = one.Known && !one.hasRemaining() // who leads it may be another one now
		}
	}
}

// CallbackError is what the function of a span said.
type CallbackError struct{ Err error }

func (e *CallbackError) Error() string { return e.Err.Error() }

// readOnce reads what is left of spans.
func (c *Cluster) readOnce(ctx context.Context, spans []*Span) error {
	unknown := slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Known })
	byLeader, err := c.groupByLeader(ctx, unknown)
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
	if err := c.QueryExtents(ctx, broker, all); err != nil {
		return err
	}
	for _, s := range all {
		if s.Known = true; s.Next < s.First || s.Next > s.End {
			s.Next = s.First
		}
	}
	return c.FetchSpans(ctx, broker, all)
}

// groupByLeader asks who leads the partitions of spans.
func (c *Cluster) groupByLeader(ctx context.Context, spans []*Span) (byLeader map[int32][]*Span, err error) {
	topics := make([]string, 0, len(spans))
	for _, s := range spans {
		topics = append(topics, s.Topic)
	}
	slices.Sort(topics)
	found, _, err := c.DescribeTopics(ctx, slices.Compact(topics))
	if err != nil { // no broker answers, and not only one
		return nil, c.SinkError(ctx, "", err)
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
	latestOffset   = -1 // up to where all in-sync replicas have the log
	earliestOffset = -2
)

// QueryExtents asks the leader of some partitions where they begin and end. A leader that does not know the end yet, as it is
// new, says so (KIP-207).
func (c *Cluster) QueryExtents(ctx context.Context, leader int32, spans []*Span) error {
	if err := c.listOffsets(ctx, leader, spans, earliestOffset, func(s *Span, at int64) { s.First = at }); err != nil {
		return err
	}
	return c.listOffsets(ctx, leader, spans, latestOffset, func(s *Span, at int64) { s.End = at })
}

// QueryExtent is extents for a partition alone.
func (c *Cluster) QueryExtent(ctx context.Context, by Lead, p Partition) (first, end int64, err error) {
	one := Span{Partition: p, Lead: by}
	err = c.QueryExtents(ctx, by.Broker, []*Span{&one})
	return one.First, one.End, err
}

// HighWatermark asks the leader of a partition for the offset behind the newest record that all in-sync replicas have.
func (c *Cluster) HighWatermark(ctx context.Context, by Lead, p Partition) (end int64, err error) {
	err = c.listOffsets(ctx, by.Broker, []*Span{{Partition: p, Lead: by}}, latestOffset, func(_ *Span, at int64) { end = at })
	return end, err
}

func (c *Cluster) listOffsets(ctx context.Context, leader int32, spans []*Span, which int64, is func(*Span, int64)) error {
	for chunk := range slices.Chunk(spans, maxPartitionsPerRequest) {
		request, of := &listoffsets.Request{ReplicaID: -1}, spansByPartition(chunk)
		for topic, all := range spansByTopic(chunk) {
			t := listoffsets.RequestTopic{Topic: topic}
			for _, s := range all {
				t.Partitions = append(t.Partitions, listoffsets.RequestPartition{Partition: s.Index, CurrentLeaderEpoch: s.Lead.Epoch, Timestamp: which})
			}
			request.Topics = append(request.Topics, t)
		}
		answer, err := c.request(ctx, leader, request)
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

func spansByPartition(spans []*Span) map[Partition]*Span {
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

// FetchSpans reads what is left of spans whose partitions one broker leads.
func (c *Cluster) FetchSpans(ctx context.Context, leader int32, spans []*Span) error {
	for {
		spans = slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return !s.hasRemaining() })
		if len(spans) == 0 {
			return nil
		}
		progress, err := c.fetchOnce(ctx, leader, spans[:min(len(spans), maxPartitionsPerRequest)])
		if err == nil && !progress {
			err = protocol.ErrMalformed
		}
		if err != nil {
			return err
		}
	}
}

// fetchOnce reads once, and says whether that brought anything.
func (c *Cluster) fetchOnce(ctx context.Context, leader int32, spans []*Span) (progress bool, err error) {
	request, of := kmsg.NewPtrFetchRequest(), spansByPartition(spans)
	request.SetVersion(11) // KIP-392: of Kafka 2.3
	request.MinBytes, request.MaxBytes = 1, maxFetchBytes
	for topic, all := range spansByTopic(spans) {
		t := kmsg.NewFetchRequestTopic()
		t.Topic = topic
		for _, s := range all {
			p := kmsg.NewFetchRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.PartitionMaxBytes, p.FetchOffset = s.Index, s.Lead.Epoch, maxFetchBytes, s.Next
			if s.mustVerifyLast() {
				p.FetchOffset--
			}
			t.Partitions = append(t.Partitions, p)
		}
		request.Topics = append(request.Topics, t)
	}
	answer, err := requestForeign[*kmsg.FetchResponse](ctx, c, leader, forReading, request)
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
			before, confirmed := s.Next, s.verified
			if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			if err := s.consumeBatches(protocol.Batches(p.RecordBatches)); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			progress = progress || s.Next > before || s.verified && !confirmed
		}
	}
	return progress, nil
}

// consumeBatches calls the function of the span for records. What it was called for counts as read, whatever it returned.
func (s *Span) consumeBatches(records protocol.Batches) error {
	looked := s.mustVerifyLast() && len(records) > 0
	if looked && records.BatchAt(s.Next-1) != s.Last {
		return ErrRecreated
	}
	s.verified = looked
	next, err := records.EachRecord(s.Next, func(r *kproto.Record) error {
		s.Next = r.Offset + 1
		if err := s.Each(r); err != nil {
			return &CallbackError{err}
		}
		return nil
	})
	if s.Next = max(s.Next, next); err == nil && len(records) > 0 {
		s.Last = records.BatchAt(s.Next - 1)
	}
	if err == nil && s.AfterFetch != nil {
		if err := s.AfterFetch(); err != nil {
			return &CallbackError{err}
		}
	}
	return err
}
