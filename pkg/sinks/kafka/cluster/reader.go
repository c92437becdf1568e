package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
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
	Shape      TopicShape       // as the broker that named the leader knows it; zero: unknown
	First, End int64            // the oldest offset, and the high watermark (KIP-101: all in-sync replicas have everything below it)
	Known      bool             // Lead, First and End are set
	Next       int64            // offset of the next record
	Until      int64            // if it is above 0, the read ends when a response has reached this offset
	NextIn     protocol.TopicID // the topic of Next: of another topic of the name, everything is read. Zero: any
	AskedEpoch int32            // see QueryEpochEnds
	EpochEnd   int64            // as well; -1 if the leader knows no epoch up to that
	Err        error            // why the last call could not query or read the partition; nil if it could

	// Each is called for every record. An error ends the read; the record counts as read all the same.
	Each func(*protocol.Record) error
	// Producers are the producer IDs whose records are read, nil for all: the batches of others are not even decompressed.
	Producers map[int64]bool
	// AfterFetch, if not nil, is called after the records of each response, when Next and Last are up to date.
	AfterFetch func() error

	// VerifyLast makes the first fetch include the batch before Next. Unless that is Last, the read ends with ErrRecreated.
	VerifyLast bool
	Last       protocol.BatchID
	Origin     protocol.Origin // of the last batch that was read
	verified   bool            // by the previous fetch
}

func (s *Span) hasRemaining() bool { return s.Next < s.End && (s.Until <= 0 || s.Next < s.Until) }

// mustVerifyLast reports whether the next fetch has to begin with the batch before Next. The response may have room for that
// one only, so the fetch after it begins at Next.
func (s *Span) mustVerifyLast() bool { return s.VerifyLast && !s.verified && s.Next > s.First }

// Reader reads offsets and records of partitions. It asks each broker for many partitions in one request. It is safe for
// concurrent use.
type Reader struct {
	cluster *Cluster
	timeout time.Duration // of one request to a leader; 0: the cluster's
}

// NewReader returns a reader that uses the connections of c.
func NewReader(c *Cluster) *Reader { return &Reader{cluster: c} }

// WithTimeout returns a reader that waits at most so long for each answer of a leader.
func (r *Reader) WithTimeout(d time.Duration) *Reader { return &Reader{r.cluster, d} }

// ReadSpans finds the leaders and extents of spans and reads them to their ends, those of different brokers concurrently. A
// Next outside the partition is set to its oldest record. Each partition may be in one span only. A partition that cannot be
// read has the reason in Err, and so have all partitions of a broker that does not answer; the others are read. An error of
// a callback is returned as it is; any other returned error concerns all: no broker answers, or ctx has ended.
func (r *Reader) ReadSpans(ctx context.Context, spans []*Span) error {
	return r.askLeaders(ctx, spans, r.readFrom)
}

// QueryEnds sets Lead and End of spans. It finds the leaders and reports errors as ReadSpans does.
func (r *Reader) QueryEnds(ctx context.Context, spans []*Span) error {
	return r.askLeaders(ctx, spans, func(ctx context.Context, leader int32, all []*Span) error {
		return r.listOffsets(ctx, leader, all, latestOffset, func(s *Span, at int64) { s.End = at })
	})
}

// QueryAll sets Lead, First and End of spans. It finds the leaders and reports errors as ReadSpans does.
func (r *Reader) QueryAll(ctx context.Context, spans []*Span) error {
	return r.askLeaders(ctx, spans, r.QueryExtents)
}

// askLeaders calls ask for the spans of each leader, concurrently, and again for those that failed: their leaders may have
// moved. A leader that does not answer in time is not asked again. ask sets the Err of spans; it returns errors too, of
// which those of callbacks count.
func (r *Reader) askLeaders(ctx context.Context, spans []*Span, ask func(context.Context, int32, []*Span) error) error {
	for try := 1; ; try++ {
		err := r.askLeadersOnce(ctx, spans, ask)
		var callback *CallbackError
		switch {
		case errors.As(err, &callback):
			return callback.Err
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return err
		}
		var again []*Span
		for _, s := range spans {
			switch {
			case s.Err == nil:
			case errors.Is(s.Err, kafka.TopicAuthorizationFailed):
				s.Err = condition.Problem{
					Code: condition.SinkUnauthorized, Cause: fmt.Sprintf("no right to read the records of topic %q", s.Topic),
					Remedy: "grant READ on it",
				}.Wrap(s.Err)
			case protocol.ClassifyError(s.Err) == protocol.Unauthorized:
				s.Err = r.cluster.SinkError(ctx, "", s.Err)
			case !IsTimeout(s.Err) && try < maxReadTries:
				s.Known = s.Known && !s.hasRemaining()
				again = append(again, s)
			}
		}
		if spans = again; len(spans) == 0 {
			return nil
		}
	}
}

// CallbackError is an error that a callback of a [Span] has returned.
type CallbackError struct{ Err error }

func (e *CallbackError) Error() string { return e.Err.Error() }

// askLeadersOnce is askLeaders without a second attempt. The error is of a callback, or that no broker answers.
func (r *Reader) askLeadersOnce(ctx context.Context, spans []*Span, ask func(context.Context, int32, []*Span) error) (err error) {
	for _, s := range spans {
		s.Err = nil
	}
	unknown := slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Known })
	byLeader, err := r.groupByLeader(ctx, unknown)
	if err != nil {
		return err
	}
	ended := make(chan error)
	for broker, all := range byLeader {
		go func() { ended <- ask(ctx, broker, all) }()
	}
	for range byLeader {
		if one := <-ended; errors.As(one, new(*CallbackError)) {
			err = one
		}
	}
	return err
}

// readFrom reads spans of partitions that one broker leads.
func (r *Reader) readFrom(ctx context.Context, broker int32, all []*Span) error {
	_ = r.QueryExtents(ctx, broker, all) // the spans have the errors
	all = slices.DeleteFunc(slices.Clone(all), func(s *Span) bool { return s.Err != nil })
	for _, s := range all {
		if s.Known = true; s.Next < s.First || s.Next > s.End {
			s.Next = s.First
		}
	}
	return r.FetchSpans(ctx, broker, all)
}

// groupByLeader sets the leaders of spans and groups the spans by them. Its error is that no broker of the cluster answers.
func (r *Reader) groupByLeader(ctx context.Context, spans []*Span) (byLeader map[int32][]*Span, err error) {
	found, _, err := r.cluster.DescribeTopics(ctx, slices.Sorted(maps.Keys(spansByTopic(spans))))
	if err != nil {
		return nil, r.cluster.SinkError(ctx, "", err)
	}
	byLeader = map[int32][]*Span{}
	for _, s := range spans {
		if of := found[s.Topic]; of != nil {
			s.Shape = TopicShape{of.ID, len(of.Leads)}
			if none := (protocol.TopicID{}); s.NextIn != none && of.ID != none && s.NextIn != of.ID { // it was recreated
				s.Next, s.NextIn = 0, of.ID
			}
		}
		if s.Lead, err = found[s.Topic].Lead(s.Index); err != nil {
			s.Err = fmt.Errorf("reading %s: %w", s.Partition, err)
			continue
		}
		byLeader[s.Lead.Broker] = append(byLeader[s.Lead.Broker], s)
	}
	return byLeader, nil
}

// limitRequest bounds the wait for one answer of a leader.
func (r *Reader) limitRequest(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, r.timeout)
}

// failSpans records an error of all spans, and returns it.
func failSpans(spans []*Span, err error) error {
	for _, s := range spans {
		s.Err = err
	}
	return err
}

// Special timestamps of a ListOffsets request (KIP-79).
const (
	latestOffset   = -1 // the high watermark
	earliestOffset = -2
)

// QueryExtents sets First and End of spans to partitions of one leader, or their Err; it returns one of the errors. A new
// leader that does not know its high watermark yet returns an error (KIP-207).
func (r *Reader) QueryExtents(ctx context.Context, leader int32, spans []*Span) error {
	err := r.listOffsets(ctx, leader, spans, earliestOffset, func(s *Span, at int64) { s.First = at })
	rest := slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Err != nil })
	return cmp.Or(err, r.listOffsets(ctx, leader, rest, latestOffset, func(s *Span, at int64) { s.End = at }))
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

// listOffsets calls set with the offset that each partition has for a timestamp, or sets its Err. It returns one of the
// errors.
func (r *Reader) listOffsets(ctx context.Context, leader int32, spans []*Span, timestamp int64, set func(*Span, int64)) (err error) {
	for chunk := range slices.Chunk(spans, maxPartitionsPerRequest) {
		limited, cancel := r.limitRequest(ctx)
		answer, failed := newListOffsetsRequest(chunk, timestamp).RequestWith(limited, r.cluster.to(leader))
		cancel()
		if failed != nil {
			return failSpans(spans, failed) // an answer to an earlier chunk is queried again
		}
		err = cmp.Or(err, readOffsets(answer, chunk, set))
	}
	return err
}

func newListOffsetsRequest(spans []*Span, timestamp int64) *kmsg.ListOffsetsRequest {
	request := kmsg.NewPtrListOffsetsRequest()
	for topic, all := range spansByTopic(spans) {
		t := kmsg.ListOffsetsRequestTopic{Topic: topic}
		for _, s := range all {
			t.Partitions = append(t.Partitions, kmsg.ListOffsetsRequestTopicPartition{Partition: s.Index, CurrentLeaderEpoch: s.Lead.Epoch, Timestamp: timestamp})
		}
		request.Topics = append(request.Topics, t)
	}
	return request
}

// readOffsets calls set for each span, or sets its Err. It returns one of the errors. A response that has others, or not all
// of them, is malformed.
func readOffsets(answer *kmsg.ListOffsetsResponse, spans []*Span, set func(*Span, int64)) (err error) {
	unanswered := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := unanswered[Partition{t.Topic, p.Partition}]
			if s == nil {
				return failSpans(spans, protocol.ErrMalformed)
			}
			delete(unanswered, s.Partition)
			if code := protocol.CodeError(p.ErrorCode, nil); code != nil {
				s.Err = fmt.Errorf("reading %s: %w", s.Partition, code)
				err = s.Err
				continue
			}
			set(s, p.Offset)
		}
	}
	if len(unanswered) > 0 {
		return failSpans(spans, protocol.ErrMalformed)
	}
	return err
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

// FetchSpans reads spans to partitions of one leader; their Next and extents are set. It does not retry. It returns an error
// of a callback as a *CallbackError, and otherwise one of the errors in Err.
func (r *Reader) FetchSpans(ctx context.Context, leader int32, spans []*Span) (err error) {
	for {
		spans = slices.DeleteFunc(slices.Clone(spans), func(s *Span) bool { return s.Err != nil || !s.hasRemaining() })
		if len(spans) == 0 {
			return err
		}
		asked := spans[:min(len(spans), maxPartitionsPerRequest)]
		progress, failed := r.fetchOnce(ctx, leader, asked)
		switch {
		case errors.As(failed, new(*CallbackError)):
			return failed
		case failed == nil && !progress:
			failed = failSpans(asked, protocol.ErrMalformed)
		}
		err = cmp.Or(err, failed)
	}
}

// fetchOnce sends one fetch request and reports whether some span has advanced or failed. It returns an error of a callback,
// or one of the errors in Err.
func (r *Reader) fetchOnce(ctx context.Context, leader int32, spans []*Span) (progress bool, err error) {
	limited, cancel := r.limitRequest(ctx)
	answer, err := newFetchRequest(spans).RequestWith(limited, requestor{r.cluster, leader, forReading})
	cancel()
	if err == nil {
		err = protocol.CodeError(answer.ErrorCode, nil)
	}
	if err != nil {
		return true, failSpans(spans, err)
	}
	progress = answer.ThrottleMillis > 0 // then the response may be empty, and the next request waits
	requested := spansByPartition(spans)
	for _, t := range answer.Topics {
		for _, p := range t.Partitions {
			s := requested[Partition{t.Topic, p.Partition}]
			if s == nil {
				return true, failSpans(spans, protocol.ErrMalformed)
			}
			next, verified := s.Next, s.verified
			failed := protocol.CodeError(p.ErrorCode, nil)
			if failed == nil {
				failed = s.consumeBatches(protocol.Batches(p.RecordBatches))
			}
			switch {
			case errors.As(failed, new(*CallbackError)):
				return true, failed
			case failed != nil:
				s.Err = fmt.Errorf("reading %s: %w", s.Partition, failed)
				err = cmp.Or(err, s.Err)
			}
			progress = progress || s.Next > next || s.verified && !verified || s.Err != nil
		}
	}
	return progress, err
}

func newFetchRequest(spans []*Span) *kmsg.FetchRequest {
	request := kmsg.NewPtrFetchRequest()
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

func (s *Span) consumeBatches(batches protocol.Batches) error {
	verify := s.mustVerifyLast() && len(batches) > 0
	if verify && batches.BatchAt(s.Next-1) != s.Last {
		return ErrRecreated
	}
	s.verified = verify
	next, err := batches.EachRecord(s.Next, s.Producers, func(r *protocol.Record) error {
		s.Next = r.Offset + 1
		if err := s.Each(r); err != nil {
			return &CallbackError{err}
		}
		return nil
	})
	if s.Next = max(s.Next, next); err == nil && len(batches) > 0 {
		s.Last = batches.BatchAt(s.Next - 1)
		s.Origin, _ = batches.OriginAt(s.Next - 1)
	}
	if err == nil && s.AfterFetch != nil {
		if err := s.AfterFetch(); err != nil {
			return &CallbackError{err}
		}
	}
	return err
}
