package kafka

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

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

func (s *fencedSequencer) prepare(ctx context.Context, inFlight int) error {
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
		return s.resolveInDoubt(ctx)
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
func (s *fencedSequencer) resolveInDoubt(ctx context.Context) error {
	epoch, err := s.fence.fencePartition(ctx, s.partition.id())
	if err != nil {
		return fmt.Errorf("%s: %w", s.partition, err)
	}
	found := map[string]bool{}
	lane := recordedLane(s.lane, s.topic)
	from := map[sinks.Lane]sinks.LanePosition{lane: sinks.LanePosition(s.progress.deliveredUpTo.Load())}
	failed, err := readTail(ctx, s.partition.reader, s.fence, from, func(_ sinks.Lane, e sinks.Emitted) error {
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
	if f.baseOffset >= 0 {
		s.progress.deliveredUpTo.Store(f.baseOffset + int64(f.records))
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
	if s.countError() {
		return renumberingError(s.partition, cause)
	}
	s.log.Warn("kafka does not know the sequence of this producer; the partition is read to find what it holds",
		"topic", s.partition.topic.name, "partition", s.partition.index, "error", cause)
	return nil // the progress is in doubt, so the next prepare reads the partition
}
