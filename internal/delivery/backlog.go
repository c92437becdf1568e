package delivery

import (
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// backlog is the ledger of a pipeline: what was read and is not settled, by lane, and the cursor that follows from it.
// It knows no network, disk, goroutine or clock. All methods are safe for concurrent use.
//
// Most lanes are live: all their changes that were read are in memory or settled. A lane that is behind has some that are
// in the journal only; see behind.go.
type backlog struct {
	layout      string
	limit       int64         // bytes
	spaceFreed  chan struct{} // holds a token after bytes or pending shrank; the dispatcher waits here
	rereadReady chan struct{} // holds a token when a lane may be read again; who reads them again waits here

	mu                sync.Mutex
	lanes             map[sinks.Lane]*lane
	busy              map[*lane]struct{} // those with something that is not settled
	catchingUp        map[*lane]struct{} // those that are behind and to be read again now
	lagging           int                // lanes that are behind
	failing           int                // lanes that fail
	paused            []sinks.Lane       // lanes that are to be replaced, as far as they are not served meanwhile
	delivering        int                // lanes whose last Publish was accepted
	removedDelivering bool               // there were such among those that were forgotten since, and nothing speaks against them
	read              uint64             // the last offset that is queued, left behind, settled or dead: where reading goes on
	settledAhead      uint64             // lanes may be settled up to here, beyond read; only after a restart
	storedLow         uint64             // Low of the last stored cursor
	storedHigh        uint64             // High of the last stored cursor
	pending           int                // entries in all lanes
	unstoredLetters   []unstoredLetter
	changed           bool // something advanced since the last snapshot

	bytes             int64  // of pending entries and of dead letters that are not stored yet
	catchUpBytes      int64  // of that: entries of lanes that are read again
	parkedBytes       int64  // of that: entries that are kept of lanes that fail
	passNumber        uint64 // frames that were read again: what is loaded from an earlier one is loaded no more
	choseLeastLagging bool   // whether the lane that is least behind was read again last

	delivered, deliveredBytes, truncated, notRouted, alreadySettled, deadLetters uint64
	lastAck                                                                      time.Time
}

// unstoredLetter is one not stored yet. It holds its bytes of the window until then, so that a destination that rejects
// everything cannot fill the memory (I6).
type unstoredLetter struct {
	event.DeadLetter
	size int
}

// newBacklog starts behind a stored cursor. Lane positions count only under the layout they were made with.
func newBacklog(layout string, limit int64, start event.Cursor) *backlog {
	if start.Layout != layout {
		start.High, start.Lanes = start.Low, nil
	}
	high := max(start.High, start.Low)
	b := &backlog{
		layout:      layout,
		limit:       limit,
		spaceFreed:  make(chan struct{}, 1),
		rereadReady: make(chan struct{}, 1),
		lanes:       map[sinks.Lane]*lane{},
		busy:        map[*lane]struct{}{},
		catchingUp:  map[*lane]struct{}{},
		read:        high,
		storedLow:   start.Low, storedHigh: high,
	}
	for name, offset := range start.Lanes {
		l := b.ensureLane(sinks.Lane(name))
		if offset >= high {
			l.settled, b.settledAhead = offset, max(b.settledAhead, offset)
			continue
		}
		l.settled = offset
		b.startLagging(l, offset+1, time.Time{})
	}
	b.changed = false
	return b
}

// ensureLane returns the lane of a name. The caller holds b.mu, or is the only one.
func (b *backlog) ensureLane(name sinks.Lane) *lane {
	l := b.lanes[name]
	if l == nil {
		l = &lane{name: name}
		b.lanes[name] = l
	}
	return l
}

// readPosition returns the offset behind which reading goes on.
func (b *backlog) readPosition() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read
}

// isAllSettled reports whether everything read is acknowledged or dead.
func (b *backlog) isAllSettled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.busy) == 0
}

// isQuietSince reports whether nothing was acknowledged since then.
func (b *backlog) isQuietSince(since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lastAck.Before(since)
}

// addChange queues a change with its lane, or leaves it to the journal where the lane fails or is behind. It returns false,
// having done nothing, when there is no room: wait for b.room. It returns the lane when the caller must hand it to the
// workqueue. A change that its lane settled before the last restart is passed over.
func (b *backlog) addChange(name sinks.Lane, e entry) (schedule *lane, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.ensureLane(name)
	switch {
	case e.offset <= l.settled: // I3: acknowledged before the restart
		b.alreadySettled++
	case l.lagsFrom > 0: // so is everything before it
	case l.failing:
		if b.lagging >= maxLaggingLanes {
			return nil, false
		}
		b.startLagging(l, e.offset, e.change.ObservedAt)
	case !b.hasSpaceFor(e.size):
		return nil, false
	default:
		b.queueEntry(l, e.withOwnChange())
		b.read = e.offset
		return b.claimSchedule(l), true
	}
	b.read, b.changed = e.offset, true
	return nil, true
}

// queueEntry queues e. The caller holds b.mu.
func (b *backlog) queueEntry(l *lane, e entry) {
	l.appendEntry(e)
	l.usedRecently = true
	b.pending++
	b.addBytes(l, int64(e.size))
	b.updateMembership(l)
}

// claimSchedule claims a place in the workqueue for l, unless it has one or must wait. The caller holds b.mu.
func (b *backlog) claimSchedule(l *lane) *lane {
	if l.scheduled || l.paused || l.failing || len(l.pendingEntries()) == 0 {
		return nil
	}
	l.scheduled = true
	return l
}

// addBytes books that the entries of l take n bytes more. The caller holds b.mu.
func (b *backlog) addBytes(l *lane, n int64) {
	l.bytes += n
	b.bytes += n
	if l.membership.catchingUp {
		b.catchUpBytes += n
	}
	if l.membership.parked {
		b.parkedBytes += n
	}
}

// recordNotRouted settles a change that is not for this sink.
func (b *backlog) recordNotRouted(offset uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.changed = offset, true
	b.notRouted++
}

// recordDeliveredBefore settles a change that its destination has from a process before.
func (b *backlog) recordDeliveredBefore(offset uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.changed = offset, true
	b.alreadySettled++
}

// hasSpaceFor reports whether size more bytes may be held for lanes that are live. Half of the window is for those that are read
// again, while there are such. What is larger than that passes alone.
func (b *backlog) hasSpaceFor(size int) bool {
	live := b.bytes - b.catchUpBytes - b.parkedBytes
	if live == 0 {
		return true
	}
	limit := b.limit
	if len(b.catchingUp) > 0 {
		limit /= 2
	}
	return b.bytes+int64(size) <= b.limit && live+int64(size) <= limit
}

// takeBatch appends the oldest entries of l to batch, at least one, within the limits. They stay queued until settled. It
// returns false when l has nothing to be served with now. Who has the lane may take again what is not settled of the last
// batch and, unless the lane is to be replaced, what is queued behind that by now.
func (b *backlog) takeBatch(l *lane, batch []sinks.Message, maxMessages int, maxBytes int64) (_ []sinks.Message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := l.pendingEntries()
	switch {
	case l.publishing && l.paused:
		maxMessages = l.inFlight
	case l.publishing:
	case l.paused || len(pending) == 0 && l.lagsFrom == 0:
		l.scheduled = false
		return batch, false
	case l.lagsFrom > 0 && (len(pending) == 0 || pending[len(pending)-1].offset < l.retryUpTo):
		l.scheduled, l.reloading = false, l.failing
		b.updateMembership(l)
		signal(b.rereadReady)
		return batch, false
	}
	for i, e := range pending {
		maxBytes -= int64(e.size)
		if i == maxMessages || i > 0 && maxBytes < 0 {
			break
		}
		batch = append(batch, sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic})
	}
	l.inFlight, l.publishing = len(batch), true
	return batch, true
}

// acknowledgeOldest settles the n oldest entries of l: the destination has them.
func (b *backlog) acknowledgeOldest(l *lane, n int, now time.Time) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	size := int64(0)
	for range n {
		e := l.popEntry()
		l.settled = e.offset
		size += int64(e.size)
		if e.original != nil {
			b.truncated++
		}
	}
	l.inFlight -= n
	b.pending -= n
	b.delivered += uint64(n)
	b.deliveredBytes += uint64(size)
	b.lastAck = now
	if !l.delivering {
		l.delivering = true
		b.delivering++
	}
	b.recordSettled(l, size)
}

// recordSettled books that entries of so many bytes have left l. The caller holds b.mu.
func (b *backlog) recordSettled(l *lane, size int64) {
	b.changed = true
	b.addBytes(l, -size)
	b.updateMembership(l)
	signal(b.spaceFreed)
	if len(b.catchingUp) > 0 {
		signal(b.rereadReady)
	}
}

// oldestEntry returns the oldest entry of l.
func (b *backlog) oldestEntry(l *lane) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.pendingEntries()[0]
}

// replaceOldest puts a smaller form of the oldest change of l in its place: what follows still waits behind it (I3).
func (b *backlog) replaceOldest(l *lane, smaller *event.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &l.pendingEntries()[0]
	if e.original == nil {
		e.original = e.change
	}
	b.addBytes(l, -int64(e.size))
	e.change = smaller
	e.size = e.original.Size() + e.change.Size()
	b.addBytes(l, int64(e.size))
}

// deadLetterOldest settles the oldest entry of l as a dead letter, which holds its bytes until it is stored.
func (b *backlog) deadLetterOldest(l *lane, reason string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := l.popEntry()
	l.settled = e.offset
	b.pending--
	b.recordSettled(l, int64(e.size))
	b.bytes += int64(e.size)
	letter := event.DeadLetter{Offset: e.offset, Time: now.UTC(), Reason: reason, Change: e.originalRecord().Change}
	b.unstoredLetters = append(b.unstoredLetters, unstoredLetter{letter, e.size})
	b.deadLetters++
}

// releaseLane ends a worker's turn with l. It reports whether l has more to do and must go back to the workqueue.
func (b *backlog) releaseLane(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.inFlight, l.publishing, l.scheduled = 0, false, false
	return b.claimSchedule(l) != nil
}

// hasAdvanced reports whether anything advanced since the last snapshot.
func (b *backlog) hasAdvanced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// takeSnapshot returns the cursor as of now and the dead letters that must be stored with it.
func (b *backlog) takeSnapshot() (c event.Cursor, dead []event.DeadLetter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = false
	c = event.Cursor{Low: b.read, High: b.read, Lanes: map[string]uint64{}, Layout: b.layout}
	for l := range b.busy { // I2
		position := l.settledUpTo(b.read)
		c.Low = min(c.Low, position)
		c.Lanes[string(l.name)] = position
	}
	if b.settledAhead > b.read {
		for name, l := range b.lanes {
			if l.settled > b.read {
				c.Lanes[string(name)] = l.settled
			}
		}
	}
	for _, d := range b.unstoredLetters {
		dead = append(dead, d.DeadLetter)
	}
	return c, dead
}

// recordStored says that a snapshot with this cursor and so many dead letters is durable.
func (b *backlog) recordStored(c event.Cursor, dead int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.unstoredLetters[:dead] {
		b.bytes -= int64(d.size)
	}
	b.unstoredLetters = append(b.unstoredLetters[:0:0], b.unstoredLetters[dead:]...)
	b.storedLow, b.storedHigh = c.Low, c.High
	signal(b.spaceFreed)
}

// recordNotStored says that storing the last snapshot failed: the next one must include it.
func (b *backlog) recordNotStored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = true
}

// removeIdleLanes drops the lanes that had nothing to do since it was called last and that the stored cursor covers, so that
// memory follows the lanes in use and not all lanes ever seen, and returns their names.
func (b *backlog) removeIdleLanes() (forgotten []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range b.lanes {
		if _, busy := b.busy[l]; busy || l.usedRecently || l.failing || l.scheduled || l.publishing || l.paused || l.settled > b.storedHigh {
			l.usedRecently = false
			continue
		}
		b.removeLane(l)
		forgotten = append(forgotten, name)
	}
	return forgotten
}

// removeLane drops l, which has nothing queued. The caller holds b.mu.
func (b *backlog) removeLane(l *lane) {
	if l.delivering {
		b.delivering--
		b.removedDelivering = true
	}
	delete(b.lanes, l.name)
}

// signal lets whoever waits for c look again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fillStats fills in what the backlog knows without a look at each lane.
func (b *backlog) fillStats(s *Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Delivered, s.DeliveredBytes, s.Truncated, s.NotRouted = b.delivered, b.deliveredBytes, b.truncated, b.notRouted
	s.AlreadySettled, s.DeadLetters = b.alreadySettled, b.deadLetters
	s.Pending, s.WindowBytes, s.WindowLimit = b.pending, b.bytes, b.limit
	s.Lanes, s.LanesFailing, s.LanesLagging, s.LanesDelivering = len(b.lanes), b.failing, b.lagging, b.delivering
	if b.removedDelivering {
		s.LanesDelivering = max(1, s.LanesDelivering)
	}
	s.Read, s.Low, s.LastAck = b.read, b.storedLow, b.lastAck
}

// oldestObserved returns when the oldest change was observed that is not settled, as far as known; zero when there is none.
func (b *backlog) oldestObserved() (oldest time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.busy {
		if at := l.oldestObserved(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}
