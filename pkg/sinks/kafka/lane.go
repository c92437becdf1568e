package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// corruptTries is how often a batch that arrives damaged is sent before it is believed to be unwritable.
	corruptTries = 3
	// restamps is how often a batch is numbered anew in a row before the next try is left to the caller's back-off.
	restamps = 2
	noID     = -1
)

// lane is the writing end of one topic-partition: at most one batch in flight, numbered without gaps, so that the
// broker itself drops what arrives twice or late (KIP-98). Not safe for concurrent use; the contract promises none.
type lane struct {
	sink      *Sink
	name      sinks.Lane
	topic     *topic
	partition int32

	heritage heritage
	refused  uint64 // offset of the message that was rejected last; 0: nothing is rejected since the last call

	next   stamp    // of the next batch; producer is noID until one is needed
	mark   mark     // where the numbers stood at the last acknowledgement
	stored stamp    // the numbering that a later process is certain to know
	flight *flight  // the batch that is sent and not settled; nil when there is none
	ahead  []uint64 // offsets of messages that are written but were not in the batch of the call that learnt it

	plain bool // batches go without numbers: the broker gives no producer IDs

	restamped int // times in a row that the flight was numbered anew

	target int // bytes of uncompressed records to aim for
	limit  int // a batch of this many bytes was refused as too large, so more records are not tried; MaxInt: unknown
	most   int // records in the next batch at most; set while a refused batch is being halved
}

// flight is a batch on its way. Its bytes do not change while the library may still be sending them.
type flight struct {
	bytes    []byte // with the length prefix; nil between calls when there was no room to hold them
	offsets  []uint64
	records  int  // at least one for each offset; what the broker counts
	raw      int  // bytes before compression
	doubtful bool // an attempt ended without saying whether it was written: only the same stamp is safe to send
	shared   bool // an attempt ended without an answer: the library may still read bytes
	damaged  int  // times the broker found it corrupt
}

func newLane(s *Sink, t *topic, name sinks.Lane, partition int32) *lane {
	return &lane{sink: s, name: name, topic: t, partition: partition, next: stamp{producer: noID}, stored: stamp{producer: noID},
		plain: s.config.Producer == producerWriter, target: s.config.BatchBytes, limit: math.MaxInt, most: math.MaxInt}
}

// publish is [sinks.Sink.Publish] for this lane.
func (l *lane) publish(ctx context.Context, batch []sinks.Message) (int, error) {
	l.resume()
	defer l.hold()
	l.passOver(batch)
	n := l.credit(batch)
	for n < len(batch) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if err := l.inherit(ctx); err != nil {
			return n, err
		}
		if n += l.claim(batch[n:]); n == len(batch) {
			break
		}
		if err := l.load(ctx, batch[n:]); err != nil {
			return n, err
		}
		again, err := l.deliver(ctx)
		if err != nil {
			return n, err
		}
		if !again {
			n += l.settle(len(batch) - n)
		}
	}
	return n, nil
}

// hold keeps the bytes of an unsettled batch for the next call, as long as all lanes together do not hold too much. Else
// only its boundaries are kept, from which it is encoded again. // I6
func (l *lane) hold() {
	if f := l.flight; f != nil && !l.sink.held.take(len(f.bytes)) {
		f.bytes = nil
	}
}

// resume undoes hold.
func (l *lane) resume() {
	if f := l.flight; f != nil {
		l.sink.held.give(len(f.bytes))
	}
}

// passOver begins a new epoch when the caller has given up on the message that was rejected: within an epoch, the
// numbers follow the messages of the lane without a hole, which is what inherit counts by.
func (l *lane) passOver(batch []sinks.Message) {
	if l.refused == 0 || len(batch) == 0 {
		return
	}
	if batch[0].Offset > l.refused && l.next.producer != noID {
		l.advance()
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

// load makes sure there is a batch to send: the unsettled one if the messages begin as it does, else a new one.
func (l *lane) load(ctx context.Context, messages []sinks.Message) error {
	messages = l.inherited(messages)
	if l.flight != nil {
		count := len(l.flight.offsets)
		same := common(l.flight.offsets, messages)
		if same == min(count, len(messages)) && l.flight.bytes != nil {
			return nil
		}
		if same == count {
			return l.reload(ctx, messages[:count])
		}
		// The caller came back with other messages, which the contract does not foresee, or with too few to encode
		// the batch again. What is in doubt must not be written after what comes now.
		l.abandon()
	}
	switch {
	case l.plain:
		l.next = stamp{noID, -1, -1} // what a batch without numbers has in their place (KIP-98)
	case l.next.producer == noID:
		id, epoch, err := l.sink.producerID(ctx, l.topic.name)
		if err != nil {
			return err
		}
		l.next = stamp{producer: id, epoch: epoch}
	}
	f, err := l.encode(ctx, messages)
	l.flight = f
	return err
}

// reload encodes the flight again, whose bytes were let go: the same messages under the same numbers.
func (l *lane) reload(ctx context.Context, messages []sinks.Message) error {
	e, err := l.sink.encoders.take(ctx)
	if err != nil {
		return err
	}
	defer l.sink.encoders.give(e)
	b, _, _, err := e.encode(nil, messages, math.MaxInt, math.MaxInt, l.next)
	l.flight.bytes, l.flight.shared = b, false
	return err
}

// encode makes a batch of as many messages as one may hold. One that is known to be refused is halved here, unless it
// is a single record: that is for the broker to say.
func (l *lane) encode(ctx context.Context, messages []sinks.Message) (*flight, error) {
	e, err := l.sink.encoders.take(ctx)
	if err != nil {
		return nil, err
	}
	defer l.sink.encoders.give(e)
	for {
		b, count, records, err := e.encode(l.sink.buffers.take(), messages, l.target, l.most, l.next)
		if err != nil {
			return nil, err
		}
		f := &flight{bytes: b, records: records, raw: len(e.records), offsets: make([]uint64, count)}
		if len(b)-lengthPrefix >= l.limit && count > 1 {
			l.halve(f)
			l.sink.buffers.give(b)
			continue
		}
		for i := range f.offsets {
			f.offsets[i] = messages[i].Offset
		}
		return f, nil
	}
}

// halve makes the next batch half of f.
func (l *lane) halve(f *flight) { l.most = len(f.offsets) / 2 }

// deliver sends the flight until it is settled (again is false), taken apart (again is true), or better left to the
// caller's back-off or judgement (err).
func (l *lane) deliver(ctx context.Context) (again bool, err error) {
	var try attempt
	for {
		if err := l.remember(ctx); err != nil {
			return false, err
		}
		err := l.send(ctx, &try)
		switch v := judge(err); v {
		case accepted:
			l.sink.status.works(l.topic.name)
			return false, nil
		case tooLarge:
			l.limit = min(l.limit, len(l.flight.bytes)-lengthPrefix)
			return l.split(err, v)
		case invalid:
			return l.split(err, v)
		case corrupt:
			if l.flight.damaged++; l.flight.damaged >= corruptTries {
				return l.split(err, v)
			}
		case resequenced, disowned:
			if l.restamped++; l.restamped > restamps {
				l.restamped = 0
				return false, fmt.Errorf("%s: %w, also when numbered anew", l, err)
			}
			if l.heritage.ours && v == resequenced && l.restamped == 1 { // what the process before had under way has arrived: ask again
				l.drop()
				return true, nil
			}
			l.sink.log.Warn("kafka lost track of our sequence; records in doubt are written again, the stream may hold duplicates",
				"topic", l.topic.name, "partition", l.partition, "error", err)
			if again := l.restamp(v); again {
				return true, nil
			}
		case unauthorized:
			return false, l.sink.refused(l.topic.name, err)
		case unsettled:
			if err := l.reconsider(ctx, &try, err); err != nil {
				return false, err
			}
		}
	}
}

// remember makes sure, before the first batch of an epoch is sent, that a later process will know of the epoch and of the
// message it begins with.
func (l *lane) remember(ctx context.Context) error {
	now := l.numbering()
	if l.plain || l.stored == now {
		return nil
	}
	l.setMark(mark{now.producer, now.epoch, l.flight.offsets[0] - 1, l.next.sequence})
	if err := l.sink.memory.store(ctx); err != nil {
		return fmt.Errorf("%s: %w", l, err)
	}
	l.stored = now
	return nil
}

// numbering is what the present numbers are counted under.
func (l *lane) numbering() stamp { return stamp{producer: l.next.producer, epoch: l.next.epoch} }

// drop gives a flight up whose fate the broker will tell.
func (l *lane) drop() {
	f := l.flight
	l.flight = nil
	l.heritage.asked = false
	l.release(f)
}

// attempt is what one deliver remembers between its tries.
type attempt struct {
	layout *layout
	leader int32
	broken bool // the network failed once
}

// send sends the flight once to the leader of the partition.
func (l *lane) send(ctx context.Context, try *attempt) error {
	try.layout = l.topic.current.Load()
	lead, err := l.lead(try.layout)
	if err != nil {
		return err
	}
	try.leader = lead.broker
	if l.plain {
		// An attempt that is given up may be written long after it was sent again, and nothing refuses it then. So wait for
		// its end, which the request timeout bounds.
		ctx = context.WithoutCancel(ctx)
	}
	err = l.sink.cluster.produce(ctx, try.leader, l.topic.name, l.partition, l.flight.bytes)
	if !errors.Is(err, errNotRouted) {
		l.flight.doubtful = l.flight.doubtful || judge(err) == unsettled
		l.flight.shared = l.flight.shared || err != nil && !fromBroker(err)
	}
	return err
}

// lead returns who leads the partition.
func (l *lane) lead(by *layout) (lead, error) {
	switch {
	case by == nil:
		return lead{}, errNoLayout
	case int(l.partition) >= len(by.leads):
		return lead{}, errNoPartition
	case by.leads[l.partition].broker < 0:
		return lead{}, kafka.LeaderNotAvailable
	}
	return by.leads[l.partition], nil
}

var (
	errNoLayout    = errors.New("the topic was not looked up yet")
	errNoPartition = errors.New("the partition does not exist (any more); restart the exporter to use the topic as it is now")
)

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
	to, err := l.lead(now)
	_, before := l.lead(try.layout)
	moved := err == nil && (before != nil || to.broker != try.leader)
	broken := !fromBroker(cause) && !errors.Is(cause, errNoLayout) && !errors.Is(cause, errNoPartition)
	stale := broken && !try.broken
	try.broken = try.broken || broken
	if moved || stale {
		return nil
	}
	return fmt.Errorf("%s: %w", l, cause)
}

// split takes a refused batch apart: half of it comes next. A single record is rejected.
func (l *lane) split(cause error, v verdict) (again bool, err error) {
	f := l.flight
	if len(f.offsets) > 1 {
		l.halve(f)
		l.abandon()
		return true, nil
	}
	size := len(f.bytes) - lengthPrefix
	l.most = math.MaxInt
	l.refused = f.offsets[0]
	l.abandon()
	if v == tooLarge {
		return false, &sinks.RejectedError{TooLarge: true, Err: cause,
			Reason: fmt.Sprintf("a record of %d bytes (compressed) exceeds max.message.bytes of topic %q", size, l.topic.name)}
	}
	return false, &sinks.RejectedError{Err: cause, Reason: fmt.Sprintf("topic %q does not allow this record", l.topic.name)}
}

// abandon gives the flight up. If it could still be written, its numbers are not used again: a new epoch makes the
// broker refuse it from then on.
func (l *lane) abandon() {
	f := l.flight
	l.flight = nil
	if f.doubtful {
		l.advance()
	}
	l.release(f)
}

// advance begins a new epoch, which fences whatever was sent under the old one (KIP-360), or, when the epochs are used
// up, sees to it that a new producer ID is asked for.
func (l *lane) advance() {
	l.heritage.ours, l.heritage.records = false, 0
	if l.plain {
		return
	}
	if l.next.epoch == math.MaxInt16 {
		l.next = stamp{producer: noID}
		return
	}
	l.next = stamp{producer: l.next.producer, epoch: l.next.epoch + 1}
}

// restamp numbers the flight anew after the broker disagreed with its numbers. When that takes a new producer ID, the
// flight is given up and again is true.
func (l *lane) restamp(v verdict) (again bool) {
	l.advance()
	if v == disowned {
		l.next = stamp{producer: noID}
	}
	f := l.flight
	if l.next.producer == noID {
		l.flight = nil
		l.release(f)
		return true
	}
	if f.shared { // the library may still read the old bytes
		f.bytes, f.shared = bytes.Clone(f.bytes), false
	}
	restamp(f.bytes[lengthPrefix:], l.next)
	f.doubtful = false
	return false
}

// settle books the flight as written. It returns how many of its messages are among the room messages that the caller
// asked about; the rest is credited to the next call.
func (l *lane) settle(room int) int {
	f := l.flight
	l.flight = nil
	count := len(f.offsets)
	if !l.plain {
		l.next.sequence = after(l.next.sequence, f.records)
		l.setMark(mark{l.next.producer, l.next.epoch, f.offsets[count-1], l.next.sequence})
	}
	l.restamped = 0
	l.adapt(f)
	if count > room {
		l.ahead = f.offsets[room:]
		count = room
	}
	l.release(f)
	return count
}

// adapt aims the next batch: below the size that was refused, as large as configured otherwise.
func (l *lane) adapt(f *flight) {
	l.most = math.MaxInt
	size := len(f.bytes) - lengthPrefix
	if size >= l.limit { // the topic's limit was raised
		l.limit = math.MaxInt
	}
	l.target = l.sink.config.BatchBytes
	if l.limit != math.MaxInt {
		// Expect the next records to compress as these did, and leave an eighth for when they do not.
		l.target = min(l.target, int(float64(l.limit)*7/8*float64(f.raw)/float64(size)))
	}
}

// release gives the flight's buffer back, unless the library may still be reading it.
func (l *lane) release(f *flight) {
	if !f.shared {
		l.sink.buffers.give(f.bytes)
	}
}

func (l *lane) String() string {
	return fmt.Sprintf("topic %q partition %d", l.topic.name, l.partition)
}
