package sinks

import (
	"context"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Lane names an ordered channel of a destination. Equal names mean the same channel, also after a restart: cursors are
// stored by lane, so whatever decides which object goes to which lane (a partition count, say) must be in the name.
type Lane string

// Message is one change on its way to one sink.
type Message struct {
	Offset uint64 // place in the journal; ascending within a batch
	Change *event.Change
	Topic  *Template // in place of the sink's own topic or subject; nil for that. Only where the sink is a Router
}

// Sink is a destination. Implementations are safe for concurrent use except where said.
type Sink interface {
	// Lane says which lane c belongs to: a deterministic function of c, the configuration and the layout of the destination
	// that is in use. It asks nobody and never waits: where the destination has to be asked first, c belongs to a lane whose
	// Publish asks, see [Repartitioner]. Its only error is a *RejectedError. Calls are made one at a time, but concurrently
	// with Publish.
	Lane(c *event.Change) (Lane, error)

	// Publish delivers a batch of one lane, in order, and reports how many messages, counted from the first, the
	// destination has durably accepted. err speaks of batch[n]. nil with 0 < n < len(batch) says that what is left is on its
	// way: who was handed more than is sent at once may return in time for the caller to add to it. The next call for that
	// lane starts with the same messages from n on, or, when err was a *RejectedError, from n+1 on. When that was TooLarge
	// it may start with n again, under the same offset and change ID, in a smaller form. Called concurrently for different
	// lanes, never for one lane. Keeps no reference to batch or to its changes after it returns. Returns soon after ctx
	// ends; what was in flight then may or may not have been accepted, and is published again by a later call or a later
	// process under the same change ID.
	Publish(ctx context.Context, lane Lane, batch []Message) (n int, err error)

	// Close releases connections within ctx. No other method is running or called afterwards.
	Close(ctx context.Context) error
}

// RejectedError says that the destination will never accept this message as it is. The caller dead-letters it and goes
// on, unless the destination accepts nothing else either. A sink that is not sure returns another error: loss must never
// come from a guess.
type RejectedError struct {
	Reason   string // for people and for the dead letter: "1.2 MB exceeds the topic's limit of 1 MB"
	TooLarge bool   // a smaller form of the same change might be accepted
	Err      error  // what the destination or library said; may be nil
}

func (e *RejectedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("rejected: %s: %v", e.Reason, e.Err)
	}
	return "rejected: " + e.Reason
}

func (e *RejectedError) Unwrap() error { return e.Err }

// UnavailableError says that the whole destination cannot take messages now: unreachable, refusing credentials,
// throttling. The caller stops all lanes of this sink and lets one try again after After. What concerns some lanes only, a
// topic that is missing or may not be written, is another error: it stops these and no others.
type UnavailableError struct {
	Reason string        // cause and remedy in one line: "no broker of kafka:9092 answers: check kafka.brokers"
	After  time.Duration // wait at least so long; 0 leaves it to the caller's back-off
	Err    error         // what the destination or library said; may be nil
}

func (e *UnavailableError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("unavailable: %s: %v", e.Reason, e.Err)
	}
	return "unavailable: " + e.Reason
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// ProbedError is an error of some lanes whose cause the sink looks after by itself: trying again costs nothing while it
// lasts, and is worth while as often as given, so that the lanes are back as soon as their destination is.
type ProbedError struct {
	Every time.Duration
	Err   error
}

func (e *ProbedError) Error() string { return e.Err.Error() }

func (e *ProbedError) Unwrap() error { return e.Err }
