package delivery

import (
	"context"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Journal is what a pipeline needs of the journal.
type Journal interface {
	// Read returns the next records with an Offset greater than after: at least one, ascending, without a hole. It
	// blocks until there is one or ctx ends. Changes may alias one buffer; the pipeline does not modify them. An error
	// ends the pipeline. Two goroutines call it, each from its own place.
	Read(ctx context.Context, after uint64) ([]event.Record, error)

	// Settle stores the cursor and the dead letters in one atomic write that is durable when it returns nil (I2). After
	// an error, which leaves open whether the write happened, both are stored again by a later call; a dead letter is
	// therefore identified by its Offset. Never called concurrently.
	Settle(ctx context.Context, c Cursor, dead []DeadLetter) error
}

// Cursor says how far one sink got. It names the lanes that have something unsettled and no others, so its size depends on
// the lanes that are in flight or in trouble, and not on how long one of them has been in trouble.
type Cursor struct {
	Low    uint64            // every change up to here is settled: acknowledged, or a durable dead letter
	High   uint64            // every change up to here is settled, but for those of Lanes; below Low it counts as Low
	Lanes  map[string]uint64 // by lane: every change of that lane up to here is settled, and it says nothing of others
	Layout string            // what the lane names depend on; Lanes means nothing under another layout, nor High
	State  []byte            // of a sinks.Stateful, with what it depends on (see state.go); nil for other sinks
}

// DeadLetter is a change its sink will never accept.
type DeadLetter struct {
	Offset uint64
	Time   time.Time // of the rejection; UTC
	Reason string    // for people, as the sink gave it
	Change *event.Change
}
