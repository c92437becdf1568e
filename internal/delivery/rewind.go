package delivery

import (
	"cmp"
	"math"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Rewind returns the cursor from which a sink gets again what it has lost and what its journal keeps, which is what follows
// an offset up to the newest; and how much is missing that is not kept. c is the cursor now. Only the lanes that have lost
// something go back, unless objects of theirs are still due in others, as while lanes are replaced.
func Rewind(lost *sinks.LostError, c event.Cursor, kept, newest uint64, sink sinks.Sink) (back event.Cursor, missing uint64) {
	if missing = lost.Gone; lost.From < kept {
		missing += min(kept-lost.From, cmp.Or(lost.Messages, math.MaxUint64))
	}
	lanes := map[string]uint64{}
	for lane, after := range lost.Lanes {
		lanes[string(lane)] = max(after, kept)
	}
	if lost.Lanes != nil && !sharesObjects(lost, c, sink) {
		back = c.RewindLanes(lanes)
	} else {
		back = event.Cursor{Low: min(max(lost.From, kept), c.Low), Layout: c.Layout, State: c.State}
	}
	back.Resending = newest
	return back, missing
}

// sharesObjects reports whether objects of a lane that has lost something may be due in another lane of a cursor.
func sharesObjects(lost *sinks.LostError, c event.Cursor, sink sinks.Sink) bool {
	fenced, known := sink.(sinks.Fenced)
	for lane := range lost.Lanes {
		for due := range c.Lanes {
			if due != string(lane) && (!known || fenced.SharesObjects(lane, sinks.Lane(due))) {
				return true
			}
		}
	}
	return false
}
