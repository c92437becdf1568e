package nats

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

// Error codes of JetStream that this package knows what to do with (nats-server/v2 server/errors.json).
const (
	codeAccountResources  = 10002
	codeNoPeers           = 10005
	codeNoMetaLeader      = 10008
	codeResources         = 10023
	codeMemory            = 10028
	codeNoMessage         = 10037
	codeAccountNotEnabled = 10039
	codeStorage           = 10047
	codeMessageTooLarge   = 10054
	codeStreamExists      = 10058
	codeStreamNotFound    = 10059
	codeOtherStream       = 10060
	codeWrongLastSequence = 10071
	codeNotEnabled        = 10076
	codeNoReplicas        = 10074
	codeStoreFailed       = 10077
	codeSealed            = 10109
	codeOffline           = 10118
	codeNotReady          = 10163
	codeSequenceInProcess = 10164
	codeTooManyRequests   = 10167
	codeOfflineBecause    = 10194
	codeBatchesDisabled   = 10205
	codeUnknownBatch      = 10208
)

// busyPause is how long to leave a stream alone whose queue of incoming messages is full.
const busyPause = 200 * time.Millisecond

// apiError is JetStream's error object, in acknowledgements and in answers to questions.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("JetStream error %d: %s", e.ErrCode, e.Description)
}

// receipt is what a stream says of a message that it has stored ("PubAck", ADR-22).
type receipt struct {
	Sequence  uint64
	Duplicate bool // it was stored before, with this sequence
}

// acknowledged reads the answer to a message for the stream. A duplicate is an acknowledgement, too: the message is
// stored, by an earlier attempt.
func acknowledged(stream, subject string, a connection.Answer) (receipt, error) {
	if a.NoResponder {
		return receipt{}, noStream(stream, subject)
	}
	if sequence, plain := plainReceipt(stream, a.Data); plain {
		return receipt{Sequence: sequence}, nil
	}
	var ack struct {
		Stream    string    `json:"stream"`
		Sequence  uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Error     *apiError `json:"error"`
	}
	if err := json.Unmarshal(a.Data, &ack); err != nil {
		return receipt{}, fmt.Errorf("the answer for %q is no acknowledgement: %w", subject, err)
	}
	if ack.Error != nil {
		return receipt{}, classify(stream, subject, ack.Error)
	}
	if ack.Stream != stream || ack.Sequence == 0 {
		return receipt{}, fmt.Errorf("the answer for %q is no acknowledgement of stream %q: %.200q", subject, stream, a.Data)
	}
	return receipt{Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil
}

// noStream says that nobody takes a subject.
func noStream(stream, subject string) error {
	return &sinks.UnavailableError{After: connection.AwayPause, Reason: fmt.Sprintf("no stream takes the subject %q; add it to the subjects of stream %q, "+
		"create that stream, or set nats.create.enabled", subject, stream), Err: nats.ErrNoResponders}
}

// plainReceipt reads the answer that nearly all messages get, {"stream":"NAME","seq":1}, without the cost of a JSON decoder.
func plainReceipt(stream string, data []byte) (sequence uint64, plain bool) {
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

// classify says what an error of JetStream means for delivery. What is not known is retried on its lane.
func classify(stream, subject string, e *apiError) error {
	unavailable := func(format string, args ...any) error {
		return &sinks.UnavailableError{Reason: fmt.Sprintf(format, args...), Err: e}
	}
	switch e.ErrCode {
	case codeMessageTooLarge:
		return &sinks.RejectedError{Reason: fmt.Sprintf("larger than stream %q takes (max_msg_size)", stream), TooLarge: true, Err: e}
	case codeOtherStream:
		return unavailable("the subject %q belongs to another stream than %q; change nats.subject or nats.stream", subject, stream)
	case codeStoreFailed:
		return unavailable("stream %q cannot store more; raise its limits or let messages age", stream)
	case codeTooManyRequests:
		return &sinks.UnavailableError{Reason: fmt.Sprintf("stream %q is overloaded", stream), After: busyPause, Err: e}
	case codeSealed:
		return unavailable("stream %q is sealed; name another in nats.stream", stream)
	case codeAccountResources, codeResources, codeMemory, codeStorage:
		return unavailable("JetStream has no room for stream %q; raise the limits of the account or of the server", stream)
	case codeAccountNotEnabled, codeNotEnabled:
		return unavailable("JetStream is not enabled for this account on this server; enable it there")
	case codeNoMetaLeader, codeOffline, codeOfflineBecause:
		return unavailable("stream %q is offline", stream)
	}
	return fmt.Errorf("stream %q, subject %q: %w", stream, subject, e)
}
