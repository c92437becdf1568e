package nats

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

// Operations of a fast-ingest batch (nats-server 2.14; ADR-50 calls them so). A message's reply subject tells the server
// REPLY.BATCH.FLOW.fail.NUMBER.OPERATION.$FI: which batch it belongs to, the how manieth of it is, and what to do.
const (
	opStart  = 0
	opAppend = 1
	opCommit = 2 // with this message
	opEnd    = 3 // without it
	opPing   = 4
)

// ackInterval is after how many messages the server says how far it got, the most that it allows.
const ackInterval = "500"

// beyondBatch is the number of a ping that no batch has come to: the server ends the batch and says how much of it is stored.
const beyondBatch = 1 << 62

// openBatch is one batch on its way. What the stream keeps of it is a prefix, in order: the server ends it at the first
// message that is missing or refused.
type openBatch struct {
	id           string
	firstSubject string   // the subject of its first message
	baseSequence uint64   // the stream's last sequence when it began
	offsets      []uint64 // of its messages, in order

	mu      sync.Mutex
	changed chan struct{} // capacity 1; filled when known changes
	known   batchState
}

// batchState is what is known of a batch at one moment.
type batchState struct {
	acked           uint64          // so many of its messages are stored, as far as is known
	ended           bool            // no more of it will be: acked is exact
	lastSequence    uint64          // of the last one, when it has ended and there is one
	unknownToServer bool            // the server does not know it: nothing of it is on the way, unless it begins only now
	orphaned        bool            // the server did not know it when a message came: it is over, and the rest of the answers may not come
	refused         *refusedMessage // the first message that was refused
	problem         error           // why no more answers may come
}

// isOver says that the server takes nothing more, or that it is not known.
func (st batchState) isOver() bool {
	return st.ended || st.orphaned || st.refused != nil || st.problem != nil
}

// refusedMessage is what the server said of one message of a batch.
type refusedMessage struct {
	number uint64 // the how manieth
	err    *stream.Error
}

func newBatch(id string) *openBatch { return &openBatch{id: id, changed: make(chan struct{}, 1)} }

// appendReply returns the reply subject of a message, behind that of the batch's call.
func (b *openBatch) appendReply(dst []byte, call string, number uint64, operation int) []byte {
	dst = append(append(append(dst, call...), '.'), b.id...)
	dst = append(dst, "."+ackInterval+".fail."...)
	dst = append(strconv.AppendUint(dst, number, 10), '.')
	return append(strconv.AppendInt(dst, int64(operation), 10), ".$FI"...)
}

// parseReply returns what reply had put into a reply subject.
func parseReply(reply string) (number uint64, ping bool) {
	parts := strings.Split(reply, ".") // BATCH FLOW fail NUMBER OPERATION $FI
	if len(parts) != 6 {
		return 0, false
	}
	number, _ = strconv.ParseUint(parts[3], 10, 64) // 0 is none
	return number, parts[4] == strconv.Itoa(opPing)
}

// handleAnswer takes what comes for a message of the batch, or for a ping.
func (b *openBatch) handleAnswer(reply string, a connection.Answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer signalChange(b.changed)
	st := &b.known
	if a.Err != nil {
		st.problem = a.Err
		return
	}
	if a.NoResponders {
		st.problem = nats.ErrNoResponders
		return
	}
	var said struct {
		Type     string        `json:"type"` // "" in what ends a batch
		Sequence uint64        `json:"seq"`  // of the stream where Type is "", else of the batch
		Batch    string        `json:"batch"`
		Count    uint64        `json:"count"`
		Error    *stream.Error `json:"error"`
	}
	number, ping := parseReply(reply)
	err := json.Unmarshal(a.Data, &said)
	switch {
	case err != nil:
		st.problem = fmt.Errorf("the answer to a batch is none: %.200q", a.Data)
	case said.Type == "ack":
		st.acked = max(st.acked, said.Sequence)
	case said.Type == "gap": // how much is stored follows
	case said.Type == "err":
		st.recordRefusal(said.Sequence, said.Error)
	case said.Error != nil && (said.Error.ErrCode == stream.CodeUnknownBatch || ping && said.Error.ErrCode == stream.CodeBatchesDisabled):
		st.unknownToServer, st.orphaned = st.unknownToServer || ping, st.orphaned || !ping
	case said.Error != nil && ping: // of the ping, not of the batch
		st.problem = said.Error
	case said.Error != nil:
		st.recordRefusal(number, said.Error)
	case said.Batch == b.id:
		st.ended, st.acked, st.lastSequence = true, said.Count, said.Sequence
	}
}

// recordRefusal notes the first message that was refused.
func (st *batchState) recordRefusal(number uint64, err *stream.Error) {
	if err != nil && (st.refused == nil || number < st.refused.number) {
		st.refused = &refusedMessage{number, err}
	}
}

// signalChange lets whoever waits for c look again.
func signalChange(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (b *openBatch) currentState() batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.known
}

// resetProblem drops what was known of trouble: another question is asked.
func (b *openBatch) resetProblem() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known.unknownToServer, b.known.problem = false, nil
}

// actualSequence returns the number that the stream's last message has instead of the one that was expected.
func (r *refusedMessage) actualSequence() (sequence uint64, yes bool) {
	if r == nil || r.err.ErrCode != stream.CodeWrongLastSequence {
		return 0, false
	}
	text := r.err.Description[strings.LastIndexByte(r.err.Description, ' ')+1:] // "wrong last sequence: 17"
	sequence, err := strconv.ParseUint(text, 10, 64)
	return sequence, err == nil
}
