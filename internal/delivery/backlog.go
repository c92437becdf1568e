package delivery

import (
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// backlog is the ledger of a pipeline: what was read and is not settled, by lane, and the cursor that follows from it.
// It knows no network, disk, goroutine or clock. All methods are safe for concurrent use.
type backlog struct {
	layout string
	limit  int64         // bytes
	room   chan struct{} // holds a token after bytes or pending shrank; the dispatcher waits here

	mu      sync.Mutex
	lanes   map[sinks.Lane]*lane
	read    uint64 // the last offset that is queued, settled or dead: where reading goes on
	durable uint64 // Low of the last stored cursor
	pending int    // entries in all lanes
	bytes   int64  // of pending entries and of dead letters that are not stored yet
	dead    []deadLetter
	changed bool // something advanced since the last snapshot

	aliased int64  // bytes of the frames read since recent was set
	recent  uint64 // entries up to this offset are of frames older than that

	delivered, deliveredBytes, reduced, passed, skipped, deadLetters uint64
	lastAck                                                          time.Time
}

// deadLetter is one not stored yet. It holds its bytes of the window until then, so that a destination that rejects
// everything cannot fill the memory (I6).
type deadLetter struct {
	DeadLetter
	size int
}

// newBacklog starts behind a stored cursor. Lane positions count only under the layout they were made with.
func newBacklog(layout string, limit int64, start Cursor) *backlog {
	b := &backlog{
		layout:  layout,
		limit:   limit,
		room:    make(chan struct{}, 1),
		lanes:   map[sinks.Lane]*lane{},
		read:    start.Low,
		durable: start.Low,
		recent:  start.Low,
	}
	if start.Layout != layout {
		return b
	}
	for name, offset := range start.Lanes {
		if offset > start.Low {
			b.lanes[sinks.Lane(name)] = &lane{name: sinks.Lane(name), settled: offset}
		}
	}
	return b
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
	return b.pending == 0
}

// holds reports whether any of these lanes has something that is not settled.
func (b *backlog) holds(lanes []sinks.Lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range lanes {
		if l := b.lanes[name]; l != nil && len(l.pending()) > 0 {
			return true
		}
	}
	return false
}

// add queues r with its lane. It returns false, having done nothing, when the window has no room: wait for b.room. It
// returns the lane when the caller must hand it to the workqueue. A change that its lane settled before the last
// restart is passed over.
func (b *backlog) add(name sinks.Lane, r event.Record, topic *sinks.Template) (schedule *lane, ok bool) {
	size := r.Change.Size()
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lanes[name]
	if l == nil {
		l = &lane{name: name}
		b.lanes[name] = l
	}
	if r.Offset <= l.settled { // I3: acknowledged before the restart
		b.read, b.changed = r.Offset, true
		b.skipped++
		return nil, true
	}
	if !b.fits(size) {
		return nil, false
	}
	l.push(entry{offset: r.Offset, change: r.Change, size: size, topic: topic})
	b.read = r.Offset
	b.pending++
	b.bytes += int64(size)
	if l.scheduled {
		return nil, true
	}
	l.scheduled = true
	return l, true
}

// pass settles a change that is not for this sink.
func (b *backlog) pass(offset uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read, b.changed = offset, true
	b.passed++
}

// addDead records a change that has no lane because the sink rejected it. It returns false, having done nothing, when
// the window has no room.
func (b *backlog) addDead(r event.Record, reason string, now time.Time) bool {
	size := r.Change.Size()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(size) {
		return false
	}
	b.bytes += int64(size)
	b.read = r.Offset
	b.bury(entry{offset: r.Offset, change: r.Change, size: size}, reason, now)
	return true
}

// fits reports whether size more bytes may be held. What is larger than the whole window passes alone.
func (b *backlog) fits(size int) bool {
	return b.bytes == 0 || b.bytes+int64(size) <= b.limit
}

// take appends the oldest entries of l to batch, at least one when there is one, within the limits. They stay queued
// until settled.
func (b *backlog) take(l *lane, batch []sinks.Message, maxMessages int, maxBytes int64) []sinks.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, e := range l.pending() {
		maxBytes -= int64(e.size)
		if i == maxMessages || i > 0 && maxBytes < 0 {
			break
		}
		batch = append(batch, sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic})
	}
	return batch
}

// acknowledge settles the n oldest entries of l: the destination has them.
func (b *backlog) acknowledge(l *lane, n int, now time.Time) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		e := l.pop()
		l.settled = e.offset
		b.bytes -= int64(e.size)
		b.deliveredBytes += uint64(e.size)
		if e.whole != nil {
			b.reduced++
		}
	}
	b.pending -= n
	b.delivered += uint64(n)
	b.lastAck, b.changed = now, true
	b.wake()
}

// oldest returns the change of the oldest entry of l.
func (b *backlog) oldest(l *lane) *event.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.pending()[0].change
}

// whole returns the change of the oldest entry of l as it was before anything made it smaller.
func (b *backlog) whole(l *lane) *event.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := l.pending()[0]
	if e.whole != nil {
		return e.whole
	}
	return e.change
}

// replace puts a smaller form of the oldest change of l in its place: what follows still waits behind it (I3).
func (b *backlog) replace(l *lane, smaller *event.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := &l.pending()[0]
	if e.whole == nil {
		e.whole = e.change.Clone()
	}
	b.bytes -= int64(e.size)
	e.change, e.owned = smaller.Clone(), true
	e.size = e.whole.Size() + e.change.Size()
	b.bytes += int64(e.size)
}

// reject settles the oldest entry of l as a dead letter.
func (b *backlog) reject(l *lane, reason string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := l.pop()
	l.settled = e.offset
	b.pending--
	b.bury(e, reason, now)
	b.wake()
}

// bury keeps e as a dead letter until it is stored. The caller holds b.mu and has counted the bytes.
func (b *backlog) bury(e entry, reason string, now time.Time) {
	switch {
	case e.whole != nil:
		e.change = e.whole
	case !e.owned:
		e.change = e.change.Clone()
	}
	b.dead = append(b.dead, deadLetter{DeadLetter{Offset: e.offset, Time: now.UTC(), Reason: reason, Change: e.change}, e.size})
	b.deadLetters++
	b.changed = true
}

// rest ends a worker's turn with l. It reports whether l has more to do and must go back to the workqueue.
func (b *backlog) rest(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.scheduled = len(l.pending()) > 0
	return l.scheduled
}

// advanced reports whether anything advanced since the last snapshot.
func (b *backlog) advanced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// snapshot returns the cursor as of now and the dead letters that must be stored with it.
func (b *backlog) snapshot() (c Cursor, dead []DeadLetter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = false
	c = Cursor{Low: b.low(), Lanes: map[string]uint64{}, Layout: b.layout}
	for name, l := range b.lanes {
		if l.settled > c.Low {
			c.Lanes[string(name)] = l.settled
		}
	}
	for _, d := range b.dead {
		dead = append(dead, d.DeadLetter)
	}
	return c, dead
}

// low returns the offset up to which everything is acknowledged or dead: before the oldest pending entry (I2).
func (b *backlog) low() uint64 {
	low := b.read
	for _, l := range b.lanes {
		if p := l.pending(); len(p) > 0 {
			low = min(low, p[0].offset-1)
		}
	}
	return low
}

// stored says that a snapshot with this cursor and so many dead letters is durable.
func (b *backlog) stored(c Cursor, dead int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.dead[:dead] {
		b.bytes -= int64(d.size)
	}
	b.dead = append(b.dead[:0:0], b.dead[dead:]...)
	b.forgetIdleLanes()
	b.durable = c.Low
	b.wake()
}

// forgetIdleLanes drops lanes that have nothing to do and that the stored cursor covers since at least one settle, so
// that memory follows the lanes in use and not all lanes ever seen.
func (b *backlog) forgetIdleLanes() {
	for name, l := range b.lanes {
		if !l.scheduled && l.settled <= b.durable {
			delete(b.lanes, name)
		}
	}
}

// notStored says that storing the last snapshot failed: the next one must include it.
func (b *backlog) notStored() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = true
}

// unpin keeps queued changes from holding on to more memory than their own. Bodies alias the journal frame they were
// read from, so one small change of a lane that does not advance would keep a whole frame alive, and a window of such
// changes thousands of frames. Called with the bytes of every frame read, unpin lets a full window of frames go by and
// then clones what is still queued from before them. In steady flow nothing is that old, so nothing is copied; what is
// alive is at most the clones, two windows of frames, and what batches in flight alias (I6).
func (b *backlog) unpin(frame int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.aliased += frame
	if b.aliased < b.limit {
		return
	}
	for _, l := range b.lanes {
		own(l.pending(), b.recent)
	}
	b.aliased, b.recent = 0, b.read
}

// own clones the changes of entries up to an offset, each once.
func own(entries []entry, upTo uint64) {
	for i := range entries {
		e := &entries[i]
		if e.offset > upTo {
			return
		}
		if !e.owned {
			e.change, e.owned = e.change.Clone(), true
		}
	}
}

// wake lets the dispatcher look again. The caller holds b.mu.
func (b *backlog) wake() {
	select {
	case b.room <- struct{}{}:
	default:
	}
}

// describe fills in what the backlog knows.
func (b *backlog) describe(s *Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Delivered, s.DeliveredBytes, s.Reduced, s.Passed = b.delivered, b.deliveredBytes, b.reduced, b.passed
	s.Skipped, s.DeadLetters = b.skipped, b.deadLetters
	s.Pending, s.WindowBytes, s.WindowLimit = b.pending, b.bytes, b.limit
	s.Lanes, s.Read, s.Low, s.LastAck = len(b.lanes), b.read, b.durable, b.lastAck
	oldest := b.read
	for _, l := range b.lanes {
		if p := l.pending(); len(p) > 0 && p[0].offset <= oldest {
			oldest, s.OldestObserved = p[0].offset, p[0].change.ObservedAt
		}
	}
}
