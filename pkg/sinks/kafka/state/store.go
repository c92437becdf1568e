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
	// maxFollowAge is how old what was read may be for the rest to be read from there: a compacted topic forgets that a key
	// was removed after a day (delete.retention.ms).
	maxFollowAge = 12 * time.Hour
	// purgeCheckInterval is how often the owner looks whether somebody has removed the oldest records.
	purgeCheckInterval = 30 * time.Second
	// maxSendTries is how often one Write sends a batch before the rest is left to the caller's back-off.
	maxSendTries   = 5
	sendRetryDelay = 200 * time.Millisecond // between two of them
)

// topicSettings is how the topic of a state is made. Segments are small, so that what is not compacted yet is read in a second.
var topicSettings = createtopics.RequestTopic{NumPartitions: 1, Configs: []createtopics.RequestConfig{
	{Name: "cleanup.policy", Value: "compact"}, {Name: "segment.bytes", Value: "67108864"},
	{Name: "min.cleanable.dirty.ratio", Value: "0.3"}, {Name: "max.message.bytes", Value: "2097152"},
}}

// Store is [sinks.StateStore] in a compacted topic of one partition. It has the connections of somebody else.
type Store struct {
	cluster       *cluster.Cluster
	log           *slog.Logger
	replicas      int // of a topic that is made; 0 takes the default of the brokers
	partition     cluster.Partition
	encoder       *record.Encoder
	reading       *cluster.Span // how far it was read; nil: it is read from the beginning
	readAt        time.Time     // without its monotonic part
	owned         bool          // by this process, as far as it knows
	transactional *cluster.Transactional
	current       cluster.ProducerEpoch
	sequence      int32 // of the next batch
	renewedAt     time.Time
	inDoubt       *pendingBatch // what was sent and is in doubt; nil: nothing is

	oldestOffset   int64 // offset of the oldest record
	endOffset      int64 // behind our newest record
	purgeCheckedAt time.Time
}

type pendingBatch struct {
	bytes []byte
	count int
}

// New returns the store of the state in a topic. The caller has checked the name.
func New(c *cluster.Cluster, name string, replicas int, log *slog.Logger) (*Store, error) {
	encoder, err := record.NewEncoder(format.JSON, false, record.Codecs["zstd"])
	if err != nil {
		return nil, err
	}
	return &Store{cluster: c, log: log, replicas: replicas, partition: cluster.Partition{Topic: name}, encoder: encoder}, nil
}

// findLeader asks who leads the topic.
func (s *Store) findLeader(ctx context.Context) (cluster.Lead, error) {
	found, _, err := s.cluster.DescribeTopic(ctx, s.partition.Topic)
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
	by, err := s.findLeader(ctx)
	before := s.reading
	if errors.Is(err, kafka.UnknownTopicOrPartition) && !s.owned {
		s.reading = nil
		return before != nil, nil
	}
	now := &cluster.Span{Partition: s.partition, Lead: by, VerifyLast: true, Each: func(r *kproto.Record) error {
		entry, err := readEntry(r)
		if err != nil {
			return err
		}
		return each(entry)
	}}
	if err == nil {
		err = s.cluster.QueryExtents(ctx, by.Broker, []*cluster.Span{now})
	}
	if err != nil {
		return false, s.readError(ctx, err)
	}
	switch {
	case before == nil:
		now.Next = now.First
	case now.First != before.First || now.End < before.Next || by.Epoch < before.Lead.Epoch || time.Now().Round(0).Sub(s.readAt) > maxFollowAge:
		s.reading = nil
		return true, nil
	default:
		now.Next, now.Last = before.Next, before.Last
	}
	s.reading, s.readAt = now, time.Now().Round(0)
	err = s.cluster.FetchSpans(ctx, by.Broker, []*cluster.Span{now})
	var said *cluster.CallbackError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &said): // what was read of the batch is read again
		s.reading = nil
		return false, said.Err
	case errors.Is(err, cluster.ErrRecreated):
		s.reading = nil
		return true, nil
	}
	return false, s.readError(ctx, err)
}

func readEntry(r *kproto.Record) (e sinks.StateEntry, err error) {
	if e.Key, err = protocol.ReadBytes(r.Key); err != nil {
		return e, err
	}
	e.Value, err = protocol.ReadBytes(r.Value)
	return e, err
}

func (s *Store) readError(ctx context.Context, err error) error {
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		return fmt.Errorf("the state in topic %q cannot be read: grant READ and DESCRIBE on it: %w", s.partition.Topic, err)
	}
	return fmt.Errorf("the state in topic %q cannot be read: %w", s.partition.Topic, s.cluster.SinkError(ctx, s.partition.Topic, err))
}

// Claim is [sinks.StateStore.Claim]: the transactional ID of the group and the topic is taken over, and the partition told.
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	if err := s.ensureTopic(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.partition.Topic, err)
	}
	s.transactional = s.cluster.Transactional(cluster.TransactionalID(claim.Group, "state", s.partition.Topic))
	own, gone, err := s.transactional.FencePartitions(ctx, cluster.NoProducer, []cluster.Partition{s.partition})
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return fmt.Errorf("the state in topic %q: the brokers have not heard of it yet", s.partition.Topic)
	}
	by, err := s.findLeader(ctx)
	if err == nil {
		s.oldestOffset, s.endOffset, err = s.cluster.QueryExtent(ctx, by, s.partition)
	}
	if err != nil {
		return s.readError(ctx, err)
	}
	s.current, s.sequence, s.inDoubt, s.owned = own, 0, nil, true
	s.renewedAt, s.purgeCheckedAt = time.Now().Round(0), time.Now()
	return nil
}

// ensureTopic makes the topic if there is none, and looks whether it keeps what is written.
func (s *Store) ensureTopic(ctx context.Context) error {
	_, controller, err := s.cluster.DescribeTopic(ctx, s.partition.Topic)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		how := topicSettings
		how.Name, how.ReplicationFactor = s.partition.Topic, -1
		if s.replicas > 0 {
			how.ReplicationFactor = int16(s.replicas)
		}
		if _, err := s.cluster.CreateTopic(ctx, controller, how); err != nil {
			return fmt.Errorf("it does not exist and cannot be made: %w; create it by hand with one partition and cleanup.policy=compact, or grant CREATE on it", err)
		}
		return nil
	}
	if err != nil {
		return s.cluster.SinkError(ctx, s.partition.Topic, err)
	}
	settings, err := s.cluster.TopicSettings(ctx, s.partition.Topic)
	switch policy := settings["cleanup.policy"]; {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		s.log.Warn("the topic of the state is used unchecked", "topic", s.partition.Topic, "why", "grant DESCRIBE_CONFIGS on it; it must have cleanup.policy=compact")
	case err != nil:
		return s.cluster.SinkError(ctx, s.partition.Topic, err)
	case !strings.Contains(policy, "compact") || strings.Contains(policy, "delete"):
		return fmt.Errorf("it has cleanup.policy=%s, and would forget: set it to compact", policy)
	}
	return nil
}

// Write is [sinks.StateStore.Write].
func (s *Store) Write(ctx context.Context, entries []sinks.StateEntry) error {
	if !s.owned {
		return &sinks.DeposedError{Reason: fmt.Sprintf("the state in topic %q is not claimed", s.partition.Topic)}
	}
	err := s.writeEntries(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) {
		s.owned = false
	}
	return err
}

func (s *Store) writeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	if s.inDoubt != nil { // it comes before anything newer, or a broker takes that for a copy of it
		if err := s.sendPending(ctx); err != nil && protocol.ClassifyError(err) != protocol.TooLarge {
			return err
		}
	}
	if len(entries) == 0 {
		return nil
	}
	if err := s.runOwnerChecks(ctx); err != nil {
		return err
	}
	b, err := s.encoder.EncodeEntries(nil, entries, s.currentSequence())
	if err != nil {
		return err
	}
	s.inDoubt = &pendingBatch{b, len(entries)}
	err = s.sendPending(ctx)
	if protocol.ClassifyError(err) != protocol.TooLarge {
		return err
	}
	if len(entries) == 1 {
		return fmt.Errorf("an entry of %d bytes exceeds max.message.bytes of topic %q: set it to 2097152: %w", len(b), s.partition.Topic, err)
	}
	half := len(entries) / 2
	if err := s.writeEntries(ctx, entries[:half]); err != nil {
		return err
	}
	return s.writeEntries(ctx, entries[half:])
}

func (s *Store) currentSequence() record.ProducerSequence {
	return record.ProducerSequence{Producer: s.current.Producer, Epoch: s.current.Epoch, Sequence: s.sequence}
}

// runOwnerChecks does now and then what an owner has to: it keeps the transactional ID from expiring, and looks for what others
// removed.
func (s *Store) runOwnerChecks(ctx context.Context) error {
	if time.Now().Round(0).Sub(s.renewedAt) > cluster.RenewInterval {
		if err := s.advanceEpoch(func() (cluster.ProducerEpoch, error) { return s.transactional.InitProducerID(ctx, s.current) }); err != nil {
			return err
		}
	}
	if time.Since(s.purgeCheckedAt) < purgeCheckInterval {
		return nil
	}
	by, err := s.findLeader(ctx)
	if err != nil {
		return s.writeError(ctx, err)
	}
	first, _, err := s.cluster.QueryExtent(ctx, by, s.partition)
	if err != nil {
		return s.writeError(ctx, err)
	}
	s.purgeCheckedAt = time.Now()
	if first != s.oldestOffset {
		s.oldestOffset = first
		return s.lostError("somebody has removed its oldest records")
	}
	return nil
}

// advanceEpoch begins a newer epoch, in which numbers begin at 0.
func (s *Store) advanceEpoch(ask func() (cluster.ProducerEpoch, error)) error {
	own, err := ask()
	if err != nil {
		return err
	}
	if err := s.transactional.CheckProducerID(s.current, own); err != nil {
		return err
	}
	s.current, s.sequence, s.renewedAt = own, 0, time.Now().Round(0)
	return nil
}

func (s *Store) lostError(why string) error {
	return &sinks.StateLostError{Reason: fmt.Sprintf("topic %q: %s", s.partition.Topic, why)}
}

// sendPending sends what is in doubt, until it is written or better left to the caller's back-off. What is too large is not in
// doubt.
func (s *Store) sendPending(ctx context.Context) error {
	stamp := time.Now()
	for try := 1; ; try++ {
		record.SetTimestamp(s.inDoubt.bytes, stamp)
		base, err := s.produceOnce(ctx)
		switch protocol.ClassifyError(err) {
		case protocol.Accepted:
			return s.recordWritten(base)
		case protocol.TooLarge:
			s.inDoubt = nil
			return err
		case protocol.Fenced:
			return s.transactional.SinkError(ctx, err)
		case protocol.OutOfSequence: // nothing of a state is wrong when it is written twice in a row
			if err := s.advanceEpoch(func() (_ cluster.ProducerEpoch, err error) {
				own, _, err := s.transactional.FencePartitions(ctx, s.current, []cluster.Partition{s.partition})
				return own, err
			}); err != nil {
				return err
			}
			record.SetSequence(s.inDoubt.bytes, s.currentSequence())
		case protocol.Mistimed:
			stamp = time.Time{}
		case protocol.Unauthorized:
			return s.writeError(ctx, err)
		default:
			if errors.Is(err, kafka.UnknownTopicOrPartition) && try == maxSendTries {
				return s.recreateTopic(ctx)
			}
		}
		if try == maxSendTries || ctx.Err() != nil {
			return s.writeError(ctx, err)
		}
		if err := ratelimit.Sleep(ctx, sendRetryDelay); err != nil {
			return err
		}
		if !protocol.IsBrokerError(err) { // the connection may still be sending the bytes
			s.inDoubt.bytes = append([]byte(nil), s.inDoubt.bytes...)
		}
	}
}

// produceOnce sends the batch once, and returns the offset where it is; below zero where the broker does not say.
func (s *Store) produceOnce(ctx context.Context) (base int64, err error) {
	by, err := s.findLeader(ctx)
	if err != nil {
		return 0, err
	}
	pending, err := s.cluster.Produce(by.Broker, connection.Batch{Topic: s.partition.Topic, Bytes: s.inDoubt.bytes}, cluster.ForProducing)
	if err != nil {
		return 0, err
	}
	err = pending.Wait(ctx)
	return pending.BaseOffset(), err
}

// recordWritten books the batch as written. One that lies before older ones lies in another topic than those.
func (s *Store) recordWritten(base int64) error {
	s.sequence = record.SequenceAfter(s.sequence, s.inDoubt.count)
	count := int64(s.inDoubt.count)
	s.inDoubt = nil
	if base < 0 {
		return nil
	}
	before := s.endOffset
	s.endOffset = base + count
	if base < before {
		return s.lostError("it was made anew")
	}
	return nil
}

// recreateTopic makes the topic anew after somebody has deleted it.
func (s *Store) recreateTopic(ctx context.Context) error {
	if err := s.ensureTopic(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.partition.Topic, err)
	}
	s.inDoubt, s.endOffset, s.oldestOffset = nil, 0, 0
	return s.lostError("it was deleted")
}

func (s *Store) writeError(ctx context.Context, err error) error {
	return fmt.Errorf("the state in topic %q cannot be written: %w", s.partition.Topic, s.cluster.SinkError(ctx, s.partition.Topic, err))
}

// Close is [sinks.StateStore.Close]: the connections are the sink's.
func (s *Store) Close(context.Context) error { return nil }
