package kafka

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxSequenceErrors is how often in a row a lane renumbers before the error goes to the caller's back-off.
	maxSequenceErrors = 2
	// producerRetention is how old the newest record of a producer may be for the broker to certainly know its numbers. By
	// default a broker forgets them after a day (producer.id.expiration.ms).
	producerRetention = time.Hour
)

// sequencer decides under which producer ID, epoch and sequence numbers a lane writes (KIP-98), and which of its messages
// the partition already holds. A lane has a fencedSequencer, or a numberedSequencer where no transactional ID may
// be used. Not safe for concurrent use.
type sequencer interface {
	// useTopic is called before prepare with the ID of the topic. void: it has replaced another one of its name, and the
	// unsettled batches, which are numbered for that one, are dropped. Their messages are not written.
	useTopic(id protocol.TopicID) (void bool)
	// prepare is called before batches are encoded. It finds out what the partition holds of earlier attempts with an unknown
	// outcome. next is the offset in the journal of the first message that is not accepted, inFlight the number of unsettled
	// batches.
	prepare(ctx context.Context, next uint64, inFlight int) error
	// creditWritten returns how many messages at the head of batch prepare has found in the partition.
	creditWritten(batch []sinks.Message) int
	// ensureProducerID makes nextSequence valid.
	ensureProducerID(ctx context.Context) error
	// nextSequence is the sequence of the first unsettled batch.
	nextSequence() record.ProducerSequence
	// isNumbered reports whether the broker drops copies.
	isNumbered() bool
	// isKnownToBroker reports whether the broker certainly knows our last sequence number. Kafka accepts any number from a
	// producer that it does not know: of several batches it would accept the second one after refusing the first.
	isKnownToBroker() bool
	// recordSent records that a batch is sent and may be written.
	recordSent()
	// recordWritten records that the first batch is written. inDoubt: batches behind it are unsettled.
	recordWritten(f *inFlightBatch, inDoubt bool)
	// recordAbandoned records that all unsettled batches were dropped. inDoubt: some of them may be written.
	recordAbandoned(inDoubt bool)
	// recordLost records that the partition went back, and that what it has lost is published again. All unsettled batches were
	// dropped before.
	recordLost()
	// handleSequenceError decides what follows after a broker refused the numbers of a batch. nil: the lane drops its
	// batches, which are encoded again under the numbers of nextSequence after another prepare.
	handleSequenceError(cause error, v protocol.Outcome) error
}

// renumbering counts the times in a row that a broker refused the numbers of a lane.
type renumbering struct{ errors int }

// countError counts one more. It returns an error if that is too many, and then starts over.
func (r *renumbering) countError(p *partitionClient, cause error) error {
	if r.errors++; r.errors <= maxSequenceErrors {
		return nil
	}
	r.errors = 0
	return fmt.Errorf("%s: %w, also after renumbering", p, cause)
}

// numberedSequencer is the sequencer of lanes where no transactional ID may be used. Each lane has a producer ID of its own:
// when a broker loses track of one partition, the new epoch of that lane disturbs no other. Brokers drop the copies of this
// process. Nothing is known of what an earlier one had in flight, and nothing turns that away. Without idempotence batches
// have no numbers, and nothing drops a copy.
type numberedSequencer struct {
	partition *partitionClient
	log       *slog.Logger
	off       bool // no idempotence

	topic       protocol.TopicID        // that the lane writes to
	next        record.ProducerSequence // of the first unsettled batch; Producer is NoID until one is needed
	lastWritten time.Time               // timestamp of the last batch acknowledged in this epoch; zero if there is none
	renumbering
}

var _ sequencer = (*numberedSequencer)(nil)

func newNumberedSequencer(p *partitionClient, off bool, log *slog.Logger) *numberedSequencer {
	return &numberedSequencer{partition: p, off: off, log: log, next: record.ProducerSequence{Producer: cluster.NoID}}
}

// nextSequence implements [sequencer]. A batch without numbers has -1 in their place (KIP-98).
func (s *numberedSequencer) nextSequence() record.ProducerSequence {
	if s.off {
		return record.ProducerSequence{Producer: cluster.NoID, Epoch: -1, Sequence: -1}
	}
	return s.next
}

func (s *numberedSequencer) isKnownToBroker() bool {
	return !s.off && time.Since(s.lastWritten) <= producerRetention
}

func (s *numberedSequencer) isNumbered() bool                         { return !s.off }
func (*numberedSequencer) prepare(context.Context, uint64, int) error { return nil }
func (*numberedSequencer) creditWritten([]sinks.Message) int          { return 0 }
func (*numberedSequencer) recordSent()                                {}

// useTopic implements [sequencer]. The numbers go on: the leader of the topic that has replaced another one takes any from a
// producer that it does not know, so the lane has one batch under way until the first is acknowledged.
func (s *numberedSequencer) useTopic(id protocol.TopicID) (void bool) {
	if s.topic != id {
		s.topic, s.lastWritten = id, time.Time{}
	}
	return false
}

func (s *numberedSequencer) ensureProducerID(ctx context.Context) error {
	if s.off || s.next.Producer != cluster.NoID {
		return nil
	}
	id, err := s.partition.cluster.NewProducerID(ctx, s.partition.topic.name)
	if err == nil {
		s.next = record.ProducerSequence{Producer: id.Producer, Epoch: id.Epoch}
	}
	return err
}

func (s *numberedSequencer) recordWritten(f *inFlightBatch, _ bool) {
	s.next.Sequence = record.SequenceAfter(s.next.Sequence, f.records)
	s.lastWritten, s.errors = f.sentAt, 0
}

// recordAbandoned begins a new epoch when a dropped batch may be written: the numbers of that batch are not used again, and
// from the first batch of the new epoch on the broker rejects it.
func (s *numberedSequencer) recordAbandoned(inDoubt bool) {
	if inDoubt {
		s.startNextEpoch()
	}
}

// recordLost begins a new epoch: the leader knows older numbers of this one.
func (s *numberedSequencer) recordLost() { s.startNextEpoch() }

func (s *numberedSequencer) handleSequenceError(cause error, v protocol.Outcome) error {
	if err := s.countError(s.partition, cause); err != nil {
		return err
	}
	s.log.Warn("kafka does not know the sequence of this producer; records in doubt are sent again, and the topic may hold duplicates",
		"topic", s.partition.topic.name, "partition", s.partition.index, "error", cause)
	if s.startNextEpoch(); v == protocol.Fenced {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	return nil
}

// startNextEpoch begins a new epoch, which fences the batches of the old one (KIP-360). When the epochs of the producer ID
// are exhausted, ensureProducerID requests a new ID.
func (s *numberedSequencer) startNextEpoch() {
	s.lastWritten = time.Time{}
	if s.next.Producer == cluster.NoID || s.next.Epoch == math.MaxInt16 {
		s.next = record.ProducerSequence{Producer: cluster.NoID}
		return
	}
	s.next = record.ProducerSequence{Producer: s.next.Producer, Epoch: s.next.Epoch + 1}
}

// maxFoundIDs bounds what is remembered of a partition that was read. More is never in doubt, unless the journal is an old
// copy.
const maxFoundIDs = 100_000

// fencedSequencer is the sequencer of a sink with a transactional ID. All lanes write under the producer ID of the fence;
// the epochs come from its coordinator only. Where the outcome of a batch is unknown, it fences its own batches and reads
// the partition. It shares its numbers with other lanes to the same partition through partitionProgress.
type fencedSequencer struct {
	partition *partitionClient
	lane      sinks.Lane
	fence     *fence
	log       *slog.Logger

	topic       protocol.TopicID        // that the lane writes to
	progress    *partitionProgress      // nil until the first prepare for this topic
	next        record.ProducerSequence // of the first unsettled batch
	lastWritten time.Time               // timestamp of the last batch acknowledged in this epoch; zero if there is none
	foundIDs    map[string]bool         // IDs of messages that were in doubt and were found in the partition
	renumbering
}

var _ sequencer = (*fencedSequencer)(nil)

func (s *fencedSequencer) nextSequence() record.ProducerSequence { return s.next }

func (*fencedSequencer) isNumbered() bool { return true }

func (s *fencedSequencer) isKnownToBroker() bool {
	return time.Since(s.lastWritten) <= producerRetention
}

// useTopic implements [sequencer]. What is under way to a topic that was deleted is gone with it, or refused. The lane
// fences the topic that has its name before it writes to that.
func (s *fencedSequencer) useTopic(id protocol.TopicID) (void bool) {
	if s.topic == id {
		return false
	}
	void = s.progress != nil
	s.topic, s.progress, s.foundIDs, s.lastWritten = id, nil, nil, time.Time{}
	return void
}

func (s *fencedSequencer) prepare(ctx context.Context, next uint64, inFlight int) error {
	if err := s.fence.ensureMayPublish(ctx); err != nil {
		return err
	}
	if s.fence.partition(s.partition.id()).state == partitionUnfenced {
		return fmt.Errorf("%s: an older exporter may still write to it, until its leader answers", s.partition)
	}
	if s.progress == nil {
		if err := s.startPartition(ctx); err != nil {
			return err
		}
	}
	if inFlight == 0 && s.progress.inDoubt {
		return s.resolveInDoubt(ctx, next)
	}
	return nil
}

// startPartition records the lane for later processes, unless it is recorded, and continues with the numbers that
// this process has used in the partition. Of a topic that was recreated everything counts, and nothing before it is fenced.
func (s *fencedSequencer) startPartition(ctx context.Context) error {
	known := s.fence.partition(s.partition.id())
	progress, end := known.progressIn(s.topic), int64(0)
	inDoubt := progress == nil && known.isUnfencedIn(s.topic)
	if progress != nil {
		end = progress.deliveredUpTo.Load()
	} else if !inDoubt {
		if err := s.partition.askLeader(ctx, func(by cluster.Lead) (err error) {
			end, err = s.partition.reader.HighWatermark(ctx, by, s.partition.id())
			return err
		}); err != nil {
			return fmt.Errorf("%s: querying its end: %w", s.partition, err)
		}
	}
	if err := s.fence.ensureLaneRecorded(ctx, laneStart{recordedLane(s.lane, s.topic), sinks.LanePosition(end)}); err != nil {
		return fmt.Errorf("%s: %w", s.partition, err)
	}
	if progress == nil {
		progress = s.fence.startPartition(s.partition.id(), s.topic, end, inDoubt)
	}
	s.progress, s.next = progress, progress.next
	return nil
}

// resolveInDoubt fences the batches that may be under way, and then reads which messages are in the partition.
func (s *fencedSequencer) resolveInDoubt(ctx context.Context, next uint64) error {
	epoch, err := s.fence.fencePartition(ctx, s.partition.id())
	if err != nil {
		return fmt.Errorf("%s: %w", s.partition, err)
	}
	found := map[string]bool{}
	lane := recordedLane(s.lane, s.topic)
	from := map[sinks.Lane]sinks.Tail{lane: {From: sinks.LanePosition(s.progress.deliveredUpTo.Load())}}
	failed, err := readTail(ctx, s.partition.reader, s.fence, from, false, next, func(_ sinks.Lane, e sinks.Emitted) error {
		if len(found) < maxFoundIDs {
			found[e.ID] = true
		}
		return nil
	})
	err = cmp.Or(err, failed[lane])
	isOwn := s.fence.replace != nil
	if err != nil && (!isOwn || !s.fence.rights.recordUnread(err)) {
		return fmt.Errorf("%s: %w", s.partition, err)
	}
	s.foundIDs = found
	s.next, s.lastWritten = record.ProducerSequence{Producer: epoch.Producer, Epoch: epoch.Epoch}, time.Time{}
	s.progress.next, s.progress.inDoubt = s.next, false
	return nil
}

// creditWritten credits the messages that resolveInDoubt has found.
func (s *fencedSequencer) creditWritten(batch []sinks.Message) int {
	n := 0
	for n < len(batch) && s.foundIDs[batch[n].Change.ID()] {
		n++
	}
	if n < len(batch) {
		s.foundIDs = nil
	}
	return n
}

func (*fencedSequencer) ensureProducerID(context.Context) error { return nil } // prepare has set it

func (s *fencedSequencer) recordSent() { s.progress.inDoubt = true }

func (s *fencedSequencer) recordWritten(f *inFlightBatch, inDoubt bool) {
	s.next.Sequence = record.SequenceAfter(s.next.Sequence, f.records)
	s.lastWritten, s.errors = f.sentAt, 0
	if f.written.BaseOffset >= 0 {
		s.progress.deliveredUpTo.Store(f.written.BaseOffset + int64(f.records))
	}
	s.progress.next, s.progress.inDoubt = s.next, inDoubt
}

func (s *fencedSequencer) recordAbandoned(inDoubt bool) { s.progress.inDoubt = inDoubt }

// recordLost forgets the progress, which the fence has set back.
func (s *fencedSequencer) recordLost() { s.progress, s.foundIDs, s.lastWritten = nil, nil, time.Time{} }

func (s *fencedSequencer) handleSequenceError(cause error, v protocol.Outcome) error {
	if v == protocol.Fenced && s.fence.replace == nil {
		return s.fence.recordDeposed(cause)
	}
	if err := s.countError(s.partition, cause); err != nil {
		return err
	}
	s.log.Warn("kafka does not know the sequence of this producer; the partition is read to find what it holds",
		"topic", s.partition.topic.name, "partition", s.partition.index, "error", cause)
	return nil // the progress is in doubt, so the next prepare reads the partition
}
