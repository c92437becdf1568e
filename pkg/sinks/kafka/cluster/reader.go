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
	maxFetchBytes           = 4 << 20 // of one fetch response, approximately
	maxPartitionsPerRequest = 1000
	maxReadTries            = 3
)

// ErrRecreated means that the batch that was read last is no longer in the partition.
var ErrRecreated = errors.New("the partition was recreated")

// Span is the part of a partition that is read: from Next to the end that the partition had when its extent was queried. One
// read uses it at a time.
type Span struct {
	Partition
	Lead       Lead
	First, End int64 // the oldest offset, and the high watermark (KIP-101: all in-sync replicas have everything below it)
	Known      bool  // Lead, First and End are set
	Next       int64 // offset of the next record

	// Each is called for every record. An error ends the read; the record counts as read all the same.
	Each func(*kproto.Record) error
	// Producers are the producer IDs whose records are read, nil for all: the batches of others are not even decompressed.
	Producers map[int64]bool
	// AfterFetch, if not nil, is called after the records of each response, when Next and Last are up to date.
	AfterFetch func() error

	// VerifyLast makes the first fetch include the batch before Next. Unless that is Last, the read ends with ErrRecreated.
	VerifyLast bool
	Last       protocol.BatchID
	verified   bool // by the previous fetch
}

func (s *Span) hasRemaining() bool { return s.Next < s.End }

// mustVerifyLast reports whether the next fetch has to begin with the batch before Next. The response may have room for that
// one only, so the fetch after it begins at Next.
func (s *Span) mustVerifyLast() bool { return s.VerifyLast && !s.verified && s.Next > s.First }

// Reader reads offsets and records of partitions. It asks each broker for many partitions in one request. It is safe for
// concurrent use.
type Reader struct{ cluster *Cluster }

// NewReader returns a reader that uses the connections of c.
func NewReader(c *Cluster) *Reader { return &Reader{c} }

// ReadSpans finds the leaders and extents of spans and reads them to their ends, those of different brokers concurrently. A
// Next outside the partition is set to its oldest record. Each partition may be in one span only. An error of a callback is
// returned as it is. An unreachable broker is an ordinary error unless no broker answers at all.
func (r *Reader) ReadSpans(ctx context.Context, spans []*Span) error {
	for try := 1; ; try++ {
		err := r.readOnce(ctx, spans)
		var callback *CallbackError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &callback):
			return callback.Err
		case errors.Is(err, kafka.TopicAuthorizationFailed):
			return fmt.Errorf("no right to read the records of a topic: grant READ on it: %w", err)
		case protocol.ClassifyError(err) == protocol.Unauthorized:
			return r.cluster.SinkError(ctx, "", err)
		case ctx.Err() != nil:
			return ctx.Err()
		case try == maxReadTries:
			return err
		}
		for _, one := range spans {
			one.Known = one.Known && !one.hasRemaining() // its leader may have moved
		}
	}
}

// CallbackError is an error that a callback of a [Span] has returned.
type CallbackError struct{ Err error }

func (e *CallbackError) Error() string { return e.Err.Error() }

// readOnce reads spans without a second attempt.
func (r *Reader) readOnce(ctx context.Context, spans []*Span) error {
	unknown := slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Known })
	byLeader, err := r.groupByLeader(ctx, unknown)
	if err != nil {
		return err
	}
	ended := make(chan error)
	for broker, all := range byLeader {
		go func() { ended <- r.readFrom(ctx, broker, all) }()
	}
	for range byLeader {
		err = errors.Join(err, <-ended)
	}
	return err
}

// readFrom reads spans of partitions that one broker leads.
func (r *Reader) readFrom(ctx context.Context, broker int32, all []*Span) error {
	if err := r.QueryExtents(ctx, broker, all); err != nil {
		return err
	}
	for _, s := range all {
		if s.Known = true; s.Next < s.First || s.Next > s.End {
			s.Next = s.First
		}
	}
	return r.FetchSpans(ctx, broker, all)
}

// groupByLeader sets the leaders of spans and groups the spans by them.
func (r *Reader) groupByLeader(ctx context.Context, spans []*Span) (byLeader map[int32][]*Span, err error) {
	topics := make([]string, 0, len(spans))
	for _, s := range spans {
		topics = append(topics, s.Topic)
	}
	slices.Sort(topics)
	found, _, err := r.cluster.DescribeTopics(ctx, slices.Compact(topics))
	if err != nil { // no broker of the cluster answers
		return nil, r.cluster.SinkError(ctx, "", err)
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

// Special timestamps of a ListOffsets request (KIP-79).
const (
	latestOffset   = -1 // the high watermark
	earliestOffset = -2
)

// QueryExtents sets First and End of spans to partitions of one leader. A new leader that does not know its high watermark
// yet returns an error (KIP-207).
func (r *Reader) QueryExtents(ctx context.Context, leader int32, spans []*Span) error {
	if err := r.listOffsets(ctx, leader, spans, earliestOffset, func(s *Span, at int64) { s.First = at }); err != nil {
		return err
	}
	return r.listOffsets(ctx, leader, spans, latestOffset, func(s *Span, at int64) { s.End = at })
}

// QueryExtent is QueryExtents for one partition.
func (r *Reader) QueryExtent(ctx context.Context, by Lead, p Partition) (first, end int64, err error) {
	one := Span{Partition: p, Lead: by}
	err = r.QueryExtents(ctx, by.Broker, []*Span{&one})
	return one.First, one.End, err
}

// HighWatermark asks the leader of a partition for the offset below which all in-sync replicas have all records.
func (r *Reader) HighWatermark(ctx context.Context, by Lead, p Partition) (end int64, err error) {
	err = r.listOffsets(ctx, by.Broker, []*Span{{Partition: p, Lead: by}}, latestOffset, func(_ *Span, at int64) { end = at })
	return end, err
}

// listOffsets calls set with the offset that each partition has for a timestamp.
func (r *Reader) listOffsets(ctx context.Context, leader int32, spans []*Span, timestamp int64, set func(*Span, int64)) error {
	for chunk := range slices.Chunk(spans, maxPartitionsPerRequest) {
		answer, err := r.cluster.request(ctx, leader, newListOffsetsRequest(chunk, timestamp))
		if err != nil {
			return err
		}
		if err := readOffsets(answer.(*listoffsets.Response), chunk, set); err != nil {
			return err
		}
	}
	return nil
}

func newListOffsetsRequest(spans []*Span, timestamp int64) *listoffsets.Request {
	request := &listoffsets.Request{ReplicaID: -1}
	for topic, all := range spansByTopic(spans) {
		t := listoffsets.RequestTopic{Topic: topic}
		for _, s := range all {
			t.Partitions = append(t.Partitions, listoffsets.RequestPartition{Partition: s.Index, CurrentLeaderEpoch: s.Lead.Epoch, Timestamp: timestamp})
		}
		request.Topics = append(request.Topics, t)
	}
	return request
}

// readOffsets calls set for each span. A response that has others, or not all of them, is malformed.
func readOffsets(answer *listoffsets.Response, spans []*Span, set func(*Span, int64)) error {
	unanswered := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := unanswered[Partition{t.Topic, p.Partition}]
			if s == nil {
				return protocol.ErrMalformed
			}
			if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
				return fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			set(s, p.Offset)
			delete(unanswered, s.Partition)
		}
	}
	if len(unanswered) > 0 {
		return protocol.ErrMalformed
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

// FetchSpans reads spans to partitions of one leader; their Next and extents are set. It does not retry, and returns an
// error of a callback as a *CallbackError.
func (r *Reader) FetchSpans(ctx context.Context, leader int32, spans []*Span) error {
	for {
		spans = slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return !s.hasRemaining() })
		if len(spans) == 0 {
			return nil
		}
		progress, err := r.fetchOnce(ctx, leader, spans[:min(len(spans), maxPartitionsPerRequest)])
		if err == nil && !progress {
			err = protocol.ErrMalformed
		}
		if err != nil {
			return err
		}
	}
}

// fetchOnce sends one fetch request and reports whether some span has advanced.
func (r *Reader) fetchOnce(ctx context.Context, leader int32, spans []*Span) (progress bool, err error) {
	answer, err := requestForeign[*kmsg.FetchResponse](ctx, r.cluster, leader, forReading, newFetchRequest(spans))
	if err == nil {
		err = protocol.CodeError(answer.ErrorCode, "")
	}
	if err != nil {
		return false, err
	}
	progress = answer.ThrottleMillis > 0 // then the response may be empty, and the next request waits
	requested := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := requested[Partition{t.Topic, p.Partition}]
			if s == nil {
				return progress, protocol.ErrMalformed
			}
			next, verified := s.Next, s.verified
			if err := protocol.CodeError(p.ErrorCode, ""); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			if err := s.consumeBatches(protocol.Batches(p.RecordBatches)); err != nil {
				return progress, fmt.Errorf("reading %s: %w", s.Partition, err)
			}
			progress = progress || s.Next > next || s.verified && !verified
		}
	}
	return progress, nil
}

func newFetchRequest(spans []*Span) *kmsg.FetchRequest {
	request := kmsg.NewPtrFetchRequest()
	request.SetVersion(11) // Kafka 2.3 (KIP-392): the newest version that every supported broker has
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
	return request
}

// consumeBatches calls the callbacks for the batches of one response.
func (s *Span) consumeBatches(batches protocol.Batches) error {
	verify := s.mustVerifyLast() && len(batches) > 0
	if verify && batches.BatchAt(s.Next-1) != s.Last {
		return ErrRecreated
	}
	s.verified = verify
	next, err := batches.EachRecord(s.Next, s.Producers, func(r *kproto.Record) error {
		s.Next = r.Offset + 1
		if err := s.Each(r); err != nil {
			return &CallbackError{err}
		}
		return nil
	})
	if s.Next = max(s.Next, next); err == nil && len(batches) > 0 {
		s.Last = batches.BatchAt(s.Next - 1)
	}
	if err == nil && s.AfterFetch != nil {
		if err := s.AfterFetch(); err != nil {
			return &CallbackError{err}
		}
	}
	return err
}
