package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/createtopics"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// followAtLeast is how old what was read may be for the rest to be read from there: a compacted topic forgets that a key
	// was removed after a day (delete.retention.ms).
	followAtLeast = 12 * time.Hour
	// purgeCheck is how often the owner looks whether somebody has removed the oldest records.
	purgeCheck = 30 * time.Second
	// tries is how often one Write sends a batch before the rest is left to the caller's back-off.
	tries = 5
	pause = 200 * time.Millisecond // between two of them
)

// topic is how the topic of a state is made. Segments are small, so that what is not compacted yet is read in a second.
var topic = createtopics.RequestTopic{NumPartitions: 1, Configs: []createtopics.RequestConfig{
	{Name: "cleanup.policy", Value: "compact"}, {Name: "segment.bytes", Value: "67108864"},
	{Name: "min.cleanable.dirty.ratio", Value: "0.3"}, {Name: "max.message.bytes", Value: "2097152"},
}}

// Store is [sinks.StateStore] in a compacted topic of one partition. It has the connections of somebody else.
type Store struct {
	cluster  *cluster.Cluster
	log      *slog.Logger
	replicas int // of a topic that is made; 0 takes the default of the brokers
	place    cluster.Partition
	encoder  *record.Encoder
	reading  *cluster.Span // how far it was read; nil: it is read from the beginning
	readAt   time.Time     // without its monotonic part
	owned    bool          // by this process, as far as it knows
	id       *cluster.Transactional
	own      cluster.Numbers
	sequence int32 // of the next batch
	kept     time.Time
	sent     *batch // what was sent and is in doubt; nil: nothing is

	first   int64 // offset of the oldest record
	end     int64 // behind our newest record
	checked time.Time
}

type batch struct {
	bytes []byte
	count int
}

// New returns the store of the state in a topic. The caller has checked the name.
func New(c *cluster.Cluster, name string, replicas int, log *slog.Logger) (*Store, error) {
	encoder, err := record.NewEncoder(format.JSON, false, record.Codecs["zstd"])
	if err != nil {
		return nil, err
	}
	return &Store{cluster: c, log: log, replicas: replicas, place: cluster.Partition{Topic: name}, encoder: encoder}, nil
}

// lead asks who leads the topic.
func (s *Store) lead(ctx context.Context) (cluster.Lead, error) {
	found, _, err := s.cluster.Describe(ctx, s.place.Topic)
	if err != nil {
		return cluster.Lead{}, err
	}
	if len(found.Leads) != 1 {
		return cluster.Lead{}, fmt.Errorf("it has %d partitions; the order of a state needs exactly one: delete the topic, or name another one in state.name", len(found.Leads))
	}
	return found.Lead(0)
}

// Read is [sinks.StateStore.Read].
func (s *Store) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	by, err := s.lead(ctx)
	before := s.reading
	if errors.Is(err, kafka.UnknownTopicOrPartition) && !s.owned {
		s.reading = nil
		return before != nil, nil
	}
	now := &cluster.Span{Partition: s.place, Lead: by, Identified: true, Each: func(r *kproto.Record) error {
		entry, err := entryOf(r)
		if err != nil {
			return err
		}
		return each(entry)
	}}
	if err == nil {
		err = s.cluster.Extents(ctx, by.Broker, []*cluster.Span{now})
	}
	if err != nil {
		return false, s.unreadable(ctx, err)
	}
	switch {
	case before == nil:
		now.Next = now.First
	case now.First != before.First || now.End < before.Next || by.Epoch < before.Lead.Epoch || time.Now().Round(0).Sub(s.readAt) > followAtLeast:
		s.reading = nil
		return true, nil
	default:
		now.Next, now.Last = before.Next, before.Last
	}
	s.reading, s.readAt = now, time.Now().Round(0)
	err = s.cluster.Fill(ctx, by.Broker, []*cluster.Span{now})
	var said *cluster.CallerError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &said): // what was read of the batch is read again
		s.reading = nil
		return false, said.Err
	case errors.Is(err, cluster.ErrMadeAnew):
		s.reading = nil
		return true, nil
	}
	return false, s.unreadable(ctx, err)
}

func entryOf(r *kproto.Record) (e sinks.StateEntry, err error) {
	if e.Key, err = protocol.Bytes(r.Key); err != nil {
		return e, err
	}
	e.Value, err = protocol.Bytes(r.Value)
	return e, err
}

func (s *Store) unreadable(ctx context.Context, err error) error {
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		return fmt.Errorf("the state in topic %q cannot be read: grant READ and DESCRIBE on it: %w", s.place.Topic, err)
	}
	return fmt.Errorf("the state in topic %q cannot be read: %w", s.place.Topic, s.cluster.Explain(ctx, s.place.Topic, err))
}

// Claim is [sinks.StateStore.Claim]: the transactional ID of the group and the topic is taken over, and the partition told.
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	if err := s.ensure(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.place.Topic, err)
	}
	s.id = s.cluster.Transactional(cluster.TransactionalID(claim.Group, "state", s.place.Topic))
	own, gone, err := s.id.Fence(ctx, cluster.Nobody, []cluster.Partition{s.place})
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return fmt.Errorf("the state in topic %q: the brokers have not heard of it yet", s.place.Topic)
	}
	by, err := s.lead(ctx)
	if err == nil {
		s.first, s.end, err = s.cluster.Extent(ctx, by, s.place)
	}
	if err != nil {
		return s.unreadable(ctx, err)
	}
	s.own, s.sequence, s.sent, s.owned = own, 0, nil, true
	s.kept, s.checked = time.Now().Round(0), time.Now()
	return nil
}

// ensure makes the topic if there is none, and looks whether it keeps what is written.
func (s *Store) ensure(ctx context.Context) error {
	_, controller, err := s.cluster.Describe(ctx, s.place.Topic)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		how := topic
		how.Name, how.ReplicationFactor = s.place.Topic, -1
		if s.replicas > 0 {
			how.ReplicationFactor = int16(s.replicas)
		}
		if _, err := s.cluster.Create(ctx, controller, how); err != nil {
			return fmt.Errorf("it does not exist and cannot be made: %w; create it by hand with one partition and cleanup.policy=compact, or grant CREATE on it", err)
		}
		return nil
	}
	if err != nil {
		return s.cluster.Explain(ctx, s.place.Topic, err)
	}
	settings, err := s.cluster.Settings(ctx, s.place.Topic)
	switch policy := settings["cleanup.policy"]; {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		s.log.Warn("the topic of the state is used unchecked", "topic", s.place.Topic, "why", "grant DESCRIBE_CONFIGS on it; it must have cleanup.policy=compact")
	case err != nil:
		return s.cluster.Explain(ctx, s.place.Topic, err)
	case !strings.Contains(policy, "compact") || strings.Contains(policy, "delete"):
		return fmt.Errorf("it has cleanup.policy=%s, and would forget: set it to compact", policy)
	}
	return nil
}

// Write is [sinks.StateStore.Write].
func (s *Store) Write(ctx context.Context, entries []sinks.StateEntry) error {
	if !s.owned {
		return &sinks.DeposedError{Reason: fmt.Sprintf("the state in topic %q is not claimed", s.place.Topic)}
	}
	err := s.write(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) {
		s.owned = false
	}
	return err
}

func (s *Store) write(ctx context.Context, entries []sinks.StateEntry) error {
	if s.sent != nil { // it comes before anything newer, or a broker takes that for a copy of it
		if err := s.send(ctx); err != nil && protocol.ClassifyError(err) != protocol.TooLarge {
			return err
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	b, err := s.encoder.EncodeEntries(nil, entries, s.numbers())
	if err != nil {
		return err
	}
	s.sent = &batch{b, len(entries)}
	err = s.send(ctx)
	if protocol.ClassifyError(err) != protocol.TooLarge {
		return err
	}
	if len(entries) == 1 {
		return fmt.Errorf("an entry of %d bytes exceeds max.message.bytes of topic %q: set it to 2097152: %w", len(b), s.place.Topic, err)
	}
	half := len(entries) / 2
	if err := s.write(ctx, entries[:half]); err != nil {
		return err
	}
	return s.write(ctx, entries[half:])
}

func (s *Store) numbers() record.ProducerSequence {
	return record.ProducerSequence{Producer: s.own.Producer, Epoch: s.own.Epoch, Sequence: s.sequence}
}

// look does now and then what an owner has to: it keeps the transactional ID from expiring, and looks for what others
// removed.
func (s *Store) look(ctx context.Context) error {
	if time.Now().Round(0).Sub(s.kept) > cluster.KeepEvery {
		if err := s.renew(func() (cluster.Numbers, error) { return s.id.Init(ctx, s.own) }); err != nil {
			return err
		}
	}
	if time.Since(s.checked) < purgeCheck {
		return nil
	}
	by, err := s.lead(ctx)
	if err != nil {
		return s.unwritable(ctx, err)
	}
	first, _, err := s.cluster.Extent(ctx, by, s.place)
	if err != nil {
		return s.unwritable(ctx, err)
	}
	s.checked = time.Now()
	if first != s.first {
		s.first = first
		return s.lost("somebody has removed its oldest records")
	}
	return nil
}

// renew begins a newer epoch, in which numbers begin at 0.
func (s *Store) renew(ask func() (cluster.Numbers, error)) error {
	own, err := ask()
	if err != nil {
		return err
	}
	if err := s.id.Kept(s.own, own); err != nil {
		return err
	}
	s.own, s.sequence, s.kept = own, 0, time.Now().Round(0)
	return nil
}

func (s *Store) lost(why string) error {
	return &sinks.StateLostError{Reason: fmt.Sprintf("topic %q: %s", s.place.Topic, why)}
}

// send sends what is in doubt, until it is written or better left to the caller's back-off. What is too large is not in
// doubt.
func (s *Store) send(ctx context.Context) error {
	stamp := time.Now()
	for try := 1; ; try++ {
		record.Stamp(s.sent.bytes, stamp)
		base, err := s.produce(ctx)
		switch protocol.ClassifyError(err) {
		case protocol.Accepted:
			return s.confirm(base)
		case protocol.TooLarge:
			s.sent = nil
			return err
		case protocol.Fenced:
			return s.id.Explain(ctx, err)
		case protocol.OutOfSequence: // nothing of a state is wrong when it is written twice in a row
			if err := s.renew(func() (_ cluster.Numbers, err error) {
				own, _, err := s.id.Fence(ctx, s.own, []cluster.Partition{s.place})
				return own, err
			}); err != nil {
				return err
			}
			record.Number(s.sent.bytes, s.numbers())
		case protocol.Mistimed:
			stamp = time.Time{}
		case protocol.Unauthorized:
			return s.unwritable(ctx, err)
		default:
			if errors.Is(err, kafka.UnknownTopicOrPartition) && try == tries {
				return s.remake(ctx)
			}
		}
		if try == tries || ctx.Err() != nil {
			return s.unwritable(ctx, err)
		}
		if err := ratelimit.Sleep(ctx, pause); err != nil {
			return err
		}
		if !protocol.FromBroker(err) { // the connection may still be sending the bytes
			s.sent.bytes = append([]byte(nil), s.sent.bytes...)
		}
	}
}

// produce sends the batch once, and returns the offset where it is; below zero where the broker does not say.
func (s *Store) produce(ctx context.Context) (base int64, err error) {
	by, err := s.lead(ctx)
	if err != nil {
		return 0, err
	}
	pending, err := s.cluster.Produce(by.Broker, connection.Batch{Topic: s.place.Topic, Bytes: s.sent.bytes}, cluster.ForProducing)
	if err != nil {
		return 0, err
	}
	err = pending.Wait(ctx)
	return pending.Base(), err
}

// confirm books the batch as written. One that lies before older ones lies in another topic than those.
func (s *Store) confirm(base int64) error {
	s.sequence = record.SequenceAfter(s.sequence, s.sent.count)
	count := int64(s.sent.count)
	s.sent = nil
	if base < 0 {
		return nil
	}
	before := s.end
	s.end = base + count
	if base < before {
		return s.lost("it was made anew")
	}
	return nil
}

// remake makes the topic anew after somebody has deleted it.
func (s *Store) remake(ctx context.Context) error {
	if err := s.ensure(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.place.Topic, err)
	}
	s.sent, s.end, s.first = nil, 0, 0
	return s.lost("it was deleted")
}

func (s *Store) unwritable(ctx context.Context, err error) error {
	return fmt.Errorf("the state in topic %q cannot be written: %w", s.place.Topic, s.cluster.Explain(ctx, s.place.Topic, err))
}

// Close is [sinks.StateStore.Close]: the connections are the sink's.
func (s *Store) Close(context.Context) error { return nil }
