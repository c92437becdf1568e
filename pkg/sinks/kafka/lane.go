package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// maxCorruptTries is how often a batch that arrives corrupt is sent before it counts as invalid.
const maxCorruptTries = 3

// lane publishes to one topic-partition. Its messages pass through three parts: encoder makes batches of them, numbers
// gives the batches sequence numbers, and window has them under way. Not safe for concurrent use; the [sinks.Sink] contract
// has one Publish of a lane at a time.
type lane struct {
	name       sinks.Lane
	partition  *partitionClient
	count      int // partitions of the topic, in the name of the lane
	fence      *atomic.Pointer[fence]
	acks       *ackLog
	timestamps *timestampCondition
	log        *slog.Logger

	encoder batchEncoder
	numbers sequencer
	window  publishWindow

	uncounted []uint64 // offsets of messages that are written, and that no call has counted yet
}

func newLane(s *laneSet, t *topic, name sinks.Lane, index int32, count int) *lane {
	p := &partitionClient{cluster: s.cluster, reader: s.reader, topics: s.topics, requestTimeout: s.config.RequestTimeout, topic: t, index: index}
	return &lane{
		name: name, partition: p, count: count, fence: s.fence, acks: s.acks, timestamps: s.timestamps, log: s.log,
		encoder: newBatchEncoder(s.encoders, s.codecs, t, &s.buffers, s.config.BatchBytes),
		window:  publishWindow{partition: p, buffers: &s.buffers, retained: &s.retained, purpose: cluster.ForProducing, limit: 1},
		numbers: newNumberedSequencer(p, !s.config.isIdempotent(), s.log),
	}
}

// useFence chooses the sequencer, and replaces it when the sink was fenced since the last call.
func (l *lane) useFence(ctx context.Context) error {
	f := l.fence.Load()
	if f == nil {
		return nil
	}
	granted, err := f.claimOnce(ctx)
	if err != nil {
		return err
	}
	s, isFenced := l.numbers.(*fencedSequencer)
	if granted && (!isFenced || s.fence != f) {
		l.window.dropBatches() // they are in doubt
		l.numbers = &fencedSequencer{partition: l.partition, lane: l.name, fence: f, log: l.log}
	} else if !granted && isFenced {
		l.numbers = newNumberedSequencer(l.partition, false, l.log)
	}
	return nil
}

// publishBatch implements Publish of this lane. After maxInFlight batches are settled, it returns as soon as all other
// messages are under way: the caller can add messages meanwhile, and the broker has work until they arrive.
func (l *lane) publishBatch(ctx context.Context, batch []sinks.Message) (int, error) {
	l.window.reclaimBytes()
	defer l.window.retainBytes()
	n := l.creditUncounted(batch)
	for settled := 0; n < len(batch); {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if recreated, err := l.useTopic(ctx); err != nil || recreated && n > 0 {
			return n, err // what the former topic has is to be stored before the first message of the next one
		}
		if err := l.acks.confirm(ctx, l.partition.id()); err != nil {
			return n, err
		}
		if n += l.acks.creditRestored(l.partition.id(), l.shape(), batch[n:]); n == len(batch) {
			break
		}
		if err := l.numbers.prepare(ctx, batch[n].Offset, len(l.window.batches)); err != nil {
			return n, err
		}
		if n += l.numbers.creditWritten(batch[n:]); n == len(batch) {
			break
		}
		complete, err := l.fillWindow(ctx, batch[n:])
		if errors.Is(err, errAbandoned) {
			continue
		}
		if err != nil || complete && settled >= maxInFlight {
			return n, err
		}
		err = l.deliverWindow(ctx)
		if more := l.creditUncounted(batch[n:]); more > 0 {
			n, settled = n+more, settled+1
		}
		if err != nil && n < len(batch) { // otherwise the error is about a message of the next call
			return n, err
		}
	}
	return n, nil
}

// useTopic makes the lane write to the topic that has the name now, as far as is known. A topic with fewer partitions than
// the lane has in its name was recreated. It gets nothing through this lane: what is not acknowledged is sent again through
// other lanes, and must not be there already. recreated: the lane has written to another topic of the name.
func (l *lane) useTopic(ctx context.Context) (recreated bool, err error) {
	layout := l.partition.topic.layout.Load()
	if layout == nil {
		if layout, err = l.partition.topics.refreshLayout(ctx, l.partition.topic, nil); err != nil {
			return false, err
		}
	}
	if layout.Err == nil && len(layout.Leads) < l.count {
		return false, fmt.Errorf("%s: %w", l.partition, cluster.ErrNoPartition)
	}
	if l.partition.topics.checker.refusal(l.partition.topic.name) != nil {
		if err := l.partition.topics.checker.checkTopic(ctx, l.partition.topic.name, layout); err != nil {
			return false, err
		}
	}
	if err := l.useFence(ctx); err != nil {
		return false, err
	}
	l.window.topic = layout.ID
	if recreated = l.numbers.useTopic(layout.ID); recreated {
		l.window.dropBatches()
	}
	return recreated, nil
}

// shape is the topic that the lane writes to, as the lane knows it.
func (l *lane) shape() cluster.TopicShape {
	return cluster.TopicShape{ID: l.window.topic, Partitions: l.count}
}

// creditUncounted returns how many messages at the head of batch are written.
func (l *lane) creditUncounted(batch []sinks.Message) int {
	n := commonPrefix(l.uncounted, batch)
	if n < len(batch) {
		l.uncounted = nil
	} else {
		l.uncounted = l.uncounted[n:]
	}
	return n
}

// commonPrefix returns how many of the offsets are those at the head of batch.
func commonPrefix(offsets []uint64, batch []sinks.Message) int {
	n := 0
	for n < len(offsets) && n < len(batch) && offsets[n] == batch[n].Offset {
		n++
	}
	return n
}

// windowDepth is how many batches may be under way.
func (l *lane) windowDepth() int {
	if !l.numbers.isKnownToBroker() {
		return 1
	}
	return l.window.limit
}

// fillWindow encodes messages that are not in the window, until as many batches as may be under way are, and one more: that
// one is ready when the first is answered. Batches are sent while the next one is encoded. complete means that all messages
// are in batches.
func (l *lane) fillWindow(ctx context.Context, messages []sinks.Message) (complete bool, err error) {
	rest, err := l.matchWindow(ctx, messages)
	if err != nil {
		return false, err
	}
	if err := l.numbers.ensureProducerID(ctx); err != nil {
		return false, err
	}
	for {
		capacity := l.windowDepth()
		if capacity > 1 && len(l.window.batches) > 0 {
			_ = l.sendUnsent(&deliveryAttempt{}) // deliverWindow sends again what fails here, and returns the error
			capacity++
		}
		if len(rest) == 0 || len(l.window.batches) >= capacity {
			return len(rest) == 0, nil
		}
		f, err := l.encoder.encodeBatch(ctx, rest, l.window.sequenceAfter(l.numbers.nextSequence()))
		if len(l.window.batches) > 0 && errors.As(err, new(*sinks.RejectedError)) {
			return false, nil // its turn comes when those before it are settled
		}
		if err != nil {
			return false, err
		}
		l.window.batches = append(l.window.batches, f)
		rest = rest[len(f.offsets):]
	}
}

// errAbandoned means that the unsettled batches were dropped: what they may have written has to be known first.
var errAbandoned = errors.New("the unsettled batches are abandoned")

// matchWindow matches the unsettled batches with the messages of this call, and encodes those again that have no bytes. It
// returns the messages behind the window.
func (l *lane) matchWindow(ctx context.Context, messages []sinks.Message) (rest []sinks.Message, err error) {
	at := l.numbers.nextSequence()
	for i, f := range l.window.batches {
		count := len(f.offsets)
		same := commonPrefix(f.offsets, messages)
		switch {
		case same == min(count, len(messages)) && f.bytes != nil:
		case same == count:
			if err := l.encoder.reencodeBatch(ctx, f, messages[:count], at); err != nil {
				return nil, err
			}
		case i == 0:
			// These are other messages, which the contract does not allow, or too few to encode the batch again. A
			// batch in doubt must not be written after the batches of this call.
			l.abandonWindow()
			return nil, errAbandoned
		default: // as before, but the batch is not the first: the call that begins with it decides
			l.window.releaseBuffer(f)
			f.bytes = nil
			return nil, nil
		}
		messages = messages[same:]
		at.Sequence = record.SequenceAfter(at.Sequence, f.records)
	}
	return messages, nil
}

// deliveryAttempt is the state of one deliverWindow.
type deliveryAttempt struct {
	layout *cluster.Layout // that the batches were sent by
	broken bool            // the network has failed once
}

// deliverWindow sends batches until the first is written (nil), or has been split or renumbered (nil), or the error is for
// the caller's back-off or judgement.
func (l *lane) deliverWindow(ctx context.Context) error {
	var try deliveryAttempt
	for {
		err := l.sendAndAwait(ctx, &try)
		if errors.Is(err, errRecreated) {
			return nil
		}
		first := l.window.batches[0]
		switch v := protocol.ClassifyError(err); v {
		case protocol.Accepted:
			l.settleFirst()
			return nil
		case protocol.TooLarge:
			l.encoder.refusedBytes = min(l.encoder.refusedBytes, first.size())
			if first.size() <= l.partition.topic.currentLimit() {
				l.partition.topics.readLimit(ctx, l.partition.topic)
			}
			return l.splitRefused(err, v)
		case protocol.Invalid:
			return l.splitRefused(err, v)
		case protocol.Corrupt:
			if first.corruptAnswers++; first.corruptAnswers >= maxCorruptTries {
				return l.splitRefused(err, v)
			}
		case protocol.OutOfSequence, protocol.Fenced:
			l.acks.contradict(l.partition.id())
			if err := l.numbers.handleSequenceError(err, v); err != nil {
				return err
			}
			l.window.dropBatches()
			return nil
		case protocol.Mistimed:
			l.window.untimedUntil = time.Now().Add(timestampPause)
			l.timestamps.recordRefusal(l.partition.topic.name, err)
		case protocol.Miscoded:
			return l.changeCompression(first, err)
		case protocol.Unauthorized:
			return l.partition.cluster.AuthorizationError(l.partition.topic.name, err)
		case protocol.Unsettled:
			if err := l.decideRetry(ctx, &try, err); err != nil {
				return err
			}
		}
	}
}

// sendAndAwait sends what may be under way and waits for the answer to the first batch.
func (l *lane) sendAndAwait(ctx context.Context, try *deliveryAttempt) error {
	if !l.numbers.isNumbered() {
		// Without numbers the broker does not refuse an attempt that is written after a later one. So each attempt is awaited
		// to its end, which the connection bounds.
		ctx = context.WithoutCancel(ctx)
	}
	if err := l.sendUnsent(try); err != nil {
		return err
	}
	return l.window.awaitFirst(ctx)
}

func (l *lane) sendUnsent(try *deliveryAttempt) error {
	return l.window.sendUnsent(try, l.windowDepth(), l.numbers.recordSent)
}

// settleFirst removes the first batch, which is written.
func (l *lane) settleFirst() {
	f, at := l.window.batches[0], l.numbers.nextSequence()
	l.window.batches, l.window.purpose = l.window.batches[1:], cluster.ForProducing
	l.numbers.recordWritten(f, len(l.window.batches) > 0)
	lead, err := l.partition.topic.layout.Load().Lead(l.partition.index)
	if err != nil {
		lead.Epoch = -1
	}
	l.acks.recordAck(ackPlace{l.partition.id(), l.shape(), lead.Epoch}, f, at)
	l.encoder.adaptBatchSize(f)
	l.encoder.codecs.recordAccepted(l.partition.topic, f.codec)
	l.uncounted = append(l.uncounted, f.offsets...)
	l.window.releaseBuffer(f)
}

// decideRetry decides, after an attempt that may or may not be written, whether to send the same bytes at once (nil): when
// the leader has moved, or when the connection may just have been stale. Everything else is for the caller's back-off.
func (l *lane) decideRetry(ctx context.Context, try *deliveryAttempt, cause error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now, err := l.partition.topics.refreshLayout(ctx, l.partition.topic, try.layout)
	if err != nil {
		return err
	}
	to, err := now.Lead(l.partition.index)
	_, before := try.layout.Lead(l.partition.index)
	moved := err == nil && (before != nil || to.Broker != l.window.leader)
	broken := !protocol.IsBrokerError(cause) && !errors.Is(cause, cluster.ErrNoLayout) && !errors.Is(cause, cluster.ErrNoPartition)
	stale := broken && !try.broken && !cluster.IsTimeout(cause)
	try.broken = try.broken || broken
	if moved || stale {
		return nil
	}
	if cause = fmt.Errorf("%s: %w", l.partition, cause); isReplicaLag(cause) {
		cause = condition.Problem{
			Code: condition.SinkFailing, Cause: "not enough in-sync replicas",
			Remedy: "bring the brokers of the other replicas back, or lower min.insync.replicas of the topic",
		}.Wrap(cause)
	}
	if errors.Is(err, kafka.LeaderNotAvailable) { // frequent retries are cheap: all lanes without a leader share one request
		return &sinks.ProbedError{Every: cluster.ProbeInterval, Err: cause}
	}
	return cause
}

// changeCompression lets the unsettled batches be encoded again, with the same numbers and another codec: what the broker
// recognizes a batch by does not depend on its bytes.
func (l *lane) changeCompression(refused *inFlightBatch, cause error) error {
	if err := l.encoder.codecs.recordRefusal(l.partition.topic, refused.codec, cause); err != nil {
		return err
	}
	for _, f := range l.window.batches {
		l.window.releaseBuffer(f)
		f.bytes = nil
	}
	return nil
}

// splitRefused splits the first batch, which was refused: half of it comes next. A single record is rejected.
func (l *lane) splitRefused(cause error, v protocol.Outcome) error {
	f := l.window.batches[0]
	if len(f.offsets) > 1 {
		l.encoder.halveNextBatch(f)
		l.abandonWindow()
		return nil
	}
	size := f.size()
	l.encoder.endHalving()
	l.abandonWindow()
	if v == protocol.TooLarge {
		if size <= l.partition.topic.currentLimit() {
			l.partition.topic.limit.Store(&sizeLimit{size - 1, time.Now()})
		}
		return l.partition.topic.tooLargeError(size, cause)
	}
	return &sinks.RejectedError{Err: cause, Reason: fmt.Sprintf("topic %q does not allow this record", l.partition.topic.name)}
}

// abandonWindow drops all batches. The sequencer makes sure that none of them is written behind later ones.
func (l *lane) abandonWindow() {
	inDoubt := slices.ContainsFunc(l.window.batches, func(f *inFlightBatch) bool { return f.maybeWritten || f.pending != nil })
	l.window.dropBatches()
	l.numbers.recordAbandoned(inDoubt)
}

// recordLost starts over, because the partition has lost what it had acknowledged.
func (l *lane) recordLost() {
	l.window.reclaimBytes()
	l.window.dropBatches()
	l.numbers.recordLost()
	l.uncounted = nil
}
