package nats

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// flight is one Publish that sends messages one by one, each with its message ID. Those of one object follow each other,
// each when the one before is acknowledged; those of different objects are on their way together. // I3
type flight struct {
	sink     *Sink
	ctx      context.Context
	link     *connection.Link
	messages []sinks.Message
	message  *message
	window   int64 // bytes that may be on their way

	ready   []int         // to be sent now, in this order
	next    []int         // by message: the next one of the same object; 0 is none
	parts   []part        // by message
	limit   int           // nothing from here on is sent: that message has failed, or the messages end here
	open    int           // messages on their way
	bytes   int64         // of these
	answers chan answered // has room for what each message is answered, and for that the connection is lost
}

// part is how it stands with one message.
type part struct {
	call   uint64 // while it is on its way
	before uint64 // see progress.before
	done   bool
	err    error
}

type answered struct {
	message int
	answer  connection.Answer
}

// byID publishes messages of one lane one by one.
func (s *Sink) byID(ctx context.Context, l *connection.Link, lane sinks.Lane, messages []sinks.Message) (int, error) {
	f := &flight{sink: s, ctx: ctx, link: l, messages: messages, message: newMessage(s.cfg, s.format), window: s.windowOf(lane),
		next: make([]int, len(messages)), parts: make([]part, len(messages)), limit: len(messages), answers: make(chan answered, 2*len(messages))}
	ahead := s.takeAhead(lane)
	f.prepare(ahead)
	f.run()
	s.flying.Add(-int64(f.open))
	for i := range f.parts {
		if f.parts[i].call != 0 {
			l.End(f.parts[i].call)
		}
	}
	n := 0
	for n < len(messages) && f.parts[n].done {
		n++
	}
	s.keepAhead(lane, f.aheadOf(n, ahead))
	if n == len(messages) {
		return n, nil
	}
	if f.parts[n].err != nil {
		return n, f.parts[n].err
	}
	return n, ctx.Err()
}

// prepare chains the messages of each object. Those that were acknowledged before, behind one that was not, are done.
func (f *flight) prepare(ahead map[uint64]bool) {
	newest := make(map[uint64]int, len(f.messages)) // by object; two with the same hash follow each other
	for i, m := range f.messages {
		if ahead[m.Offset] || f.sink.omits(m.Change) {
			f.parts[i].done = true
			continue
		}
		object := sinks.KeyHash(m.Change)
		if before, chained := newest[object]; chained {
			f.next[before] = i
		} else {
			f.ready = append(f.ready, i)
		}
		newest[object] = i
	}
}

// aheadOf returns the offsets of what is acknowledged from message n on, those of before included.
func (f *flight) aheadOf(n int, before map[uint64]bool) map[uint64]bool {
	ahead := map[uint64]bool{}
	for offset := range before {
		if offset > f.messages[len(f.messages)-1].Offset {
			ahead[offset] = true
		}
	}
	for i := n; i < len(f.messages); i++ {
		if f.parts[i].done {
			ahead[f.messages[i].Offset] = true
		}
	}
	return ahead
}

// run sends until everything before the limit is acknowledged, or ctx ends.
func (f *flight) run() {
	timeout := time.NewTimer(f.sink.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		f.sendReady()
		if f.open == 0 {
			return
		}
		select {
		case a := <-f.answers:
			f.take(a)
			timeout.Reset(f.sink.cfg.AckTimeout)
		case <-timeout.C:
			f.giveUp()
			return
		case <-f.ctx.Done():
			return
		}
	}
}

// sendReady sends what may be sent now.
func (f *flight) sendReady() {
	for len(f.ready) > 0 && (f.open == 0 || f.bytes < f.window && f.open < maxBatch) {
		i := f.ready[0]
		f.ready = f.ready[1:]
		if i >= f.limit {
			continue
		}
		if err := f.send(i); err != nil {
			f.fail(i, err)
		}
	}
}

// fail notes that a message is not acknowledged: nothing from it on is sent any more.
func (f *flight) fail(i int, err error) {
	f.parts[i].err = err
	f.limit = min(f.limit, i)
}

func (f *flight) send(i int) error {
	s, m, p := f.sink, f.messages[i], &f.parts[i]
	if err := f.ctx.Err(); err != nil {
		return err
	}
	var err error
	if p.before, err = s.progress.before(); err != nil {
		return err
	}
	buffer := s.fill(f.message, m)
	defer s.recycle(f.message, buffer)
	f.message.setID(s.cfg.Stream, s.progress.id(m))
	p.call = f.link.Begin(connection.Call{Concerns: connection.To(f.message.Subject), Answer: func(_ string, a connection.Answer) { f.answered(i, a) }})
	f.message.Reply = f.link.ReplyTo(p.call)
	if err := f.link.Publish(f.ctx, f.message.Msg); err != nil {
		return err
	}
	f.open++
	s.flying.Add(1)
	f.bytes += int64(m.Change.Size())
	return nil
}

// answered passes an answer on. It does not wait: the first answer counts, and there is room for that.
func (f *flight) answered(message int, a connection.Answer) {
	select {
	case f.answers <- answered{message, a}:
	default:
	}
}

// take reads an answer, and lets the next message of the object go.
func (f *flight) take(a answered) {
	i, s := a.message, f.sink
	p := &f.parts[i]
	if p.call == 0 || p.done || p.err != nil {
		return // it was answered before
	}
	f.link.End(p.call)
	p.call = 0
	flying := s.flying.Add(-1) + 1
	f.open--
	f.bytes -= int64(f.messages[i].Change.Size())
	err := a.answer.Err
	if err == nil {
		var r stream.Receipt
		r, err = stream.Acknowledged(s.cfg.Stream, subjectOf(s, f.messages[i]), a.answer)
		if err == nil && !r.Duplicate {
			err = s.progress.acknowledged(s.cfg.Stream, p.before, r.Sequence, uint64(flying))
		}
	}
	if err != nil {
		f.fail(i, err)
		return
	}
	p.done = true
	if next := f.next[i]; next != 0 {
		f.ready = append(f.ready, next)
	}
}

// giveUp ends the wait for answers that do not come.
func (f *flight) giveUp() {
	for i := range f.parts {
		if p := &f.parts[i]; p.call != 0 && p.err == nil {
			f.fail(i, f.link.Unanswered(subjectOf(f.sink, f.messages[i])))
		}
	}
}

// subjectOf returns the subject of a message.
func subjectOf(s *Sink, m sinks.Message) string { return string(s.appendSubject(nil, m)) }

// takeAhead returns what a lane has acknowledged behind the message that its last Publish ended at, by offset.
func (s *Sink) takeAhead(lane sinks.Lane) map[uint64]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead := s.ahead[lane]
	delete(s.ahead, lane)
	return ahead
}

func (s *Sink) keepAhead(lane sinks.Lane, ahead map[uint64]bool) {
	if len(ahead) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead[lane] = ahead
}

// omits says whether a change has no place in the destination: a control record in a bucket.
func (s *Sink) omits(c *event.Change) bool { return s.cfg.Mode == modeKV && c.Type.Control() }
