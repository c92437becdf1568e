package nats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

const (
	// maxBatch is how many messages go out before their batch is committed.
	maxBatch = 4096
	// batchGrowth is how much larger a batch may be than the one before it, when that was stored as a whole. The first one
	// after trouble is one message: the stream may well refuse it.
	batchGrowth = 8
	// lookEvery is after how many messages a batch is looked at that may have ended meanwhile.
	lookEvery = 32
	// maxStarts bounds how often one Publish begins a batch that the stream refuses, because it ends otherwise than
	// expected. Each time more is known.
	maxStarts = 8
)

// ordered is what is known of a stream that changes go to in batches, one after the other: where it ends, and which of our
// changes is the newest there. The first message of each batch names the sequence that it must come behind
// (Nats-Expected-Last-Sequence). So another writer, a batch in doubt that came through after all, and a stream that went
// back are found out before anything is stored in the wrong place.
type ordered struct {
	possible atomic.Bool // the stream takes batches, and nobody else writes to it
	beside   atomic.Bool // changes have gone to the stream in the other way since the last batch
	life     string      // begins the IDs of the batches of this process

	// Of the one Publish that is running.
	batches uint64     // numbers the batches of this life
	size    int        // messages of the next batch: 0 is 1, and it grows with each that is stored as a whole
	doubt   *openBatch // the last batch, while it is not known how much of it is stored
	fenced  string     // the ID of the last batch that was fenced

	mu      sync.Mutex
	epoch   string                      // names the journal and what is selected of it: offsets of another mean nothing
	newest  uint64                      // offsets above it were never given to the process before
	save    func(context.Context) error // see sinks.Stateful; nil when nobody stores a state
	saved   bool                        // the epoch is
	known   bool                        // last is
	last    uint64                      // the sequence of the stream's last message
	through uint64                      // every change up to this offset is in the stream, or settled otherwise
	lost    *sinks.LostError            // nothing is published until Restore
}

// newName names a life or an epoch. It is in each message, and 64 random bits are as good as the 22 letters of a NUID.
func newName() string { return strconv.FormatUint(rand.Uint64(), 36) }

// place is where the stream ends, as far as known.
func (o *ordered) place() (last, through uint64, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.through, o.known
}

func (o *ordered) set(last, through uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last, o.through, o.known = last, through, true
}

// begin sees to it that a batch may begin: what became of the last one is known, and where the stream ends. A new epoch is
// stored before it is used, so that the next process knows it for its own.
func (s *Sink) begin(ctx context.Context, l *connection.Link) error {
	o := &s.ordered
	o.mu.Lock()
	lost, known := o.lost, o.known
	o.mu.Unlock()
	if lost != nil {
		return lost
	}
	if err := s.settleDoubt(ctx, l); err != nil {
		return err
	}
	if !known {
		found, err := s.stream(l).Existing(ctx)
		if err == nil {
			err = s.stillOurs(ctx, l, found.State.LastSeq)
		}
		if err != nil {
			return err
		}
		o.set(found.State.LastSeq, 0)
	}
	o.mu.Lock()
	save, saved := o.save, o.saved
	o.mu.Unlock()
	if saved {
		return nil
	}
	if save != nil {
		if err := save(ctx); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.saved = true
	return nil
}

// forgetEnd says that where the stream ends, and which change is there, is not known any more. What was stored meanwhile
// does not name the epoch.
func (o *ordered) forgetEnd() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known, o.saved, o.through, o.size = false, false, 0, 0
}

// leave learns what batches have put into a stream that takes none any more: their messages have no IDs that the stream
// could drop a repetition by.
func (s *Sink) leave(ctx context.Context, l *connection.Link) error {
	o := &s.ordered
	for range maxStarts {
		last, _, known := o.place()
		if !known || o.beside.Load() || o.possible.Load() {
			return nil
		}
		if err := s.settleDoubt(ctx, l); err != nil {
			return err
		}
		found, err := s.stream(l).Existing(ctx)
		switch {
		case err != nil:
			return err
		case found.State.LastSeq == last:
			return nil
		case found.State.LastSeq < last: // it went back: by ID everything is sent again that the stream has not
			o.forgetEnd()
		default:
			err = s.lookAt(ctx, l, found.State.LastSeq)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q grows whenever it is looked at; is there another writer?", s.cfg.Stream)
}

// renew begins another epoch, when the journal is an older copy of the one whose changes the stream holds.
func (o *ordered) renew() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.epoch, o.saved, o.through = newName(), false, 0
}

// stored notes how far a batch got.
func (o *ordered) stored(b *openBatch, st batchState) {
	if st.acked == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.through = max(o.through, b.offsets[st.acked-1])
	o.last = max(o.last, b.base+st.acked, st.sequence)
}

// inOrder publishes messages as batches of the server, each committed before the next one begins.
func (s *Sink) inOrder(ctx context.Context, l *connection.Link, messages []sinks.Message) (int, error) {
	o := &s.ordered
	if o.beside.Swap(false) {
		o.forgetEnd()
	}
	done, starts := 0, 0
	for {
		if err := s.begin(ctx, l); err != nil {
			return done, err
		}
		before := done
		if done = s.settled(messages, done); done == len(messages) {
			return done, nil
		}
		if starts++; done > before {
			starts = 0
		}
		if starts > maxStarts {
			return done, fmt.Errorf("stream %q ends otherwise whenever a batch begins; is there another writer?", s.cfg.Stream)
		}
		err := s.oneBatch(ctx, l, messages[done:])
		if err != nil || !o.possible.Load() {
			return s.settled(messages, done), err
		}
	}
}

// settled returns how many messages, of which the first are, are in the stream or have no place there.
func (s *Sink) settled(messages []sinks.Message, done int) int {
	_, through, _ := s.ordered.place()
	for done < len(messages) && (messages[done].Offset <= through || s.omits(messages[done].Change)) {
		done++
	}
	return done
}

// oneBatch sends some of the messages as one batch and takes note of how many are stored. The error, if there is one, is
// about the message behind these.
func (s *Sink) oneBatch(ctx context.Context, l *connection.Link, messages []sinks.Message) error {
	o := &s.ordered
	o.batches++
	b := newBatch(fmt.Sprintf("%s-%d", o.life, o.batches))
	b.base, _, _ = o.place()
	number := l.Begin(connection.Call{Concerns: connection.ToStream, Answer: b.answered})
	defer l.End(number)
	sendErr := s.sendBatch(ctx, l, b, l.ReplyTo(number), messages)
	if len(b.offsets) == 0 {
		return sendErr
	}
	size := o.size
	o.doubt, o.size = b, 0
	st, err := s.await(ctx, b, func(st batchState) bool { return st.ended || st.stray || st.refused != nil || st.trouble != nil })
	o.stored(b, st)
	var denied *connection.DeniedError
	switch {
	case st.ended && st.acked == uint64(len(b.offsets)):
		o.doubt, o.size = nil, min(maxBatch, max(1, size)*batchGrowth)
		return sendErr
	case err != nil:
		return err
	case st.refused != nil && st.refused.number == 1:
		o.doubt = nil // it never began
		return s.refusedStart(ctx, l, st.refused, b.first)
	case errors.As(st.trouble, &denied) && denied.Subject == b.first:
		o.doubt = nil
		return st.trouble
	case st.trouble != nil && denied == nil:
		return s.troubled(ctx, st.trouble)
	}
	if err := s.settleDoubt(ctx, l); err != nil {
		return err
	}
	if st.refused != nil && s.settled(messages, 0) == s.placeOf(messages, st.refused.number) {
		return s.refusal(st.refused, b.first)
	}
	return st.trouble // if nothing is known to be wrong, what is left is sent again
}

// placeOf returns the place among messages of the one that was sent as the given one.
func (s *Sink) placeOf(messages []sinks.Message, number uint64) int {
	for i := range messages {
		if s.omits(messages[i].Change) {
			continue
		}
		if number--; number == 0 {
			return i
		}
	}
	return len(messages)
}

// sendBatch hands messages to the client library, as many as may be on their way, the last of them with the commit. Its
// error is about the message behind those that were sent.
func (s *Sink) sendBatch(ctx context.Context, l *connection.Link, b *openBatch, lead string, messages []sinks.Message) error {
	msg, room, limit := newMessage(s.cfg, s.format), s.cfg.MaxInFlightBytes, max(1, s.ordered.size)
	for i := s.following(messages, 0); i < len(messages); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(b.offsets)%lookEvery == 0 && b.over() {
			return nil // what follows would not be stored
		}
		m, next := messages[i], s.following(messages, i+1)
		room -= int64(m.Change.Size())
		operation := opAppend
		switch {
		case len(b.offsets)+1 == limit, next == len(messages), int64(messages[next].Change.Size()) > room:
			operation = opCommit
		case len(b.offsets) == 0:
			operation = opStart
		}
		if err := s.sendOne(ctx, l, b, lead, msg, m, operation); err != nil || operation == opCommit {
			return err
		}
		i = next
	}
	return nil
}

// following returns the place of the first message from i on that is sent.
func (s *Sink) following(messages []sinks.Message, i int) int {
	for i < len(messages) && s.omits(messages[i].Change) {
		i++
	}
	return i
}

// sendOne hands one message of a batch to the client library. When that does not take it, the batch ends before it.
func (s *Sink) sendOne(ctx context.Context, l *connection.Link, b *openBatch, lead string, msg *message, m sinks.Message, operation int) error {
	buffer := s.fill(msg, m)
	defer s.recycle(msg, buffer)
	if len(b.offsets) == 0 {
		b.first = msg.Subject
	}
	number := uint64(len(b.offsets)) + 1
	switch number {
	case 1:
		msg.begin(s.cfg.Stream, b.base)
	case 2:
		msg.next()
	}
	msg.setPlace(placeInStream{m.Offset, s.ordered.epoch, b.id}, b, lead, operation)
	err := l.Publish(ctx, msg.Msg)
	if err == nil {
		b.offsets = append(b.offsets, m.Offset)
		return nil
	}
	if number > 1 {
		end := &nats.Msg{Subject: b.first, Reply: string(b.reply(nil, lead, number, opEnd))}
		if ended := l.Publish(ctx, end); ended != nil {
			return ended
		}
	}
	return err
}

// await waits until the batch is as asked for. It gives up when the server says nothing new for ackTimeout.
func (s *Sink) await(ctx context.Context, b *openBatch, done func(batchState) bool) (batchState, error) {
	timeout := time.NewTimer(s.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		if st := b.state(); done(st) {
			return st, nil
		}
		select {
		case <-b.changed:
			timeout.Reset(s.cfg.AckTimeout)
		case <-timeout.C:
			return b.state(), fmt.Errorf("no answer of stream %q within %v", s.cfg.Stream, s.cfg.AckTimeout)
		case <-ctx.Done():
			return b.state(), ctx.Err()
		}
	}
}

// settleDoubt ends the batch that is in doubt and learns how much of it is stored. If the server does not know it, none of
// it is on its way but perhaps its beginning, which is refused when something else is stored first; or else found by lookAt.
func (s *Sink) settleDoubt(ctx context.Context, l *connection.Link) error {
	o := &s.ordered
	if o.doubt == nil {
		return nil
	}
	st, err := s.fence(ctx, l, o.doubt)
	if err != nil {
		return err
	}
	if st.ended {
		o.stored(o.doubt, st)
	}
	o.doubt = nil
	return nil
}

// fence asks the server to end a batch. What it says then is exact: of what comes later nothing is stored.
func (s *Sink) fence(ctx context.Context, l *connection.Link, b *openBatch) (batchState, error) {
	b.forget()
	number := l.Begin(connection.Call{Concerns: connection.To(b.first), Answer: b.answered})
	defer l.End(number)
	ping := &nats.Msg{Subject: b.first, Reply: string(b.reply(nil, l.ReplyTo(number), farAhead, opPing))}
	st, err := s.pinged(ctx, l, b, ping)
	if err == nil && !st.ended && st.trouble != nil {
		err = s.troubled(ctx, st.trouble)
	}
	if err == nil {
		s.ordered.fenced = b.id
	}
	return st, err
}

// pinged sends a ping until it is answered: a stream that has just lost its leader drops what it is sent.
func (s *Sink) pinged(ctx context.Context, l *connection.Link, b *openBatch, ping *nats.Msg) (st batchState, err error) {
	for begun := time.Now(); ; {
		if err := l.Publish(ctx, ping); err != nil {
			return batchState{}, err
		}
		attempt, cancel := context.WithTimeout(ctx, min(connection.RepeatEvery, s.cfg.AckTimeout))
		st, err = s.await(attempt, b, func(st batchState) bool { return st.ended || st.unknown || st.trouble != nil })
		cancel()
		switch {
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return st, err
		case time.Since(begun) >= s.cfg.AckTimeout:
			return st, fmt.Errorf("no answer of stream %q within %v", s.cfg.Stream, s.cfg.AckTimeout)
		}
	}
}

// troubled words what came instead of an answer.
func (s *Sink) troubled(ctx context.Context, trouble error) error {
	var said *stream.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(trouble, &said):
		return stream.Classify(s.cfg.Stream, s.pattern, said)
	case errors.Is(trouble, nats.ErrNoResponders):
		return stream.Missing(s.cfg.Stream, s.pattern)
	}
	return trouble
}

// refusedStart learns from the refusal of a batch's first message; nil says that it is worth another try.
func (s *Sink) refusedStart(ctx context.Context, l *connection.Link, refused *refusedMessage, subject string) error {
	end, wrong := refused.wrongSequence()
	if !wrong {
		return s.refusal(refused, subject)
	}
	if err := s.stillOurs(ctx, l, end); err != nil {
		return err
	}
	if last, _, _ := s.ordered.place(); end < last {
		return s.wentBack(ctx, l, end)
	}
	return s.lookAt(ctx, l, end)
}

// refusal says what the refusal of one message means.
func (s *Sink) refusal(refused *refusedMessage, subject string) error {
	if refused.err.ErrCode == stream.CodeBatchesDisabled {
		s.verified.Store(false) // somebody has edited the stream
	}
	return stream.Classify(s.cfg.Stream, subject, refused.err)
}

// lookAt reads what has come to the stream's end since we knew it, and takes note of the newest change of ours. A batch that
// it finds may still be growing, when it is one of the process before: it is ended first.
func (s *Sink) lookAt(ctx context.Context, l *connection.Link, end uint64) error {
	o := &s.ordered
	last, through, _ := o.place()
	foreign := ""
	m, err := s.stream(l).Newest(ctx, last+1, end, func(m stream.Message) bool {
		ours := s.ours(m)
		if !ours && !isDeadLetter(m) && !strings.HasPrefix(m.Subject, s.cfg.fencePrefix()) {
			foreign = m.Subject
		}
		return ours
	})
	place, ours := placeOf(m)
	switch {
	case err != nil:
		return err
	case !ours:
	case o.fenced != place.batch:
		b := newBatch(place.batch)
		b.first = m.Subject
		_, err := s.fence(ctx, l, b)
		return err // the next attempt finds the end
	case place.offset < through:
		return s.loss(place.offset, end)
	case place.offset > o.newest && !strings.HasPrefix(place.batch, o.life):
		o.renew()
		through = 0
	default:
		through = place.offset
	}
	o.set(end, through)
	return s.crowd(foreign)
}

// ours says whether a message is of a batch in this epoch.
func (s *Sink) ours(m stream.Message) bool {
	place, ok := placeOf(m)
	return ok && place.epoch == s.ordered.epoch
}

// crowd notes that somebody else writes to the stream, to this subject among others. Batches need a stream of their own.
func (s *Sink) crowd(subject string) error {
	if subject != "" && s.ordered.possible.Swap(false) {
		s.caution("writers", fmt.Sprintf("another writer publishes to stream %q, for example to %q: changes go there by message ID now, one at a time "+
			"for each object; give the exporter a stream of its own, then restart it", s.cfg.Stream, subject))
	}
	return nil
}

// wentBack says from where on to publish again when the stream ends before what we know.
func (s *Sink) wentBack(ctx context.Context, l *connection.Link, end uint64) error {
	m, err := s.stream(l).Newest(ctx, 1, end, s.ours)
	if err != nil {
		return err
	}
	place, _ := placeOf(m)
	return s.loss(place.offset, end)
}

// loss notes that the stream ends at a sequence and holds our changes up to an offset only.
func (s *Sink) loss(offset, end uint64) error {
	o := &s.ordered
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = &sinks.LostError{From: offset, Reason: fmt.Sprintf("stream %q went back: it had acknowledged message %d and ends with number %d; %s",
		s.cfg.Stream, o.last, end, whyBack)}
	o.last, o.through, o.known, o.size = end, offset, true, 0
	return o.lost
}
