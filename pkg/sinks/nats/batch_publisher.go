package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

const (
	// maxBatchStarts bounds how often one Publish starts a batch that the stream refuses for its last sequence. Each refusal
	// reveals more of the stream's end.
	maxBatchStarts = 8
	// maxBatch is the number of messages after which a batch is committed.
	maxBatch = 4096
	// batchGrowth is the factor by which a batch may exceed the previous one, if that was stored completely. The first batch
	// after a failure is one message, because the stream may refuse it again.
	batchGrowth = 8
	// stateCheckInterval is the number of messages between two checks whether the server has ended the batch.
	stateCheckInterval = 32
)

// batchPublisher sends the changes of the single lane as ordered batches, each committed before the next one starts. It
// resolves batches with lost answers, finds its own messages at the end of the stream, and detects other writers and losses.
// One goroutine uses it at a time: a Publish of the single lane, or the look-up of the stream before it.
type batchPublisher struct {
	cfg      Config
	encoder  *encoder
	features *streamFeatures
	closer   *batchCloser
	end      *streamEnd
	fence    *fence

	prefix   string     // of the IDs of this process's batches
	count    uint64     // of batches started by this process
	nextSize int        // messages of the next batch: 0 is 1; it grows after each batch that was stored completely
	inDoubt  *openBatch // the last batch, while the number of its stored messages is unknown
	mayCome  bool       // the server did not know a batch in doubt: it may come yet, unless a later batch came before
}

// publish sends messages and returns how many of them, from the first on, are stored. It returns early and without an error
// when it finds another writer: the rest goes by message ID.
func (p *batchPublisher) publish(ctx context.Context, l *connection.Link, messages []sinks.Message) (int, error) {
	if p.end.wroteByID.Swap(false) {
		p.invalidateEnd()
	}
	done, starts := 0, 0
	for {
		if err := p.prepareBatch(ctx, l); err != nil {
			return done, err
		}
		before := done
		if done = p.countStored(messages, done); done == len(messages) {
			return done, nil
		}
		if starts++; done > before {
			starts = 0
		}
		if starts > maxBatchStarts {
			return done, fmt.Errorf("stream %q has another end whenever a batch starts; is there another writer?", p.cfg.Stream)
		}
		err := p.publishBatch(ctx, l, messages[done:])
		if err != nil || !p.features.takesBatches() {
			return p.countStored(messages, done), err
		}
	}
}

// prepareBatch makes a batch possible: the last one is resolved, the end of the stream is known, and the epoch is saved.
func (p *batchPublisher) prepareBatch(ctx context.Context, l *connection.Link) error {
	_, _, known := p.end.currentEnd()
	if err := p.end.lostError(); err != nil {
		return err
	}
	if err := p.resolveInDoubt(ctx, l); err != nil {
		return err
	}
	if !known {
		found, err := p.cfg.streamClient(l).RequireInfo(ctx)
		if err == nil {
			err = p.fence.checkOwnership(ctx, l, found.State.LastSeq)
		}
		if err != nil {
			return err
		}
		p.end.updateEnd(found.State.LastSeq, 0)
	}
	return p.end.saveEpoch(ctx)
}

// countStored advances done over the messages that are in the stream.
func (p *batchPublisher) countStored(messages []sinks.Message, done int) int {
	_, through, _ := p.end.currentEnd()
	for done < len(messages) && messages[done].Offset <= through {
		done++
	}
	return done
}

// invalidateEnd makes the end of the stream unknown; the next batch is small.
func (p *batchPublisher) invalidateEnd() {
	p.end.invalidate()
	p.nextSize = 0
}

// startTerm forgets all batches of an earlier term.
func (p *batchPublisher) startTerm(end uint64) {
	p.nextSize, p.inDoubt, p.mayCome = 0, nil, false
	p.end.startTerm(end)
}

// publishBatch sends some of the messages as one batch and records how many are stored. A nil error means that the rest can
// be sent; an error is about the message after the stored ones.
func (p *batchPublisher) publishBatch(ctx context.Context, l *connection.Link, messages []sinks.Message) error {
	p.count++
	b := newBatch(fmt.Sprintf("%s-%d", p.prefix, p.count))
	b.epoch = p.end.currentEpoch()
	b.baseSequence, _, _ = p.end.currentEnd()
	number := l.StartCall(connection.Call{SentTo: connection.IsStreamSubject, OnAnswer: b.handleAnswer})
	defer l.EndCall(number)
	sendErr := p.sendMessages(ctx, l, b, l.ReplySubject(number), messages)
	if len(b.offsets) == 0 {
		return sendErr
	}
	size := p.nextSize
	p.inDoubt, p.nextSize = b, 0
	st, err := p.closer.awaitBatch(ctx, b, batchState.isOver)
	p.end.recordBatch(b, st)
	if st.ended && st.acked == uint64(len(b.offsets)) {
		p.inDoubt, p.mayCome, p.nextSize = nil, false, min(maxBatch, max(1, size)*batchGrowth)
		return sendErr
	}
	if err != nil {
		return err
	}
	return p.handleIncomplete(ctx, l, b, st, messages)
}

// handleIncomplete finds out how much is stored of a batch that was refused or is unanswered, and returns the error about
// the message after that; nil if the rest can be sent again.
func (p *batchPublisher) handleIncomplete(ctx context.Context, l *connection.Link, b *openBatch, st batchState,
	messages []sinks.Message) error {
	var denied *connection.DeniedError
	switch {
	case st.refused != nil && st.refused.number == 1:
		p.inDoubt = nil // the batch never started
		return p.handleRefusedStart(ctx, l, st.refused, b.firstSubject)
	case errors.As(st.problem, &denied) && denied.Subject == b.firstSubject:
		p.inDoubt = nil
		return st.problem
	case st.problem != nil && denied == nil:
		return p.closer.classifyProblem(ctx, st.problem)
	}
	if err := p.resolveInDoubt(ctx, l); err != nil {
		return err
	}
	if st.refused != nil && uint64(p.countStored(messages, 0)) == st.refused.number-1 {
		return p.classifyRefusal(st.refused, b.firstSubject)
	}
	return st.problem
}

// sendMessages hands messages to the client library, as many as may be in flight; the last one commits the batch. Its error
// is about the message after those that were sent.
func (p *batchPublisher) sendMessages(ctx context.Context, l *connection.Link, b *openBatch, call string,
	messages []sinks.Message) error {
	msg, bytesLeft, limit := p.encoder.newMessage(), p.cfg.MaxInFlightBytes, max(1, p.nextSize)
	for i, m := range messages {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i%stateCheckInterval == 0 && b.currentState().isOver() {
			return nil // the server would not store what follows
		}
		bytesLeft -= int64(m.Change.Size())
		operation := opAppend
		switch {
		case i+1 == limit, i+1 == len(messages), int64(messages[i+1].Change.Size()) > bytesLeft:
			operation = opCommit
		case i == 0:
			operation = opStart
		}
		if err := p.sendMessage(ctx, l, b, call, msg, m, operation); err != nil || operation == opCommit {
			return err
		}
	}
	return nil
}

// sendMessage hands one message of a batch to the client library. If the library refuses it, the batch ends before it.
func (p *batchPublisher) sendMessage(ctx context.Context, l *connection.Link, b *openBatch, call string, msg *message,
	m sinks.Message, operation int) error {
	buffer := p.encoder.encodeChange(msg, m)
	defer p.encoder.releaseBuffer(msg, buffer)
	if len(b.offsets) == 0 {
		b.firstSubject = msg.Subject
	}
	number := uint64(len(b.offsets)) + 1
	switch number {
	case 1:
		msg.setBatchStart(p.cfg.Stream, b.baseSequence)
	case 2:
		msg.clearBatchStart()
	}
	msg.setOffsetAndReply(storedOffset{m.Offset, b.epoch, b.id}, b, call, operation)
	err := l.Publish(ctx, msg.Msg)
	if err == nil {
		b.offsets = append(b.offsets, m.Offset)
		return nil
	}
	if number > 1 {
		end := &nats.Msg{Subject: b.firstSubject, Reply: string(b.appendReply(nil, call, number, opEnd))}
		if endErr := l.Publish(ctx, end); endErr != nil {
			return endErr
		}
	}
	return err
}

// resolveInDoubt ends the batch in doubt on the server and records how much of it is stored. A server that does not know the
// batch has ended it, or has not received it yet, if it was sent over another connection. Its first message is refused once
// another message is stored; if it comes first, the next batch is refused, and readEnd ends this one.
func (p *batchPublisher) resolveInDoubt(ctx context.Context, l *connection.Link) error {
	if p.inDoubt == nil {
		return nil
	}
	st, err := p.closer.closeBatch(ctx, l, p.inDoubt)
	if err != nil && !errors.As(err, new(*sinks.RejectedError)) {
		return err
	}
	if st.ended {
		p.end.recordBatch(p.inDoubt, st)
	}
	p.inDoubt, p.mayCome = nil, p.mayCome || !st.ended
	return nil
}

// handleRefusedStart handles the refusal of a batch's first message; nil means that a batch can be started again. If the
// stream ends elsewhere than expected, it reads the messages in between, or reports a loss.
func (p *batchPublisher) handleRefusedStart(ctx context.Context, l *connection.Link, refused *refusedMessage,
	subject string) error {
	end, wrong := refused.actualSequence()
	if !wrong {
		return p.classifyRefusal(refused, subject)
	}
	if err := p.fence.checkOwnership(ctx, l, end); err != nil {
		return err
	}
	last, _, _ := p.end.currentEnd()
	if end >= last {
		return p.readEnd(ctx, l, end, subject)
	}
	found, err := p.cfg.streamClient(l).RequireInfo(ctx)
	if err != nil || found.State.LastSeq >= last { // the refusal came from a server that no longer leads the stream
		return err
	}
	return p.handleRewind(ctx, l, found.State.LastSeq)
}

// classifyRefusal turns the refusal of one message into an error of the sink.
func (p *batchPublisher) classifyRefusal(refused *refusedMessage, subject string) error {
	if refused.err.ErrCode == stream.CodeBatchesDisabled {
		p.features.invalidate() // allow_batched was removed
	}
	return stream.ClassifyError(p.cfg.Stream, subject, refused.err)
}

// readEnd reads the messages since the last known end and records the newest change of this exporter. If that belongs to a
// batch of the previous process, which may still grow, it first ends the batch, by a message to subject, which the stream
// must take: with a subject transform the stored subject may differ from it. subject is "" if the stream no longer takes
// batches; then none can grow.
func (p *batchPublisher) readEnd(ctx context.Context, l *connection.Link, end uint64, subject string) error {
	last, through, _ := p.end.currentEnd()
	if p.features.elected.Load() && p.features.otherWriter.Load() && !p.mayCome {
		p.end.updateEnd(end, through) // all of that is of other writers
		return nil
	}
	foreign := ""
	m, err := p.cfg.streamClient(l).FindNewest(ctx, last+1, end, p.features.allowsDirect.Load(), func(m stream.Message) bool {
		ours := p.isFromEpoch(m)
		if !ours && !p.isExpected(m) {
			foreign = m.Subject
		}
		return ours
	})
	stored, ours := storedOffsetOf(m)
	switch {
	case err != nil:
		return err
	case !ours:
	case subject != "" && p.closer.lastClosed != stored.batch:
		return p.closer.closeBatchByID(ctx, l, stored.batch, subject) // the next attempt reads the final end
	case stored.offset < through:
		return p.recordLoss(stored.offset, end)
	case p.end.isBeyondJournal(stored.offset) && !strings.HasPrefix(stored.batch, p.prefix):
		p.end.startEpoch()
		through = 0
	default:
		through = stored.offset
	}
	p.end.updateEnd(end, through)
	if foreign != "" {
		p.features.recordOtherWriter(foreign)
	}
	return nil
}

// isExpected reports whether a message without a stored offset may be in a stream without another writer: a fence, a dead
// letter, or the marker that the server leaves when all messages of a subject have expired.
func (p *batchPublisher) isExpected(m stream.Message) bool {
	return strings.HasPrefix(m.Subject, p.cfg.fencePrefix()) || isDeadLetter(m) || m.Header(jetstream.MarkerReasonHeader) != ""
}

// isFromEpoch reports whether a message belongs to a batch of the current epoch.
func (p *batchPublisher) isFromEpoch(m stream.Message) bool {
	stored, ok := storedOffsetOf(m)
	return ok && stored.epoch == p.end.currentEpoch()
}

// readEndOfBatches reads what this exporter's batches have stored, when the stream no longer takes batches: messages of a
// batch have no ID by which the stream would drop a copy.
func (p *batchPublisher) readEndOfBatches(ctx context.Context, l *connection.Link) error {
	for range maxBatchStarts {
		last, _, known := p.end.currentEnd()
		if !known || p.end.wroteByID.Load() || p.features.takesBatches() {
			return nil
		}
		if err := p.resolveInDoubt(ctx, l); err != nil {
			return err
		}
		found, err := p.cfg.streamClient(l).RequireInfo(ctx)
		switch {
		case err != nil:
			return err
		case found.State.LastSeq == last:
			return nil
		case found.State.LastSeq < last: // the stream went back: everything it may lack is sent again by ID
			p.invalidateEnd()
		default:
			err = p.readEnd(ctx, l, found.State.LastSeq, "")
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q grows at every look-up; is there another writer?", p.cfg.Stream)
}

// handleRewind finds the newest change that is left in a stream that ends before the last known sequence, and reports the
// loss of those after it.
func (p *batchPublisher) handleRewind(ctx context.Context, l *connection.Link, end uint64) error {
	m, err := p.cfg.streamClient(l).FindNewest(ctx, 1, end, p.features.allowsDirect.Load(), p.isFromEpoch)
	if err != nil {
		return err
	}
	stored, _ := storedOffsetOf(m)
	return p.recordLoss(stored.offset, end)
}

// recordLoss records a loss; the next batch is small.
func (p *batchPublisher) recordLoss(offset, end uint64) error {
	p.nextSize = 0
	return p.end.recordLoss(p.cfg.Stream, offset, end)
}
