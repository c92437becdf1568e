package sinks

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// What a process needs of a destination to take over from another one, or from itself on an older or empty volume, without
// losing, repeating or reordering anything. docs/high-availability.md describes the whole.

// LanePosition is where something lies in a lane, in the destination's own numbers: a Kafka offset, a JetStream sequence. It grows
// along the lane.
type LanePosition int64

// Emitted identifies a message that a lane holds, see [format.ReadEmitted].
type Emitted struct {
	event.EmittedRecord
	Position LanePosition
}

// Claim is the right to publish that a process takes.
type Claim struct {
	Group string // names the exporters that take over from each other; the same for all of them, and for nobody else
	Sink  string // names the sink among those of the group; "" for the state
	Owner string // names this process, for people

	// RecordLanes makes lanes known to later processes, each with the place where it begins for this one: what is published to it
	// lies there or beyond. It is durable when it returns nil. The sink calls it, from Publish, before its first message to
	// a lane that was neither given to Fence nor noted before. A later process passes lanes to Fence as they were noted.
	RecordLanes func(ctx context.Context, lanes map[Lane]LanePosition) error
}

// Fenced is a sink whose destination can turn an older process away for good, and whose lanes can be read back.
//
// The order of calls is: Fence, then Tail for all lanes of which a place is known, then the methods of [Sink]. A sink that
// is fenced is not restored, but after a [LostError], without a state: what it had in flight before is in the tails.
type Fenced interface {
	Sink

	// Fence claims the right to publish. When it returns nil, the destination accepts nothing any more that an older process
	// sends through these lanes, including what is on its way. lanes are all that any process of the group has noted. It
	// contacts the destination, and may be called again until something is published.
	Fence(ctx context.Context, claim Claim, lanes []Lane) error

	// LaneProgress says for each lane that this process has published to a place which is not behind any message that is not
	// acknowledged yet: whatever is published after the call lies there or beyond. It does not wait.
	LaneProgress() map[Lane]LanePosition

	// ReadTail reads what lanes hold, each from its place on to its end as it is after Fence: the messages of a lane in order,
	// lanes in any order or mixed. What was not written by an exporter is left out; messages of other formats and other
	// clusters are not. emitted is called by one goroutine at a time; its error ends it. A place that a lane does not have,
	// as it was emptied or made anew, means its oldest message; a lane that does not exist any more has no tail.
	ReadTail(ctx context.Context, lanes map[Lane]LanePosition, emitted func(Lane, Emitted) error) error
}

// DeposedError says that another process has claimed what this one held: the destination accepts nothing from it any more,
// for good. The caller stops publishing through all lanes of all sinks at once.
type DeposedError struct {
	Reason string // for people: who did, as far as it is known
	Err    error  // what the destination or library said; may be nil
}

func (e *DeposedError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("deposed: %s: %v", e.Reason, e.Err)
	}
	return "deposed: " + e.Reason
}

func (e *DeposedError) Unwrap() error { return e.Err }

// StateOpener is a sink in whose bus a state can be kept that outlives this machine.
type StateOpener interface {
	Sink

	// OpenState returns the state of this name, a topic or a stream, that exporters of the same group share. It contacts
	// nothing. contents is for stores that have to write everything again from time to time, because the bus does not
	// compact by key: it returns all entries of one part of the keys. The store calls it from within Write, and what it
	// returns has the entries of that Write in it already, and nothing newer: it is stored behind them. parts is the same at
	// every call.
	OpenState(name string, contents func(part, parts int) []StateEntry) (StateStore, error)
}

// StateEntry is one record of a state. The newest of a key counts.
type StateEntry struct {
	Key   []byte
	Value []byte // nil: the key is removed
}

// StateStore keeps entries by key in a bus. One goroutine uses it. Its errors name the topic or stream, and the remedy.
type StateStore interface {
	// Read calls each for everything that is stored, the first time, and for what came since, at later calls, in the order
	// of writing; it returns when it has reached the end that the store had at the call. A topic or stream that does not
	// exist is an empty state. reset says that nothing that was read counts any more, neither before nor by this call: it
	// was purged or replaced. The next call reads all from the first on.
	Read(ctx context.Context, each func(StateEntry) error) (reset bool, err error)

	// Claim makes this process the only one that can write: what an older one writes is refused from then on. It makes the
	// topic or stream if there is none and it may. What Read returns after it is final but for our own writes; it comes
	// before the first Write.
	Claim(ctx context.Context, claim Claim) error

	// Write stores entries, all or, after an error, any number from the first on; they are durable when it returns nil.
	// After a *DeposedError the process stands by; after a *StateLostError everything is written again. Bounded by the
	// caller: about a megabyte at once.
	Write(ctx context.Context, entries []StateEntry) error

	// Close releases what the store holds besides the sink.
	Close(ctx context.Context) error
}

// StateLostError says that the bus does not hold any more what was stored: the topic or stream was purged or made anew while
// this process, which is still the owner, writes to it.
type StateLostError struct {
	Reason string // for people: what was found, and where
}

func (e *StateLostError) Error() string { return "the replicated state is lost: " + e.Reason }
