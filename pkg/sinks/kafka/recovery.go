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
	asked   bool   // what that is, is known; also when it is nothing
	ours    bool   // the lane goes on under the old numbers
	settled uint64 // messages up to here were acknowledged to the process before
	records int    // so many records of the messages behind the state are there too, and not credited yet
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
		return l.enter(ctx, f)
	}
	if l.unnumbered || l.recovery.asked {
		return nil
	}
	if !l.recovery.ours {
		old, ok := l.sink.producers.before(l.name)
		if !ok {
			l.recovery.asked = true
			return nil
		}
		l.state = old
		l.recovery.settled = old.through
	}
	records, certain, err := l.recordsWritten(ctx)
	if err != nil {
		return err
	}
	l.recovery.asked, l.recovery.ours, l.recovery.records = true, certain, records
	l.next = record.ProducerSequence{Producer: l.state.producer, Epoch: l.state.epoch, Sequence: record.SequenceAfter(l.state.next, records)}
	l.stored = l.numbering()
	if !certain {
		l.nextEpoch()
	}
	return nil
}

// recordsWritten returns how many records the partition holds, in all in-sync replicas, of the messages behind the state.
// certain is false when that cannot be known: what was in flight is then written again.
func (l *lane) recordsWritten(ctx context.Context) (records int, certain bool, err error) {
	err = l.askLeader(ctx, func(by cluster.Lead) (err error) {
		records, certain, err = l.countWritten(ctx, by)
		if !unanswerable(err) {
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

// unanswerable says whether a broker that does not tell will not tell later either.
func unanswerable(err error) bool {
	return errors.Is(err, kafka.UnsupportedVersion) || errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed)
}

// countWritten asks the leader once.
func (l *lane) countWritten(ctx context.Context, by cluster.Lead) (records int, certain bool, err error) {
	at, err := l.sink.cluster.Producer(ctx, by.Broker, l.place(), l.state.producer)
	if err != nil {
		return 0, false, err
	}
	if at == nil || at.ProducerEpoch < int32(l.state.epoch) { // forgotten, unless nothing was written under these numbers yet
		return 0, l.state.next == 0, nil
	}
	records = int((int64(at.LastSequence) + 1 - int64(l.state.next)) & math.MaxInt32)
	if at.ProducerEpoch > int32(l.state.epoch) || records > math.MaxInt32/2 { // not our numbers; or acknowledged records are gone
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
	end, err := l.sink.cluster.EndOfLog(ctx, by, l.place())
	if err != nil {
		return err
	}
	const pause = 20 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		reached, err := l.sink.cluster.EndOf(ctx, by, l.place())
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
	if l.written != nil {
		return l.creditHeld(batch)
	}
	h, n := &l.recovery, 0
	for n < len(batch) && batch[n].Offset <= h.settled {
		n++
	}
	for n < len(batch) && h.records > 0 {
		m := batch[n]
		records := 1
		if record.HasTombstone(m.Change, l.sink.config.Tombstones) {
			records = 2
		}
		if m.Offset > l.sink.producers.newest || records > h.records {
			l.sink.log.Warn("kafka holds changes of ours that the journal does not know: it went back in time; what is uncertain is written again",
				"topic", l.topic.name, "partition", l.partition)
			l.nextEpoch()
			break
		}
		h.records -= records
		l.setState(producerState{l.state.producer, l.state.epoch, m.Offset, record.SequenceAfter(l.state.next, records)})
		n++
	}
	return n
}

// ofPredecessor returns those at the head of messages that the process before may have under way, and which therefore
// go under its numbers. When there is none, the lane begins numbers of its own and all messages are returned.
func (l *lane) ofPredecessor(messages []sinks.Message) []sinks.Message {
	if !l.recovery.ours {
		return messages
	}
	n := 0
	for n < len(messages) && messages[n].Offset <= l.sink.producers.newest {
		n++
	}
	if n > 0 {
		return messages[:n]
	}
	l.nextEpoch()
	return messages
}

// setState notes, for this and for a later process, where the numbers of the lane stand.
func (l *lane) setState(to producerState) {
	if l.written != nil { // a later process takes over in another way
		return
	}
	l.state = to
	l.sink.producers.set(l.name, to)
}
