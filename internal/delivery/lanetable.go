package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// maxLaggingLanes bounds the lanes that lag: each takes memory and a place in the cursor. Beyond it the dispatcher waits.
const maxLaggingLanes = 1 << 16

// laneTable holds the lanes with their queues and states, and keeps the sets and sums that follow from these. It is not safe
// for concurrent use: backlog.mu guards it.
type laneTable struct {
	byName     map[sinks.Lane]*lane
	busy       map[*lane]struct{} // lanes with changes that are not settled
	catchingUp map[*lane]struct{} // lagging lanes that the catch-up reader loads

	whyHeld func(sinks.Lane) error // Config.WhyHeld; may be nil
	held    int                    // lanes that are held

	lagging int // lanes that lag
	failing int // lanes that fail
	pending int // entries in all queues

	window  window
	read    uint64 // the last offset that the dispatcher has queued, settled, or left to the catch-up reader
	changed bool   // the cursor that follows from the lanes has changed since the last snapshot

	// deadLetters are the offsets of dead letters that their lanes have not passed yet: they are not queued again.
	deadLetters map[uint64]struct{}

	spaceFreed  chan struct{} // holds a token after bytes or entries were released; the dispatcher waits on it
	rereadReady chan struct{} // holds a token when the catch-up reader may have something to do; it waits on it
}

// newLaneTable returns an empty table. A windowLimit of 0 is one that follows from the number of lanes.
func newLaneTable(windowLimit int64, read uint64) laneTable {
	return laneTable{
		byName:      map[sinks.Lane]*lane{},
		busy:        map[*lane]struct{}{},
		catchingUp:  map[*lane]struct{}{},
		deadLetters: map[uint64]struct{}{},
		window:      window{fixed: windowLimit},
		read:        read,
		spaceFreed:  make(chan struct{}, 1),
		rereadReady: make(chan struct{}, 1),
	}
}

// ensureLane returns the lane of that name and creates it if necessary.
func (t *laneTable) ensureLane(name sinks.Lane) *lane {
	l := t.byName[name]
	if l == nil {
		l = &lane{name: name, held: t.whyHeld != nil && name != unroutableLane && t.whyHeld(name) != nil}
		t.byName[name] = l
		t.window.lanes = len(t.byName)
		t.held += countChange(false, l.held)
	}
	return l
}

// become moves l to another state. Sets and sums follow.
func (t *laneTable) become(l *lane, next laneState) {
	affectsMembership := l.state.isFailing() || next.isFailing()
	l.state = next
	if affectsMembership {
		t.updateMembership(l)
	}
}

// becomeUnscheduled takes l, which a worker got from the workqueue, out of it without a Publish.
func (t *laneTable) becomeUnscheduled(l *lane, whenFailing laneState) {
	if l.state.isFailing() {
		t.become(l, whenFailing)
		return
	}
	t.become(l, idle)
}

// updateMembership enters l into the sets and sums that count it now, and removes it from the others. It has to be called
// after every change of the fields that currentMembership reads.
func (t *laneTable) updateMembership(l *lane) {
	before, now := l.membership, l.currentMembership()
	if now == before {
		return
	}
	if now.busy != before.busy {
		setMember(t.busy, l, now.busy)
	}
	if now.catchingUp != before.catchingUp {
		setMember(t.catchingUp, l, now.catchingUp)
	}
	t.lagging += countChange(before.lagging, now.lagging)
	t.failing += countChange(before.failing, now.failing)
	t.window.catchUp += l.queue.bytes * int64(countChange(before.catchingUp, now.catchingUp))
	t.window.parked += l.queue.bytes * int64(countChange(before.parked, now.parked))
	l.membership = now
}

func setMember(set map[*lane]struct{}, l *lane, in bool) {
	if in {
		set[l] = struct{}{}
	} else {
		delete(set, l)
	}
}

// countChange returns what a count of members changes by when one of them does.
func countChange(before, now bool) int {
	switch {
	case now && !before:
		return 1
	case before && !now:
		return -1
	}
	return 0
}

func (t *laneTable) queueEntry(l *lane, e entry) {
	l.queue.pushEntry(e)
	l.usedRecently = true
	t.pending++
	t.window.addBytes(l.membership, int64(e.size))
	t.updateMembership(l)
}

// removeDeadLetter removes the entry i of l, which is a dead letter now. Those before it may not be settled yet.
func (t *laneTable) removeDeadLetter(l *lane, i int) entry {
	before := l.queue.bytes
	e := l.queue.removeEntry(i)
	if i == 0 {
		l.settled = e.offset
	} else {
		t.deadLetters[e.offset] = struct{}{}
	}
	t.recordRemoved(l, 1, before)
	return e
}

// isDeadLetter reports whether a change is a dead letter that its lane has not passed. A watermark may be one in some of its
// lanes only.
func (t *laneTable) isDeadLetter(e entry) bool {
	_, found := t.deadLetters[e.offset]
	return found && e.change.Type != event.Watermark
}

// recordRemoved records that n entries were removed from the queue of l, which had so many bytes before.
func (t *laneTable) recordRemoved(l *lane, n int, before int64) {
	t.pending -= n
	t.changed = true
	t.window.addBytes(l.membership, l.queue.bytes-before)
	t.updateMembership(l)
	ratelimit.Wake(t.spaceFreed)
	if len(t.catchingUp) > 0 {
		ratelimit.Wake(t.rereadReady)
	}
}

// dropNewest drops all but the n oldest entries of l. The lane lags from the first dropped one on.
func (t *laneTable) dropNewest(l *lane, n int) {
	if l.queue.entryCount() == n {
		return
	}
	first := l.queue.pendingEntries()[n]
	offset, observed := first.offset, first.change.ObservedAt
	t.pending -= l.queue.entryCount() - n
	t.window.addBytes(l.membership, -l.queue.keepOldest(n))
	t.startLagging(l, offset, observed)
	ratelimit.Wake(t.spaceFreed)
}

// startLagging records that the changes of l from an offset on are in the journal only.
func (t *laneTable) startLagging(l *lane, from uint64, observed time.Time) {
	l.lagsFrom, l.lagObserved, l.pass = from, observed, 0
	t.changed = true
	t.updateMembership(l)
	ratelimit.Wake(t.rereadReady)
}

// stopLagging records that all changes of l that were read are queued or settled.
func (t *laneTable) stopLagging(l *lane) {
	l.lagsFrom, l.lagObserved, l.pass = 0, time.Time{}, 0
	t.changed = true
	t.updateMembership(l)
	ratelimit.Wake(t.spaceFreed)
}

// startDraining lets l, which does not lag, get nothing more.
func (t *laneTable) startDraining(l *lane) {
	l.drainedAt = t.read + 1
	t.startLagging(l, l.drainedAt, time.Time{})
}

// stopDraining lets l catch up with what it did not get.
func (t *laneTable) stopDraining(l *lane) {
	if l.drainedAt = 0; l.lagsFrom > t.read {
		t.stopLagging(l)
		return
	}
	t.updateMembership(l)
	ratelimit.Wake(t.rereadReady)
}

// claimSchedule makes l queued, unless it has nothing to publish or has to wait. If it returns l, the caller must add it to
// the workqueue.
func (t *laneTable) claimSchedule(l *lane) *lane {
	if l.state != idle || l.paused || l.queue.entryCount() == 0 {
		return nil
	}
	t.become(l, queued)
	return l
}

// removeLane removes l, which has nothing queued, from the table.
func (t *laneTable) removeLane(l *lane) {
	t.updateMembership(l)
	delete(t.byName, l.name)
	t.window.lanes = len(t.byName)
	t.held += countChange(l.held, false)
}

// dropLane empties l and removes it.
func (t *laneTable) dropLane(l *lane) {
	t.pending -= l.queue.entryCount()
	t.window.addBytes(l.membership, -l.queue.keepOldest(0))
	if l.lagsFrom > 0 {
		t.stopLagging(l)
	}
	t.become(l, idle)
	t.removeLane(l)
}

// window counts the bytes of the changes that are read and not settled, dead letters that are not stored yet included (I6).
type window struct {
	fixed   int64 // limit that was configured; 0: it follows from the lanes
	lanes   int
	used    int64 // all bytes
	catchUp int64 // of these: of lanes that the catch-up reader loads
	parked  int64 // of these: of failing lanes that keep the changes of their next Publish
}

// Bounds of a window without a configured one. Batches of thousands of lanes are small where the window is: 16 KiB a lane
// give the broker batches of several changes. A few lanes are as fast with a small window, and a sink that is behind fills
// it.
const (
	windowBase    = 16 << 20
	windowPerLane = 16 << 10
	windowMost    = 64 << 20
)

// limit returns how many bytes may be used.
func (w *window) limit() int64 {
	if w.fixed > 0 {
		return w.fixed
	}
	return min(windowMost, windowBase+windowPerLane*int64(w.lanes))
}

// addBytes records that the queue of a lane has grown by n bytes; n may be negative.
func (w *window) addBytes(m laneMembership, n int64) {
	w.used += n
	if m.catchingUp {
		w.catchUp += n
	}
	if m.parked {
		w.parked += n
	}
}

// hasSpaceFor reports whether the dispatcher may queue size more bytes. While lanes catch up, half of the window is reserved
// for them. A change that is larger than that passes alone.
func (w *window) hasSpaceFor(size int, lanesCatchUp bool) bool {
	live := w.used - w.catchUp - w.parked
	if live == 0 {
		return true
	}
	limit := w.limit()
	if lanesCatchUp {
		limit /= 2
	}
	return w.used+int64(size) <= w.limit() && live+int64(size) <= limit
}

// isRereadBlocked reports whether the catch-up reader has to wait for space.
func (w *window) isRereadBlocked() bool {
	return w.catchUp > 0 && (w.catchUp > w.limit()/4 || w.used > w.limit()-w.limit()/4)
}

// catchUpShare returns how many bytes of each of so many lanes are loaded before they are published.
func (w *window) catchUpShare(lanes int) int64 {
	return max(w.limit()/32, w.limit()/2/int64(max(1, lanes)))
}
