package nats

import (
	"context"
	"errors"
	"fmt"
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
)

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
	st, err := s.await(ctx, b, batchState.over)
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
		if len(b.offsets)%lookEvery == 0 && b.state().over() {
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
			return b.state(), s.unanswered()
		case <-ctx.Done():
			return b.state(), ctx.Err()
		}
	}
}

func (s *Sink) unanswered() error {
	return fmt.Errorf("%w of stream %q within %v", connection.ErrUnanswered, s.cfg.Stream, s.cfg.AckTimeout)
}

// settleDoubt ends the batch that is in doubt and learns how much of it is stored. If the server does not know it, none of
// it is on its way but perhaps its beginning, which is refused when something else is stored first; or else found by
// readEnd.
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

// fence asks the server to end a batch, until it answers: a stream that has just lost its leader drops what it is sent. What
// it says then is exact: of what comes later nothing is stored.
func (s *Sink) fence(ctx context.Context, l *connection.Link, b *openBatch) (st batchState, err error) {
	b.forget()
	number := l.Begin(connection.Call{Concerns: connection.To(b.first), Answer: b.answered})
	defer l.End(number)
	ping := &nats.Msg{Subject: b.first, Reply: string(b.reply(nil, l.ReplyTo(number), farAhead, opPing))}
	err = l.UntilAnswered(ctx, b.first, func(ctx context.Context) error {
		if err := l.Publish(ctx, ping); err != nil {
			return err
		}
		st, err = s.await(ctx, b, func(st batchState) bool { return st.ended || st.unknown || st.trouble != nil })
		return err
	})
	if err == nil && !st.ended && st.trouble != nil {
		err = s.troubled(ctx, st.trouble)
	}
	if err == nil {
		s.ordered.fenced = b.id
	}
	return st, err
}

// fenceBatch is fence for a batch of another process.
func (s *Sink) fenceBatch(ctx context.Context, l *connection.Link, id, subject string) error {
	b := newBatch(id)
	b.first = subject
	_, err := s.fence(ctx, l, b)
	return err
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
	last, _, _ := s.ordered.place()
	if end >= last {
		return s.readEnd(ctx, l, end, subject)
	}
	found, err := s.stream(l).Existing(ctx)
	if err != nil || found.State.LastSeq >= last { // a server has said so that does not lead any more
		return err
	}
	return s.rewind(ctx, l, found.State.LastSeq)
}

// refusal says what the refusal of one message means.
func (s *Sink) refusal(refused *refusedMessage, subject string) error {
	if refused.err.ErrCode == stream.CodeBatchesDisabled {
		s.verified.Store(false) // somebody has edited the stream
	}
	return stream.Classify(s.cfg.Stream, subject, refused.err)
}
