package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A lane that fails, or holds the window while others have nothing to do, falls behind: what is queued of it is dropped,
// and its changes stay in the journal from there on. So it costs the others nothing, however long it lasts. When it works
// again it is cured: its changes are read again until it has those that the dispatcher has read.

// maxLaggingLanes bounds the lanes that are behind: each has its place in memory and in the cursor. Beyond it reading waits.
const maxLaggingLanes = 1 << 16

// leastLaggingRatio is how many times less than the lane that is most behind another must lack to be read again without waiting for it.
const leastLaggingRatio = 4

// laneMembership is the sets and sums of the backlog that a lane is in.
type laneMembership struct{ busy, catchingUp, parked bool }

// updateMembership enters l into the sets and sums it belongs to now, and takes it out of the others. The caller holds b.mu.
func (b *backlog) updateMembership(l *lane) {
	curing := l.lagsFrom > 0 && (!l.failing || l.reloading)
	now := laneMembership{busy: l.head < len(l.entries) || l.lagsFrom > 0, catchingUp: curing, parked: l.failing && !curing}
	if now == l.membership {
		return
	}
	if now.busy != l.membership.busy {
		setMember(b.busy, l, now.busy)
	}
	if now.catchingUp != l.membership.catchingUp {
		setMember(b.catchingUp, l, now.catchingUp)
		b.catchUpBytes += signedSize(l.bytes, now.catchingUp)
	}
	if now.parked != l.membership.parked {
		b.parkedBytes += signedSize(l.bytes, now.parked)
	}
	l.membership = now
}

func signedSize(n int64, plus bool) int64 {
	if plus {
		return n
	}
	return -n
}

// laggingLanes returns the lanes that are behind.
func (b *backlog) laggingLanes() (names []sinks.Lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.busy {
		if l.lagsFrom > 0 {
			names = append(names, l.name)
		}
	}
	return names
}

func setMember(set map[*lane]struct{}, l *lane, in bool) {
	if in {
		set[l] = struct{}{}
	} else {
		delete(set, l)
	}
}

// startLagging notes that the changes of l from an offset on are in the journal only. The caller holds b.mu.
func (b *backlog) startLagging(l *lane, from uint64, observed time.Time) {
	if l.lagsFrom == 0 {
		b.lagging++
	}
	l.lagsFrom, l.lagObserved, l.pass = from, observed, 0
	b.changed = true
	b.updateMembership(l)
	signal(b.rereadReady)
}

// stopLagging notes that all changes of l that were read are in memory or settled. The caller holds b.mu.
func (b *backlog) stopLagging(l *lane) {
	b.lagging--
	l.lagsFrom, l.lagObserved, l.pass = 0, time.Time{}, 0
	b.changed = true
	b.updateMembership(l)
	signal(b.spaceFreed)
}

// truncateQueue drops all but the n oldest entries of l, which falls behind. The caller holds b.mu.
func (b *backlog) truncateQueue(l *lane, n int) {
	dropped := l.pendingEntries()[n:]
	if len(dropped) == 0 {
		return
	}
	first, observed, size := dropped[0].offset, dropped[0].change.ObservedAt, int64(0)
	for i := range dropped {
		size += int64(dropped[i].size)
	}
	b.pending -= len(dropped)
	l.truncateQueue(n)
	b.addBytes(l, -size)
	b.startLagging(l, first, observed)
	signal(b.spaceFreed)
}

// parkLane puts l aside after a Publish has failed that is to be tried again with the same n changes, or more. These are kept,
// as long as they are small and all lanes together keep little; everything else is read again when it is their turn. It
// says whether l did not fail before. The caller adds l to the workqueue when its back-off is over.
func (b *backlog) parkLane(l *lane, n int) (fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.parkedBytes
	if l.membership.parked {
		kept -= l.bytes
	}
	if fresh = !l.failing; fresh {
		b.failing++
		b.removedDelivering = b.removedDelivering && l.delivering
	}
	if l.delivering {
		l.delivering = false
		b.delivering--
	}
	l.inFlight, l.publishing, l.failing, l.reloading, l.pass = 0, false, true, false, 0
	tried, size := l.pendingEntries()[:n], int64(0)
	for i := range tried {
		size += int64(tried[i].size)
	}
	l.retryUpTo = tried[n-1].offset
	if size > b.limit/64 || kept+size > b.limit/4 {
		n = 0
	}
	b.updateMembership(l)
	b.truncateQueue(l, n)
	return fresh
}

// markWorking notes that a Publish of l has succeeded, or failed for a reason that is not the lane's, and says whether the one
// before had failed for one that is.
func (b *backlog) markWorking(l *lane, unsure bool) (cured bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.inDoubt = unsure
	if !l.failing {
		return false
	}
	l.failing, l.reloading, l.retryUpTo = false, false, 0
	b.failing--
	b.updateMembership(l)
	signal(b.rereadReady)
	return true
}

// spillSlowLanes lets lanes fall behind that hold the window while most others have nothing to do: they are slow, and none but
// they should wait for that. It returns how many.
func (b *backlog) spillSlowLanes() (spilled int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	live := 0
	for l := range b.busy {
		if l.lagsFrom == 0 {
			live++
		}
	}
	if idle := len(b.lanes) - len(b.busy); idle < live {
		return 0
	}
	for l := range b.busy {
		if l.lagsFrom == 0 && !l.paused && l.bytes > b.limit/int64(2*live) && len(l.pendingEntries()) > l.inFlight {
			b.truncateQueue(l, l.inFlight)
			spilled++
		}
	}
	return spilled
}

// catchUpShare is how many bytes of one lane are read again before they are published. The caller holds b.mu.
func (b *backlog) catchUpShare() int64 {
	return max(b.limit/32, b.limit/2/int64(max(1, len(b.catchingUp))))
}

// nextReread chooses what to read again: what follows an offset. It returns false when there is nothing to read, or no room for
// it: wait for b.reread. All lanes that lack something from there on are loaded together, so the lane that is most behind is
// chosen: one reading serves all. Only a lane that is soon done in comparison is chosen in turn with it, and does not wait.
func (b *backlog) nextReread() (after uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isRereadBlocked() {
		return 0, false
	}
	first, last := uint64(0), uint64(0)
	for l := range b.catchingUp {
		if b.needsReload(l) {
			last = max(last, l.lagsFrom)
			if first == 0 || l.lagsFrom < first {
				first = l.lagsFrom
			}
		}
	}
	if first == 0 {
		return 0, false
	}
	b.choseLeastLagging = !b.choseLeastLagging && leastLaggingRatio*(b.read-min(last, b.read)) < b.read-first
	from := first
	if b.choseLeastLagging {
		from = last
	}
	b.passNumber++
	for l := range b.catchingUp {
		if b.needsReload(l) && l.lagsFrom >= from {
			l.pass = b.passNumber
		}
	}
	return from - 1, true
}

// isRereadBlocked reports whether nothing more should be read again now. The caller holds b.mu.
func (b *backlog) isRereadBlocked() bool {
	return b.catchUpBytes > 0 && (b.catchUpBytes > b.limit/4 || b.bytes > b.limit-b.limit/4)
}

// needsReload reports whether l has too little in memory. The caller holds b.mu.
func (b *backlog) needsReload(l *lane) bool { return l.bytes <= b.catchUpShare()/2 }

// finishAtReadPosition reports whether the dispatcher has not read up to an offset, and ends the loading there: what follows comes
// from the dispatcher.
func (b *backlog) finishAtReadPosition(offset uint64) (schedule []*lane, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if offset <= b.read {
		return nil, false
	}
	return b.finishPass(offset - 1), true
}

// reloadEntry queues a change that was read again, if its lane is being loaded and lacks it. It returns the lane when the
// caller must hand it to the workqueue.
func (b *backlog) reloadEntry(name sinks.Lane, e entry) *lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lanes[name]
	if l == nil || l.pass != b.passNumber || e.offset < l.lagsFrom {
		return nil
	}
	l.lagObserved = e.change.ObservedAt
	size := int64(e.size)
	if b.catchUpBytes > b.limit/4 && b.catchUpBytes+size > b.limit/2 || !b.needsReload(l) && l.bytes+size > b.catchUpShare() {
		l.lagsFrom, l.pass = e.offset, 0
		return b.claimReloaded(l)
	}
	b.queueEntry(l, e.withOwnChange())
	if l.lagsFrom = e.offset + 1; l.lagsFrom > b.read {
		b.stopLagging(l)
	}
	if l.failing && e.offset < l.retryUpTo && l.lagsFrom > 0 {
		return nil
	}
	if l.failing {
		l.pass = 0
	}
	return b.claimReloaded(l)
}

// claimReloaded schedules a lane that has as much as it gets for now. The caller holds b.mu.
func (b *backlog) claimReloaded(l *lane) *lane {
	if !l.failing {
		return b.claimSchedule(l)
	}
	pending := l.pendingEntries()
	if l.scheduled || l.paused || len(pending) == 0 {
		return nil
	}
	l.scheduled, l.reloading = true, false
	l.retryUpTo = min(l.retryUpTo, pending[len(pending)-1].offset)
	b.updateMembership(l)
	return l
}

// finishFrame ends the loading at the end of a frame.
func (b *backlog) finishFrame(last uint64) (schedule []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finishPass(last)
}

// finishPass notes that what is loading lacks nothing up to an offset. The caller holds b.mu.
func (b *backlog) finishPass(last uint64) (schedule []*lane) {
	for l := range b.catchingUp {
		if l.pass == b.passNumber {
			l.pass = 0
			l.lagsFrom = max(l.lagsFrom, last+1)
			if l.lagsFrom > b.read {
				b.stopLagging(l)
			}
		}
		// Who waits for more than there is room for tries with what it has.
		if l.lagsFrom == 0 || !l.failing || b.isRereadBlocked() || !b.needsReload(l) {
			if s := b.claimReloaded(l); s != nil {
				schedule = append(schedule, s)
			}
		}
	}
	return schedule
}
