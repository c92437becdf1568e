package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxFollowAge is the maximum age of what was read for a follower to continue from there. After delete.retention.ms, a
	// day by default, a compacted topic drops tombstones, and a follower would miss that a key was removed.
	maxFollowAge = 12 * time.Hour
	// topicCheckInterval is how often the owner checks whether the topic was replaced, or edited so that it deletes records.
	topicCheckInterval = 30 * time.Second
	// maxSendTries is how often one Append sends a batch before the error goes to the caller.
	maxSendTries   = 5
	sendRetryDelay = 200 * time.Millisecond
	maxBatchBytes  = 512 << 10 // of entries, if max.message.bytes of the topic permits
	batchMargin    = 1 << 10   // for the header of a batch
)

// topicSettings are the settings of a state topic that is created. Small segments are compacted early, so that the part that
// is not compacted yet can be read in a second.
var topicSettings = [][2]string{
	{"cleanup.policy", "compact"}, {"segment.bytes", "67108864"}, {"min.cleanable.dirty.ratio", "0.3"}, {"max.message.bytes", "2097152"},
}

// Store is a [sinks.StateStore] in a compacted topic of one partition. It uses the connections of a sink, which it does not
// close.
type Store struct {
	cluster   *cluster.Cluster
	reader    *cluster.Reader
	log       *slog.Logger
	replicas  int // of a topic that is created; 0: the brokers' default
	partition cluster.Partition
	encoder   *record.Encoder

	reading *cluster.Span // how far the state was read; nil: the next Read starts from the beginning
	readAt  time.Time     // wall clock

	owned         bool             // by this process, as far as it knows
	topic         protocol.TopicID // of the state; the partition is fenced in it
	transactional *cluster.Transactional
	current       cluster.ProducerEpoch
	sequence      int32         // of the next batch
	renewedAt     time.Time     // wall clock
	inDoubt       *pendingBatch // was sent and is not acknowledged; nil: there is none

	oldestOffset   int64
	endOffset      int64 // behind our newest record
	topicCheckedAt time.Time

	atomicBytes int // of the entries of one batch
	mayLose     *condition.Condition
}

type pendingBatch struct {
	bytes []byte
	count int // records
}

// New returns the store of a state in the topic of this name, which the caller has checked. It sends nothing.
func New(c *cluster.Cluster, name string, replicas int, log *slog.Logger) (*Store, error) {
	encoder, err := record.NewEncoder(format.JSON, false, record.Codecs["zstd"])
	if err != nil {
		return nil, err
	}
	return &Store{
		cluster: c, reader: cluster.NewReader(c), log: log, replicas: replicas, partition: cluster.Partition{Topic: name}, encoder: encoder,
		atomicBytes: maxBatchBytes, mayLose: condition.New(log, "replica", condition.Problem{}),
	}, nil
}

// partitionsError is returned for a topic with another number of partitions than one. The brokers are all right.
type partitionsError struct{ found int }

func (e *partitionsError) Error() string {
	return fmt.Sprintf("it has %d partitions; the order of a state needs exactly one: delete the topic, or name another one in state.name", e.found)
}

// topicError returns what is wrong with the topic or the brokers.
func (s *Store) topicError(ctx context.Context, err error) error {
	if errors.As(err, new(*partitionsError)) {
		return err
	}
	return s.cluster.SinkError(ctx, s.partition.Topic, err)
}

// findLeader returns the leader of the partition, and the topic that it is one of.
func (s *Store) findLeader(ctx context.Context) (cluster.Lead, protocol.TopicID, error) {
	found, _, err := s.cluster.DescribeTopic(ctx, s.partition.Topic)
	if err != nil {
		return cluster.Lead{}, protocol.TopicID{}, err
	}
	if len(found.Leads) != 1 {
		return cluster.Lead{}, protocol.TopicID{}, &partitionsError{len(found.Leads)}
	}
	by, err := found.Lead(0)
	return by, found.ID, err
}

// errRecreated means that the topic is not the one in which the partition is fenced.
var errRecreated = errors.New("it was recreated")

func (s *Store) findOwnLeader(ctx context.Context) (cluster.Lead, error) {
	by, topic, err := s.findLeader(ctx)
	if err == nil && topic != s.topic {
		err = errRecreated
	}
	return by, err
}

// Read implements [sinks.StateStore].
func (s *Store) Read(ctx context.Context, each func(sinks.StateEntry) error) (reset bool, err error) {
	by, _, err := s.findLeader(ctx)
	before := s.reading
	if errors.Is(err, kafka.UnknownTopicOrPartition) && !s.owned {
		s.reading = nil
		return before != nil, nil
	}
	now := &cluster.Span{Partition: s.partition, Lead: by, VerifyLast: true, Each: func(r *protocol.Record) error {
		return each(sinks.StateEntry{Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)})
	}}
	if err == nil {
		err = s.reader.QueryExtents(ctx, by.Broker, []*cluster.Span{now})
	}
	if err != nil {
		return false, s.readError(ctx, err)
	}
	switch {
	case before == nil:
		now.Next = now.First
	case !s.continues(before, now):
		s.reading = nil
		return true, nil
	default:
		now.Next, now.Last = before.Next, before.Last
	}
	s.reading, s.readAt = now, time.Now().Round(0)
	err = s.reader.FetchSpans(ctx, by.Broker, []*cluster.Span{now})
	var callback *cluster.CallbackError
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &callback): // part of a batch was consumed: start over
		s.reading = nil
		return false, callback.Err
	case errors.Is(err, cluster.ErrRecreated):
		s.reading = nil
		return true, nil
	}
	return false, s.readError(ctx, err)
}

// continues reports whether now is the same log as before, and recent enough to be read on.
func (s *Store) continues(before, now *cluster.Span) bool {
	return now.First == before.First && now.End >= before.Next && now.Lead.Epoch >= before.Lead.Epoch &&
		time.Now().Round(0).Sub(s.readAt) <= maxFollowAge
}

func (s *Store) readError(ctx context.Context, err error) error {
	if errors.Is(err, kafka.TopicAuthorizationFailed) {
		return fmt.Errorf("the state in topic %q cannot be read: grant READ and DESCRIBE on it: %w", s.partition.Topic, err)
	}
	return fmt.Errorf("the state in topic %q cannot be read: %w", s.partition.Topic, s.topicError(ctx, err))
}

// Claim implements [sinks.StateStore]. It claims the transactional ID of the group and the topic, and fences the partition.
func (s *Store) Claim(ctx context.Context, claim sinks.Claim) error {
	if err := s.ensureTopic(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.partition.Topic, err)
	}
	s.transactional = cluster.NewTransactional(s.cluster, cluster.TransactionalID(claim.Group, "state", s.partition.Topic))
	_, topic, err := s.findLeader(ctx)
	if err != nil {
		return s.readError(ctx, err)
	}
	own, err := s.fencePartition(ctx, cluster.NoProducer)
	if err != nil {
		return err
	}
	s.current, s.sequence, s.inDoubt, s.renewedAt = own, 0, nil, time.Now().Round(0)
	if err := s.useTopic(ctx, topic); err != nil {
		return err
	}
	s.owned = true
	return nil
}

// fencePartition fences the partition and returns the epoch to continue under.
func (s *Store) fencePartition(ctx context.Context, current cluster.ProducerEpoch) (cluster.ProducerEpoch, error) {
	own, missing, err := s.transactional.FencePartitions(ctx, current, []cluster.Partition{s.partition})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("the state in topic %q: the brokers do not know it yet", s.partition.Topic)
	}
	return own, err
}

// useTopic lets the state be in a topic, unless another one has the name by now.
func (s *Store) useTopic(ctx context.Context, topic protocol.TopicID) error {
	by, found, err := s.findLeader(ctx)
	if err == nil && found != topic {
		err = errRecreated
	}
	var first, end int64
	if err == nil {
		first, end, err = s.reader.QueryExtent(ctx, by, s.partition)
	}
	if err != nil {
		return s.readError(ctx, err)
	}
	s.topic, s.oldestOffset, s.endOffset, s.topicCheckedAt = topic, first, end, time.Now()
	return nil
}

// ensureTopic creates the topic unless it exists, and otherwise checks that it is compacted and deletes nothing.
func (s *Store) ensureTopic(ctx context.Context) error {
	_, controller, err := s.cluster.DescribeTopic(ctx, s.partition.Topic)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		topic := cluster.NewTopic{Name: s.partition.Topic, Partitions: 1, Replicas: s.replicas, Settings: topicSettings}
		if _, err := s.cluster.CreateTopic(ctx, controller, topic); err != nil {
			return fmt.Errorf("it does not exist and cannot be created: %w; create it by hand with one partition and cleanup.policy=compact, or grant CREATE on it", err)
		}
		return nil
	}
	if err != nil {
		return s.cluster.SinkError(ctx, s.partition.Topic, err)
	}
	settings, err := s.cluster.TopicSettings(ctx, s.partition.Topic)
	if limit, err := strconv.Atoi(settings["max.message.bytes"]); err == nil {
		s.atomicBytes = max(1, min(maxBatchBytes, limit-batchMargin))
	}
	switch {
	case errors.Is(err, kafka.TopicAuthorizationFailed):
		s.log.Warn("the settings of the state topic cannot be checked", "topic", s.partition.Topic,
			"why", "grant DESCRIBE_CONFIGS on it; it must have cleanup.policy=compact")
	case err != nil:
		return s.cluster.SinkError(ctx, s.partition.Topic, err)
	case policyProblem(settings) != "":
		return errors.New(policyProblem(settings))
	}
	return nil
}

// policyProblem returns why a topic with these settings does not keep the newest entry of each key; "" if it does.
func policyProblem(settings map[string]string) string {
	policy := settings["cleanup.policy"]
	if strings.Contains(policy, "compact") && !strings.Contains(policy, "delete") {
		return ""
	}
	return fmt.Sprintf("it has cleanup.policy=%s, which deletes entries: set it to compact", policy)
}

// Condition implements [sinks.StateStore].
func (s *Store) Condition() condition.Status { return s.mayLose.Status() }

// checkPolicy looks at the settings of the topic. If they cannot be read, what was known counts.
func (s *Store) checkPolicy(ctx context.Context) {
	settings, err := s.cluster.TopicSettings(ctx, s.partition.Topic)
	if err != nil {
		return
	}
	p := condition.Problem{}
	if policy := policyProblem(settings); policy != "" {
		p = condition.Problem{Code: condition.StateMayLose, Cause: fmt.Sprintf("topic %q: %s", s.partition.Topic, policy)}
	}
	s.mayLose.Update(p)
}

// AtomicBytes implements [sinks.StateStore]: one batch.
func (s *Store) AtomicBytes() int { return s.atomicBytes }

// Compacts implements [sinks.StateStore].
func (s *Store) Compacts() bool { return true }

// Append implements [sinks.StateStore].
func (s *Store) Append(ctx context.Context, entries []sinks.StateEntry, _ bool) error {
	if !s.owned {
		return &sinks.DeposedError{Reason: fmt.Sprintf("the state in topic %q is not claimed", s.partition.Topic)}
	}
	err := s.writeEntries(ctx, entries)
	if errors.As(err, new(*sinks.DeposedError)) {
		s.owned = false
		s.mayLose.Clear()
	}
	return err
}

func (s *Store) writeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	// The batch in doubt goes first: a newer batch under its sequence number would be dropped as a copy.
	if s.inDoubt != nil {
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
	s.atomicBytes /= 2 // of the next Append; max.message.bytes was lowered, or is not known
	if err := s.writeEntries(ctx, entries[:half]); err != nil {
		return err
	}
	return s.writeEntries(ctx, entries[half:])
}

func (s *Store) currentSequence() record.ProducerSequence {
	return record.ProducerSequence{Producer: s.current.Producer, Epoch: s.current.Epoch, Sequence: s.sequence}
}

// runOwnerChecks keeps the transactional ID from expiring and checks the topic, each when it is due.
func (s *Store) runOwnerChecks(ctx context.Context) error {
	if time.Now().Round(0).Sub(s.renewedAt) > cluster.RenewInterval {
		if err := s.advanceEpoch(s.transactional.InitProducerID(ctx, s.current)); err != nil {
			return err
		}
	}
	if time.Since(s.topicCheckedAt) < topicCheckInterval {
		return nil
	}
	if _, err := s.findOwnLeader(ctx); errors.Is(err, errRecreated) {
		return s.adoptTopic(ctx)
	} else if err != nil {
		return s.writeError(ctx, err)
	}
	s.checkPolicy(ctx)
	s.topicCheckedAt = time.Now()
	return nil
}

// advanceEpoch continues under an epoch, numbered from 0, unless there is an error.
func (s *Store) advanceEpoch(own cluster.ProducerEpoch, err error) error {
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

// sendPending sends the batch in doubt until it is written, or returns the error for the caller's back-off. A batch that is
// too large is certainly not written, and no longer in doubt.
func (s *Store) sendPending(ctx context.Context) error {
	stamp := time.Now()
	for try := 1; ; try++ {
		record.SetTimestamp(s.inDoubt.bytes, stamp)
		base, oldest, err := s.produceOnce(ctx)
		switch protocol.ClassifyError(err) {
		case protocol.Accepted:
			return s.recordWritten(base, oldest)
		case protocol.TooLarge:
			s.inDoubt = nil
			return err
		case protocol.Fenced:
			return s.transactional.SinkError(ctx, err)
		case protocol.OutOfSequence:
			// The numbers of a new epoch fence the old ones. The batch may be written twice then, which is harmless: its entries are
			// the newest of their keys.
			if err := s.advanceEpoch(s.fencePartition(ctx, s.current)); err != nil {
				return err
			}
			record.SetSequence(s.inDoubt.bytes, s.currentSequence())
		case protocol.Mistimed:
			stamp = time.Time{}
		case protocol.Unauthorized:
			return s.writeError(ctx, err)
		default:
			if errors.Is(err, errRecreated) || errors.Is(err, kafka.UnknownTopicOrPartition) && try == maxSendTries {
				return s.adoptTopic(ctx)
			}
		}
		if try == maxSendTries || ctx.Err() != nil {
			return s.writeError(ctx, err)
		}
		if ratelimit.Sleep(ctx, sendRetryDelay) != nil {
			return s.writeError(ctx, err)
		}
		if !protocol.IsBrokerError(err) { // the connection may still read the bytes
			s.inDoubt.bytes = append([]byte(nil), s.inDoubt.bytes...)
		}
	}
}

// produceOnce sends the batch in doubt once and returns its offset, and that of the oldest record; below zero if the broker
// does not report it.
func (s *Store) produceOnce(ctx context.Context) (base, oldest int64, err error) {
	by, err := s.findOwnLeader(ctx)
	if err != nil {
		return 0, 0, err
	}
	batch := protocol.RecordBatch{Topic: s.partition.Topic, TopicID: s.topic, Bytes: s.inDoubt.bytes}
	pending, err := s.cluster.Produce(by.Broker, batch, cluster.ForProducing)
	if err != nil {
		return 0, 0, err
	}
	err = pending.Wait(ctx)
	return pending.BaseOffset, pending.LogStart, err
}

// recordWritten records that the batch in doubt was written at an offset. An offset before older records means that the
// broker has lost these: an older copy of its files was restored, for example. A higher oldest offset means that records
// were deleted by hand: compaction leaves it.
func (s *Store) recordWritten(base, oldest int64) error {
	s.sequence = record.SequenceAfter(s.sequence, s.inDoubt.count)
	count, before := int64(s.inDoubt.count), s.endOffset
	s.inDoubt = nil
	if base < 0 {
		return nil
	}
	s.endOffset = base + count
	if base < before {
		return s.lostError("it has lost its newest records")
	}
	if oldest > s.oldestOffset {
		s.oldestOffset = oldest
		return s.lostError("its oldest records were deleted")
	}
	return nil
}

// adoptTopic continues in the topic that has replaced the one of the state, and creates it if there is none. A broker takes
// any producer in a partition that is new, so this process fences it before its first batch. The caller writes the state
// again.
func (s *Store) adoptTopic(ctx context.Context) error {
	if err := s.ensureTopic(ctx); err != nil {
		return fmt.Errorf("the state in topic %q: %w", s.partition.Topic, err)
	}
	_, topic, err := s.findLeader(ctx)
	if err != nil {
		return s.writeError(ctx, err)
	}
	if err := s.advanceEpoch(s.fencePartition(ctx, s.current)); err != nil {
		return err
	}
	if err := s.useTopic(ctx, topic); err != nil {
		return err
	}
	s.inDoubt = nil
	return s.lostError("it was deleted")
}

func (s *Store) writeError(ctx context.Context, err error) error {
	return fmt.Errorf("the state in topic %q cannot be written: %w", s.partition.Topic, s.topicError(ctx, err))
}

// Close implements [sinks.StateStore]. The connections belong to the sink.
func (s *Store) Close(context.Context) error {
	s.mayLose.Close()
	return nil
}
