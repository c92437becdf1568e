package sinks

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// This file is what a process needs of a destination to take over from another one, or from itself on an older or empty
// volume, without losing, repeating or reordering anything. docs/high-availability.md describes the whole.

// LanePosition is a position in a lane, in the destination's own numbers: a Kafka offset, a JetStream sequence. Positions
// ascend along the lane.
type LanePosition int64

// RecordedLane names a lane for [Claim.RecordLanes] and the methods of [Fenced], where a destination that is deleted and
// created again has lanes of the same names: life is the identity of the destination. Without, it is the lane's name.
func RecordedLane(lane Lane, life string) Lane {
	if life == "" {
		return lane
	}
	return lane + "@" + Lane(life) // which is in no name of a lane
}

// SplitRecordedLane is the inverse of RecordedLane.
func SplitRecordedLane(recorded Lane) (lane Lane, life string) {
	name, life, _ := strings.Cut(string(recorded), "@")
	return Lane(name), life
}

// Emitted identifies a message that a lane holds, see [format.ReadEmitted].
type Emitted struct {
	event.EmittedRecord
	Position LanePosition
}

// Tail is what a lane holds behind a position. Reached is how far the lane is known to have got: if it ends before that, it
// has lost what lay between.
type Tail struct{ From, Reached LanePosition }

// Claim is a process's claim to be the only one that publishes.
type Claim struct {
	Group string // names the exporters that take over from each other; equal for all of them, and for no others
	Sink  string // names the sink within the group; "" for the state
	Owner string // names this process in errors and logs

	// Deployment is the identity that all exporters of the group have had from the first start on, and no others have. The sink
	// marks what it publishes with it, unless the destination shows the writer of a message anyway. "" marks nothing.
	Deployment string

	// Elected is true if other processes of the group wait to take over while this one runs, so that it may be replaced
	// while it is frozen. Fence and Publish then fail with an [UnavailableError] if the destination has a fence, and is set
	// up so that it does not refuse what a replaced process sends.
	Elected bool

	// RecordLanes makes lanes known to later processes, each with the position where it begins for this process: everything it
	// publishes lies there or later. It is durable when it returns nil. The sink calls it from Publish before its first message
	// to a lane that was neither passed to Fence nor recorded before, or is gone. A later process passes all recorded lanes to
	// Fence. The names are those of [RecordedLane].
	RecordLanes func(ctx context.Context, lanes map[Lane]LanePosition) error
}

// Fenced is a sink that can lock an older process out of its destination for good, and can read its lanes back.
//
// The order of calls is: Fence, then ReadTail for all lanes with a known position that do not wait, then the methods of
// [Sink]. ReadTail of the lanes that wait may be called meanwhile. A fenced sink is not restored except after a [LostError],
// and then without a state: the tails hold what was in flight.
type Fenced interface {
	Sink

	// Fence claims the right to publish. When it returns no error, the destination accepts nothing more from an older process
	// through these lanes, including messages in flight. lanes are all that any process of the group has recorded. It contacts
	// the destination, and may be called again until something is published. waiting are lanes that it could not fence, each
	// with the reason, because the part of the destination that holds them does not answer. They delay the others by a few
	// seconds at most. Nothing is published to a lane that waits, or to one that shares objects with it.
	Fence(ctx context.Context, claim Claim, lanes []Lane) (waiting map[Lane]error, err error)

	// LaneProgress returns, for each lane that this process has published to, a position that is not after any message that is
	// not acknowledged yet: everything published after the call lies there or later. It does not block.
	LaneProgress() map[Lane]LanePosition

	// ReadTail reads tails, each to the end of its lane as of Fence: the messages of a lane in order, lanes in any. Only
	// messages of the claim's deployment count, in any format: others, such as those of an exporter of another cluster, are
	// skipped. emitted is called by one goroutine at a time; its error ends the reading and is returned. If a lane does not
	// have the position, because it was purged or recreated, reading starts at its oldest message; a lane that no longer
	// exists has no tail. A lane that Fence left unfenced is fenced first. waiting are the lanes that could not be fenced or
	// read to their ends, each with the reason; emitted may have been called for some of their messages. They wait as those of
	// Fence do, until a later call reads them.
	ReadTail(ctx context.Context, tails map[Lane]Tail, emitted func(Lane, Emitted) error) (waiting map[Lane]error, err error)

	// GoneLanes returns those of the lanes, which were passed to Fence and read back, that no longer exist under their name:
	// the destination was deleted, or has fewer lanes now. It is called after ReadTail, and forgets them. What is not certain,
	// such as while a part of the destination does not answer, is not gone. A lane that is used again is recorded again.
	GoneLanes(ctx context.Context, lanes []Lane) []Lane

	// SharesObjects reports whether an object may have messages in both of two lanes, as it does when the destination got
	// another number of lanes in between. It contacts nothing.
	SharesObjects(a, b Lane) bool
}

// StateOpener is a sink of a bus that can hold a state which outlives this machine.
type StateOpener interface {
	Sink

	// OpenState returns the state of this name, a topic or a stream, that exporters of the same group share. It contacts
	// nothing.
	OpenState(name string) (StateStore, error)
}

// StateEntry is one record of a state. The newest of a key counts.
type StateEntry struct {
	Key   []byte
	Value []byte // nil: the key is removed
}

// Size is an upper bound of the bytes that the entry takes in a store, without compression.
func (e StateEntry) Size() int { return len(e.Key) + len(e.Value) + 20 }

// AppendEntries appends the stored form of entries: for each the length of the key, the key, one more than the length of the
// value (0: the key is removed), and the value. Lengths are uvarints.
func AppendEntries(b []byte, entries []StateEntry) []byte {
	for _, e := range entries {
		b = append(binary.AppendUvarint(b, uint64(len(e.Key))), e.Key...)
		if e.Value == nil {
			b = append(b, 0)
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(e.Value))+1), e.Value...)
	}
	return b
}

// DecodeEntries calls each for the entries that AppendEntries has encoded. They refer to the memory of b.
func DecodeEntries(b []byte, each func(StateEntry) error) error {
	for len(b) > 0 {
		var e StateEntry
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return errEntries
		}
		e.Key, b = b[n:n+int(size):n+int(size)], b[n+int(size):]
		if size, n = binary.Uvarint(b); n <= 0 || size > uint64(len(b)-n)+1 {
			return errEntries
		}
		if b = b[n:]; size > 0 {
			e.Value, b = b[:size-1:size-1], b[size-1:]
		}
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

var errEntries = errors.New("malformed entries of a state")

// StateStore is a log of entries in a bus, which one process appends to. One goroutine uses it. Its errors name the topic or
// stream, and the remedy.
type StateStore interface {
	// Read calls each for everything that is stored, in the order of writing; later calls continue where the last one ended. It
	// returns at the end that the store had at the call. A topic or stream that does not exist is an empty state. reset means
	// that the store was purged or replaced: nothing that was read counts any more, neither before nor by this call, and the
	// next call reads everything from the start.
	Read(ctx context.Context, each func(StateEntry) error) (reset bool, err error)

	// Claim makes this process the only one that can write: writes of an older one fail from then on. It creates the topic or
	// stream if there is none and creation is allowed. After it, Read returns nothing new but the process's own writes. It is
	// called before the first Append.
	Claim(ctx context.Context, claim Claim) error

	// AtomicBytes is the size of an Append, in [StateEntry.Size]. One entry alone may be larger. It may change with a Claim.
	AtomicBytes() int

	// Compacts reports whether the bus itself removes what newer entries replace.
	Compacts() bool

	// Append stores entries behind all others, so that every reader sees all of them or none; they are durable when it returns
	// nil. After an error they may be stored. After a *DeposedError the process becomes a standby; after a *StateLostError it
	// appends everything again.
	//
	// To a bus that does not compact the owner appends everything again, bit by bit, in rounds. begins is true for the first
	// Append after a round: what is older than the begin of that round, or than the Claim, was appended again since, and may
	// be removed.
	Append(ctx context.Context, entries []StateEntry, begins bool) error

	// Condition returns whether the topic or stream, as its owner last saw it, may lose entries. It is safe for concurrent use.
	Condition() condition.Status

	// Close releases what the store holds apart from the sink.
	Close(ctx context.Context) error
}
