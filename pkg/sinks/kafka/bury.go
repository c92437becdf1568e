package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// writeTombstones writes tombstones, which are no messages of the lane, while nothing is published to it. It returns how many are
// written. After an error the rest may be written, but not behind a message that is published later.
func (l *lane) writeTombstones(ctx context.Context, dead []sinks.Message) (buried int, err error) {
	if len(l.inFlight) > 0 {
		return 0, errors.New("it is not known yet what became of changes before")
	}
	at, err := l.reserveTombstoneEpoch(ctx)
	if err != nil {
		return 0, err
	}
	for buried < len(dead) {
		f, err := l.encodeBatch(ctx, dead[buried:], at)
		if err != nil {
			return buried, err
		}
		if err := l.sendTombstoneBatch(ctx, f); err != nil {
			return buried, fmt.Errorf("tombstones: %w", err)
		}
		at.Sequence = record.SequenceAfter(at.Sequence, f.records)
		buried += len(f.offsets)
	}
	return buried, nil
}

// reserveTombstoneEpoch returns an epoch that no message ever has. The lane goes on with the one behind it, which a later process is
// certain to know before the first tombstone is sent. So this process and a later one refuse a tombstone that comes late,
// and the numbers of messages follow each other without a hole, which is what recoverProducer counts by.
func (l *lane) reserveTombstoneEpoch(ctx context.Context) (record.ProducerSequence, error) {
	if f := l.sink.fence.Load(); f != nil {
		return l.fencedTombstoneEpoch(ctx, f)
	}
	if l.next.Epoch > math.MaxInt16-2 {
		l.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	if err := l.ensureProducerID(ctx); err != nil {
		return record.ProducerSequence{}, err
	}
	l.startNextEpoch()
	aside := l.currentEpoch()
	l.startNextEpoch()
	return aside, l.storeEpoch(ctx, l.acknowledged.settledUpTo)
}

// sendTombstoneBatch sends a batch past the books of the lane.
func (l *lane) sendTombstoneBatch(ctx context.Context, f *inFlightBatch) error {
	defer l.releaseBuffer(f)
	to, err := l.topic.layout.Load().Lead(l.partition)
	if err != nil {
		return err
	}
	l.stampBatch(f)
	f.pending, err = l.sink.cluster.Produce(to.Broker, connection.Batch{Topic: l.topic.name, Partition: l.partition, Bytes: f.bytes}, l.purpose)
	if err != nil {
		return err
	}
	if err := f.awaitAnswer(ctx); protocol.ClassifyError(err) != protocol.Accepted {
		return err
	}
	return nil
}
