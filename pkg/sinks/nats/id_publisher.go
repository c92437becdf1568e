package nats

import (
	"context"
	"fmt"
	"slices"
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

	// ackedAhead has, by lane, the offsets that were acknowledged after the message at which its last Publish failed, as a
	// map[uint64]bool. They do not survive a loss or a failover.
	ackedAhead sync.Map
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
	stored, _ := p.ackedAhead.LoadAndDelete(lane)
	ahead, _ := stored.(map[uint64]bool)
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
	if ahead = w.ackedAfter(n, ahead); len(ahead) > 0 {
		p.ackedAhead.Store(lane, ahead)
	}
	if n == len(messages) {
		return n, nil
	}
	if w.states[n].err != nil {
		return n, w.states[n].err
	}
	return n, ctx.Err()
}

// publishWindow is a part of one Publish by message ID. Messages of one object are sent one at a time, each after the
// previous one is acknowledged; those of different objects are in flight together. // I3
//
// One goroutine uses it; others only fill answers.
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

type messageState struct {
	call         uint64 // number of the call while it is in flight, else 0
	newestBefore uint64 // see [idProgress.newestBeforeSend]
	acked        bool
	err          error
}

type messageAnswer struct {
	message int
	answer  connection.Answer
}

// chainByObject links the messages of each object. Messages that an earlier Publish has acknowledged are done.
func (w *publishWindow) chainByObject(ahead map[uint64]bool) {
	newest := make(map[uint64]int, len(w.messages)) // by hash of the object; objects with the same hash share a chain
	for i, m := range w.messages {
		if ahead[m.Offset] {
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
		OnAnswer: func(_ string, a connection.Answer) { connection.Offer(w.answers, messageAnswer{i, a}) }})
	w.encoded.Reply = w.link.ReplySubject(st.call)
	if err := w.link.Publish(w.ctx, w.encoded.Msg); err != nil {
		return err
	}
	w.inFlight++
	p.inFlight.Add(1)
	w.inFlightBytes += int64(m.Change.Size())
	return nil
}

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

func (w *publishWindow) failUnanswered() {
	for i := range w.states {
		if st := &w.states[i]; st.call != 0 && st.err == nil {
			w.markFailed(i, w.link.UnansweredError(w.publisher.encoder.subjectOf(w.messages[i])))
		}
	}
}

const (
	checkpointInterval = 10 * time.Second
	maxCheckpoints     = 64 // about ten minutes
)

const rewindCauses = "its server lost power before a disk sync, or a backup was restored, or the stream was recreated"

// idProgress tracks the sequences of messages sent by ID, to detect a stream that went back and to find what it lacks:
// JetStream acknowledges before it syncs to disk, so a power failure or a restored backup undoes acknowledgements. Sequences
// only grow; a sequence that the stream gives out twice was lost in between. It is safe for concurrent use.
type idProgress struct {
	newest           atomic.Uint64 // highest acknowledged sequence
	attemptedThrough atomic.Uint64 // highest offset that this process or the previous one may have sent by ID

	mu          sync.Mutex           // held while any of it is changed
	checkpoints []sequenceCheckpoint // ascending
	lost        *sinks.LostError     // set after a loss until RestoreState

	// After a loss, messages up to the offset resendThrough are sent under another message ID, which contains lossCount. The
	// stream may have stored some newer ones before the loss was known. If it recognised them as copies, it would not store
	// them again after the older ones that must precede them. // I3
	resendThrough, lossCount, kept uint64 // kept is newest from RestoreState on: a state that is stored before that shows the loss
}

// sequenceCheckpoint records that every message up to an offset has a sequence up to this one.
type sequenceCheckpoint struct {
	takenAt          time.Time
	offset, sequence uint64
}

// newestBeforeSend returns the value for recordAck; call it before a message is sent. It fails after a loss.
func (p *idProgress) newestBeforeSend() (newest uint64, lost error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil {
		return 0, p.lost
	}
	return p.newest.Load(), nil
}

// checkEnd returns a [sinks.LostError] if a stream ends before the highest acknowledged sequence.
func (p *idProgress) checkEnd(stream string, end uint64) error {
	if newest := p.newest.Load(); end < newest {
		return p.recordAck(stream, newest, end, 0)
	}
	return nil
}

// messageIDFor returns the message ID of a change that is about to be sent, and records the attempt.
func (p *idProgress) messageIDFor(m sinks.Message) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attemptedThrough.Store(max(p.attemptedThrough.Load(), m.Offset))
	if m.Offset > p.resendThrough {
		return changeMessageID(m.Change)
	}
	return fmt.Sprintf("%s/again-%d", changeMessageID(m.Change), p.lossCount)
}

// recordAck records the sequence of a message. before is the result of newestBeforeSend, and inFlight the number of messages
// that were in flight with it. A sequence up to before is a [sinks.LostError]: the stream had given it out already.
func (p *idProgress) recordAck(stream string, before, sequence, inFlight uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil && sequence >= p.kept {
		return p.lost
	}
	if sequence > before {
		p.newest.Store(max(p.newest.Load(), sequence))
		return nil
	}
	// Messages in flight with it may have taken the first of the lost sequences.
	kept := sequence - min(sequence, inFlight)
	for len(p.checkpoints) > 0 && p.checkpoints[len(p.checkpoints)-1].sequence > kept {
		p.checkpoints = p.checkpoints[:len(p.checkpoints)-1]
	}
	p.lost = &sinks.LostError{Reason: fmt.Sprintf("stream %q went back: message %d was acknowledged, and a later one got "+
		"number %d; %s", stream, p.newest.Load(), sequence, rewindCauses)}
	if len(p.checkpoints) > 0 {
		p.lost.From = p.checkpoints[len(p.checkpoints)-1].offset
	}
	p.kept, p.resendThrough, p.lossCount = sequence, p.attemptedThrough.Load(), p.lossCount+1
	return p.lost
}

// startTerm forgets everything about an earlier term, in a stream that ends at a sequence.
func (p *idProgress) startTerm(end uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest.Store(end)
	p.attemptedThrough.Store(0)
	p.checkpoints, p.lost, p.resendThrough, p.lossCount = nil, nil, 0, 0
}

// applyRestore clears a loss and reports whether this process has already published by ID.
func (p *idProgress) applyRestore() (published bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if published = p.newest.Load() > 0; p.lost != nil {
		p.newest.Store(p.kept)
	}
	p.lost = nil
	return published
}

func (p *idProgress) loadState(values []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest.Store(values[0])
	p.resendThrough, p.lossCount, p.checkpoints = values[1], values[2], nil
	for m := range slices.Chunk(values[progressValues:], checkpointValues) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{time.Unix(int64(m[0]), 0), m[1], m[2]})
	}
}

// stateValues returns the values to store. It takes a checkpoint from time to time: every message up to the offset low is
// acknowledged.
func (p *idProgress) stateValues(low uint64) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.lost == nil && (len(p.checkpoints) == 0 || now.Sub(p.checkpoints[len(p.checkpoints)-1].takenAt).Abs() >= checkpointInterval) {
		p.checkpoints = append(p.checkpoints, sequenceCheckpoint{now, low, p.newest.Load()})
		p.checkpoints = p.checkpoints[max(0, len(p.checkpoints)-maxCheckpoints):]
	}
	values := []uint64{p.newest.Load(), p.resendThrough, p.lossCount}
	for _, m := range p.checkpoints {
		values = append(values, uint64(max(m.takenAt.Unix(), 0)), m.offset, m.sequence)
	}
	return values
}
