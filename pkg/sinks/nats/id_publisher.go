package nats

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// idPublisher sends messages one by one, each with its message ID, by which the stream drops a copy. Different lanes may be
// published concurrently.
type idPublisher struct {
	cfg      Config
	encoder  *encoder
	progress idProgress
	inFlight atomic.Int64 // messages of all lanes

	mu         sync.Mutex
	ackedAhead map[sinks.Lane]map[uint64]bool // offsets acknowledged after the message at which a lane's last Publish failed
}

// publish sends messages of one lane and returns how many of them, from the first on, are acknowledged. A control record
// speaks about what is before it in the lane: it is sent when all of that is stored, and what is behind it after that.
func (p *idPublisher) publish(ctx context.Context, l *connection.Link, lane sinks.Lane, messages []sinks.Message) (n int, err error) {
	for n < len(messages) {
		end := n + 1
		for end < len(messages) && messages[end].Change.Type.IsControl() == messages[n].Change.Type.IsControl() {
			end++
		}
		acked, err := p.publishTogether(ctx, l, lane, messages[n:end])
		if n += acked; n < end {
			return n, err
		}
	}
	return n, nil
}

// publishTogether is publish for messages of which those of different objects may be stored in any order.
func (p *idPublisher) publishTogether(
	ctx context.Context, l *connection.Link, lane sinks.Lane, messages []sinks.Message,
) (int, error) {
	w := &publishWindow{publisher: p, ctx: ctx, link: l, messages: messages, encoded: p.encoder.newMessage(),
		maxBytes: laneWindowBytes(lane, p.cfg.MaxInFlightBytes), nextOfObject: make([]int, len(messages)),
		states: make([]messageState, len(messages)), sendLimit: len(messages), answers: make(chan messageAnswer, 2*len(messages))}
	ahead := p.takeAckedAhead(lane)
	w.chainByObject(ahead)
	w.run()
	p.inFlight.Add(-int64(w.inFlight))
	for i := range w.states {
		if w.states[i].call != 0 {
			l.EndCall(w.states[i].call)
		}
	}
	n := 0
	for n < len(messages) && w.states[n].acked {
		n++
	}
	p.storeAckedAhead(lane, w.ackedAfter(n, ahead))
	if n == len(messages) {
		return n, nil
	}
	if w.states[n].err != nil {
		return n, w.states[n].err
	}
	return n, ctx.Err()
}

// takeAckedAhead returns and removes the offsets that a lane has acknowledged after a failed message.
func (p *idPublisher) takeAckedAhead(lane sinks.Lane) map[uint64]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ahead := p.ackedAhead[lane]
	delete(p.ackedAhead, lane)
	return ahead
}

func (p *idPublisher) storeAckedAhead(lane sinks.Lane, ahead map[uint64]bool) {
	if len(ahead) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ackedAhead[lane] = ahead
}

// forgetAcked removes all offsets of takeAckedAhead: they do not survive a loss or a failover.
func (p *idPublisher) forgetAcked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.ackedAhead)
}

// publishWindow is a part of one Publish by message ID. Messages of one object are sent one at a time, each after the
// previous one is acknowledged; those of different objects are in flight together. // I3
//
// One goroutine uses it; only queueAnswer is called by others.
type publishWindow struct {
	publisher *idPublisher
	ctx       context.Context
	link      *connection.Link
	messages  []sinks.Message
	encoded   *message
	maxBytes  int64 // bound of inFlightBytes

	ready         []int              // messages to send now, in this order
	nextOfObject  []int              // by message: the next one of the same object; 0 is none
	states        []messageState     // by message
	sendLimit     int                // no message from here on is sent: this one has failed, or it is the end of messages
	inFlight      int                // messages
	inFlightBytes int64              // of these messages
	answers       chan messageAnswer // capacity for two answers per message: the stream's, and that the connection was lost
}

// messageState is the state of one message.
type messageState struct {
	call         uint64 // number of the call while it is in flight, else 0
	newestBefore uint64 // see [idProgress.newestBeforeSend]
	acked        bool
	err          error
}

// messageAnswer is an answer to the message with an index.
type messageAnswer struct {
	message int
	answer  connection.Answer
}

// chainByObject links the messages of each object. Messages that an earlier Publish has acknowledged are done.
func (w *publishWindow) chainByObject(ahead map[uint64]bool) {
	newest := make(map[uint64]int, len(w.messages)) // by hash of the object; objects with the same hash share a chain
	for i, m := range w.messages {
		if ahead[m.Offset] || w.publisher.encoder.omitsChange(m.Change) {
			w.states[i].acked = true
			continue
		}
		object := sinks.KeyHash(m.Change)
		if before, chained := newest[object]; chained {
			w.nextOfObject[before] = i
		} else {
			w.ready = append(w.ready, i)
		}
		newest[object] = i
	}
}

// ackedAfter returns the offsets of the acknowledged messages from index n on, and those of before that are not in this
// window.
func (w *publishWindow) ackedAfter(n int, before map[uint64]bool) map[uint64]bool {
	ahead := map[uint64]bool{}
	for offset := range before {
		if offset > w.messages[len(w.messages)-1].Offset {
			ahead[offset] = true
		}
	}
	for i := n; i < len(w.messages); i++ {
		if w.states[i].acked {
			ahead[w.messages[i].Offset] = true
		}
	}
	return ahead
}

// run sends until every message before sendLimit is acknowledged, no answer comes for ackTimeout, or ctx ends.
func (w *publishWindow) run() {
	timeout := time.NewTimer(w.publisher.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		w.sendReady()
		if w.inFlight == 0 {
			return
		}
		select {
		case a := <-w.answers:
			w.handleAnswer(a)
			timeout.Reset(w.publisher.cfg.AckTimeout)
		case <-timeout.C:
			w.failUnanswered()
			return
		case <-w.ctx.Done():
			return
		}
	}
}

// sendReady sends messages that are ready, up to the bounds of the window. A message larger than the window goes alone.
func (w *publishWindow) sendReady() {
	for len(w.ready) > 0 && (w.inFlight == 0 || w.inFlightBytes < w.maxBytes && w.inFlight < maxBatch) {
		i := w.ready[0]
		w.ready = w.ready[1:]
		if i >= w.sendLimit {
			continue
		}
		if err := w.sendMessage(i); err != nil {
			w.markFailed(i, err)
		}
	}
}

// markFailed records an error; no message from this one on is sent any more.
func (w *publishWindow) markFailed(i int, err error) {
	w.states[i].err = err
	w.sendLimit = min(w.sendLimit, i)
}

func (w *publishWindow) sendMessage(i int) error {
	p, m, st := w.publisher, w.messages[i], &w.states[i]
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var err error
	if st.newestBefore, err = p.progress.newestBeforeSend(); err != nil {
		return err
	}
	buffer := p.encoder.encodeChange(w.encoded, m)
	defer p.encoder.releaseBuffer(w.encoded, buffer)
	w.encoded.setMessageID(p.cfg.Stream, p.progress.messageIDFor(m))
	st.call = w.link.StartCall(connection.Call{SentTo: connection.SubjectIs(w.encoded.Subject),
		OnAnswer: func(_ string, a connection.Answer) { w.queueAnswer(i, a) }})
	w.encoded.Reply = w.link.ReplySubject(st.call)
	if err := w.link.Publish(w.ctx, w.encoded.Msg); err != nil {
		return err
	}
	w.inFlight++
	p.inFlight.Add(1)
	w.inFlightBytes += int64(m.Change.Size())
	return nil
}

// queueAnswer passes an answer to the goroutine of the window. It never blocks: only the first answer to a message counts,
// and answers has capacity for that.
func (w *publishWindow) queueAnswer(message int, a connection.Answer) {
	select {
	case w.answers <- messageAnswer{message, a}:
	default:
	}
}

// handleAnswer records the first answer to a message, and makes the next message of its object ready.
func (w *publishWindow) handleAnswer(a messageAnswer) {
	i, p := a.message, w.publisher
	st := &w.states[i]
	if st.call == 0 || st.acked || st.err != nil {
		return // not the first answer
	}
	w.link.EndCall(st.call)
	st.call = 0
	inFlight := p.inFlight.Add(-1) + 1
	w.inFlight--
	w.inFlightBytes -= int64(w.messages[i].Change.Size())
	err := a.answer.Err
	if err == nil {
		var r stream.Receipt
		r, err = stream.ParseReceipt(p.cfg.Stream, p.encoder.subjectOf(w.messages[i]), a.answer)
		if err == nil && !r.Duplicate {
			err = p.progress.recordAck(p.cfg.Stream, st.newestBefore, r.Sequence, uint64(inFlight))
		}
	}
	if err != nil {
		w.markFailed(i, err)
		return
	}
	st.acked = true
	if next := w.nextOfObject[i]; next != 0 {
		w.ready = append(w.ready, next)
	}
}

// failUnanswered fails all messages in flight after ackTimeout.
func (w *publishWindow) failUnanswered() {
	for i := range w.states {
		if st := &w.states[i]; st.call != 0 && st.err == nil {
			w.markFailed(i, w.link.UnansweredError(w.publisher.encoder.subjectOf(w.messages[i])))
		}
	}
}
