package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// recoveryPhase is how far a lane is with what the previous process left in flight.
type recoveryPhase int

const (
	recoveryPending recoveryPhase = iota // before the first batch: the stored state was not looked up
	recoveryActive                       // the lane continues under the numbers of the previous process
	recoveryRepeat                       // as recoveryActive, but a late batch has arrived: count the records again
	recoveryDone                         // the lane has numbers of its own
)

// journaledSequencer is the sequencer of a sink that is not fenced. Each lane has a producer ID of its own: when a broker
// loses track of one partition, the new epoch of that lane disturbs no other. An epoch is durable in the journal before its
// first batch is sent, together with the message it begins with. Within an epoch the numbers follow the messages of the
// lane without a hole, so that a later process knows from the last number in the partition which messages are there.
type journaledSequencer struct {
	partition  *partitionClient
	lane       sinks.Lane
	states     *producerStates
	tombstones bool // each delete has two records
	log        *slog.Logger
	warnOnce   *sync.Once // of the sink: DescribeProducers is refused

	topic        protocol.TopicID        // that the lane writes to
	next         record.ProducerSequence // of the first unsettled batch; Producer is NoID until one is needed
	acknowledged producerState           // the sequence at the last acknowledgement
	storedEpoch  record.ProducerSequence // the epoch that a later process certainly knows; its Sequence is 0
	lastWritten  time.Time               // timestamp of the last batch acknowledged in this epoch; zero if there is none
	renumbering

	phase            recoveryPhase
	acknowledgedUpTo uint64 // offset up to which messages were acknowledged to the previous process
	uncredited       int    // records in the partition behind acknowledged that were not credited yet
}

var _ sequencer = (*journaledSequencer)(nil)

func newJournaledSequencer(p *partitionClient, lane sinks.Lane, states *producerStates, tombstones bool, log *slog.Logger, warnOnce *sync.Once) *journaledSequencer {
	none := record.ProducerSequence{Producer: cluster.NoID}
	return &journaledSequencer{partition: p, lane: lane, states: states, tombstones: tombstones, log: log, warnOnce: warnOnce, next: none, storedEpoch: none}
}

func (s *journaledSequencer) nextSequence() record.ProducerSequence { return s.next }

func (*journaledSequencer) isNumbered() bool { return true }

func (s *journaledSequencer) isKnownToBroker() bool {
	return time.Since(s.lastWritten) <= producerRetention
}

// useTopic implements [sequencer]. The numbers go on: the leader of the topic that has replaced another one takes any from a
// producer that it does not know, so the lane has one batch under way until the first is acknowledged.
func (s *journaledSequencer) useTopic(id protocol.TopicID) (void bool) {
	if s.topic != id {
		s.topic, s.lastWritten = id, time.Time{}
	}
	return false
}

// prepare finds out, before the first batch of the lane, what the previous process has written. The stored state has the
// sequence number of the first message that was not certainly acknowledged, and the leader of the partition knows the number
// of our last record (KIP-664): the records between are in the partition.
//
// Messages that the previous process had may still be under way. The lane therefore continues under the old numbers until
// these messages are published: of two batches with one number, the broker writes one. Newer messages begin a new epoch,
// after which the broker rejects the old one altogether.
func (s *journaledSequencer) prepare(ctx context.Context, _ int) error {
	switch s.phase {
	case recoveryActive, recoveryDone:
		return nil
	case recoveryPending:
		old, ok := s.states.previousState(s.lane)
		if !ok {
			s.phase = recoveryDone
			return nil
		}
		s.acknowledged, s.acknowledgedUpTo = old, old.settledUpTo
	case recoveryRepeat:
	}
	records, certain, err := s.countWrittenRecords(ctx)
	if err != nil {
		return err
	}
	s.phase, s.uncredited = recoveryActive, records
	s.next = record.ProducerSequence{Producer: s.acknowledged.producer, Epoch: s.acknowledged.epoch,
		Sequence: record.SequenceAfter(s.acknowledged.nextSequence, records)}
	s.storedEpoch = s.currentEpoch()
	if !certain {
		s.startNextEpoch()
	}
	return nil
}

// countWrittenRecords returns how many records behind acknowledged the partition holds in all in-sync replicas. certain is
// false when that cannot be known; what was in flight is then written again.
func (s *journaledSequencer) countWrittenRecords(ctx context.Context) (records int, certain bool, err error) {
	err = s.partition.askLeader(ctx, func(by cluster.Lead) (err error) {
		records, certain, err = s.queryWrittenRecords(ctx, by)
		if !isPermanentRefusal(err) {
			return err
		}
		records, certain = 0, false
		s.warnOnce.Do(func() {
			s.log.Warn("cannot query the last sequence of the previous producer (DescribeProducers): changes that were in flight are written again",
				"topic", s.partition.topic.name, "partition", s.partition.index, "error", err,
				"remedy", "grant READ on the topics; brokers before Kafka 2.8 do not support the query")
		})
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("%s: querying what the previous process has written: %w", s.partition, err)
	}
	return records, certain, nil
}

// isPermanentRefusal reports whether a broker that does not answer DescribeProducers will not answer it later either.
func isPermanentRefusal(err error) bool {
	return errors.Is(err, kafka.UnsupportedVersion) || errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed)
}

// queryWrittenRecords is countWrittenRecords with one leader.
func (s *journaledSequencer) queryWrittenRecords(ctx context.Context, by cluster.Lead) (records int, certain bool, err error) {
	at, err := s.partition.cluster.DescribeProducer(ctx, by.Broker, s.partition.id(), s.acknowledged.producer)
	if err != nil {
		return 0, false, err
	}
	if at == nil || at.ProducerEpoch < int32(s.acknowledged.epoch) {
		// The broker has forgotten the producer, unless nothing was written in this epoch.
		return 0, s.acknowledged.nextSequence == 0, nil
	}
	records = int((int64(at.LastSequence) + 1 - int64(s.acknowledged.nextSequence)) & math.MaxInt32)
	if at.ProducerEpoch > int32(s.acknowledged.epoch) || records > math.MaxInt32/2 {
		return 0, false, nil // another process wrote in a newer epoch, or acknowledged records are gone
	}
	if records == 0 {
		return 0, true, nil
	}
	return records, true, s.awaitReplicated(ctx, by)
}

// awaitReplicated waits, for at most the request timeout, until all in-sync replicas have what the leader has now: until
// then a new leader could be elected that does not have it.
func (s *journaledSequencer) awaitReplicated(ctx context.Context, by cluster.Lead) error {
	ctx, cancel := context.WithTimeout(ctx, s.partition.requestTimeout)
	defer cancel()
	end, err := s.partition.reader.LogEndOffset(ctx, by, s.partition.id())
	if err != nil {
		return err
	}
	const pause = 20 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		reached, err := s.partition.reader.HighWatermark(ctx, by, s.partition.id())
		if err != nil || reached >= end {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("the replicas do not have the records of the previous process yet")
		}
	}
}

// creditWritten credits the messages that the previous process has written, and moves acknowledged behind them.
func (s *journaledSequencer) creditWritten(batch []sinks.Message) int {
	n := 0
	for n < len(batch) && batch[n].Offset <= s.acknowledgedUpTo {
		n++
	}
	for n < len(batch) && s.uncredited > 0 {
		m := batch[n]
		records := 1
		if record.HasTombstone(m.Change, s.tombstones) {
			records = 2
		}
		if m.Offset > s.states.newestKnown || records > s.uncredited {
			s.log.Warn("kafka holds changes that the journal does not have: an older journal was restored; changes in doubt are written again",
				"topic", s.partition.topic.name, "partition", s.partition.index)
			s.startNextEpoch()
			break
		}
		s.uncredited -= records
		s.recordState(producerState{s.acknowledged.producer, s.acknowledged.epoch, m.Offset, record.SequenceAfter(s.acknowledged.nextSequence, records)})
		n++
	}
	return n
}

// selectMessages returns the messages that the previous process may have under way: these go under its numbers. When there
// are none, the lane begins an epoch and all messages are returned.
func (s *journaledSequencer) selectMessages(messages []sinks.Message) []sinks.Message {
	if s.phase != recoveryActive {
		return messages
	}
	n := 0
	for n < len(messages) && messages[n].Offset <= s.states.newestKnown {
		n++
	}
	if n > 0 {
		return messages[:n]
	}
	s.startNextEpoch()
	return messages
}

func (s *journaledSequencer) ensureProducerID(ctx context.Context) error {
	if s.next.Producer != cluster.NoID {
		return nil
	}
	id, epoch, err := s.partition.cluster.NewProducerID(ctx, s.partition.topic.name)
	if err != nil {
		return err
	}
	s.next = record.ProducerSequence{Producer: id, Epoch: epoch}
	return nil
}

// beforeFirstSend makes sure that a later process knows the epoch, and the message it begins with.
func (s *journaledSequencer) beforeFirstSend(ctx context.Context, offset uint64) error {
	if s.storedEpoch == s.currentEpoch() {
		return nil
	}
	return s.storeEpoch(ctx, offset-1)
}

// storeEpoch makes the present epoch durable, which begins behind the messages up to settledUpTo.
func (s *journaledSequencer) storeEpoch(ctx context.Context, settledUpTo uint64) error {
	now := s.currentEpoch()
	s.recordState(producerState{now.Producer, now.Epoch, settledUpTo, s.next.Sequence})
	if err := s.states.saveStates(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.partition, err)
	}
	s.storedEpoch = now
	return nil
}

// currentEpoch is nextSequence without the number.
func (s *journaledSequencer) currentEpoch() record.ProducerSequence {
	return record.ProducerSequence{Producer: s.next.Producer, Epoch: s.next.Epoch}
}

func (*journaledSequencer) recordSent() {}

func (s *journaledSequencer) recordWritten(f *inFlightBatch, _ bool) {
	s.next.Sequence = record.SequenceAfter(s.next.Sequence, f.records)
	s.recordState(producerState{s.next.Producer, s.next.Epoch, f.offsets[len(f.offsets)-1], s.next.Sequence})
	s.lastWritten, s.errors = f.sentAt, 0
}

// recordAbandoned begins a new epoch when a dropped batch may be written: the numbers of that batch are not used again, and
// from the first batch of the new epoch on the broker rejects it.
func (s *journaledSequencer) recordAbandoned(inDoubt bool) {
	if inDoubt {
		s.startNextEpoch()
	}
}

// recordSkipped begins a new epoch, because within an epoch the numbers follow the messages without a hole.
func (s *journaledSequencer) recordSkipped() {
	if s.next.Producer != cluster.NoID {
		s.startNextEpoch()
	}
}

// recordLost begins a new epoch: the leader knows older numbers of this one, and nothing that the previous process had
// written counts.
func (s *journaledSequencer) recordLost() {
	if s.next.Producer != cluster.NoID {
		s.startNextEpoch()
	}
	s.phase, s.acknowledgedUpTo = recoveryDone, 0
}

func (s *journaledSequencer) handleSequenceError(cause error, v protocol.Outcome) error {
	if s.phase == recoveryActive && v == protocol.OutOfSequence && s.errors < maxInFlight {
		s.errors++
		s.phase = recoveryRepeat // a batch of the previous process has arrived meanwhile
		return nil
	}
	if s.phase == recoveryActive {
		s.errors++
	} else if s.countError() {
		return renumberingError(s.partition, cause)
	}
	warnRenumbered(s.log, s.partition, cause)
	s.startNextEpoch()
	if v == protocol.Fenced {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	return nil
}

// startNextEpoch begins a new epoch, which fences the batches of the old one (KIP-360). When the epochs of the producer ID
// are exhausted, ensureProducerID requests a new ID.
func (s *journaledSequencer) startNextEpoch() {
	switch s.phase {
	case recoveryActive:
		s.phase = recoveryDone
	case recoveryRepeat:
		s.phase = recoveryPending
	case recoveryPending, recoveryDone:
	}
	s.uncredited, s.lastWritten = 0, time.Time{}
	s.next = nextEpoch(s.next)
}

// reserveTombstoneEpoch returns an epoch that no message has. The lane continues with the one after it, which is stored
// before the first tombstone is sent: this process and a later one thereby fence a late tombstone, and the numbers of
// messages stay without a hole.
func (s *journaledSequencer) reserveTombstoneEpoch(ctx context.Context) (record.ProducerSequence, error) {
	if s.next.Epoch > math.MaxInt16-2 {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	if err := s.ensureProducerID(ctx); err != nil {
		return record.ProducerSequence{}, err
	}
	s.startNextEpoch()
	reserved := s.currentEpoch()
	s.startNextEpoch()
	return reserved, s.storeEpoch(ctx, s.acknowledged.settledUpTo)
}

// recordState records the sequence of the lane for this process and a later one.
func (s *journaledSequencer) recordState(to producerState) {
	s.acknowledged = to
	s.states.setState(s.lane, to)
}
