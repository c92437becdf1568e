package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	kproto "github.com/segmentio/kafka-go/protocol"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
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
	// stateTries is how often one Write sends a batch before the rest is left to the caller's back-off.
	stateTries = 5
)

// stateTopic is how a topic for a state is made. Segments are small, so that what is not compacted yet is read in a second.
var stateTopic = CreateTopics{Partitions: 1, Configs: []TopicConfig{
	{"cleanup.policy", "compact"}, {"segment.bytes", "67108864"}, {"min.cleanable.dirty.ratio", "0.3"},
	{"max.message.bytes", "2097152"},
}}

var _ sinks.StateKeeper = (*Sink)(nil)

// stateStore is [sinks.StateStore] in a compacted topic of one partition.
type stateStore struct {
	sink     *Sink
	place    partition
	encoder  *record.Encoder
	reading  *span     // how far it was read; nil: it is read from the beginning
	readAt   time.Time // without its monotonic part
	owned    bool      // by this process, as far as it knows
	id       transactional
	own      numbers
	sequence int32 // of the next batch
	kept     time.Time
	sent     *stateBatch // what was sent and is in doubt; nil: nothing is

	first   int64 // offset of the oldest record
	end     int64 // behind our newest record
	checked time.Time
}

type stateBatch struct {
	bytes []byte
	count int
}

// OpenState is [sinks.StateKeeper.OpenState]: name is that of a topic. Kafka compacts it, so nothing is written again.
func (s *Sink) OpenState(name string, _ func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
	if err := checkTopicName([]byte(name)); err != nil {
		return nil, fmt.Errorf("state.name: %w", err)
	}
	encoder, err := record.NewEncoder(format.JSON, false, record.Codecs["zstd"])
	if err != nil {
		return nil, err
	}
	return &stateStore{sink: s, place: partition{topic: name}, encoder: encoder}, nil
}

// lead asks who leads the topic.
func (s *stateStore) lead(ctx context.Context) (lead, error) {
	found, _, err := s.sink.describe(ctx, s.place.topic)
	if err != nil {
		return lead{}, err
	}
	if len(found.leads) != 1 {
		return lead{}, fmt.Errorf("it has %d partitions; the order of a state needs exactly one: delete the topic, or name another one in state.name", len(found.leads))
	}
	return (&layout{found.leads}).lead(0)
}

// Read is [sinks.StateStore.Read].
func (s *stateStore) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	by, err := s.lead(ctx)
	before := s.reading
	if errors.Is(err, kafka.UnknownTopicOrPartition) && !s.owned {
		s.reading = nil
		return before != nil, nil
	}
	now := &span{partition: s.place, lead: by, identified: true, each: func(r *kproto.Record) error {
		entry, err := entryOf(r)
		if err != nil {
			return err
		}
		return each(entry)
	}}
	if err == nil {
		err = s.sink.cluster.extents(ctx, by.broker, []*span{now})
	}
	if err != nil {
		return false, s.unreadable(ctx, err)
	}
	switch {
	case before == nil:
		now.next = now.first
	case now.first != before.first || now.end < before.next || by.epoch < before.lead.epoch || time.Now().Round(0).Sub(s.readAt) > followAtLeast:
		s.reading = nil
		return true, nil
	default:
		now.next, now.last = before.next, before.last
	}
	s.reading, s.readAt = now, time.Now().Round(0)
	err = s.sink.cluster.fill(ctx, by.broker, []*span{now})
	var said *callerError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &said): // what was read of the batch is read again
		s.reading = nil
		return false, said.err
	case errors.Is(err, errMadeAnew):
		s.reading = nil
		return true, nil
	}
	return false, s.unreadable(ctx, err)
}

func entryOf(r *kproto.Record) (e sinks.StateEntry, err error) {
	if e.Key, err = bytesOf(r.Key); err != nil {
		return e, err
	}
	e.Value, err = bytesOf(r.Value)
	return e, err
}

func (s *stateStore) unreadable(ctx context.Context, err error) error {
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		return fmt.Errorf("the state in topic %q cannot be read: grant READ and DESCRIBE on it: %w", s.place.topic, err)
	}
	return fmt.Errorf("the state in topic %q cannot be read: %w", s.place.topic, s.sink.explain(ctx, s.place.topic, err))
}

// Claim is [sinks.StateStore.Claim]: the transactional ID of the group and the topic is taken over, and the partition told.
func (s *stateStore) Claim(ctx context.Context, claim sinks.Claim) error {
	if err := s.ensure(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.place.topic, err)
	}
	s.id = transactional{sink: s.sink, id: transactionalID(claim.Group, "state", s.place.topic), coordinator: noID}
	own, gone, err := s.id.fence(ctx, nobody, []partition{s.place})
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return fmt.Errorf("the state in topic %q: the brokers have not heard of it yet", s.place.topic)
	}
	by, err := s.lead(ctx)
	if err == nil {
		s.first, s.end, err = s.sink.cluster.extent(ctx, by, s.place)
	}
	if err != nil {
		return s.unreadable(ctx, err)
	}
	s.own, s.sequence, s.sent, s.owned = own, 0, nil, true
	s.kept, s.checked = time.Now().Round(0), time.Now()
	return nil
}

// ensure makes the topic if there is none, and looks whether it keeps what is written.
func (s *stateStore) ensure(ctx context.Context) error {
	_, controller, err := s.sink.describe(ctx, s.place.topic)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		how := stateTopic
		how.ReplicationFactor = s.sink.config.CreateTopics.ReplicationFactor
		if err := s.sink.cluster.create(ctx, controller, s.place.topic, how); err != nil {
			return fmt.Errorf("it does not exist and cannot be made: %w; create it by hand with one partition and cleanup.policy=compact, or grant CREATE on it", err)
		}
		s.sink.log.Info("topic created", "topic", s.place.topic)
		_, err = s.sink.awaitCreated(ctx, s.place.topic)
		return err
	}
	if err != nil {
		return s.sink.explain(ctx, s.place.topic, err)
	}
	settings, err := s.sink.cluster.settings(ctx, s.place.topic)
	switch policy := settings["cleanup.policy"]; {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		s.sink.tellOnce("a topic is used unchecked", s.place.topic, "grant DESCRIBE_CONFIGS on it; it must have cleanup.policy=compact")
	case err != nil:
		return s.sink.explain(ctx, s.place.topic, err)
	case !strings.Contains(policy, "compact") || strings.Contains(policy, "delete"):
		return fmt.Errorf("it has cleanup.policy=%s, and would forget: set it to compact", policy)
	}
	return nil
}

// Write is [sinks.StateStore.Write].
func (s *stateStore) Write(ctx context.Context, entries []sinks.StateEntry) error {
	if !s.owned {
		return &sinks.DeposedError{Reason: fmt.Sprintf("the state in topic %q is not claimed", s.place.topic)}
	}
	err := s.write(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) {
		s.owned = false
	}
	return err
}

func (s *stateStore) write(ctx context.Context, entries []sinks.StateEntry) error {
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
	s.sent = &stateBatch{b, len(entries)}
	err = s.send(ctx)
	if protocol.ClassifyError(err) != protocol.TooLarge {
		return err
	}
	if len(entries) == 1 {
		return fmt.Errorf("an entry of %d bytes exceeds max.message.bytes of topic %q: set it to 2097152: %w", len(b), s.place.topic, err)
	}
	half := len(entries) / 2
	if err := s.write(ctx, entries[:half]); err != nil {
		return err
	}
	return s.write(ctx, entries[half:])
}

func (s *stateStore) numbers() record.ProducerSequence {
	return record.ProducerSequence{Producer: s.own.producer, Epoch: s.own.epoch, Sequence: s.sequence}
}

// look does now and then what an owner has to: it keeps the transactional ID from expiring, and looks for what others removed.
func (s *stateStore) look(ctx context.Context) error {
	if time.Now().Round(0).Sub(s.kept) > keepEvery {
		if err := s.renew(func() (numbers, error) { return s.id.init(ctx, s.own) }); err != nil {
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
	first, _, err := s.sink.cluster.extent(ctx, by, s.place)
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
func (s *stateStore) renew(ask func() (numbers, error)) error {
	own, err := ask()
	if err != nil {
		return err
	}
	if own.producer != s.own.producer {
		return &sinks.DeposedError{Reason: fmt.Sprintf("the transactional ID %q has another producer ID now: it had expired, or its epochs are used up", s.id.id)}
	}
	s.own, s.sequence, s.kept = own, 0, time.Now().Round(0)
	return nil
}

func (s *stateStore) lost(why string) error {
	return &sinks.StateLostError{Reason: fmt.Sprintf("topic %q: %s", s.place.topic, why)}
}

// send sends what is in doubt, until it is written or better left to the caller's back-off. What is too large is not in doubt.
func (s *stateStore) send(ctx context.Context) error {
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
			return s.id.explain(ctx, err)
		case protocol.OutOfSequence: // nothing of a state is wrong when it is written twice in a row
			if err := s.renew(func() (_ numbers, err error) {
				own, _, err := s.id.fence(ctx, s.own, []partition{s.place})
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
			if errors.Is(err, kafka.UnknownTopicOrPartition) && try == stateTries {
				return s.remake(ctx)
			}
		}
		if try == stateTries || ctx.Err() != nil {
			return s.unwritable(ctx, err)
		}
		if err := ratelimit.Sleep(ctx, 10*coordinatorPause); err != nil {
			return err
		}
		if !protocol.FromBroker(err) { // the connection may still be sending the bytes
			s.sent.bytes = append([]byte(nil), s.sent.bytes...)
		}
	}
}

// produce sends the batch once, and returns the offset where it is; below zero where the broker does not say.
func (s *stateStore) produce(ctx context.Context) (base int64, err error) {
	by, err := s.lead(ctx)
	if err != nil {
		return 0, err
	}
	pending, err := s.sink.cluster.produce(by.broker, connection.Batch{Topic: s.place.topic, Bytes: s.sent.bytes}, forProducing)
	if err != nil {
		return 0, err
	}
	err = pending.Wait(ctx)
	return pending.Base(), err
}

// confirm books the batch as written. One that lies before older ones lies in another topic than those.
func (s *stateStore) confirm(base int64) error {
	s.sequence = sequenceAfter(s.sequence, s.sent.count)
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
func (s *stateStore) remake(ctx context.Context) error {
	if err := s.ensure(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.place.topic, err)
	}
	s.sent, s.end, s.first = nil, 0, 0
	return s.lost("it was deleted")
}

func (s *stateStore) unwritable(ctx context.Context, err error) error {
	return fmt.Errorf("the state in topic %q cannot be written: %w", s.place.topic, s.sink.explain(ctx, s.place.topic, err))
}

// Close is [sinks.StateStore.Close]: the connections are the sink's.
func (s *stateStore) Close(context.Context) error { return nil }
