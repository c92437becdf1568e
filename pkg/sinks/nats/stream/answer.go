package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/connection"
)

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
		Stream    string `json:"stream"`
		Sequence  uint64 `json:"seq"`
		Duplicate bool   `json:"duplicate"`
		Error     *Error `json:"error"`
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
