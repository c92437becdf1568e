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
	layout string
	limit  int64         // bytes
	room   chan struct{} // holds a token after bytes or pending shrank; the dispatcher waits here
	reread chan struct{} // holds a token when a lane may be read again; who reads them again waits here

	mu      sync.Mutex
	lanes   map[sinks.Lane]*lane
	busy    map[*lane]struct{} // those with something that is not settled
	curing  map[*lane]struct{} // those that are behind and to be read again now
	behind  int                // lanes that are behind
	failing int                // lanes that fail
	paused  []sinks.Lane       // lanes that are to be replaced, as far as they are not served meanwhile
	working int                // lanes whose last Publish was accepted
	rested  bool               // there were such among those that were forgotten since, and nothing speaks against them
	read    uint64             // the last offset that is queued, left behind, settled or dead: where reading goes on
	ahead   uint64             // lanes may be settled up to here, beyond read; only after a restart
	stable  uint64             // Low of the last stored cursor
	durable uint64             // High of the last stored cursor
	pending int                // entries in all lanes
	dead    []deadLetter
	changed bool // something advanced since the last snapshot

	bytes      int64  // of pending entries and of dead letters that are not stored yet
	rereadSize int64  // of that: entries of lanes that are read again
	parkedSize int64  // of that: entries that are kept of lanes that fail
	passes     uint64 // frames that were read again: what is loaded from an earlier one is loaded no more
	newest     bool   // whether the lane that is least behind was read again last

	delivered, deliveredBytes, reduced, passed, skipped, deadLetters uint64
	lastAck                                                          time.Time
}

// deadLetter is one not stored yet. It holds its bytes of the window until then, so that a destination that rejects
// everything cannot fill the memory (I6).
type deadLetter struct {
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
		layout: layout,
		limit:  limit,
		room:   make(chan struct{}, 1),
		reread: make(chan struct{}, 1),
		lanes:  map[sinks.Lane]*lane{},
		busy:   map[*lane]struct{}{},
		curing: map[*lane]struct{}{},
		read:   high,
		stable: start.Low, durable: high,
	}
	for name, offset := range start.Lanes {
		l := b.lane(sinks.Lane(name))
		if offset >= high {
			l.settled, b.ahead = offset, max(b.ahead, offset)
			continue
		}
		l.settled = offset
		b.fallBehind(l, offset+1, time.Time{})
	}
	b.changed = false
	return b
}

// lane returns the lane of a name. The caller holds b.mu, or is the only one.
func (b *backlog) lane(name sinks.Lane) *lane {
	l := b.lanes[name]
	if l == nil {
		l = &lane{name: name}
		b.lanes[name] = l
	}
	return l
}

// position returns the offset behind which reading goes on.
func (b *backlog) position() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read
}

// empty reports whether everything read is acknowledged or dead.
func (b *backlog) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.busy) == 0
}

// quiet reports whether nothing was acknowledged since then.
func (b *backlog) quiet(since time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lastAck.Before(since)
}

// add queues a change with its lane, or leaves it to the journal where the lane fails or is behind. It returns false,
// having done nothing, when there is no room: wait for b.room. It returns the lane when the caller must hand it to the
// workqueue. A change that its lane settled before the last restart is passed over.
func (b *backlog) add(name sinks.Lane, e entry) (schedule *lane, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lane(name)
	switch {
	case e.offset <= l.settled: // I3: acknowledged before the restart
		b.skipped++
	case l.next > 0: // so is everything before it
	case l.failing:
		if b.behind >= maxBehind {
			return nil, false
		}
		b.fallBehind(l, e.offset, e.change.ObservedAt)
	case !b.fits(e.size):
		return nil, false
	default:
		b.push(l, e.own())
		b.read = e.offset
		return b.schedule(l), true
	}
	b.read, b.changed = e.offset, true
	return nil, true
}

// push queues e. The caller holds b.mu.
func (b *backlog) push(l *lane, e entry) {
	l.push(e)
	l.used = true
	b.pending++
	b.grow(l, int64(e.size))
	b.file(l)
}

// schedule claims a place in the workqueue for l, unless it has one or must wait. The caller holds b.mu.
func (b *backlog) schedule(l *lane) *lane {
	if l.scheduled || l.paused || l.failing || len(l.pending()) == 0 {
		return nil
	}
	l.scheduled = true
	return l
}

// grow books that the entries of l take n bytes more. The caller holds b.mu.
func (b *backlog) grow(l *lane, n int64) {
	l.bytes += n
	b.bytes += n
	if l.filed.curing {
		b.rereadSize += n
	}
	if l.filed.parked {
		b.parkedSize += n
	}
}

// pass settles a change that is not for this sink.
func (b *backlog) pass(offset uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.changed = offset, true
	b.passed++
}

// skip settles a change that its destination has from a process before.
func (b *backlog) skip(offset uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.changed = offset, true
	b.skipped++
}

// fits reports whether size more bytes may be held for lanes that are live. Half of the window is for those that are read
// again, while there are such. What is larger than that passes alone.
func (b *backlog) fits(size int) bool {
	live := b.bytes - b.rereadSize - b.parkedSize
	if live == 0 {
		return true
	}
	limit := b.limit
	if len(b.curing) > 0 {
		limit /= 2
	}
	return b.bytes+int64(size) <= b.limit && live+int64(size) <= limit
}

// take appends the oldest entries of l to batch, at least one, within the limits. They stay queued until settled. It
// returns false when l has nothing to be served with now. Who has the lane may take again what is not settled of the last
// batch and, unless the lane is to be replaced, what is queued behind that by now.
func (b *backlog) take(l *lane, batch []sinks.Message, maxMessages int, maxBytes int64) (_ []sinks.Message, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending := l.pending()
	switch {
	case l.working && l.paused:
		maxMessages = l.taken
	case l.working:
	case l.paused || len(pending) == 0 && l.next == 0:
		l.scheduled = false
		return batch, false
	case l.next > 0 && (len(pending) == 0 || pending[len(pending)-1].offset < l.until):
		l.scheduled, l.probing = false, l.failing
		b.file(l)
		wake(b.reread)
		return batch, false
	}
	for i, e := range pending {
		maxBytes -= int64(e.size)
		if i == maxMessages || i > 0 && maxBytes < 0 {
			break
		}
		batch = append(batch, sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic})
	}
	l.taken, l.working = len(batch), true
	return batch, true
}

// acknowledge settles the n oldest entries of l: the destination has them.
func (b *backlog) acknowledge(l *lane, n int, now time.Time) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	size := int64(0)
	for range n {
		e := l.pop()
		l.settled = e.offset
		size += int64(e.size)
		if e.whole != nil {
			b.reduced++
		}
	}
	l.taken -= n
	b.pending -= n
	b.delivered += uint64(n)
	b.deliveredBytes += uint64(size)
	b.lastAck = now
	if !l.worked {
		l.worked = true
		b.working++
	}
	b.settle(l, size)
}

// settle books that entries of so many bytes have left l. The caller holds b.mu.
func (b *backlog) settle(l *lane, size int64) {
	b.changed = true
	b.grow(l, -size)
	b.file(l)
	wake(b.room)
	if len(b.curing) > 0 {
		wake(b.reread)
	}
}

// head returns the oldest entry of l.
func (b *backlog) head(l *lane) entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.pending()[0]
}

// replace puts a smaller form of the oldest change of l in its place: what follows still waits behind it (I3).
func (b *backlog) replace(l *lane, smaller *event.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &l.pending()[0]
	if e.whole == nil {
		e.whole = e.change
	}
	b.grow(l, -int64(e.size))
	e.change = smaller
	e.size = e.whole.Size() + e.change.Size()
	b.grow(l, int64(e.size))
}

// reject settles the oldest entry of l as a dead letter, which holds its bytes until it is stored.
func (b *backlog) reject(l *lane, reason string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := l.pop()
	l.settled = e.offset
	b.pending--
	b.settle(l, int64(e.size))
	b.bytes += int64(e.size)
	letter := event.DeadLetter{Offset: e.offset, Time: now.UTC(), Reason: reason, Change: e.record().Change}
	b.dead = append(b.dead, deadLetter{letter, e.size})
	b.deadLetters++
}

// rest ends a worker's turn with l. It reports whether l has more to do and must go back to the workqueue.
func (b *backlog) rest(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.taken, l.working, l.scheduled = 0, false, false
	return b.schedule(l) != nil
}

// advanced reports whether anything advanced since the last snapshot.
func (b *backlog) advanced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// snapshot returns the cursor as of now and the dead letters that must be stored with it.
func (b *backlog) snapshot() (c event.Cursor, dead []event.DeadLetter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = false
	c = event.Cursor{Low: b.read, High: b.read, Lanes: map[string]uint64{}, Layout: b.layout}
	for l := range b.busy { // I2
		position := l.position(b.read)
		c.Low = min(c.Low, position)
		c.Lanes[string(l.name)] = position
	}
	if b.ahead > b.read {
		for name, l := range b.lanes {
			if l.settled > b.read {
				c.Lanes[string(name)] = l.settled
			}
		}
	}
	for _, d := range b.dead {
		dead = append(dead, d.DeadLetter)
	}
	return c, dead
}

// stored says that a snapshot with this cursor and so many dead letters is durable.
func (b *backlog) stored(c event.Cursor, dead int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.dead[:dead] {
		b.bytes -= int64(d.size)
	}
	b.dead = append(b.dead[:0:0], b.dead[dead:]...)
	b.stable, b.durable = c.Low, c.High
	wake(b.room)
}

// notStored says that storing the last snapshot failed: the next one must include it.
func (b *backlog) notStored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = true
}

// forgetIdle drops the lanes that had nothing to do since it was called last and that the stored cursor covers, so that
// memory follows the lanes in use and not all lanes ever seen, and returns their names.
func (b *backlog) forgetIdle() (forgotten []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, l := range b.lanes {
		if _, busy := b.busy[l]; busy || l.used || l.failing || l.scheduled || l.working || l.paused || l.settled > b.durable {
			l.used = false
			continue
		}
		b.forget(l)
		forgotten = append(forgotten, name)
	}
	return forgotten
}

// forget drops l, which has nothing queued. The caller holds b.mu.
func (b *backlog) forget(l *lane) {
	if l.worked {
		b.working--
		b.rested = true
	}
	delete(b.lanes, l.name)
}

// wake lets whoever waits for c look again.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// describe fills in what the backlog knows without a look at each lane.
func (b *backlog) describe(s *Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Delivered, s.DeliveredBytes, s.Reduced, s.Passed = b.delivered, b.deliveredBytes, b.reduced, b.passed
	s.Skipped, s.DeadLetters = b.skipped, b.deadLetters
	s.Pending, s.WindowBytes, s.WindowLimit = b.pending, b.bytes, b.limit
	s.Lanes, s.LanesFailing, s.LanesBehind, s.LanesWorking = len(b.lanes), b.failing, b.behind, b.working
	if b.rested {
		s.LanesWorking = max(1, s.LanesWorking)
	}
	s.Read, s.Low, s.LastAck = b.read, b.stable, b.lastAck
}

// oldestObserved returns when the oldest change was observed that is not settled, as far as known; zero when there is none.
func (b *backlog) oldestObserved() (oldest time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.busy {
		if at := l.oldest(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return oldest
}
