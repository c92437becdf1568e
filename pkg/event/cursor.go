package event

import (
	"maps"
	"time"
)

// Cursor says how far one sink got. A change is settled when the destination has acknowledged it or it is a durable dead
// letter (I2). It names the lanes that have something unsettled and no others, so its size depends on the lanes that are in
// flight or in trouble, and not on how long one of them has been in trouble.
type Cursor struct {
	Low    uint64            // every change up to here is settled: what follows is kept
	High   uint64            // every change up to here is settled, but for those of Lanes; below Low it counts as Low
	Lanes  map[string]uint64 // by lane: every change of the lane up to here is settled, and it says nothing of others
	Layout string            // what the lane names depend on; Lanes and High say nothing under another one
	State  []byte            // what the sink asked to have stored with exactly these positions; nil where it asks for none
}

// HighestOffset returns the highest offset the cursor speaks of.
func (c Cursor) HighestOffset() uint64 {
	n := max(c.Low, c.High)
	for _, offset := range c.Lanes {
		n = max(n, offset)
	}
	return n
}

// Normalize returns a copy without lanes that say no more than High.
func (c Cursor) Normalize() Cursor {
	c.High = max(c.High, c.Low)
	c.Lanes = maps.Clone(c.Lanes)
	maps.DeleteFunc(c.Lanes, func(_ string, offset uint64) bool { return offset == c.High })
	if len(c.Lanes) == 0 {
		c.Lanes = nil
	}
	return c
}

// DeadLetter is a change that a sink gave up on, kept until it is discarded.
type DeadLetter struct {
	Offset uint64
	Time   time.Time // when it was given up; UTC
	Reason string    // one line for people, as the sink gave it
	Change *Change
}
