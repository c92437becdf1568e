package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

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
	if err := p.resolveInDoubt(ctx, l); err != nil {
		return err
	}
	if !known {
		found, err := p.cfg.streamClient(l).RequireInfo(ctx)
		if err == nil {
			err = p.fence.checkOwnership(ctx, l, found.State.LastSeq)
		}
		if err == nil {
			err = p.fence.progress.checkEnd(p.cfg.Stream, found.State.LastSeq)
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
func (p *batchPublisher) startTerm(found *stream.Info, end uint64) {
	p.nextSize, p.inDoubt, p.mayCome = 0, nil, false
	p.end.startTerm(found, end)
}

// compareTerm returns a loss that RestoreState has not handled yet. The first call in a term finds out whether the stream
// went back before that, and the first one after a look-up whether it did since the one before.
func (p *batchPublisher) compareTerm(ctx context.Context, l *connection.Link) error {
	if found, end, earlier := p.end.compareTerm(); earlier {
		return p.handleRewind(ctx, l, found, end)
	}
	err := p.end.lostError()
	if next := p.end.next.Swap(nil); err == nil && next != nil {
		if err = p.compareStream(ctx, l, p.end.seen.Load(), next); err != nil {
			p.features.invalidate() // it is looked up again
		}
	}
	return err
}

// compareStream finds out whether the stream that was looked up is the one that was seen, and has what it had. What was its
// last message then is in no other stream. If that is deleted, the time of creation decides; a cluster changes it when it
// restores a stream, and before nats-server 2.14.5 when a client creates one again that exists.
func (p *batchPublisher) compareStream(ctx context.Context, l *connection.Link, seen, next *stream.Info) error {
	c, at, end := p.cfg.streamClient(l), seen.State.LastSeq, next.State.LastSeq
	isOther := !next.Created.Equal(seen.Created) && (end == 0 || !next.State.FirstTime.Before(next.Created))
	there, left := stream.Message{Sequence: at, Time: next.State.LastTime}, stream.Message{}
	var err error
	if at != end || !there.Time.Equal(seen.State.LastTime) {
		there, err = c.FindNewest(ctx, at, min(at, end), false, func(stream.Message) bool { return true })
		if err != nil && !errors.As(err, new(*connection.DeniedError)) {
			return err
		}
	}
	if there.Sequence == 0 && !isOther || there.Sequence > 0 && there.Time.Equal(seen.State.LastTime) {
		if at <= end { // else the next message shows that it went back
			p.end.seen.Store(next)
		}
		return nil
	}
	if err = p.fence.checkOwnership(ctx, l, 0); err == nil && !isOther {
		left, err = c.FindNewest(ctx, 1, end, p.features.allowsDirect.Load(), func(m stream.Message) bool { return !m.Time.After(seen.State.LastTime) })
	}
	if err != nil {
		return err
	}
	_, through, known := p.end.currentEnd()
	switch err := p.fence.progress.checkEnd(p.cfg.Stream, left.Sequence); {
	case err == nil && through == 0: // nothing was acknowledged
		p.end.seen.Store(next)
		return nil
	case err != nil && (!known || p.end.wroteByID.Load()):
		p.end.invalidate()
		return err
	}
	return p.handleRewind(ctx, l, left.Sequence, end)
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
	return p.handleRewind(ctx, l, found.State.LastSeq, found.State.LastSeq)
}

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
		// Without another writer there may be a fence, a dead letter, or the server's marker of a subject that has expired.
		if !ours && !strings.HasPrefix(m.Subject, p.cfg.fencePrefix()) && !strings.Contains(m.Header(nats.MsgIdHdr), deadLetterInfix) &&
			m.Header(jetstream.MarkerReasonHeader) == "" {
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
		p.nextSize = 0
		return p.end.recordLoss(p.cfg.Stream, m, end)
	case p.end.isBeyondJournal(stored.offset) && !strings.HasPrefix(stored.batch, p.prefix):
		p.end.startEpoch()
		through = 0
	default:
		through = stored.offset
	}
	p.end.updateEnd(end, through)
	if foreign != "" {
		p.features.recordOtherWriter(foreign)
		p.features.invalidate() // it may be another stream
	}
	return nil
}

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
		case found.State.LastSeq < last:
			return p.handleRewind(ctx, l, found.State.LastSeq, found.State.LastSeq)
		default:
			err = p.readEnd(ctx, l, found.State.LastSeq, "")
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("stream %q grows at every look-up; is there another writer?", p.cfg.Stream)
}

// handleRewind finds the newest change that is left in a stream that ended with found, before the last known sequence, and
// now ends with end. It reports the loss of those after it.
func (p *batchPublisher) handleRewind(ctx context.Context, l *connection.Link, found, end uint64) error {
	left, err := p.cfg.streamClient(l).FindNewest(ctx, 1, found, p.features.allowsDirect.Load(), func(m stream.Message) bool {
		_, batched := storedOffsetOf(m)
		t := p.fence.current.Load()
		return p.isFromEpoch(m) || batched && t != nil && t.hasPublished(m)
	})
	if err != nil {
		return err
	}
	p.nextSize = 0 // the next batch is small
	return p.end.recordLoss(p.cfg.Stream, left, end)
}

// Operations of a fast-ingest batch (nats-server 2.14, ADR-50). The reply subject of each message carries them to the
// server: REPLY.BATCH.FLOW.fail.NUMBER.OPERATION.$FI, with the ID of the batch, the interval of acknowledgements, the number
// of the message in the batch, counted from 1, and the operation.
const (
	opStart  = 0
	opAppend = 1
	opCommit = 2 // store this message and end the batch
	opEnd    = 3 // end the batch without this message
	opPing   = 4
)

// ackInterval is the number of messages after which the server acknowledges a part of the batch: the most that it allows.
const ackInterval = "500"

// beyondBatch is the number of a ping, larger than that of any message ([maxBatch]). The missing messages before it make the
// server end the batch and report how much of it is stored. It has few digits, so that a ping is not too long for a server
// that has accepted the batch.
const beyondBatch = 1 << 16

// openBatch is one batch that was started on the server. The stream keeps a prefix of it, in order: the server ends it at
// the first message that is missing or refused.
type openBatch struct {
	id           string
	epoch        string   // of its offsets
	firstSubject string   // subject of its first message
	baseSequence uint64   // last sequence of the stream before it
	offsets      []uint64 // of the messages that were sent, in order

	mu      sync.Mutex
	changed chan struct{} // capacity 1; filled when known changes
	known   batchState
}

// batchState is the known state of a batch at one moment.
type batchState struct {
	acked           uint64          // number of its messages that are known to be stored
	ended           bool            // the server stores no more of it: acked is exact
	lastSequence    uint64          // of its last message; set once it has ended and is not empty
	unknownToServer bool            // a ping found no such batch: none of it is in flight, unless its first message is
	orphaned        bool            // a message found no such batch: it is over, and more answers may not come
	refused         *refusedMessage // the first message that was refused
	problem         error           // why no more answers may come
}

// isOver reports whether the server takes nothing more, or its answers may not come.
func (st batchState) isOver() bool {
	return st.ended || st.orphaned || st.refused != nil || st.problem != nil
}

// refusedMessage is the server's error about one message of a batch.
type refusedMessage struct {
	number uint64 // in the batch, from 1
	err    *stream.Error
}

func newBatch(id string) *openBatch { return &openBatch{id: id, changed: make(chan struct{}, 1)} }

// appendReply appends the reply subject of a message; call is the reply subject of the batch's call.
func (b *openBatch) appendReply(dst []byte, call string, number uint64, operation int) []byte {
	dst = append(append(append(dst, call...), '.'), b.id...)
	dst = append(dst, "."+ackInterval+".fail."...)
	dst = append(strconv.AppendUint(dst, number, 10), '.')
	return append(strconv.AppendInt(dst, int64(operation), 10), ".$FI"...)
}

// parseReply parses the part of a reply subject that follows the call.
func parseReply(reply string) (number uint64, ping bool) {
	parts := strings.Split(reply, ".") // BATCH FLOW fail NUMBER OPERATION $FI
	if len(parts) != 6 {
		return 0, false
	}
	number, _ = strconv.ParseUint(parts[3], 10, 64) // 0 is no message
	return number, parts[4] == strconv.Itoa(opPing)
}

func (b *openBatch) handleAnswer(reply string, a connection.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer connection.Offer(b.changed, struct{}{})
	st := &b.known
	var answer batchAnswer
	switch number, ping := parseReply(reply); {
	case a.Err != nil:
		st.problem = a.Err
	case a.NoResponders:
		st.problem = nats.ErrNoResponders
	case json.Unmarshal(a.Data, &answer) != nil:
		st.problem = errors.New("unparseable answer to a batch") // it may repeat the message
	default:
		st.applyAnswer(b.id, answer, number, ping)
	}
}

// batchAnswer is an answer of the server about a batch (ADR-50).
type batchAnswer struct {
	Type     string        `json:"type"` // "" in the answer that ends a batch
	Sequence uint64        `json:"seq"`  // in the stream if Type is "", else in the batch
	Batch    string        `json:"batch"`
	Count    uint64        `json:"count"`
	Error    *stream.Error `json:"error"`
}

func (st *batchState) applyAnswer(id string, answer batchAnswer, number uint64, ping bool) {
	switch {
	case answer.Type == "ack":
		st.acked = max(st.acked, answer.Sequence)
	case answer.Type == "gap": // another answer with the number of stored messages follows
	case answer.Type == "err":
		st.recordRefusal(answer.Sequence, answer.Error)
	case answer.Error == nil:
		if answer.Batch == id {
			st.ended, st.acked, st.lastSequence = true, answer.Count, answer.Sequence
		}
	case answer.Error.ErrCode == stream.CodeUnknownBatch || ping && answer.Error.ErrCode == stream.CodeBatchesDisabled:
		st.unknownToServer, st.orphaned = st.unknownToServer || ping, st.orphaned || !ping
	case ping: // the error is about the ping, not about the batch
		st.problem = answer.Error
	default:
		st.recordRefusal(number, answer.Error)
	}
}

// recordRefusal keeps the refusal of the lowest number.
func (st *batchState) recordRefusal(number uint64, err *stream.Error) {
	if err != nil && (st.refused == nil || number < st.refused.number) {
		st.refused = &refusedMessage{number, err}
	}
}

func (b *openBatch) currentState() batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known
}

// actualSequence returns the last sequence of the stream, if the message was refused because that is not the expected one.
func (r *refusedMessage) actualSequence() (sequence uint64, yes bool) {
	if r == nil || r.err.ErrCode != stream.CodeWrongLastSequence {
		return 0, false
	}
	text := r.err.Description[strings.LastIndexByte(r.err.Description, ' ')+1:] // "wrong last sequence: 17"
	sequence, err := strconv.ParseUint(text, 10, 64)
	return sequence, err == nil
}

// batchCloser waits for batches and ends them on the server, those of this process and of others. One goroutine uses it at a
// time: the Publish of the single lane, or Fence.
type batchCloser struct {
	stream     string
	pattern    string // wildcard subject of the sink, for errors
	ackTimeout time.Duration
	lastClosed string // ID of the last batch that was ended here
}

// awaitBatch waits until done returns true. It gives up when no answer comes for ackTimeout, or ctx ends; the state is
// returned also with an error.
func (c *batchCloser) awaitBatch(ctx context.Context, b *openBatch, done func(batchState) bool) (batchState, error) {
	timeout := time.NewTimer(c.ackTimeout)
	defer timeout.Stop()
	for {
		if st := b.currentState(); done(st) {
			return st, nil
		}
		select {
		case <-b.changed:
			timeout.Reset(c.ackTimeout)
		case <-timeout.C:
			return b.currentState(), connection.TimeoutError(fmt.Errorf("%w of stream %q within %v", connection.ErrUnanswered, c.stream, c.ackTimeout))
		case <-ctx.Done():
			return b.currentState(), ctx.Err()
		}
	}
}

// closeBatch asks the server to end a batch and repeats that until it answers, because a stream that has just lost its
// leader drops requests. The answer is exact: the stream stores nothing of the batch after it.
func (c *batchCloser) closeBatch(ctx context.Context, l *connection.Link, b *openBatch) (st batchState, err error) {
	b.mu.Lock()
	b.known.unknownToServer, b.known.problem = false, nil // of earlier questions
	b.mu.Unlock()
	number := l.StartCall(connection.Call{SentTo: connection.SubjectIs(b.firstSubject), OnAnswer: b.handleAnswer})
	defer l.EndCall(number)
	ping := &nats.Msg{Subject: b.firstSubject, Reply: string(b.appendReply(nil, l.ReplySubject(number), beyondBatch, opPing))}
	err = l.RetryUntilAnswered(ctx, b.firstSubject, func(ctx context.Context) error {
		if err := l.Publish(ctx, ping); err != nil {
			return err
		}
		st, err = c.awaitBatch(ctx, b, func(st batchState) bool { return st.ended || st.unknownToServer || st.problem != nil })
		return err
	})
	if err == nil && !st.ended && st.problem != nil {
		err = c.classifyProblem(ctx, st.problem)
	}
	if err == nil && st.ended {
		c.lastClosed = b.id
	}
	return st, err
}

// closeBatchByID is closeBatch for a batch of which the stream has a message. A server that does not know it has ended it,
// because its messages arrive in order. subject is any subject that the stream takes.
func (c *batchCloser) closeBatchByID(ctx context.Context, l *connection.Link, id, subject string) error {
	b := newBatch(id)
	b.firstSubject = subject
	_, err := c.closeBatch(ctx, l, b)
	if err == nil {
		c.lastClosed = id
	}
	return err
}

// classifyProblem turns the reason why no answer came into an error of the sink.
func (c *batchCloser) classifyProblem(ctx context.Context, problem error) error {
	var answer *stream.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(problem, &answer):
		return stream.ClassifyError(c.stream, c.pattern, answer)
	case errors.Is(problem, nats.ErrNoResponders):
		return stream.NoStreamError(c.stream, c.pattern)
	}
	return problem
}
