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

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

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

// handleAnswer records an answer to a message of the batch, or to a ping.
func (b *openBatch) handleAnswer(reply string, a connection.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer connection.Offer(b.changed, struct{}{})
	st := &b.known
	if a.Err != nil {
		st.problem = a.Err
		return
	}
	if a.NoResponders {
		st.problem = nats.ErrNoResponders
		return
	}
	var answer batchAnswer
	number, ping := parseReply(reply)
	if err := json.Unmarshal(a.Data, &answer); err != nil {
		st.problem = errors.New("unparseable answer to a batch") // it may repeat the message
		return
	}
	st.applyAnswer(b.id, answer, number, ping)
}

// batchAnswer is an answer of the server about a batch (ADR-50).
type batchAnswer struct {
	Type     string        `json:"type"` // "" in the answer that ends a batch
	Sequence uint64        `json:"seq"`  // in the stream if Type is "", else in the batch
	Batch    string        `json:"batch"`
	Count    uint64        `json:"count"`
	Error    *stream.Error `json:"error"`
}

// applyAnswer records an answer to the message of this number, or to a ping, of the batch with this ID.
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
