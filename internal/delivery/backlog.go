package delivery

import (
	"maps"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// backlog is the ledger of a pipeline: which changes were read and are not settled, by lane, and the cursor that follows
// from that. It uses no network, disk, goroutine or clock. All methods are safe for concurrent use.
//
// Its parts have fields of their own and share one lock, because a cursor has to be one view of all lanes (I2): the
// [laneTable] and the [cursorTracker]. The plan of the catch-up reader ([rereadPlan]) and that of repartitions
// ([laneReplacer]) use the lane table under the same lock.
type backlog struct {
	mu     sync.Mutex
	lanes  laneTable
	cursor cursorTracker
	counts changeCounts
}

type changeCounts struct {
	delivered, deliveredBytes, truncated, notRouted, alreadySettled, deadLetters uint64

	lastAck time.Time
}

// newBacklog starts after a stored cursor. Lane positions count only under the layout that they were stored with.
func newBacklog(layout string, windowLimit int64, start event.Cursor, whyHeld func(sinks.Lane) error) *backlog {
	if start.Layout != layout {
		start.High, start.Lanes = start.Low, nil
	}
	high := max(start.High, start.Low)
	b := &backlog{
		lanes:  newLaneTable(windowLimit, high),
		cursor: cursorTracker{layout: layout, resending: start.Resending, storedLow: start.Low, storedHigh: high},
	}
	b.lanes.whyHeld = whyHeld
	for name, offset := range start.Lanes {
		l := b.lanes.ensureLane(sinks.Lane(name))
		l.settled = offset
		if offset >= high {
			b.cursor.settledAhead = max(b.cursor.settledAhead, offset)
			continue
		}
		b.lanes.startLagging(l, offset+1, time.Time{})
	}
	b.lanes.changed = false
	return b
}

// recordDeadLetters records the offsets of dead letters of earlier pipelines that their lanes may not have passed.
func (b *backlog) recordDeadLetters(offsets []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, offset := range offsets {
		b.lanes.deadLetters[offset] = struct{}{}
	}
}

// readPosition returns the offset after which the dispatcher continues to read.
func (b *backlog) readPosition() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lanes.read
}

// isAllSettled reports whether every change that was read is acknowledged or a dead letter.
func (b *backlog) isAllSettled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.lanes.busy) == 0
}

// isBlocked reports whether there are changes that are not settled, and all of them are in lanes that fail or are held.
func (b *backlog) isBlocked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.lanes.busy {
		if !l.membership.failing {
			return false
		}
	}
	return len(b.lanes.busy) > 0
}

// isQuietSince reports whether nothing was acknowledged since then.
func (b *backlog) isQuietSince(since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts.lastAck.Before(since)
}

// addChange queues a change with its lanes, which are several for a watermark, or leaves it to the catch-up reader where a
// lane fails, lags or is held. It returns false and does nothing if there is no space: wait for lanes.spaceFreed. The caller
// must add the lanes that it appends to schedule to the workqueue. Where a lane settled the change before the last restart,
// it is skipped.
func (b *backlog) addChange(offset uint64, to []placement, schedule []*lane) (_ []*lane, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.lanes
	size := 0
	for _, p := range to {
		l := t.ensureLane(p.lane)
		switch t.placeOf(l, p.entry) {
		case placeSettled, placeLagging:
		case placeStartLagging:
			if t.lagging >= maxLaggingLanes {
				return schedule, false
			}
		case placeQueue:
			size += p.entry.size
		}
	}
	if size > 0 && !t.window.hasSpaceFor(size, len(t.catchingUp) > 0) {
		return schedule, false
	}
	for _, p := range to {
		l := t.ensureLane(p.lane)
		switch t.placeOf(l, p.entry) {
		case placeSettled:
			b.counts.alreadySettled++
			t.changed = true
		case placeLagging:
			t.changed = true
		case placeStartLagging:
			t.startLagging(l, offset, p.entry.change.ObservedAt)
		case placeQueue:
			t.queueEntry(l, p.entry.withOwnChange())
			if s := t.claimSchedule(l); s != nil {
				schedule = append(schedule, s)
			}
		}
	}
	t.read = offset
	return schedule, true
}

// place is where a change that was read belongs in its lane.
type place int

const (
	placeQueue        place = iota
	placeSettled            // I3: acknowledged, or a dead letter, before the restart
	placeLagging            // the lane lags from here or from before
	placeStartLagging       // the lane fails or is held: it lags from here on
)

func (t *laneTable) placeOf(l *lane, e entry) place {
	switch {
	case e.offset <= l.settled || t.isDeadLetter(e):
		return placeSettled
	case l.lagsFrom > 0:
		return placeLagging
	case l.state.isFailing() || l.held:
		return placeStartLagging
	}
	return placeQueue
}

// skipChange settles a change that the destination has from an earlier process, or that the routes do not send to this sink.
func (b *backlog) skipChange(offset uint64, routed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lanes.read, b.lanes.changed = offset, true
	if routed {
		b.counts.alreadySettled++
	} else {
		b.counts.notRouted++
	}
}

// takeBatch appends the oldest entries of l to batch, at least one, within the limits. They stay queued until they are
// settled. It returns false if l has nothing to publish now. A worker that holds the lane may call it again: it gets what is
// not settled of its last batch and, unless the lane is paused, what was queued after that.
func (b *backlog) takeBatch(l *lane, batch []sinks.Message, maxMessages int, maxBytes int64) (_ []sinks.Message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := l.queue.pendingEntries()
	switch {
	case l.state.isPublishing():
		if l.paused {
			maxMessages = l.inFlight
		}
	case l.paused || len(pending) == 0 && l.lagsFrom == 0:
		b.lanes.becomeUnscheduled(l, suspended)
		return batch, false
	case l.lagsFrom > 0 && (len(pending) == 0 || l.queue.newestOffset() < l.retryUpTo):
		b.lanes.becomeUnscheduled(l, reloading)
		ratelimit.Wake(b.lanes.rereadReady)
		return batch, false
	case l.state.isFailing():
		b.lanes.become(l, retrying)
	default:
		b.lanes.become(l, publishing)
	}
	for i, e := range pending {
		maxBytes -= int64(e.size)
		if i == maxMessages || i > 0 && maxBytes < 0 {
			break
		}
		batch = append(batch, sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic})
	}
	l.inFlight = len(batch)
	return batch, true
}

// acknowledgeOldest settles the n oldest entries of l: the destination has accepted them.
func (b *backlog) acknowledgeOldest(l *lane, n int, now time.Time) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l.inFlight -= n
	before := l.queue.bytes
	for range n {
		e := l.queue.popEntry()
		l.settled = e.offset
		b.counts.delivered++
		b.counts.deliveredBytes += uint64(e.size)
		if e.original != nil {
			b.counts.truncated++
		}
	}
	b.lanes.recordRemoved(l, n, before)
	b.counts.lastAck = now
}

func (b *backlog) entryAt(l *lane, i int) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.queue.pendingEntries()[i]
}

// truncateEntry puts a truncated change in the place of the entry i of l. The changes after it keep waiting for it (I3).
func (b *backlog) truncateEntry(l *lane, i int, truncated *event.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lanes.window.addBytes(l.membership, l.queue.truncateEntry(i, truncated))
}

// deadLetterEntry settles the entry i of l, which is not in flight, as a dead letter. It occupies its bytes of the window
// until it is stored.
func (b *backlog) deadLetterEntry(l *lane, i int, reason string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.lanes.removeDeadLetter(l, i)
	l.inFlight--
	letter := event.DeadLetter{Offset: e.offset, Time: now.UTC(), Reason: reason, Change: e.originalRecord().Change}
	b.cursor.unstored = append(b.cursor.unstored, unstoredLetter{letter, e.size})
	b.lanes.window.used += int64(e.size)
	b.counts.deadLetters++
}

// releaseLane ends the Publish of l. It reports whether the caller must add l to the workqueue again.
func (b *backlog) releaseLane(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.inFlight = 0
	b.lanes.become(l, idle)
	return b.lanes.claimSchedule(l) != nil
}

// parkLane makes l back off after a failed Publish, which has to be retried with the same n changes or more. These stay
// queued if they are small and the parked lanes together hold little; everything else is dropped and read again before the
// retry. The caller adds l to the workqueue when its back-off ends.
func (b *backlog) parkLane(l *lane, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.lanes
	others := t.window.parked
	if l.membership.parked {
		others -= l.queue.bytes
	}
	l.inFlight, l.pass = 0, 0
	size := int64(0)
	tried := l.queue.pendingEntries()[:n]
	for i := range tried {
		size += int64(tried[i].size)
	}
	l.retryUpTo = tried[n-1].offset
	if limit := t.window.limit(); size > limit/64 || others+size > limit/4 { // a small part of the window each, a quarter of it in all
		n = 0
	}
	t.become(l, backingOff)
	t.dropNewest(l, n)
}

// markWorking records that a Publish of l succeeded, or failed for a reason that is not the lane's own; inDoubt: the sink is
// unavailable and its changes may have arrived.
func (b *backlog) markWorking(l *lane, inDoubt bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.inDoubt = inDoubt
	if l.state.isFailing() {
		l.retryUpTo = 0
		b.lanes.become(l, publishing)
		ratelimit.Wake(b.lanes.rereadReady)
	}
}

// spillSlowLanes lets lanes lag that hold the window while most others have nothing to do: they are slow, and the others
// must not wait for that. It returns the number of such lanes.
func (b *backlog) spillSlowLanes() (spilled int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.lanes
	live := 0
	for l := range t.busy {
		if l.lagsFrom == 0 {
			live++
		}
	}
	if idle := len(t.byName) - len(t.busy); idle < live {
		return 0
	}
	for l := range t.busy {
		if l.lagsFrom > 0 || l.paused || l.queue.entryCount() <= l.inFlight {
			continue
		}
		if l.queue.bytes > t.window.limit()/int64(2*live) {
			t.dropNewest(l, l.inFlight)
			spilled++
		}
	}
	return spilled
}

// updateHeld lets the lanes catch up that are held no longer, and returns their names. held are the other ones that have
// changes, each with the reason.
func (b *backlog) updateHeld() (held map[sinks.Lane]error, released []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.lanes
	if t.held == 0 {
		return nil, nil
	}
	held = map[sinks.Lane]error{}
	for name, l := range t.byName {
		if !l.held {
			continue
		}
		if err := t.whyHeld(name); err == nil {
			l.held = false
			t.held--
			t.updateMembership(l)
			released = append(released, name)
		} else if l.lagsFrom > 0 {
			held[name] = err
		}
	}
	ratelimit.Wake(t.rereadReady)
	return held, released
}

func (b *backlog) laggingLanes() (names []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.lanes.busy {
		if l.lagsFrom > 0 {
			names = append(names, l.name)
		}
	}
	return names
}

// removeIdleLanes removes and returns the lanes that had nothing to do since the last call and that the stored cursor
// covers. Memory so follows the lanes in use, not all lanes there ever were.
func (b *backlog) removeIdleLanes() (removed []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lanes.byName {
		if l.membership.busy || l.state != idle || l.paused || l.usedRecently || l.settled > b.cursor.storedHigh {
			l.usedRecently = false
			continue
		}
		b.lanes.removeLane(l)
		removed = append(removed, l)
	}
	return removed
}

func (b *backlog) hasAdvanced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lanes.changed
}

// takeSnapshot returns the cursor as of now and the dead letters that must be stored with it.
func (b *backlog) takeSnapshot() (event.Cursor, []event.DeadLetter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lanes.changed = false
	return b.cursor.takeSnapshot(&b.lanes)
}

// recordStored records that a snapshot with this cursor and so many dead letters is durable.
func (b *backlog) recordStored(c event.Cursor, letters int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.Low > b.cursor.storedLow {
		maps.DeleteFunc(b.lanes.deadLetters, func(offset uint64, _ struct{}) bool { return offset <= c.Low })
	}
	b.lanes.window.used -= b.cursor.recordStored(c, letters)
	ratelimit.Wake(b.lanes.spaceFreed)
}

// recordNotStored records that storing the last snapshot failed: the next one includes it.
func (b *backlog) recordNotStored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lanes.changed = true
}

// fillStats sets the statistics that need no look at every lane.
func (b *backlog) fillStats(s *Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, c := &b.lanes, b.counts
	s.Delivered, s.DeliveredBytes, s.Truncated, s.NotRouted = c.delivered, c.deliveredBytes, c.truncated, c.notRouted
	s.AlreadySettled, s.DeadLetters, s.LastAck = c.alreadySettled, c.deadLetters, c.lastAck
	s.Pending, s.WindowBytes, s.WindowLimit = t.pending, t.window.used, t.window.limit()
	s.Lanes, s.LanesFailing, s.LanesLagging = len(t.byName), t.failing, t.lagging
	s.Read, s.Low = t.read, b.cursor.storedLow
}

// fillLanes sets what takes a look at every lane with unsettled changes. Lanes without any are listed where all are few.
func (b *backlog) fillLanes(s *Stats, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.lanes.busy {
		status := l.status()
		s.listLane(status)
		if !status.Oldest.IsZero() {
			s.Lag = max(s.Lag, now.Sub(status.Oldest)) // not below 0: a clock may have been set back
		}
	}
	if len(b.lanes.byName) > maxListedLanes {
		return
	}
	for _, l := range b.lanes.byName {
		if !l.membership.busy {
			s.listLane(l.status())
		}
	}
}

// cursorTracker knows what is stored and what has to be stored next. backlog.mu guards it.
type cursorTracker struct {
	layout       string
	resending    uint64 // the newest change that was there when a loss was found
	settledAhead uint64 // lanes may be settled up to here, beyond what is read; only after a restart
	storedLow    uint64 // Low of the last stored cursor
	storedHigh   uint64 // High of the last stored cursor
	unstored     []unstoredLetter
}

// unstoredLetter is a dead letter that is not stored yet. It occupies its bytes of the window until then, so that a
// destination that rejects everything cannot fill the memory (I6).
type unstoredLetter struct {
	event.DeadLetter
	size int
}

// takeSnapshot returns the cursor that follows from the lanes, and the dead letters it passes. The cursor names only lanes
// with unsettled changes, and those that are ahead of what is read.
func (c *cursorTracker) takeSnapshot(t *laneTable) (cursor event.Cursor, letters []event.DeadLetter) {
	cursor = event.Cursor{Low: t.read, High: t.read, Lanes: map[string]uint64{}, Layout: c.layout}
	for l := range t.busy { // I2
		position := l.settledUpTo(t.read)
		cursor.Low = min(cursor.Low, position)
		cursor.Lanes[string(l.name)] = position
	}
	if c.settledAhead > t.read {
		for name, l := range t.byName {
			if l.settled > t.read {
				cursor.Lanes[string(name)] = l.settled
			}
		}
	}
	if cursor.Low < c.resending {
		cursor.Resending = c.resending
	}
	for _, u := range c.unstored {
		letters = append(letters, u.DeadLetter)
	}
	return cursor, letters
}

// recordStored drops the oldest dead letters, which are stored with this cursor, and returns their size.
func (c *cursorTracker) recordStored(cursor event.Cursor, letters int) (freed int64) {
	for _, u := range c.unstored[:letters] {
		freed += int64(u.size)
	}
	c.unstored = append(c.unstored[:0:0], c.unstored[letters:]...)
	c.storedLow, c.storedHigh = cursor.Low, cursor.High
	return freed
}
