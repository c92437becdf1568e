package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A lane that fails, or holds the window while others have nothing to do, falls behind: what is queued of it is dropped,
// and its changes stay in the journal from there on. So it costs the others nothing, however long it lasts. When it works
// again it is cured: its changes are read again until it has those that the dispatcher has read.

// maxBehind bounds the lanes that are behind: each has its place in memory and in the cursor. Beyond it reading waits.
const maxBehind = 1 << 16

// soon is how many times less than the lane that is most behind another must lack to be read again without waiting for it.
const soon = 4

// filing is the sets and sums of the backlog that a lane is in.
type filing struct{ busy, curing, parked bool }

// file enters l into the sets and sums it belongs to now, and takes it out of the others. The caller holds b.mu.
func (b *backlog) file(l *lane) {
	curing := l.next > 0 && (!l.failing || l.probing)
	now := filing{busy: l.head < len(l.entries) || l.next > 0, curing: curing, parked: l.failing && !curing}
	if now == l.filed {
		return
	}
	if now.busy != l.filed.busy {
		move(b.busy, l, now.busy)
	}
	if now.curing != l.filed.curing {
		move(b.curing, l, now.curing)
		b.rereadSize += signed(l.bytes, now.curing)
	}
	if now.parked != l.filed.parked {
		b.parkedSize += signed(l.bytes, now.parked)
	}
	l.filed = now
}

func signed(n int64, plus bool) int64 {
	if plus {
		return n
	}
	return -n
}

// unfinished returns the lanes that are behind.
func (b *backlog) unfinished() (names []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.busy {
		if l.next > 0 {
			names = append(names, l.name)
		}
	}
	return names
}

func move(set map[*lane]struct{}, l *lane, in bool) {
	if in {
		set[l] = struct{}{}
	} else {
		delete(set, l)
	}
}

// fallBehind notes that the changes of l from an offset on are in the journal only. The caller holds b.mu.
func (b *backlog) fallBehind(l *lane, from uint64, observed time.Time) {
	if l.next == 0 {
		b.behind++
	}
	l.next, l.observed, l.pass = from, observed, 0
	b.changed = true
	b.file(l)
	wake(b.reread)
}

// catchUp notes that all changes of l that were read are in memory or settled. The caller holds b.mu.
func (b *backlog) catchUp(l *lane) {
	b.behind--
	l.next, l.observed, l.pass = 0, time.Time{}, 0
	b.changed = true
	b.file(l)
	wake(b.room)
}

// cut drops all but the n oldest entries of l, which falls behind. The caller holds b.mu.
func (b *backlog) cut(l *lane, n int) {
	dropped := l.pending()[n:]
	if len(dropped) == 0 {
		return
	}
	first, observed, size := dropped[0].offset, dropped[0].change.ObservedAt, int64(0)
	for i := range dropped {
		size += int64(dropped[i].size)
	}
	b.pending -= len(dropped)
	l.cut(n)
	b.grow(l, -size)
	b.fallBehind(l, first, observed)
	wake(b.room)
}

// park puts l aside after a Publish has failed that is to be tried again with the same n changes, or more. These are kept,
// as long as they are small and all lanes together keep little; everything else is read again when it is their turn. It
// says whether l did not fail before. The caller adds l to the workqueue when its back-off is over.
func (b *backlog) park(l *lane, n int) (fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.parkedSize
	if l.filed.parked {
		kept -= l.bytes
	}
	if fresh = !l.failing; fresh {
		b.failing++
		b.rested = b.rested && l.worked
	}
	if l.worked {
		l.worked = false
		b.working--
	}
	l.taken, l.working, l.failing, l.probing, l.pass = 0, false, true, false, 0
	tried, size := l.pending()[:n], int64(0)
	for i := range tried {
		size += int64(tried[i].size)
	}
	l.until = tried[n-1].offset
	if size > b.limit/64 || kept+size > b.limit/4 {
		n = 0
	}
	b.file(l)
	b.cut(l, n)
	return fresh
}

// works notes that a Publish of l has succeeded, or failed for a reason that is not the lane's, and says whether the one
// before had failed for one that is.
func (b *backlog) works(l *lane, unsure bool) (cured bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.unsure = unsure
	if !l.failing {
		return false
	}
	l.failing, l.probing, l.until = false, false, 0
	b.failing--
	b.file(l)
	wake(b.reread)
	return true
}

// spill lets lanes fall behind that hold the window while most others have nothing to do: they are slow, and none but
// they should wait for that. It returns how many.
func (b *backlog) spill() (spilled int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	live := 0
	for l := range b.busy {
		if l.next == 0 {
			live++
		}
	}
	if idle := len(b.lanes) - len(b.busy); idle < live {
		return 0
	}
	for l := range b.busy {
		if l.next == 0 && !l.paused && l.bytes > b.limit/int64(2*live) && len(l.pending()) > l.taken {
			b.cut(l, l.taken)
			spilled++
		}
	}
	return spilled
}

// share is how many bytes of one lane are read again before they are published. The caller holds b.mu.
func (b *backlog) share() int64 {
	return max(b.limit/32, b.limit/2/int64(max(1, len(b.curing))))
}

// due chooses what to read again: what follows an offset. It returns false when there is nothing to read, or no room for
// it: wait for b.reread. All lanes that lack something from there on are loaded together, so the lane that is most behind is
// chosen: one reading serves all. Only a lane that is soon done in comparison is chosen in turn with it, and does not wait.
func (b *backlog) due() (after uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full() {
		return 0, false
	}
	first, last := uint64(0), uint64(0)
	for l := range b.curing {
		if b.wants(l) {
			last = max(last, l.next)
			if first == 0 || l.next < first {
				first = l.next
			}
		}
	}
	if first == 0 {
		return 0, false
	}
	b.newest = !b.newest && soon*(b.read-min(last, b.read)) < b.read-first
	from := first
	if b.newest {
		from = last
	}
	b.passes++
	for l := range b.curing {
		if b.wants(l) && l.next >= from {
			l.pass = b.passes
		}
	}
	return from - 1, true
}

// full reports whether nothing more should be read again now. The caller holds b.mu.
func (b *backlog) full() bool {
	return b.rereadSize > 0 && (b.rereadSize > b.limit/4 || b.bytes > b.limit-b.limit/4)
}

// wants reports whether l has too little in memory. The caller holds b.mu.
func (b *backlog) wants(l *lane) bool { return l.bytes <= b.share()/2 }

// beyond reports whether the dispatcher has not read up to an offset, and ends the loading there: what follows comes
// from the dispatcher.
func (b *backlog) beyond(offset uint64) (schedule []*lane, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if offset <= b.read {
		return nil, false
	}
	return b.finish(offset - 1), true
}

// reload queues a change that was read again, if its lane is being loaded and lacks it. It returns the lane when the
// caller must hand it to the workqueue.
func (b *backlog) reload(name sinks.Lane, e entry) *lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lanes[name]
	if l == nil || l.pass != b.passes || e.offset < l.next {
		return nil
	}
	l.observed = e.change.ObservedAt
	size := int64(e.size)
	if b.rereadSize > b.limit/4 && b.rereadSize+size > b.limit/2 || !b.wants(l) && l.bytes+size > b.share() {
		l.next, l.pass = e.offset, 0
		return b.reloaded(l)
	}
	b.push(l, e.own())
	if l.next = e.offset + 1; l.next > b.read {
		b.catchUp(l)
	}
	if l.failing && e.offset < l.until && l.next > 0 {
		return nil
	}
	if l.failing {
		l.pass = 0
	}
	return b.reloaded(l)
}

// reloaded schedules a lane that has as much as it gets for now. The caller holds b.mu.
func (b *backlog) reloaded(l *lane) *lane {
	if !l.failing {
		return b.schedule(l)
	}
	pending := l.pending()
	if l.scheduled || l.paused || len(pending) == 0 {
		return nil
	}
	l.scheduled, l.probing = true, false
	l.until = min(l.until, pending[len(pending)-1].offset)
	b.file(l)
	return l
}

// loaded ends the loading at the end of a frame.
func (b *backlog) loaded(last uint64) (schedule []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finish(last)
}

// finish notes that what is loading lacks nothing up to an offset. The caller holds b.mu.
func (b *backlog) finish(last uint64) (schedule []*lane) {
	for l := range b.curing {
		if l.pass == b.passes {
			l.pass = 0
			l.next = max(l.next, last+1)
			if l.next > b.read {
				b.catchUp(l)
			}
		}
		// Who waits for more than there is room for tries with what it has.
		if l.next == 0 || !l.failing || b.full() || !b.wants(l) {
			if s := b.reloaded(l); s != nil {
				schedule = append(schedule, s)
			}
		}
	}
	return schedule
}
