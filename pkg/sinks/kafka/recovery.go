package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// recovery is what a lane has of the process before.
type recovery struct {
	resolved         bool   // what that is, is known; also when it is nothing
	oldNumbers       bool   // the lane goes on under the old numbers
	acknowledgedUpTo uint64 // messages up to here were acknowledged to the process before
	uncredited       int    // so many records of the messages behind the state are there too, and not credited yet
}

// recoverProducer finds out, before the lane's first batch, what the process before has left of it. The leader of the
// partition knows the number of our newest record, and the state holds the number of the first one that was not acknowledged
// for certain: what lies between is there already.
//
// What the process before knew of, it may still have under way. So the lane goes on under its numbers until that is
// published: of two batches with one number, the broker takes one. What is newer begins a new epoch, after which the
// broker refuses the old one altogether.
func (l *lane) recoverProducer(ctx context.Context) error {
	if f := l.sink.fence.Load(); f != nil {
		return l.prepareFenced(ctx, f)
	}
	if l.unnumbered || l.recovery.resolved {
		return nil
	}
	if !l.recovery.oldNumbers {
		old, ok := l.sink.producers.previousState(l.name)
		if !ok {
			l.recovery.resolved = true
			return nil
		}
		l.acknowledged = old
		l.recovery.acknowledgedUpTo = old.settledUpTo
	}
	records, certain, err := l.countWrittenRecords(ctx)
	if err != nil {
		return err
	}
	l.recovery.resolved, l.recovery.oldNumbers, l.recovery.uncredited = true, certain, records
	l.next = record.ProducerSequence{Producer: l.acknowledged.producer, Epoch: l.acknowledged.epoch, Sequence: record.SequenceAfter(l.acknowledged.nextSequence, records)}
	l.storedEpoch = l.currentEpoch()
	if !certain {
		l.startNextEpoch()
	}
	return nil
}

// countWrittenRecords returns how many records the partition holds, in all in-sync replicas, of the messages behind the state.
// certain is false when that cannot be known: what was in flight is then written again.
func (l *lane) countWrittenRecords(ctx context.Context) (records int, certain bool, err error) {
	err = l.askLeader(ctx, func(by cluster.Lead) (err error) {
		records, certain, err = l.queryWrittenRecords(ctx, by)
		if !isPermanentRefusal(err) {
			return err
		}
		records, certain = 0, false
		l.sink.recoveryWarned.Do(func() {
			l.sink.log.Warn("kafka does not tell what the process before has written last: changes that were in flight then are written again",
				"topic", l.topic.name, "partition", l.partition, "error", err,
				"remedy", "grant READ on the topics; brokers before Kafka 2.8 do not tell at all")
		})
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("%s: asking what the process before has written: %w", l, err)
	}
	return records, certain, nil
}

// isPermanentRefusal says whether a broker that does not tell will not tell later either.
func isPermanentRefusal(err error) bool {
	return errors.Is(err, kafka.UnsupportedVersion) || errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed)
}

// queryWrittenRecords asks the leader once.
func (l *lane) queryWrittenRecords(ctx context.Context, by cluster.Lead) (records int, certain bool, err error) {
	at, err := l.sink.cluster.DescribeProducer(ctx, by.Broker, l.topicPartition(), l.acknowledged.producer)
	if err != nil {
		return 0, false, err
	}
	if at == nil || at.ProducerEpoch < int32(l.acknowledged.epoch) { // forgotten, unless nothing was written under these numbers yet
		return 0, l.acknowledged.nextSequence == 0, nil
	}
	records = int((int64(at.LastSequence) + 1 - int64(l.acknowledged.nextSequence)) & math.MaxInt32)
	if at.ProducerEpoch > int32(l.acknowledged.epoch) || records > math.MaxInt32/2 { // not our numbers; or acknowledged records are gone
		return 0, false, nil
	}
	if records == 0 {
		return 0, true, nil
	}
	return records, true, l.awaitReplicated(ctx, by)
}

// awaitReplicated waits until all in-sync replicas have what the leader has now: until then a new leader could begin
// without it. It waits as long as a request may take.
func (l *lane) awaitReplicated(ctx context.Context, by cluster.Lead) error {
	ctx, cancel := context.WithTimeout(ctx, l.sink.config.RequestTimeout)
	defer cancel()
	end, err := l.sink.cluster.LogEndOffset(ctx, by, l.topicPartition())
	if err != nil {
		return err
	}
	const pause = 20 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		reached, err := l.sink.cluster.HighWatermark(ctx, by, l.topicPartition())
		if err != nil || reached >= end {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("the replicas do not have yet what the process before has written")
		}
	}
}

// creditRecovered counts the messages at the head of batch that the process before has written, and moves the state behind
// them.
func (l *lane) creditRecovered(batch []sinks.Message) int {
	if l.progress != nil {
		return l.creditFound(batch)
	}
	h, n := &l.recovery, 0
	for n < len(batch) && batch[n].Offset <= h.acknowledgedUpTo {
		n++
	}
	for n < len(batch) && h.uncredited > 0 {
		m := batch[n]
		records := 1
		if record.HasTombstone(m.Change, l.sink.config.Tombstones) {
			records = 2
		}
		if m.Offset > l.sink.producers.newestKnown || records > h.uncredited {
			l.sink.log.Warn("kafka holds changes of ours that the journal does not know: it went back in time; what is uncertain is written again",
				"topic", l.topic.name, "partition", l.partition)
			l.startNextEpoch()
			break
		}
		h.uncredited -= records
		l.recordState(producerState{l.acknowledged.producer, l.acknowledged.epoch, m.Offset, record.SequenceAfter(l.acknowledged.nextSequence, records)})
		n++
	}
	return n
}

// limitToPredecessor returns those at the head of messages that the process before may have under way, and which therefore
// go under its numbers. When there is none, the lane begins numbers of its own and all messages are returned.
func (l *lane) limitToPredecessor(messages []sinks.Message) []sinks.Message {
	if !l.recovery.oldNumbers {
		return messages
	}
	n := 0
	for n < len(messages) && messages[n].Offset <= l.sink.producers.newestKnown {
		n++
	}
	if n > 0 {
		return messages[:n]
	}
	l.startNextEpoch()
	return messages
}

// recordState notes, for this and for a later process, where the numbers of the lane stand.
func (l *lane) recordState(to producerState) {
	if l.progress != nil { // a later process takes over in another way
		return
	}
	l.acknowledged = to
	l.sink.producers.setState(l.name, to)
}
