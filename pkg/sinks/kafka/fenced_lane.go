package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// prepareFenced makes a lane of a sink that was fenced ready for its next batch.
func (l *lane) prepareFenced(ctx context.Context, f *fence) error {
	if err := f.ensureMayPublish(ctx); err != nil {
		return err
	}
	if l.progress == nil {
		if err := l.startFenced(ctx, f); err != nil {
			return err
		}
	}
	if len(l.inFlight) == 0 && l.progress.inDoubt {
		return l.resolveInDoubt(ctx, f)
	}
	return nil
}

func (l *lane) topicPartition() cluster.Partition {
	return cluster.Partition{Topic: l.topic.name, Index: l.partition}
}

// startFenced notes the lane, unless it is known, and goes on with the numbers that the partition has from this process.
func (l *lane) startFenced(ctx context.Context, f *fence) error {
	w := f.progressOf(l.topicPartition())
	end := int64(0)
	if w != nil {
		end = w.deliveredUpTo.Load()
	} else if err := l.askLeader(ctx, func(by cluster.Lead) (err error) {
		end, err = l.sink.cluster.HighWatermark(ctx, by, l.topicPartition())
		return err
	}); err != nil {
		return fmt.Errorf("%s: asking for its end: %w", l, err)
	}
	if err := f.ensureNoted(ctx, laneStart{l.name, sinks.LanePosition(end)}); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	if w == nil {
		w = f.startPartition(l.topicPartition(), end)
	}
	l.progress, l.next = w, w.next
	return nil
}

// resolveInDoubt finds out what of a lane is there, after brokers or network left that open: what may be on its way is turned away,
// and then the partition is read.
func (l *lane) resolveInDoubt(ctx context.Context, f *fence) error {
	own, err := f.fenceRounds.Submit(ctx, l.topicPartition())
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	held := map[string]bool{}
	from := map[sinks.Lane]sinks.LanePosition{l.name: sinks.LanePosition(l.progress.deliveredUpTo.Load())}
	err = l.sink.ReadTail(ctx, from, func(_ sinks.Lane, e sinks.Emitted) error {
		held[e.ID] = true
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	l.foundIDs = held
	l.next, l.lastWritten = record.ProducerSequence{Producer: own.Producer, Epoch: own.Epoch}, time.Time{}
	l.progress.next, l.progress.inDoubt = l.next, false
	return nil
}

// fencedTombstoneEpoch returns an epoch that no message ever has, for what is no message. Before the lane goes on, that is turned
// away if it is late.
func (l *lane) fencedTombstoneEpoch(ctx context.Context, f *fence) (record.ProducerSequence, error) {
	if err := l.prepareFenced(ctx, f); err != nil {
		return record.ProducerSequence{}, err
	}
	own, err := f.fenceRounds.Submit(ctx, l.topicPartition())
	l.progress.inDoubt = true
	return record.ProducerSequence{Producer: own.Producer, Epoch: own.Epoch}, err
}

// creditFound counts the messages at the head of batch that the partition was found to have.
func (l *lane) creditFound(batch []sinks.Message) int {
	n := 0
	for n < len(batch) && l.foundIDs[batch[n].Change.ID()] {
		n++
	}
	if n < len(batch) {
		l.foundIDs = nil
	}
	return n
}

// recordAcknowledged books what was acknowledged of a lane of a sink that was fenced. base is the offset of the batch's first record;
// below zero where the broker does not say.
func (l *lane) recordAcknowledged(f *inFlightBatch) {
	w := l.progress
	if f.baseOffset >= 0 {
		w.deliveredUpTo.Store(f.baseOffset + int64(f.records))
	}
	w.next, w.inDoubt = l.next, len(l.inFlight) > 0
}

// handleFencedSequenceError decides what comes after a broker refused the numbers of a lane of a sink that was fenced.
func (l *lane) handleFencedSequenceError(f *fence, cause error, v protocol.Outcome) error {
	if v == protocol.Fenced {
		return f.recordDeposed(cause)
	}
	if l.sequenceErrors++; l.sequenceErrors > maxSequenceErrors {
		l.sequenceErrors = 0
		return fmt.Errorf("%s: %w, also when numbered anew", l, cause)
	}
	l.sink.log.Warn("kafka lost track of our sequence; the partition is read for what it has",
		"topic", l.topic.name, "partition", l.partition, "error", cause)
	l.dropInFlight()
	return nil
}
