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
	// stateCheckInterval is after how many messages a batch is looked at that may have ended meanwhile.
	stateCheckInterval = 32
)

// publishBatch sends some of the messages as one batch and takes note of how many are stored. The error, if there is one, is
// about the message behind these.
func (s *Sink) publishBatch(ctx context.Context, l *connection.Link, messages []sinks.Message) error {
	o := &s.streamEnd
	o.batchCount++
	b := newBatch(fmt.Sprintf("%s-%d", o.batchPrefix, o.batchCount))
	b.baseSequence, _, _ = o.currentEnd()
	number := l.StartCall(connection.Call{SentTo: connection.IsStreamSubject, OnAnswer: b.handleAnswer})
	defer l.EndCall(number)
	sendErr := s.sendMessages(ctx, l, b, l.ReplySubject(number), messages)
	if len(b.offsets) == 0 {
		return sendErr
	}
	size := o.nextBatchSize
	o.inDoubt, o.nextBatchSize = b, 0
	st, err := s.awaitBatch(ctx, b, batchState.isOver)
	o.recordBatch(b, st)
	var denied *connection.DeniedError
	switch {
	case st.ended && st.acked == uint64(len(b.offsets)):
		o.inDoubt, o.nextBatchSize = nil, min(maxBatch, max(1, size)*batchGrowth)
		return sendErr
	case err != nil:
		return err
	case st.refused != nil && st.refused.number == 1:
		o.inDoubt = nil // it never began
		return s.handleRefusedStart(ctx, l, st.refused, b.firstSubject)
	case errors.As(st.problem, &denied) && denied.Subject == b.firstSubject:
		o.inDoubt = nil
		return st.problem
	case st.problem != nil && denied == nil:
		return s.wrapAnswerError(ctx, st.problem)
	}
	if err := s.resolveInDoubt(ctx, l); err != nil {
		return err
	}
	if st.refused != nil && s.countStored(messages, 0) == s.indexOfNumber(messages, st.refused.number) {
		return s.classifyRefusal(st.refused, b.firstSubject)
	}
	return st.problem // if nothing is known to be wrong, what is left is sent again
}

// indexOfNumber returns the place among messages of the one that was sent as the given one.
func (s *Sink) indexOfNumber(messages []sinks.Message, number uint64) int {
	for i := range messages {
		if s.omitsChange(messages[i].Change) {
			continue
		}
		if number--; number == 0 {
			return i
		}
	}
	return len(messages)
}

// sendMessages hands messages to the client library, as many as may be on their way, the last of them with the commit. Its
// error is about the message behind those that were sent.
func (s *Sink) sendMessages(ctx context.Context, l *connection.Link, b *openBatch, lead string, messages []sinks.Message) error {
	msg, room, limit := newMessage(s.cfg, s.format), s.cfg.MaxInFlightBytes, max(1, s.streamEnd.nextBatchSize)
	for i := s.nextSentIndex(messages, 0); i < len(messages); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(b.offsets)%stateCheckInterval == 0 && b.currentState().isOver() {
			return nil // what follows would not be stored
		}
		m, next := messages[i], s.nextSentIndex(messages, i+1)
		room -= int64(m.Change.Size())
		operation := opAppend
		switch {
		case len(b.offsets)+1 == limit, next == len(messages), int64(messages[next].Change.Size()) > room:
			operation = opCommit
		case len(b.offsets) == 0:
			operation = opStart
		}
		if err := s.sendBatchMessage(ctx, l, b, lead, msg, m, operation); err != nil || operation == opCommit {
			return err
		}
		i = next
	}
	return nil
}

// nextSentIndex returns the place of the first message from i on that is sent.
func (s *Sink) nextSentIndex(messages []sinks.Message, i int) int {
	for i < len(messages) && s.omitsChange(messages[i].Change) {
		i++
	}
	return i
}

// sendBatchMessage hands one message of a batch to the client library. When that does not take it, the batch ends before it.
func (s *Sink) sendBatchMessage(ctx context.Context, l *connection.Link, b *openBatch, lead string, msg *message, m sinks.Message, operation int) error {
	buffer := s.encodeChange(msg, m)
	defer s.releaseBuffer(msg, buffer)
	if len(b.offsets) == 0 {
		b.firstSubject = msg.Subject
	}
	number := uint64(len(b.offsets)) + 1
	switch number {
	case 1:
		msg.setBatchStart(s.cfg.Stream, b.baseSequence)
	case 2:
		msg.clearBatchStart()
	}
	msg.setOffsetAndReply(storedOffset{m.Offset, s.streamEnd.epoch, b.id}, b, lead, operation)
	err := l.Publish(ctx, msg.Msg)
	if err == nil {
		b.offsets = append(b.offsets, m.Offset)
		return nil
	}
	if number > 1 {
		end := &nats.Msg{Subject: b.firstSubject, Reply: string(b.appendReply(nil, lead, number, opEnd))}
		if ended := l.Publish(ctx, end); ended != nil {
			return ended
		}
	}
	return err
}

// awaitBatch waits until the batch is as asked for. It gives up when the server says nothing new for ackTimeout.
func (s *Sink) awaitBatch(ctx context.Context, b *openBatch, done func(batchState) bool) (batchState, error) {
	timeout := time.NewTimer(s.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		if st := b.currentState(); done(st) {
			return st, nil
		}
		select {
		case <-b.changed:
			timeout.Reset(s.cfg.AckTimeout)
		case <-timeout.C:
			return b.currentState(), s.unansweredError()
		case <-ctx.Done():
			return b.currentState(), ctx.Err()
		}
	}
}

func (s *Sink) unansweredError() error {
	return fmt.Errorf("%w of stream %q within %v", connection.ErrUnanswered, s.cfg.Stream, s.cfg.AckTimeout)
}

// resolveInDoubt ends the batch that is in doubt and learns how much of it is stored. If the server does not know it, none of
// it is on its way but perhaps its beginning, which is refused when something else is stored first; or else found by
// readStreamEnd.
func (s *Sink) resolveInDoubt(ctx context.Context, l *connection.Link) error {
	o := &s.streamEnd
	if o.inDoubt == nil {
		return nil
	}
	st, err := s.closeBatch(ctx, l, o.inDoubt)
	if err != nil {
		return err
	}
	if st.ended {
		o.recordBatch(o.inDoubt, st)
	}
	o.inDoubt = nil
	return nil
}

// closeBatch asks the server to end a batch, until it answers: a stream that has just lost its leader drops what it is sent. What
// it says then is exact: of what comes later nothing is stored.
func (s *Sink) closeBatch(ctx context.Context, l *connection.Link, b *openBatch) (st batchState, err error) {
	b.resetProblem()
	number := l.StartCall(connection.Call{SentTo: connection.SubjectIs(b.firstSubject), OnAnswer: b.handleAnswer})
	defer l.EndCall(number)
	ping := &nats.Msg{Subject: b.firstSubject, Reply: string(b.appendReply(nil, l.ReplySubject(number), beyondBatch, opPing))}
	err = l.RetryUntilAnswered(ctx, b.firstSubject, func(ctx context.Context) error {
		if err := l.Publish(ctx, ping); err != nil {
			return err
		}
		st, err = s.awaitBatch(ctx, b, func(st batchState) bool { return st.ended || st.unknownToServer || st.problem != nil })
		return err
	})
	if err == nil && !st.ended && st.problem != nil {
		err = s.wrapAnswerError(ctx, st.problem)
	}
	if err == nil {
		s.streamEnd.lastClosed = b.id
	}
	return st, err
}

// closeBatchByID is fence for a batch of another process.
func (s *Sink) closeBatchByID(ctx context.Context, l *connection.Link, id, subject string) error {
	b := newBatch(id)
	b.firstSubject = subject
	_, err := s.closeBatch(ctx, l, b)
	return err
}

// wrapAnswerError words what came instead of an answer.
func (s *Sink) wrapAnswerError(ctx context.Context, trouble error) error {
	var said *stream.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(trouble, &said):
		return stream.ClassifyError(s.cfg.Stream, s.pattern, said)
	case errors.Is(trouble, nats.ErrNoResponders):
		return stream.NoStreamError(s.cfg.Stream, s.pattern)
	}
	return trouble
}

// handleRefusedStart learns from the refusal of a batch's first message; nil says that it is worth another try.
func (s *Sink) handleRefusedStart(ctx context.Context, l *connection.Link, refused *refusedMessage, subject string) error {
	end, wrong := refused.actualSequence()
	if !wrong {
		return s.classifyRefusal(refused, subject)
	}
	if err := s.checkOwnership(ctx, l, end); err != nil {
		return err
	}
	last, _, _ := s.streamEnd.currentEnd()
	if end >= last {
		return s.readStreamEnd(ctx, l, end, subject)
	}
	found, err := s.streamClient(l).RequireInfo(ctx)
	if err != nil || found.State.LastSeq >= last { // a server has said so that does not lead any more
		return err
	}
	return s.reportRewind(ctx, l, found.State.LastSeq)
}

// classifyRefusal says what the refusal of one message means.
func (s *Sink) classifyRefusal(refused *refusedMessage, subject string) error {
	if refused.err.ErrCode == stream.CodeBatchesDisabled {
		s.verified.Store(false) // somebody has edited the stream
	}
	return stream.ClassifyError(s.cfg.Stream, subject, refused.err)
}
