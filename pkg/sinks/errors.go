package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// RejectedError means that the destination will never accept this message as it is. The caller dead-letters the message and
// continues, unless the destination accepts no other message either. A sink that is not certain returns another error,
// because the message would be lost.
type RejectedError struct {
	Reason   string // for the dead letter: "1.2 MB exceeds the topic's limit of 1 MB"
	TooLarge bool   // a truncated form of the same change might be accepted
	Err      error  // of the destination or library; may be nil
}

func (e *RejectedError) Error() string { return withCause("rejected: "+e.Reason, e.Err) }

func withCause(text string, err error) string {
	if err == nil {
		return text
	}
	return text + ": " + err.Error()
}

func (e *RejectedError) Unwrap() error { return e.Err }

// UnavailableError means that the whole destination takes no messages now: it is unreachable, refuses the credentials, or
// throttles. The caller stops all lanes of this sink and lets one try again after After. An error that concerns some lanes
// only, such as a missing topic, is not an UnavailableError.
type UnavailableError struct {
	Code   condition.Code // "" for condition.SinkFailing
	Reason string         // the cause in one line: "no broker of kafka:9092 answers"
	Remedy string         // what the operator can do, in one line: "check kafka.brokers"; "": the remedy of the code
	After  time.Duration  // wait at least so long; 0: by the caller's back-off
	Err    error          // of the destination or library; may be nil
}

func (e *UnavailableError) Error() string {
	return condition.JoinRemedy(withCause("unavailable: "+e.Reason, e.Err), e.Remedy)
}

// Problem is what the error stands for.
func (e *UnavailableError) Problem() condition.Problem {
	return condition.Problem{Code: cmp.Or(e.Code, condition.SinkFailing), Cause: e.Reason, Remedy: e.Remedy}
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// ProbedError means that some lanes fail for a cause that the sink probes by itself. The caller retries these lanes at the
// interval Every, although its back-off may be longer: a retry costs nothing while the cause lasts, and the lanes recover as
// soon as their destination does.
type ProbedError struct {
	Every time.Duration
	Err   error
}

func (e *ProbedError) Error() string { return e.Err.Error() }

func (e *ProbedError) Unwrap() error { return e.Err }

// LostError means that the destination no longer holds messages that it had accepted, for example after a power loss or
// because a backup was restored. The caller publishes everything after From again. Before that it restores a [Stateful]
// sink, with nil if it has no state of that position. Until then the sink publishes nothing.
type LostError struct {
	From   uint64 // the destination still holds every message up to this offset, as far as the sink knows; 0: none is known
	Reason string // for the log

	// Lanes are the lanes that have lost something, each with what is From for it; nil: all lanes.
	Lanes map[Lane]uint64
	// Messages is how many messages behind From are lost at most, where the sink knows that.
	Messages uint64
	// Gone is how many more are lost at most that were not published from this journal, so that they cannot be published again.
	Gone uint64
	// Renew is set if the destination begins again: where the journal does not keep all that is lost, it gets a gap of each
	// resource, and then what exists.
	Renew bool
}

func (e *LostError) Error() string {
	return fmt.Sprintf("accepted messages are lost behind offset %d: %s", e.From, e.Reason)
}

// DeposedError means that another process has claimed what this one held, and the destination accepts nothing from this one
// any more. The caller stops publishing through all lanes of all sinks at once.
type DeposedError struct {
	Reason string // which process claimed it, as far as known
	Err    error  // of the destination or library; may be nil
}

func (e *DeposedError) Error() string { return withCause("deposed: "+e.Reason, e.Err) }

func (e *DeposedError) Unwrap() error { return e.Err }

// StateLostError means that the bus no longer holds the stored state, because its topic or stream was purged or recreated
// while this process, which is still the owner, writes to it. The caller writes the whole state again.
type StateLostError struct {
	Reason string // what was found, and where
}

func (e *StateLostError) Error() string { return "the replicated state is lost: " + e.Reason }

// DeferWriteErrors returns a connection on which a write does not fail because the peer has closed it. The next reads return
// what the peer sent before, and then the end: a server that refuses a client certificate sends an alert and closes, perhaps
// before the client's first request. Something must read after each write.
func DeferWriteErrors(conn net.Conn) net.Conn { return deferringConn{conn} }

type deferringConn struct{ net.Conn }

func (c deferringConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(b), nil
	}
	return n, err
}
