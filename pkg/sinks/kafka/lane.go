package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

const (
	// maxCorruptTries is how often a batch that arrives damaged is sent before it is believed to be unwritable.
	maxCorruptTries = 3
	// maxSequenceErrors is how often a batch is numbered anew in a row before the next try is left to the caller's back-off.
	maxSequenceErrors = 2

	// maxInFlight is how many batches of a partition are sent before the first is answered: a broker remembers the numbers
	// of as many, and so tells a copy of any of them from something new (KIP-98, KAFKA-5494).
	maxInFlight = 5
	// producerRetention is how old the newest record of a producer may be for the broker to know its numbers for certain. By
	// default it knows them for a day (producer.id.expiration.ms).
	producerRetention = time.Hour
	// timestampPause is for how long batches go without timestamps after a broker has refused one.
	timestampPause = time.Minute
)

// lane is the writing end of one topic-partition. What it sends is numbered without gaps, so that the broker itself drops
// what arrives twice, late, or ahead of its turn (KIP-98). Not safe for concurrent use; the contract promises none.
type lane struct {
	sink      *Sink
	name      sinks.Lane
	topic     *topic
	partition int32

	recovery       recovery
	progress       *partitionProgress // where the sink was fenced: how far the partition is written; nil until it is begun
	foundIDs       map[string]bool    // IDs of messages that were in doubt, and were found in the partition
	rejectedOffset uint64             // offset of the message that was rejected last; 0: nothing is rejected since the last call

	next         record.ProducerSequence // of the first batch that is not settled; producer is noID until one is needed
	acknowledged producerState           // where the numbers stood at the last acknowledgement
	storedEpoch  record.ProducerSequence // the numbering that a later process is certain to know
	lastWritten  time.Time               // stamp of the last batch acknowledged under the present numbering; zero when it has none
	untimedUntil time.Time               // until then batches have no timestamp, since the broker refuses ours
	inFlight     []*inFlightBatch        // batches that are not settled, in order of numbers: maxInFlight, and the next one
	leader       int32                   // the broker that those were sent to which are on their way
	purpose      cluster.Purpose         // of the connection that they go over
	uncounted    []uint64                // offsets of messages that are written and that no call has counted yet

	unnumbered bool // batches go without numbers: the broker gives no producer IDs

	sequenceErrors int // times in a row that the broker did not know our numbers

	window       int // batches to send without waiting, as far as the network is concerned
	targetBytes  int // bytes of uncompressed records to aim for
	refusedBytes int // a batch of this many bytes was refused as too large, so more records are not tried; MaxInt: unknown
	maxRecords   int // records in the next batch at most; set while a refused batch is being halved
}

func newLane(s *Sink, t *topic, name sinks.Lane, partition int32) *lane {
	return &lane{sink: s, name: name, topic: t, partition: partition, next: record.ProducerSequence{Producer: cluster.NoID}, storedEpoch: record.ProducerSequence{Producer: cluster.NoID},
		unnumbered: !s.config.isIdempotent(), purpose: cluster.ForProducing, window: 1, targetBytes: s.config.BatchBytes, refusedBytes: math.MaxInt, maxRecords: math.MaxInt}
}

// publishBatch is [sinks.Sink.Publish] for this lane. When it has settled as many batches as may be in flight and what is left is
// on its way, it returns: the caller may have more by now, and until that is here the broker has enough to do.
func (l *lane) publishBatch(ctx context.Context, batch []sinks.Message) (int, error) {
	leave, err := l.sink.repairer.lockPartition(ctx, l.topicPartition())
	if err != nil {
		return 0, err
	}
	defer leave()
	l.reclaimBytes()
	defer l.retainBytes()
	l.skipRejected(batch)
	n := l.creditAcknowledged(batch)
	for settled := 0; n < len(batch); {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if err := l.recoverProducer(ctx); err != nil {
			return n, err
		}
		if n += l.creditRecovered(batch[n:]); n == len(batch) {
			break
		}
		whole, err := l.fillWindow(ctx, batch[n:])
		if err != nil || whole && settled >= maxInFlight {
			return n, err
		}
		err = l.deliverInFlight(ctx)
		if more := l.creditAcknowledged(batch[n:]); more > 0 {
			n, settled = n+more, settled+1
		}
		if err != nil && n < len(batch) { // else it speaks of a message that the caller has not asked about
			return n, err
		}
	}
	return n, nil
}

// skipRejected begins a new epoch when the caller has given up on the message that was rejected: within an epoch, the
// numbers follow the messages of the lane without a hole, which is what recoverProducer counts by.
func (l *lane) skipRejected(batch []sinks.Message) {
	if l.rejectedOffset == 0 || len(batch) == 0 {
		return
	}
	if batch[0].Offset > l.rejectedOffset && l.next.Producer != cluster.NoID && l.progress == nil {
		l.startNextEpoch()
	}
	l.rejectedOffset = 0
}

// creditAcknowledged counts the messages at the head of batch that are written already.
func (l *lane) creditAcknowledged(batch []sinks.Message) int {
	n := commonPrefix(l.uncounted, batch)
	if n < len(batch) {
		l.uncounted = nil
	} else {
		l.uncounted = l.uncounted[n:]
	}
	return n
}

// commonPrefix returns how many of the offsets are at the head of batch.
func commonPrefix(offsets []uint64, batch []sinks.Message) int {
	n := 0
	for n < len(offsets) && n < len(batch) && offsets[n] == batch[n].Offset {
		n++
	}
	return n
}

// deliverInFlight sends batches until those that may go together are settled, or the first that is not is taken apart or given
// up (nil), or it is better left to the caller's back-off or judgement (err).
func (l *lane) deliverInFlight(ctx context.Context) error {
	var try deliveryAttempt
	for {
		if err := l.ensureEpochStored(ctx); err != nil {
			return err
		}
		err := l.sendAndSettle(ctx, &try)
		switch v := protocol.ClassifyError(err); v {
		case protocol.Accepted:
			return nil
		case protocol.TooLarge:
			l.refusedBytes = min(l.refusedBytes, len(l.inFlight[0].bytes)-record.LengthPrefix)
			return l.splitRefused(err, v)
		case protocol.Invalid:
			return l.splitRefused(err, v)
		case protocol.Corrupt:
			if l.inFlight[0].corruptAnswers++; l.inFlight[0].corruptAnswers >= maxCorruptTries {
				return l.splitRefused(err, v)
			}
		case protocol.OutOfSequence, protocol.Fenced:
			return l.handleSequenceError(err, v)
		case protocol.Mistimed:
			l.untimedUntil = time.Now().Add(timestampPause)
			l.sink.timestamps.recordRefusal(l.topic.name, err)
		case protocol.Unauthorized:
			return l.sink.cluster.AuthorizationError(l.topic.name, err)
		case protocol.Unsettled:
			if err := l.decideRetry(ctx, &try, err); err != nil {
				return err
			}
		}
	}
}

// ensureEpochStored makes sure, before the first batch of an epoch is sent, that a later process will know of the epoch and of the
// message it begins with.
func (l *lane) ensureEpochStored(ctx context.Context) error {
	if l.unnumbered || l.storedEpoch == l.currentEpoch() || l.progress != nil {
		return nil
	}
	return l.storeEpoch(ctx, l.inFlight[0].offsets[0]-1)
}

// storeEpoch makes the present numbering durable, which begins behind the messages up to through.
func (l *lane) storeEpoch(ctx context.Context, through uint64) error {
	now := l.currentEpoch()
	l.recordState(producerState{now.Producer, now.Epoch, through, l.next.Sequence})
	if err := l.sink.producers.saveStates(ctx); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	l.storedEpoch = now
	return nil
}

// currentEpoch is what the present numbers are counted under.
func (l *lane) currentEpoch() record.ProducerSequence {
	return record.ProducerSequence{Producer: l.next.Producer, Epoch: l.next.Epoch}
}

// deliveryAttempt is what one deliver remembers between its tries.
type deliveryAttempt struct {
	layout *cluster.Layout
	broken bool // the network failed once
}

// sendAndSettle sends what may be in flight and settles the first batch when that is acknowledged. Otherwise it waits for the others,
// too. What the broker says about those follows from the first, and counts only as far as they may be written.
func (l *lane) sendAndSettle(ctx context.Context, try *deliveryAttempt) error {
	if l.unnumbered {
		// An attempt that is given up may be written long after it was sent again, and nothing refuses it then. So wait for
		// its end, which the connection bounds.
		ctx = context.WithoutCancel(ctx)
	}
	if err := l.sendUnsent(try); err != nil {
		return err
	}
	first := l.inFlight[0]
	answer := first.awaitAnswer(ctx)
	l.adaptWindow(answer, first.brokerTime)
	if protocol.ClassifyError(answer) == protocol.Accepted {
		l.settleFirst()
		return nil
	}
	for _, f := range l.inFlight[1:] {
		if f.pending != nil {
			_ = f.awaitAnswer(ctx) // f notes what counts
		}
	}
	if isReplicaLag(answer) {
		l.purpose = cluster.ForSlowReplicas
	}
	return answer
}

// sendUnsent sends the batches that may be in flight and are not, all to one broker.
func (l *lane) sendUnsent(try *deliveryAttempt) error {
	try.layout = l.topic.layout.Load()
	to, err := try.layout.Lead(l.partition)
	underWay := l.inFlight[0].pending != nil
	if underWay && to.Broker != l.leader {
		return nil // nothing more goes where the first is
	}
	if err != nil {
		return err
	}
	l.leader = to.Broker
	for i, f := range l.sendableBatches() {
		if f.pending != nil {
			continue
		}
		l.stampBatch(f)
		if l.progress != nil {
			l.progress.inDoubt = true
		}
		batch := connection.Batch{Topic: l.topic.name, Partition: l.partition, Bytes: f.bytes}
		if f.pending, err = l.sink.cluster.Produce(l.leader, batch, l.purpose); err != nil {
			if i > 0 {
				return nil // for the call that begins with it to say
			}
			return err
		}
	}
	return nil
}

// isReplicaLag says whether a broker could not write because other replicas did not follow.
func isReplicaLag(err error) bool {
	return errors.Is(err, kafka.RequestTimedOut) || errors.Is(err, kafka.NotEnoughReplicas) || errors.Is(err, kafka.NotEnoughReplicasAfterAppend)
}

// stampBatch gives the records of a batch the time of sending, or none where the broker has just refused that.
func (l *lane) stampBatch(f *inFlightBatch) {
	if f.bytesShared {
		f.bytes, f.bytesShared = slices.Clone(f.bytes), false
	}
	if f.sentAt = time.Now(); f.sentAt.Before(l.untimedUntil) {
		f.sentAt = time.Time{}
	}
	record.SetTimestamp(f.bytes, f.sentAt)
}

// sendableBatches returns the batches that are to be on their way at once. It is only the first one as long as the broker may
// not know our numbers: Kafka then takes any number, and so would take the second batch when it refuses the first.
func (l *lane) sendableBatches() []*inFlightBatch {
	n := 0
	for n < min(len(l.inFlight), l.windowDepth()) && l.inFlight[n].bytes != nil {
		n++
	}
	return l.inFlight[:n]
}

// windowDepth is how many batches may be in flight.
func (l *lane) windowDepth() int {
	if l.unnumbered || time.Since(l.lastWritten) > producerRetention {
		return 1
	}
	return l.window
}

// adaptWindow decides how many batches to send without waiting from how long each took: several only where waiting costs
// more than sending, so that all of them are answered well before the request timeout. After a failure it is one.
func (l *lane) adaptWindow(err error, each time.Duration) {
	l.window = 1
	if err == nil && each < l.sink.config.RequestTimeout/(2*maxInFlight) {
		l.window = maxInFlight
	}
}

// decideRetry decides, after an attempt that settled nothing, whether to send the same bytes at once (nil): when the
// partition has another leader than the one that was asked, or when the connection may just have been a stale one.
// Everything else waits for the caller's back-off.
func (l *lane) decideRetry(ctx context.Context, try *deliveryAttempt, cause error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now, err := l.sink.refreshLayout(ctx, l.topic, try.layout)
	if err != nil {
		return err
	}
	to, err := now.Lead(l.partition)
	_, before := try.layout.Lead(l.partition)
	moved := err == nil && (before != nil || to.Broker != l.leader)
	broken := !protocol.IsBrokerError(cause) && !errors.Is(cause, cluster.ErrNoLayout) && !errors.Is(cause, cluster.ErrNoPartition)
	stale := broken && !try.broken && !cluster.IsTimeout(cause)
	try.broken = try.broken || broken
	if moved || stale {
		return nil
	}
	cause = fmt.Errorf("%s: %w", l, cause)
	if errors.Is(err, kafka.LeaderNotAvailable) { // all lanes that have none ask in one request
		return &sinks.ProbedError{Every: cluster.ProbeInterval, Err: cause}
	}
	return cause
}

// splitRefused takes a refused batch apart: half of it comes next. A single record is rejected.
func (l *lane) splitRefused(cause error, v protocol.Outcome) error {
	f := l.inFlight[0]
	if len(f.offsets) > 1 {
		l.halveNextBatch(f)
		l.abandonInFlight()
		return nil
	}
	size := len(f.bytes) - record.LengthPrefix
	l.maxRecords = math.MaxInt
	l.rejectedOffset = f.offsets[0]
	l.abandonInFlight()
	if v == protocol.TooLarge {
		return &sinks.RejectedError{TooLarge: true, Err: cause,
			Reason: fmt.Sprintf("a record of %d bytes (compressed) exceeds max.message.bytes of topic %q", size, l.topic.name)}
	}
	return &sinks.RejectedError{Err: cause, Reason: fmt.Sprintf("topic %q does not allow this record", l.topic.name)}
}

// startNextEpoch begins a new epoch, which fences whatever was sent under the old one (KIP-360), or, when the epochs are used
// up, sees to it that a new producer ID is asked for.
func (l *lane) startNextEpoch() {
	l.recovery.oldNumbers, l.recovery.uncredited = false, 0
	l.lastWritten = time.Time{}
	if l.unnumbered {
		return
	}
	if l.next.Epoch == math.MaxInt16 {
		l.next = record.ProducerSequence{Producer: cluster.NoID}
		return
	}
	l.next = record.ProducerSequence{Producer: l.next.Producer, Epoch: l.next.Epoch + 1}
}

// handleSequenceError gives the batches in flight up after the broker disagreed with their numbers: they are encoded again under other
// ones.
func (l *lane) handleSequenceError(cause error, v protocol.Outcome) error {
	if f := l.sink.fence.Load(); f != nil {
		return l.handleFencedSequenceError(f, cause, v)
	}
	l.sequenceErrors++
	if v == protocol.OutOfSequence && l.recovery.oldNumbers && l.sequenceErrors <= maxInFlight {
		l.dropInFlight() // what the process before had under way has arrived: ask again
		l.recovery.resolved = false
		return nil
	}
	if !l.recovery.oldNumbers && l.sequenceErrors > maxSequenceErrors {
		l.sequenceErrors = 0
		return fmt.Errorf("%s: %w, also when numbered anew", l, cause)
	}
	l.sink.log.Warn("kafka lost track of our sequence; records in doubt are written again, the stream may hold duplicates",
		"topic", l.topic.name, "partition", l.partition, "error", cause)
	l.dropInFlight()
	l.startNextEpoch()
	if v == protocol.Fenced {
		l.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	return nil
}

// settleFirst books the first batch as written.
func (l *lane) settleFirst() {
	f := l.inFlight[0]
	l.inFlight = l.inFlight[1:]
	if !l.unnumbered {
		l.next.Sequence = record.SequenceAfter(l.next.Sequence, f.records)
		l.recordState(producerState{l.next.Producer, l.next.Epoch, f.offsets[len(f.offsets)-1], l.next.Sequence})
		l.lastWritten = f.sentAt
	}
	if l.progress != nil {
		l.recordAcknowledged(f)
	}
	l.sequenceErrors, l.purpose = 0, cluster.ForProducing
	l.adaptBatchSize(f)
	l.uncounted = append(l.uncounted, f.offsets...)
	l.releaseBuffer(f)
}

// adaptBatchSize aims the next batch: below the size that was refused, as large as configured otherwise.
func (l *lane) adaptBatchSize(f *inFlightBatch) {
	l.maxRecords = math.MaxInt
	size := len(f.bytes) - record.LengthPrefix
	if size >= l.refusedBytes { // the topic's limit was raised
		l.refusedBytes = math.MaxInt
	}
	l.targetBytes = l.sink.config.BatchBytes
	if l.refusedBytes != math.MaxInt {
		// Expect the next records to compress as these did, and leave an eighth for when they do not.
		l.targetBytes = min(l.targetBytes, int(float64(l.refusedBytes)*7/8*float64(f.rawBytes)/float64(size)))
	}
}

func (l *lane) String() string {
	return fmt.Sprintf("topic %q partition %d", l.topic.name, l.partition)
}
