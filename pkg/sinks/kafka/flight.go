package kafka

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// inFlightBatch is a batch on its way. Its bytes do not change while the connection may still be sending them.
type inFlightBatch struct {
	bytes          []byte // with the length prefix; nil between calls when there was no room to hold them
	offsets        []uint64
	records        int                 // at least one for each offset; what the broker counts
	rawBytes       int                 // bytes before compression
	sentAt         time.Time           // of its records; zero when they have none
	maybeWritten   bool                // an attempt ended without saying whether it was written: only the same sequence is safe to send
	bytesShared    bool                // an attempt ended without an answer: the connection may still read bytes
	pending        *connection.Pending // it is on its way; nil: it is not
	brokerTime     time.Duration       // that the broker took for it
	baseOffset     int64               // offset of its first record once it is written; below zero where the broker does not say
	corruptAnswers int                 // times the broker found it corrupt
}

// awaitAnswer waits for the answer to a batch that is on its way, which it is not any more then.
func (f *inFlightBatch) awaitAnswer(ctx context.Context) error {
	answer := f.pending.Wait(ctx)
	f.brokerTime, f.baseOffset, f.pending = f.pending.BrokerTime(), f.pending.BaseOffset(), nil
	if v := protocol.ClassifyError(answer); v == protocol.Unsettled || v == protocol.Accepted {
		f.maybeWritten = true
	}
	f.bytesShared = f.bytesShared || !protocol.IsBrokerError(answer) && answer != nil
	return answer
}

// fillWindow makes sure there is something to send: the unsettled batches as far as the messages are those in them, and behind
// them new ones, as many as may be in flight. Where that is several, they leave while the next one is encoded, and that is
// ready when there is room for it. whole says that all messages are in batches.
func (l *lane) fillWindow(ctx context.Context, messages []sinks.Message) (whole bool, err error) {
	rest, err := l.matchInFlight(ctx, l.limitToPredecessor(messages))
	if err != nil {
		return false, err
	}
	if err := l.ensureProducerID(ctx); err != nil {
		return false, err
	}
	for {
		room := l.windowDepth()
		if room > 1 && len(l.inFlight) > 0 {
			_ = l.sendUnsent(&deliveryAttempt{}) // what fails is sent again by deliver, which says why
			room++
		}
		if len(rest) == 0 || len(l.inFlight) >= room {
			return len(rest) == 0, nil
		}
		f, err := l.encodeBatch(ctx, rest, l.nextSequence())
		if err != nil {
			return false, err
		}
		l.inFlight = append(l.inFlight, f)
		rest = rest[len(f.offsets):]
	}
}

// matchInFlight matches the batches in flight with the messages that the caller comes back with, and encodes those again whose
// bytes were let go. It returns the messages behind them.
func (l *lane) matchInFlight(ctx context.Context, messages []sinks.Message) (rest []sinks.Message, err error) {
	at := l.next
	for i, f := range l.inFlight {
		count := len(f.offsets)
		same := commonPrefix(f.offsets, messages)
		switch {
		case same == min(count, len(messages)) && f.bytes != nil:
		case same == count:
			if err := l.reencodeBatch(ctx, f, messages[:count], at); err != nil {
				return nil, err
			}
		case i == 0:
			// The caller came back with other messages, which the contract does not foresee, or with too few to encode
			// the batch again. What is in doubt must not be written after what comes now.
			l.abandonInFlight()
			return messages, nil
		default: // likewise, but this is for the call that begins with it to say
			l.releaseBuffer(f)
			f.bytes = nil
			return nil, nil
		}
		messages = messages[same:]
		at.Sequence = record.SequenceAfter(at.Sequence, f.records)
	}
	return messages, nil
}

// reencodeBatch encodes a batch again, whose bytes were let go: the same messages under the same numbers.
func (l *lane) reencodeBatch(ctx context.Context, f *inFlightBatch, messages []sinks.Message, at record.ProducerSequence) error {
	e, err := l.sink.encoders.acquireEncoder(ctx)
	if err != nil {
		return err
	}
	defer l.sink.encoders.releaseEncoder(e)
	b, _, _, err := e.Encode(nil, messages, math.MaxInt, math.MaxInt, at)
	f.bytes, f.bytesShared = b, false
	return err
}

// ensureProducerID sees to it that there are numbers to send under.
func (l *lane) ensureProducerID(ctx context.Context) error {
	switch {
	case l.unnumbered:
		l.next = record.ProducerSequence{Producer: cluster.NoID, Epoch: -1, Sequence: -1} // what a batch without numbers has in their place (KIP-98)
	case l.next.Producer == cluster.NoID:
		// Every lane has its own: when a broker loses track of one partition, giving that lane a new epoch disturbs no
		// other.
		id, epoch, err := l.sink.cluster.NewProducerID(ctx, l.topic.name)
		if err != nil {
			return err
		}
		l.next = record.ProducerSequence{Producer: id, Epoch: epoch}
	}
	return nil
}

// nextSequence is the sequence of what comes behind the batches in flight.
func (l *lane) nextSequence() record.ProducerSequence {
	s := l.next
	for _, f := range l.inFlight {
		s.Sequence = record.SequenceAfter(s.Sequence, f.records)
	}
	return s
}

// encodeBatch makes a batch of as many messages as one may hold. One that is known to be refused is halved here, unless it
// is a single record: that is for the broker to say.
func (l *lane) encodeBatch(ctx context.Context, messages []sinks.Message, at record.ProducerSequence) (*inFlightBatch, error) {
	e, err := l.sink.encoders.acquireEncoder(ctx)
	if err != nil {
		return nil, err
	}
	defer l.sink.encoders.releaseEncoder(e)
	for {
		b, count, records, err := e.Encode(l.sink.buffers.getBuffer(), messages, l.targetBytes, l.maxRecords, at)
		if err != nil {
			return nil, err
		}
		f := &inFlightBatch{bytes: b, records: records, rawBytes: e.RawBytes(), offsets: make([]uint64, count)}
		if len(b)-record.LengthPrefix >= l.refusedBytes && count > 1 {
			l.halveNextBatch(f)
			l.sink.buffers.putBuffer(b)
			continue
		}
		for i := range f.offsets {
			f.offsets[i] = messages[i].Offset
		}
		return f, nil
	}
}

// halveNextBatch makes the next batch half of f.
func (l *lane) halveNextBatch(f *inFlightBatch) { l.maxRecords = len(f.offsets) / 2 }

// abandonInFlight gives the batches in flight up. If one of them could still be written, their numbers are not used again: a new
// epoch makes the broker refuse them from then on.
func (l *lane) abandonInFlight() {
	doubtful := slices.ContainsFunc(l.inFlight, func(f *inFlightBatch) bool { return f.maybeWritten || f.pending != nil })
	l.dropInFlight()
	switch {
	case l.progress != nil:
		l.progress.inDoubt = doubtful
	case doubtful:
		l.startNextEpoch()
	}
}

// dropInFlight forgets the batches in flight.
func (l *lane) dropInFlight() {
	for _, f := range l.inFlight {
		l.releaseBuffer(f)
	}
	l.inFlight = nil
}

// releaseBuffer gives a batch's buffer back, unless the connection may still be reading it.
func (l *lane) releaseBuffer(f *inFlightBatch) {
	if !f.bytesShared && f.pending == nil {
		l.sink.buffers.putBuffer(f.bytes)
	}
}

// retainBytes keeps the bytes of unsettled batches for the next call, as long as all lanes together do not hold too much. Else
// only their boundaries are kept, from which they are encoded again. // I6
func (l *lane) retainBytes() {
	for _, f := range l.inFlight {
		if !l.sink.retained.tryReserve(len(f.bytes)) {
			f.bytes = nil
		}
	}
}

// reclaimBytes undoes hold.
func (l *lane) reclaimBytes() {
	for _, f := range l.inFlight {
		l.sink.retained.releaseBytes(len(f.bytes))
	}
}
