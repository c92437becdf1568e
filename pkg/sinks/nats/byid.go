package nats

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// publishWindow is one Publish that sends messages one by one, each with its message ID. Those of one object follow each other,
// each when the one before is acknowledged; those of different objects are on their way together. // I3
type publishWindow struct {
	sink     *Sink
	ctx      context.Context
	link     *connection.Link
	messages []sinks.Message
	encoded  *message
	maxBytes int64 // bytes that may be on their way

	ready         []int              // to be sent now, in this order
	nextOfObject  []int              // by message: the next one of the same object; 0 is none
	states        []messageState     // by message
	sendLimit     int                // nothing from here on is sent: that message has failed, or the messages end here
	inFlight      int                // messages on their way
	inFlightBytes int64              // of these
	answers       chan messageAnswer // has room for what each message is answered, and for that the connection is lost
}

// messageState is how it stands with one message.
type messageState struct {
	call         uint64 // while it is on its way
	newestBefore uint64 // see progress.before
	acked        bool
	err          error
}

type messageAnswer struct {
	message int
	answer  connection.Answer
}

// publishByID publishes messages of one lane one by one.
func (s *Sink) publishByID(ctx context.Context, l *connection.Link, lane sinks.Lane, messages []sinks.Message) (int, error) {
	f := &publishWindow{sink: s, ctx: ctx, link: l, messages: messages, encoded: newMessage(s.cfg, s.format), maxBytes: s.laneWindowBytes(lane),
		nextOfObject: make([]int, len(messages)), states: make([]messageState, len(messages)), sendLimit: len(messages), answers: make(chan messageAnswer, 2*len(messages))}
	ahead := s.takeAckedAhead(lane)
	f.chainByObject(ahead)
	f.run()
	s.inFlight.Add(-int64(f.inFlight))
	for i := range f.states {
		if f.states[i].call != 0 {
			l.EndCall(f.states[i].call)
		}
	}
	n := 0
	for n < len(messages) && f.states[n].acked {
		n++
	}
	s.storeAckedAhead(lane, f.ackedAfter(n, ahead))
	if n == len(messages) {
		return n, nil
	}
	if f.states[n].err != nil {
		return n, f.states[n].err
	}
	return n, ctx.Err()
}

// chainByObject chains the messages of each object. Those that were acknowledged before, behind one that was not, are done.
func (f *publishWindow) chainByObject(ahead map[uint64]bool) {
	newest := make(map[uint64]int, len(f.messages)) // by object; two with the same hash follow each other
	for i, m := range f.messages {
		if ahead[m.Offset] || f.sink.omitsChange(m.Change) {
			f.states[i].acked = true
			continue
		}
		object := sinks.KeyHash(m.Change)
		if before, chained := newest[object]; chained {
			f.nextOfObject[before] = i
		} else {
			f.ready = append(f.ready, i)
		}
		newest[object] = i
	}
}

// ackedAfter returns the offsets of what is acknowledged from message n on, those of before included.
func (f *publishWindow) ackedAfter(n int, before map[uint64]bool) map[uint64]bool {
	ahead := map[uint64]bool{}
	for offset := range before {
		if offset > f.messages[len(f.messages)-1].Offset {
			ahead[offset] = true
		}
	}
	for i := n; i < len(f.messages); i++ {
		if f.states[i].acked {
			ahead[f.messages[i].Offset] = true
		}
	}
	return ahead
}

// run sends until everything before the limit is acknowledged, or ctx ends.
func (f *publishWindow) run() {
	timeout := time.NewTimer(f.sink.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		f.sendReady()
		if f.inFlight == 0 {
			return
		}
		select {
		case a := <-f.answers:
			f.handleAnswer(a)
			timeout.Reset(f.sink.cfg.AckTimeout)
		case <-timeout.C:
			f.failUnanswered()
			return
		case <-f.ctx.Done():
			return
		}
	}
}

// sendReady sends what may be sent now.
func (f *publishWindow) sendReady() {
	for len(f.ready) > 0 && (f.inFlight == 0 || f.inFlightBytes < f.maxBytes && f.inFlight < maxBatch) {
		i := f.ready[0]
		f.ready = f.ready[1:]
		if i >= f.sendLimit {
			continue
		}
		if err := f.sendMessage(i); err != nil {
			f.markFailed(i, err)
		}
	}
}

// markFailed notes that a message is not acknowledged: nothing from it on is sent any more.
func (f *publishWindow) markFailed(i int, err error) {
	f.states[i].err = err
	f.sendLimit = min(f.sendLimit, i)
}

func (f *publishWindow) sendMessage(i int) error {
	s, m, p := f.sink, f.messages[i], &f.states[i]
	if err := f.ctx.Err(); err != nil {
		return err
	}
	var err error
	if p.newestBefore, err = s.progress.newestBeforeSend(); err != nil {
		return err
	}
	buffer := s.encodeChange(f.encoded, m)
	defer s.releaseBuffer(f.encoded, buffer)
	f.encoded.setMessageID(s.cfg.Stream, s.progress.messageIDFor(m))
	p.call = f.link.StartCall(connection.Call{SentTo: connection.SubjectIs(f.encoded.Subject), OnAnswer: func(_ string, a connection.Answer) { f.queueAnswer(i, a) }})
	f.encoded.Reply = f.link.ReplySubject(p.call)
	if err := f.link.Publish(f.ctx, f.encoded.Msg); err != nil {
		return err
	}
	f.inFlight++
	s.inFlight.Add(1)
	f.inFlightBytes += int64(m.Change.Size())
	return nil
}

// queueAnswer passes an answer on. It does not wait: the first answer counts, and there is room for that.
func (f *publishWindow) queueAnswer(message int, a connection.Answer) {
	select {
	case f.answers <- messageAnswer{message, a}:
	default:
	}
}

// handleAnswer reads an answer, and lets the next message of the object go.
func (f *publishWindow) handleAnswer(a messageAnswer) {
	i, s := a.message, f.sink
	p := &f.states[i]
	if p.call == 0 || p.acked || p.err != nil {
		return // it was answered before
	}
	f.link.EndCall(p.call)
	p.call = 0
	flying := s.inFlight.Add(-1) + 1
	f.inFlight--
	f.inFlightBytes -= int64(f.messages[i].Change.Size())
	err := a.answer.Err
	if err == nil {
		var r stream.Receipt
		r, err = stream.ParseReceipt(s.cfg.Stream, messageSubject(s, f.messages[i]), a.answer)
		if err == nil && !r.Duplicate {
			err = s.progress.recordAck(s.cfg.Stream, p.newestBefore, r.Sequence, uint64(flying))
		}
	}
	if err != nil {
		f.markFailed(i, err)
		return
	}
	p.acked = true
	if next := f.nextOfObject[i]; next != 0 {
		f.ready = append(f.ready, next)
	}
}

// failUnanswered ends the wait for answers that do not come.
func (f *publishWindow) failUnanswered() {
	for i := range f.states {
		if p := &f.states[i]; p.call != 0 && p.err == nil {
			f.markFailed(i, f.link.UnansweredError(messageSubject(f.sink, f.messages[i])))
		}
	}
}

// messageSubject returns the subject of a message.
func messageSubject(s *Sink, m sinks.Message) string { return string(s.appendSubject(nil, m)) }

// takeAckedAhead returns what a lane has acknowledged behind the message that its last Publish ended at, by offset.
func (s *Sink) takeAckedAhead(lane sinks.Lane) map[uint64]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := s.ackedAhead[lane]
	delete(s.ackedAhead, lane)
	return ahead
}

func (s *Sink) storeAckedAhead(lane sinks.Lane, ahead map[uint64]bool) {
	if len(ahead) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ackedAhead[lane] = ahead
}

// omitsChange says whether a change has no place in the destination: a control record in a bucket.
func (s *Sink) omitsChange(c *event.Change) bool { return s.cfg.Mode == modeKV && c.Type.IsControl() }
