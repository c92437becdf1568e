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
	// corruptTries is how often a batch that arrives damaged is sent before it is believed to be unwritable.
	corruptTries = 3
	// maxRenumberings is how often a batch is numbered anew in a row before the next try is left to the caller's back-off.
	maxRenumberings = 2

	// maxInFlight is how many batches of a partition are sent before the first is answered: a broker remembers the numbers
	// of as many, and so tells a copy of any of them from something new (KIP-98, KAFKA-5494).
	maxInFlight = 5
	// remembered is how old the newest record of a producer may be for the broker to know its numbers for certain. By
	// default it knows them for a day (producer.id.expiration.ms).
	remembered = time.Hour
	// untimedFor is for how long batches go without timestamps after a broker has refused one.
	untimedFor = time.Minute
)

// lane is the writing end of one topic-partition. What it sends is numbered without gaps, so that the broker itself drops
// what arrives twice, late, or ahead of its turn (KIP-98). Not safe for concurrent use; the contract promises none.
type lane struct {
	sink      *Sink
	name      sinks.Lane
	topic     *topic
	partition int32

	recovery recovery
	written  *written        // where the sink was fenced: how far the partition is written; nil until it is begun
	held     map[string]bool // IDs of messages that were in doubt, and were found in the partition
	refused  uint64          // offset of the message that was rejected last; 0: nothing is rejected since the last call

	next     record.ProducerSequence // of the first batch that is not settled; producer is noID until one is needed
	state    producerState           // where the numbers stood at the last acknowledgement
	stored   record.ProducerSequence // the numbering that a later process is certain to know
	newest   time.Time               // stamp of the last batch acknowledged under the present numbering; zero when it has none
	untimed  time.Time               // until then batches have no timestamp, since the broker refuses ours
	inFlight []*inFlightBatch        // batches that are not settled, in order of numbers: maxInFlight, and the next one
	leader   int32                   // the broker that those were sent to which are on their way
	over     cluster.Purpose         // of the connection that they go over
	ahead    []uint64                // offsets of messages that are written and that no call has counted yet

	unnumbered bool // batches go without numbers: the broker gives no producer IDs

	renumberings int // times in a row that the broker did not know our numbers

	window     int // batches to send without waiting, as far as the network is concerned
	target     int // bytes of uncompressed records to aim for
	limit      int // a batch of this many bytes was refused as too large, so more records are not tried; MaxInt: unknown
	maxRecords int // records in the next batch at most; set while a refused batch is being halved
}

func newLane(s *Sink, t *topic, name sinks.Lane, partition int32) *lane {
	return &lane{sink: s, name: name, topic: t, partition: partition, next: record.ProducerSequence{Producer: cluster.NoID}, stored: record.ProducerSequence{Producer: cluster.NoID},
		unnumbered: !s.config.idempotent(), over: cluster.ForProducing, window: 1, target: s.config.BatchBytes, limit: math.MaxInt, maxRecords: math.MaxInt}
}

// publish is [sinks.Sink.Publish] for this lane. When it has settled as many batches as may be in flight and what is left is
// on its way, it returns: the caller may have more by now, and until that is here the broker has enough to do.
func (l *lane) publish(ctx context.Context, batch []sinks.Message) (int, error) {
	leave, err := l.sink.repairs.take(ctx, l.place())
	if err != nil {
		return 0, err
	}
	defer leave()
	l.resume()
	defer l.hold()
	l.passOver(batch)
	n := l.credit(batch)
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
		whole, err := l.fill(ctx, batch[n:])
		if err != nil || whole && settled >= maxInFlight {
			return n, err
		}
		err = l.deliver(ctx)
		if more := l.credit(batch[n:]); more > 0 {
			n, settled = n+more, settled+1
		}
		if err != nil && n < len(batch) { // else it speaks of a message that the caller has not asked about
			return n, err
		}
	}
	return n, nil
}

// passOver begins a new epoch when the caller has given up on the message that was rejected: within an epoch, the
// numbers follow the messages of the lane without a hole, which is what recoverProducer counts by.
func (l *lane) passOver(batch []sinks.Message) {
	if l.refused == 0 || len(batch) == 0 {
		return
	}
	if batch[0].Offset > l.refused && l.next.Producer != cluster.NoID && l.written == nil {
		l.nextEpoch()
	}
	l.refused = 0
}

// credit counts the messages at the head of batch that are written already.
func (l *lane) credit(batch []sinks.Message) int {
	n := common(l.ahead, batch)
	if n < len(batch) {
		l.ahead = nil
	} else {
		l.ahead = l.ahead[n:]
	}
	return n
}

// common returns how many of the offsets are at the head of batch.
func common(offsets []uint64, batch []sinks.Message) int {
	n := 0
	for n < len(offsets) && n < len(batch) && offsets[n] == batch[n].Offset {
		n++
	}
	return n
}

// deliver sends batches until those that may go together are settled, or the first that is not is taken apart or given
// up (nil), or it is better left to the caller's back-off or judgement (err).
func (l *lane) deliver(ctx context.Context) error {
	var try attempt
	for {
		if err := l.storeState(ctx); err != nil {
			return err
		}
		err := l.send(ctx, &try)
		switch v := protocol.ClassifyError(err); v {
		case protocol.Accepted:
			return nil
		case protocol.TooLarge:
			l.limit = min(l.limit, len(l.inFlight[0].bytes)-record.LengthPrefix)
			return l.split(err, v)
		case protocol.Invalid:
			return l.split(err, v)
		case protocol.Corrupt:
			if l.inFlight[0].damaged++; l.inFlight[0].damaged >= corruptTries {
				return l.split(err, v)
			}
		case protocol.OutOfSequence, protocol.Fenced:
			return l.renumber(err, v)
		case protocol.Mistimed:
			l.untimed = time.Now().Add(untimedFor)
			l.sink.clock.refused(l.topic.name, err)
		case protocol.Unauthorized:
			return l.sink.cluster.Refused(l.topic.name, err)
		case protocol.Unsettled:
			if err := l.reconsider(ctx, &try, err); err != nil {
				return err
			}
		}
	}
}

// storeState makes sure, before the first batch of an epoch is sent, that a later process will know of the epoch and of the
// message it begins with.
func (l *lane) storeState(ctx context.Context) error {
	if l.unnumbered || l.stored == l.numbering() || l.written != nil {
		return nil
	}
	return l.storeNumbering(ctx, l.inFlight[0].offsets[0]-1)
}

// storeNumbering makes the present numbering durable, which begins behind the messages up to through.
func (l *lane) storeNumbering(ctx context.Context, through uint64) error {
	now := l.numbering()
	l.setState(producerState{now.Producer, now.Epoch, through, l.next.Sequence})
	if err := l.sink.producers.store(ctx); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	l.stored = now
	return nil
}

// numbering is what the present numbers are counted under.
func (l *lane) numbering() record.ProducerSequence {
	return record.ProducerSequence{Producer: l.next.Producer, Epoch: l.next.Epoch}
}

// attempt is what one deliver remembers between its tries.
type attempt struct {
	layout *cluster.Layout
	broken bool // the network failed once
}

// send sends what may be in flight and settles the first batch when that is acknowledged. Otherwise it waits for the others,
// too. What the broker says about those follows from the first, and counts only as far as they may be written.
func (l *lane) send(ctx context.Context, try *attempt) error {
	if l.unnumbered {
		// An attempt that is given up may be written long after it was sent again, and nothing refuses it then. So wait for
		// its end, which the connection bounds.
		ctx = context.WithoutCancel(ctx)
	}
	if err := l.launch(try); err != nil {
		return err
	}
	first := l.inFlight[0]
	answer := first.await(ctx)
	l.adaptWindow(answer, first.took)
	if protocol.ClassifyError(answer) == protocol.Accepted {
		l.settle()
		return nil
	}
	for _, f := range l.inFlight[1:] {
		if f.pending != nil {
			_ = f.await(ctx) // f notes what counts
		}
	}
	if isSlow(answer) {
		l.over = cluster.ForSlowReplicas
	}
	return answer
}

// launch sends the batches that may be in flight and are not, all to one broker.
func (l *lane) launch(try *attempt) error {
	try.layout = l.topic.current.Load()
	to, err := try.layout.Lead(l.partition)
	underWay := l.inFlight[0].pending != nil
	if underWay && to.Broker != l.leader {
		return nil // nothing more goes where the first is
	}
	if err != nil {
		return err
	}
	l.leader = to.Broker
	for i, f := range l.together() {
		if f.pending != nil {
			continue
		}
		l.stamp(f)
		if l.written != nil {
			l.written.doubt = true
		}
		batch := connection.Batch{Topic: l.topic.name, Partition: l.partition, Bytes: f.bytes}
		if f.pending, err = l.sink.cluster.Produce(l.leader, batch, l.over); err != nil {
			if i > 0 {
				return nil // for the call that begins with it to say
			}
			return err
		}
	}
	return nil
}

// isSlow says whether a broker could not write because other replicas did not follow.
func isSlow(err error) bool {
	return errors.Is(err, kafka.RequestTimedOut) || errors.Is(err, kafka.NotEnoughReplicas) || errors.Is(err, kafka.NotEnoughReplicasAfterAppend)
}

// stamp gives the records of a batch the time of sending, or none where the broker has just refused that.
func (l *lane) stamp(f *inFlightBatch) {
	if f.shared {
		f.bytes, f.shared = slices.Clone(f.bytes), false
	}
	if f.stamp = time.Now(); f.stamp.Before(l.untimed) {
		f.stamp = time.Time{}
	}
	record.Stamp(f.bytes, f.stamp)
}

// together returns the batches that are to be on their way at once. It is only the first one as long as the broker may
// not know our numbers: Kafka then takes any number, and so would take the second batch when it refuses the first.
func (l *lane) together() []*inFlightBatch {
	n := 0
	for n < min(len(l.inFlight), l.depth()) && l.inFlight[n].bytes != nil {
		n++
	}
	return l.inFlight[:n]
}

// depth is how many batches may be in flight.
func (l *lane) depth() int {
	if l.unnumbered || time.Since(l.newest) > remembered {
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

// reconsider decides, after an attempt that settled nothing, whether to send the same bytes at once (nil): when the
// partition has another leader than the one that was asked, or when the connection may just have been a stale one.
// Everything else waits for the caller's back-off.
func (l *lane) reconsider(ctx context.Context, try *attempt, cause error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now, err := l.sink.refresh(ctx, l.topic, try.layout)
	if err != nil {
		return err
	}
	to, err := now.Lead(l.partition)
	_, before := try.layout.Lead(l.partition)
	moved := err == nil && (before != nil || to.Broker != l.leader)
	broken := !protocol.FromBroker(cause) && !errors.Is(cause, cluster.ErrNoLayout) && !errors.Is(cause, cluster.ErrNoPartition)
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

// split takes a refused batch apart: half of it comes next. A single record is rejected.
func (l *lane) split(cause error, v protocol.Outcome) error {
	f := l.inFlight[0]
	if len(f.offsets) > 1 {
		l.halve(f)
		l.abandon()
		return nil
	}
	size := len(f.bytes) - record.LengthPrefix
	l.maxRecords = math.MaxInt
	l.refused = f.offsets[0]
	l.abandon()
	if v == protocol.TooLarge {
		return &sinks.RejectedError{TooLarge: true, Err: cause,
			Reason: fmt.Sprintf("a record of %d bytes (compressed) exceeds max.message.bytes of topic %q", size, l.topic.name)}
	}
	return &sinks.RejectedError{Err: cause, Reason: fmt.Sprintf("topic %q does not allow this record", l.topic.name)}
}

// nextEpoch begins a new epoch, which fences whatever was sent under the old one (KIP-360), or, when the epochs are used
// up, sees to it that a new producer ID is asked for.
func (l *lane) nextEpoch() {
	l.recovery.ours, l.recovery.records = false, 0
	l.newest = time.Time{}
	if l.unnumbered {
		return
	}
	if l.next.Epoch == math.MaxInt16 {
		l.next = record.ProducerSequence{Producer: cluster.NoID}
		return
	}
	l.next = record.ProducerSequence{Producer: l.next.Producer, Epoch: l.next.Epoch + 1}
}

// renumber gives the batches in flight up after the broker disagreed with their numbers: they are encoded again under other
// ones.
func (l *lane) renumber(cause error, v protocol.Outcome) error {
	if f := l.sink.fence.Load(); f != nil {
		return l.disagree(f, cause, v)
	}
	l.renumberings++
	if v == protocol.OutOfSequence && l.recovery.ours && l.renumberings <= maxInFlight {
		l.drop() // what the process before had under way has arrived: ask again
		l.recovery.asked = false
		return nil
	}
	if !l.recovery.ours && l.renumberings > maxRenumberings {
		l.renumberings = 0
		return fmt.Errorf("%s: %w, also when numbered anew", l, cause)
	}
	l.sink.log.Warn("kafka lost track of our sequence; records in doubt are written again, the stream may hold duplicates",
		"topic", l.topic.name, "partition", l.partition, "error", cause)
	l.drop()
	l.nextEpoch()
	if v == protocol.Fenced {
		l.next = record.ProducerSequence{Producer: cluster.NoID}
	}
	return nil
}

// settle books the first batch as written.
func (l *lane) settle() {
	f := l.inFlight[0]
	l.inFlight = l.inFlight[1:]
	if !l.unnumbered {
		l.next.Sequence = record.SequenceAfter(l.next.Sequence, f.records)
		l.setState(producerState{l.next.Producer, l.next.Epoch, f.offsets[len(f.offsets)-1], l.next.Sequence})
		l.newest = f.stamp
	}
	if l.written != nil {
		l.confirm(f)
	}
	l.renumberings, l.over = 0, cluster.ForProducing
	l.adapt(f)
	l.ahead = append(l.ahead, f.offsets...)
	l.release(f)
}

// adapt aims the next batch: below the size that was refused, as large as configured otherwise.
func (l *lane) adapt(f *inFlightBatch) {
	l.maxRecords = math.MaxInt
	size := len(f.bytes) - record.LengthPrefix
	if size >= l.limit { // the topic's limit was raised
		l.limit = math.MaxInt
	}
	l.target = l.sink.config.BatchBytes
	if l.limit != math.MaxInt {
		// Expect the next records to compress as these did, and leave an eighth for when they do not.
		l.target = min(l.target, int(float64(l.limit)*7/8*float64(f.raw)/float64(size)))
	}
}

func (l *lane) String() string {
	return fmt.Sprintf("topic %q partition %d", l.topic.name, l.partition)
}
