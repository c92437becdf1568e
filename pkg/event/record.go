package event

import (
	"maps"
	"time"
)

// Cursor is the delivery progress of one sink. A change is settled when the destination has acknowledged it or it is a
// durable dead letter (I2). The cursor lists only lanes with unsettled changes, so its size depends on the number of lanes
// that are in flight or failing, not on how long they have been failing.
type Cursor struct {
	Low    uint64            // all changes up to here are settled; the journal keeps what follows
	High   uint64            // all changes up to here are settled, except those of Lanes; below Low it counts as Low
	Lanes  map[string]uint64 // per lane: all changes of the lane up to here are settled
	Layout string            // the layout that lane names depend on; Lanes and High are invalid under another one
	State  []byte            // state that the sink stores together with exactly these positions; nil if it has none
}

// HighestOffset returns the highest offset in the cursor.
func (c Cursor) HighestOffset() uint64 {
	n := max(c.Low, c.High)
	for _, offset := range c.Lanes {
		n = max(n, offset)
	}
	return n
}

// RewindLanes returns a cursor from which lanes deliver again what follows their offsets, and the others what they would
// have.
func (c Cursor) RewindLanes(after map[string]uint64) Cursor {
	high := max(c.High, c.Low)
	back := c
	back.High, back.Lanes = high, maps.Clone(c.Lanes)
	if back.Lanes == nil {
		back.Lanes = map[string]uint64{}
	}
	for lane, offset := range after {
		position, named := c.Lanes[lane]
		if !named {
			position = high
		}
		back.Lanes[lane] = min(position, offset)
		back.Low = min(back.Low, offset)
	}
	return back
}

// Normalize returns a copy without the lanes that are at High.
func (c Cursor) Normalize() Cursor {
	c.High = max(c.High, c.Low)
	c.Lanes = maps.Clone(c.Lanes)
	maps.DeleteFunc(c.Lanes, func(_ string, offset uint64) bool { return offset == c.High })
	if len(c.Lanes) == 0 {
		c.Lanes = nil
	}
	return c
}

// DeadLetter is a change that a sink could not deliver, kept until it is discarded.
type DeadLetter struct {
	Offset uint64
	Time   time.Time // when it was dead-lettered; UTC
	Reason string    // one line for display, as the sink reported it
	Change *Change
}

// Evidence is external input that is kept until the attribution that needs it is resolved. Only the component that stored it
// interprets the value.
type Evidence struct {
	Number uint64 // assigned by the component that stored it
	Value  []byte
}

// Record is a change with its offset in the journal.
type Record struct {
	Offset uint64 // starts at 1, grows by one per change, never reused
	Change *Change

	// InFrame means that the change is a part of the memory of a frame that was read from disk, with up to a MiB of other
	// changes. Code that keeps the change longer than those keeps a [Change.Clone].
	InFrame bool
}
