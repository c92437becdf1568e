package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

const (
	// readMessages and readBytes bound what one request reads of a stream.
	readMessages = 2000
	readBytes    = 8 << 20
	// lookBack and directLookBack bound the messages that FindNewest reads, one or many by one request: its callers have
	// seconds. maxChunk bounds those that it reads at once.
	lookBack, directLookBack = 1000, 20_000
	maxChunk                 = 1000
	// directSilence is how long a replica may be silent that is asked for many messages, before the leader is asked.
	directSilence = time.Second
	// storePollInterval is the time between two reads of a message that the replicas are about to store.
	storePollInterval = 20 * time.Millisecond
)

// Client sends requests about one stream over one connection. It has no state and is safe for concurrent use.
type Client struct {
	Link *connection.Link
	Name string
}

// callAPI sends a request of the JetStream API about the stream and decodes the response. No response means that JetStream
// is disabled, or has no leader.
func (c Client) callAPI(ctx context.Context, what string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("encode a request about stream %q: %w", c.Name, err)
		}
	}
	a, err := c.Link.RequestUntilAnswered(ctx, &nats.Msg{Subject: "$JS.API.STREAM." + what + "." + c.Name, Data: body})
	if err != nil {
		return err
	}
	if a.NoResponders {
		return c.Link.NoJetStreamError()
	}
	if err := json.Unmarshal(a.Data, answer); err != nil {
		return fmt.Errorf("JetStream's answer about stream %q: %w", c.Name, err)
	}
	return nil
}

// Info returns the settings and the state of the stream; nil if it does not exist. It fails if the server that answers may
// not know all acknowledged messages.
func (c Client) Info(ctx context.Context) (*Info, error) {
	found := new(Info)
	if err := c.callAPI(ctx, "INFO", nil, found); err != nil {
		return nil, err
	}
	switch {
	case found.Error == nil:
		return found, checkLeader(c.Name, found.Cluster)
	case found.Error.ErrCode == CodeStreamNotFound:
		return nil, nil
	}
	return nil, ClassifyError(c.Name, "", found.Error)
}

// RequireInfo is Info for a stream in use: a missing stream is an error.
func (c Client) RequireInfo(ctx context.Context) (*Info, error) {
	found, err := c.Info(ctx)
	if err == nil && found == nil {
		err = &sinks.UnavailableError{Code: condition.SinkTargetMissing, Reason: fmt.Sprintf("stream %q does not exist", c.Name), After: connection.UnavailablePause, Err: nats.ErrNoResponders}
	}
	return found, err
}

// Create creates the stream. An error of the server is in the returned Info, except that the stream exists by now.
func (c Client) Create(ctx context.Context, config jetstream.StreamConfig) (*Info, error) {
	made := new(Info)
	err := c.callAPI(ctx, "CREATE", config, made)
	if err == nil && made.Error != nil && made.Error.ErrCode == CodeStreamExists {
		err = fmt.Errorf("another client has just created stream %q: %w", c.Name, made.Error) // the next attempt finds it
	}
	return made, err
}

// Publish sends one message to the stream and returns its sequence. The message must have a condition that only one copy can
// meet, because it is repeated until it is answered.
func (c Client) Publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	m.Header[nats.ExpectedStreamHdr] = []string{c.Name}
	a, err := c.Link.RequestUntilAnswered(ctx, m)
	if err != nil {
		return 0, err
	}
	r, err := ParseReceipt(c.Name, m.Subject, a)
	return r.Sequence, err
}

// Get reads one message from the stream's leader; the zero value if there is none.
func (c Client) Get(ctx context.Context, request GetRequest) (Message, error) {
	var answer struct {
		Error   *Error  `json:"error"`
		Message Message `json:"message"`
	}
	err := c.callAPI(ctx, "MSG.GET", request, &answer)
	switch {
	case err != nil:
		return Message{}, err
	case answer.Error == nil:
		return answer.Message, nil
	case answer.Error.ErrCode == CodeNoMessage || answer.Error.ErrCode == CodeStreamNotFound:
		return Message{}, nil
	}
	return Message{}, ClassifyError(c.Name, "", answer.Error)
}

// FindNewest returns the newest message for which wanted is true, between two sequences, both included, without its data;
// the zero value if there is none among the last 20,000, or 1,000 if the stream allows no direct access. wanted sees the
// messages from the newest on. FindNewest waits until a message that the leader has accepted is stored. direct is as for
// [Client.ReadRange].
func (c Client) FindNewest(ctx context.Context, first, last uint64, direct bool, wanted func(Message) bool) (Message, error) {
	bound := uint64(lookBack)
	if direct {
		bound = directLookBack
	}
	first = max(first, 1, last-min(last, bound)+1)
	r := rangeReader{Client: c}
	for size := uint64(1); last >= first; size = min(4*size, maxChunk) {
		from := max(first, last-min(last, size)+1)
		var chunk []Message
		r.direct = direct && size > 1
		err := r.read(ctx, from, last, func(m Message) error {
			m.Data = nil // a chunk of large messages takes no memory
			chunk = append(chunk, m)
			return nil
		})
		if err != nil {
			return Message{}, err
		}
		if direct && size > 1 && !r.direct { // from now on each message is one request
			direct, first = false, max(first, from-min(from, lookBack))
		}
		for _, m := range slices.Backward(chunk) {
			if wanted(m) {
				return m, nil
			}
		}
		last = from - 1
	}
	return Message{}, nil
}

// getNext returns the first message from a sequence on; the zero value if the server that answers has none. A server that
// has a later message has all before it, unless they were deleted.
func (c Client) getNext(ctx context.Context, sequence uint64) (Message, error) {
	return c.Get(ctx, GetRequest{Sequence: sequence, NextOf: ">"})
}

// awaitNext is getNext, but repeats it while the answer may come from a server that lacks the message: the message may be
// accepted and not stored yet, and after a partition a replaced leader answers, too, until it learns of its successor. The
// zero value means that the messages from this sequence on were deleted.
func (c Client) awaitNext(ctx context.Context, sequence uint64) (Message, error) {
	for begun, deleted := time.Now(), false; ; {
		found, err := c.RequireInfo(ctx)
		if err != nil {
			return Message{}, err
		}
		waited := time.Since(begun) > c.Link.Timeout()
		if found.State.LastSeq >= sequence {
			deleted = found.State.FirstSeq > sequence || found.Cluster == nil || waited && uint64(found.State.Messages) <= found.State.LastSeq-found.State.FirstSeq
		}
		m, err := c.getNext(ctx, sequence)
		if err != nil || m.Sequence != 0 || deleted {
			return m, err
		}
		if waited {
			return Message{}, fmt.Errorf("stream %q accepted message %d, and no server has it after %v", c.Name, sequence, c.Link.Timeout())
		}
		select {
		case <-time.After(storePollInterval):
		case <-ctx.Done():
			return Message{}, ctx.Err()
		}
	}
}

// Info is a response of the API with the settings and the state of a stream ($JS.API.STREAM.INFO and CREATE, ADR-1).
type Info struct {
	Error   *Error                 `json:"error"`
	Config  jetstream.StreamConfig `json:"config"`
	Created time.Time              `json:"created"`
	Cluster *jetstream.ClusterInfo `json:"cluster"`
	State   struct {
		FirstSeq  uint64    `json:"first_seq"`
		LastSeq   uint64    `json:"last_seq"`
		Messages  int64     `json:"messages"`
		Bytes     int64     `json:"bytes"`
		FirstTime time.Time `json:"first_ts"`
		LastTime  time.Time `json:"last_ts"`
	} `json:"state"`
}

// Message is a stored message ($JS.API.STREAM.MSG.GET, ADR-1). The zero value is no message.
type Message struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Headers  []byte    `json:"hdrs"`
	Data     []byte    `json:"data"`
	Time     time.Time `json:"time"`

	decoded nats.Header // in place of Headers, for a message that was read by direct access
}

// Header returns the first value of a header; "" if there is none.
func (m Message) Header(name string) string {
	if m.decoded != nil {
		return m.decoded.Get(name)
	}
	header, err := nats.DecodeHeadersMsg(m.Headers)
	if err != nil {
		return ""
	}
	return header.Get(name)
}

// GetRequest selects one message, or a batch of messages for direct access (ADR-1, ADR-31).
type GetRequest struct {
	Sequence uint64 `json:"seq,omitempty"`
	LastOf   string `json:"last_by_subj,omitempty"`
	NextOf   string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// ReadRange calls each for the messages from one sequence through another, in order; deleted messages are skipped.
// direct states that the stream allows direct access: then replicas send many messages per request, and the leader is
// asked for those that a replica lacks, or does not answer for. Mirrors of the stream answer direct requests, too, and
// may lack any message: after the first answer of a mirror only the leader is asked.
func (c Client) ReadRange(ctx context.Context, from, through uint64, direct bool, each func(Message) error) error {
	r := rangeReader{Client: c, direct: direct}
	return r.read(ctx, from, through, each)
}

// rangeReader reads ranges of a stream. Once a mirror has answered, or the replica that was asked is silent, it asks the
// leader alone.
type rangeReader struct {
	Client
	direct     bool
	endDeleted bool // no message from one of the range on is left
}

// next reads the first message from a sequence on from the leader; the zero value if those that were stored are deleted. A
// leader that was just elected may not have what the one before it has accepted.
func (r *rangeReader) next(ctx context.Context, sequence uint64) (Message, error) {
	m, err := r.getNext(ctx, sequence)
	if err == nil && m.Sequence == 0 && !r.endDeleted {
		m, err = r.awaitNext(ctx, sequence)
		r.endDeleted = err == nil && m.Sequence == 0
	}
	return m, err
}

// read is [Client.ReadRange].
func (r *rangeReader) read(ctx context.Context, from, through uint64, each func(Message) error) error {
	for from <= through {
		if r.direct {
			read, err := r.readDirect(ctx, from, through, each)
			if r.direct = !errors.Is(err, errFromMirror) && !errors.Is(err, errSilentReplica); r.direct && err != nil {
				return err
			}
			if read > from {
				from = read
				continue
			}
		}
		m, err := r.next(ctx, from)
		if err != nil {
			return err
		}
		if m.Sequence < from || m.Sequence > through {
			return nil
		}
		if err := each(m); err != nil {
			return err
		}
		from = m.Sequence + 1
	}
	return nil
}

var (
	errFromMirror    = errors.New("a mirror answers")                     // in place of the stream
	errSilentReplica = errors.New("the replica that was asked is silent") // it may be frozen; no other one answers for it
)

// readDirect reads a batch of messages from one replica and returns the sequence to continue from. It stops at a gap in the
// answers, which a lost connection causes.
func (c Client) readDirect(ctx context.Context, from, through uint64, each func(Message) error) (next uint64, err error) {
	body, err := json.Marshal(GetRequest{Sequence: from, Batch: int(min(readMessages, through-from+1)), MaxBytes: readBytes})
	if err != nil {
		return from, fmt.Errorf("encode a request about stream %q: %w", c.Name, err)
	}
	answers := make(chan connection.Answer, readMessages+2)
	subject := "$JS.API.DIRECT.GET." + c.Name
	number := c.Link.StartCall(connection.Call{SentTo: connection.SubjectIs(subject), OnAnswer: func(_ string, a connection.Answer) {
		connection.Offer(answers, a) // if there are more than requested, the missing ones are detected as a gap
	}})
	defer c.Link.EndCall(number)
	if err := c.Link.Publish(ctx, &nats.Msg{Subject: subject, Reply: c.Link.ReplySubject(number), Data: body}); err != nil {
		return from, err
	}
	silence := min(directSilence, c.Link.Timeout())
	timeout := time.NewTimer(silence)
	defer timeout.Stop()
	for last := uint64(0); ; {
		select {
		case a := <-answers:
			m, more, err := c.parseDirect(a, last)
			if err != nil || !more {
				return from, err
			}
			if last, from = m.Sequence, m.Sequence+1; m.Sequence > through {
				return from, nil
			}
			if err := each(m); err != nil {
				return from, err
			}
			timeout.Reset(silence)
		case <-timeout.C:
			return from, errSilentReplica
		case <-ctx.Done():
			return from, ctx.Err()
		}
	}
}

// parseDirect parses one answer to a request for a batch of messages. Each names the sequence of the message before it,
// which must be last; more is false at a gap and at the end.
func (c Client) parseDirect(a connection.Answer, last uint64) (m Message, more bool, err error) {
	switch {
	case a.Err != nil:
		return m, false, a.Err
	case a.NoResponders:
		return m, false, nil // no replica is ready: ReadRange asks the leader
	}
	switch status := a.Header.Get("Status"); status {
	case "":
	case strconv.Itoa(http.StatusNoContent), strconv.Itoa(http.StatusNotFound):
		return m, false, nil
	default:
		return m, false, fmt.Errorf("stream %q cannot be read: %s %s", c.Name, status, a.Header.Get("Description"))
	}
	if a.Header.Get("Nats-Stream") != c.Name {
		return m, false, errFromMirror
	}
	m.Subject, m.decoded, m.Data = a.Header.Get("Nats-Subject"), a.Header, a.Data
	before, err1 := strconv.ParseUint(a.Header.Get("Nats-Last-Sequence"), 10, 64)
	sequence, err2 := strconv.ParseUint(a.Header.Get("Nats-Sequence"), 10, 64)
	at, err3 := time.Parse(time.RFC3339Nano, a.Header.Get("Nats-Time-Stamp"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return m, false, fmt.Errorf("a message of stream %q: %w", c.Name, err)
	}
	m.Sequence, m.Time = sequence, at
	return m, before == last, nil
}

// Error codes of JetStream that have a meaning for delivery (nats-server/v2 server/errors.json).
const (
	CodeAccountResources  = 10002
	CodeNoPeers           = 10005
	CodeNoMetaLeader      = 10008
	CodeResources         = 10023
	CodeMemory            = 10028
	CodeNoMessage         = 10037
	CodeAccountNotEnabled = 10039
	CodeStorage           = 10047
	CodeMessageTooLarge   = 10054
	CodeStreamExists      = 10058
	CodeStreamNotFound    = 10059
	CodeOtherStream       = 10060
	CodeWrongLastSequence = 10071
	CodeNotEnabled        = 10076
	CodeNoReplicas        = 10074
	CodeStoreFailed       = 10077
	CodeSealed            = 10109
	CodeOffline           = 10118
	CodeNotReady          = 10163
	CodeSequenceInProcess = 10164
	CodeTooManyRequests   = 10167
	CodeOfflineBecause    = 10194
	CodeBatchesDisabled   = 10205
	CodeUnknownBatch      = 10208
)

// overloadPause is the time to wait when the queue of incoming messages of a stream is full.
const overloadPause = 200 * time.Millisecond

// Error is JetStream's error object, in acknowledgements and API responses.
type Error struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("JetStream error %d: %s", e.ErrCode, e.Description)
}

// Receipt is the acknowledgement of a stored message ("PubAck", ADR-22).
type Receipt struct {
	Sequence  uint64
	Duplicate bool // an earlier message with the same ID is stored, with this sequence
}

// ParseReceipt parses the answer to a message. A duplicate is an acknowledgement, too: an earlier attempt was stored. The
// errors are those of [ClassifyError] and [NoStreamError].
func ParseReceipt(stream, subject string, a connection.Answer) (Receipt, error) {
	if a.NoResponders {
		return Receipt{}, NoStreamError(stream, subject)
	}
	if sequence, plain := parsePlainReceipt(stream, a.Data); plain {
		return Receipt{Sequence: sequence}, nil
	}
	var ack struct {
		jetstream.PubAck
		Error *Error `json:"error"`
	}
	err := json.Unmarshal(a.Data, &ack)
	switch {
	case err == nil && ack.Error != nil:
		return Receipt{}, ClassifyError(stream, subject, ack.Error)
	case err != nil || ack.Stream != stream || ack.Sequence == 0: // another program answers; it may repeat the message
		return Receipt{}, fmt.Errorf("the answer for %q is no acknowledgement of stream %q", subject, stream)
	}
	return Receipt{Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil
}

// NoStreamError returns the error for a subject that no stream takes.
func NoStreamError(stream, subject string) error {
	return &sinks.UnavailableError{
		Code: condition.SinkTargetMissing, After: connection.UnavailablePause, Err: nats.ErrNoResponders,
		Reason: fmt.Sprintf("no stream takes the subject %q", subject),
		Remedy: fmt.Sprintf("add it to the subjects of stream %q, create that stream, or set nats.create.enabled", stream),
	}
}

// parsePlainReceipt parses the answer that nearly every message gets, {"stream":"NAME","seq":1}, without the cost of a JSON
// decoder. plain is false for any other answer.
func parsePlainReceipt(stream string, data []byte) (sequence uint64, plain bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok || !bytes.HasPrefix(rest, []byte(stream)) {
		return 0, false
	}
	if rest, ok = bytes.CutPrefix(rest[len(stream):], []byte(`","seq":`)); !ok {
		return 0, false
	}
	digits, ok := bytes.CutSuffix(bytes.TrimRight(rest, " "), []byte("}"))
	if !ok || len(digits) == 0 || digits[0] == '0' {
		return 0, false
	}
	sequence, err := strconv.ParseUint(string(digits), 10, 64)
	return sequence, err == nil
}

// ClassifyError maps an error of JetStream to an error of sinks. An unknown error is retried on its lane.
func ClassifyError(stream, subject string, e *Error) error {
	unavailable := func(code condition.Code, remedy, format string, args ...any) error {
		return &sinks.UnavailableError{Code: code, Reason: fmt.Sprintf(format, args...), Remedy: remedy, Err: e}
	}
	switch e.ErrCode {
	case CodeMessageTooLarge:
		return &sinks.RejectedError{Reason: fmt.Sprintf("larger than stream %q takes (max_msg_size)", stream), TooLarge: true, Err: e}
	case CodeOtherStream:
		return unavailable(condition.SinkMisconfigured, "change nats.subject or nats.stream",
			"the subject %q belongs to another stream than %q", subject, stream)
	case CodeStoreFailed:
		return unavailable(condition.SinkFull, "raise its limits or let messages age", "stream %q cannot store more", stream)
	case CodeTooManyRequests:
		return &sinks.UnavailableError{Code: condition.SinkBusy, Reason: fmt.Sprintf("stream %q is overloaded", stream), After: overloadPause, Err: e}
	case CodeSealed:
		return unavailable(condition.SinkMisconfigured, "name another in nats.stream", "stream %q is sealed", stream)
	case CodeAccountResources, CodeResources, CodeMemory, CodeStorage:
		return unavailable(condition.SinkFull, "raise the limits of the account or of the server", "JetStream has no space for stream %q", stream)
	case CodeAccountNotEnabled, CodeNotEnabled:
		return unavailable(condition.SinkMisconfigured, "enable it there", "JetStream is not enabled for this account on this server")
	case CodeNoMetaLeader, CodeOffline, CodeOfflineBecause:
		return unavailable(condition.SinkUnreachable, "bring a majority of the NATS servers back", "stream %q is offline", stream)
	}
	return fmt.Errorf("stream %q, subject %q: %w", stream, subject, e)
}

// ConditionFailed reports whether a message was refused because its condition does not hold, or cannot be checked while
// other messages are in flight.
func ConditionFailed(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && slices.Contains([]int{CodeWrongLastSequence, CodeSequenceInProcess, CodeNotReady}, answer.ErrCode)
}
