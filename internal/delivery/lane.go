package delivery

import (
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// laneState is where a lane stands between the workqueue and the sink. [laneTable.become] is the only function that changes
// it.
//
//	idle → queued → publishing → idle      the Publish succeeded, or the whole sink is unavailable
//	queued → idle                          nothing to publish now: paused, or its changes have to be read first
//	publishing → backingOff                the Publish failed for a reason of this lane
//	backingOff → retrying                  a worker got the lane again
//	retrying → publishing, backingOff      the retry succeeded, failed
//	backingOff → reloading → backingOff    the changes of the retry have to be read from the journal first
//	backingOff → suspended → backingOff    the lane was paused when its back-off ended
//
// Whether a lane lags behind the dispatcher, or is paused, is independent of its state.
type laneState uint8

const (
	// idle lanes are not in the workqueue: they have nothing to publish, are paused, or lag and wait for the catch-up reader.
	idle laneState = iota
	queued
	publishing // a worker has it
	backingOff // its last Publish failed; it waits out its back-off, or is in the workqueue after that
	retrying   // its last Publish failed and a worker has it again
	reloading  // its last Publish failed; the catch-up reader loads the changes of the next one
	suspended  // its last Publish failed, and it is paused
)

// isScheduled reports whether the lane is in the workqueue, waits to be added to it, or is held by a worker. Only the
// caller that makes a lane scheduled may add it to the workqueue: a second add would cut a back-off short.
func (s laneState) isScheduled() bool {
	return s == queued || s == publishing || s == backingOff || s == retrying
}

// isPublishing reports whether a worker holds the lane.
func (s laneState) isPublishing() bool { return s == publishing || s == retrying }

// isFailing reports whether the last Publish of the lane failed for a reason of this lane.
func (s laneState) isFailing() bool {
	return s == backingOff || s == retrying || s == reloading || s == suspended
}

// lane is one ordered channel of the destination: its queue, and how far it got. Its fields are guarded by backlog.mu,
// except those of worker.
type lane struct {
	name    sinks.Lane
	settled uint64 // every change of this lane up to this offset is acknowledged or a dead letter
	queue   entryQueue
	state   laneState

	inFlight  int    // of the queue's oldest entries, how many were handed to the sink
	retryUpTo uint64 // of a failing lane: the newest offset of the failed Publish; the retry has the same changes or more
	inDoubt   bool   // the last Publish failed because the sink is unavailable; its changes may have arrived
	paused    bool   // about to be repartitioned: no new Publish begins
	drainedAt uint64 // about to be repartitioned: it delivers what is queued, and lags from here on; 0: it is not
	held      bool   // nothing may be published yet, see Config.WhyHeld; nothing is queued

	// A lane lags when changes that the dispatcher has read are neither queued nor settled: those from lagsFrom on, which
	// are in the journal only. 0: it does not lag.
	lagsFrom    uint64
	lagObserved time.Time // when the change at lagsFrom was observed, as far as known
	pass        uint64    // the pass of the catch-up reader that loads this lane, see rereadPlan; 0: none

	membership   laneMembership // derived from the fields above by laneTable.updateMembership
	usedRecently bool           // something was queued since the last look for idle lanes

	worker workerState
}

// workerState belongs to the worker that holds the lane; it needs no lock.
type workerState struct {
	destination        string // see workerPool.destinationOf
	believedOffset     uint64 // the last change with a rejection that was believed
	suspectedAfter     uint64 // proofs of its destination when the lane last suspected it, plus 1; 0: it never has
	unavailableSince   uint64 // see workerPool.judgeUnavailable; 0: the last answer was another one
	storeBeforePublish bool   // a dead letter has to be durable before the next Publish, see sinks.Stateful
	isSizeLimited      bool   // the destination has rejected a change for its size
}

// laneMembership is the sets and sums of the [laneTable] that count a lane.
type laneMembership struct {
	busy       bool // has changes that are not settled
	lagging    bool
	failing    bool // its last Publish failed, or it lags because it is held
	catchingUp bool // lags, and is loaded by the catch-up reader
	parked     bool // fails, and keeps the changes of its next Publish until then
}

// currentMembership returns the membership that follows from the other fields.
func (l *lane) currentMembership() laneMembership {
	m := laneMembership{lagging: l.lagsFrom > 0, failing: l.state.isFailing()}
	m.busy = m.lagging || l.queue.entryCount() > 0
	m.catchingUp = m.lagging && (!m.failing || l.state == reloading) && !l.held && l.drainedAt == 0
	m.failing = m.failing || m.lagging && l.held
	m.parked = m.failing && !m.catchingUp
	return m
}

// settledUpTo returns the offset up to which every change of the lane is settled; read is how far the journal was read.
func (l *lane) settledUpTo(read uint64) uint64 {
	switch p := l.queue.pendingEntries(); {
	case len(p) > 0:
		return p[0].offset - 1
	case l.lagsFrom > 0:
		return l.lagsFrom - 1
	default:
		return max(read, l.settled)
	}
}

func (l *lane) status() LaneStatus {
	s := LaneStatus{Name: string(l.name), Failing: l.membership.failing, Lagging: l.membership.lagging, Queued: l.queue.entryCount()}
	if p := l.queue.pendingEntries(); len(p) > 0 {
		s.Oldest = p[0].change.ObservedAt
	} else if l.membership.busy {
		s.Oldest = l.lagObserved
	}
	return s
}

type entry struct {
	offset  uint64
	change  *event.Change   // as it is published
	inFrame bool            // see event.Record
	size    int             // change.Size(), plus original.Size() if there is one
	topic   *sinks.Template // see sinks.Message

	original  *event.Change // of a truncated change: the complete one, which a dead letter stores; else nil
	rejection error         // of a change that has no lane of the sink: why; else nil
}

// newEntry returns r as an entry that still aliases the frame that r was read from.
func newEntry(r event.Record, topic *sinks.Template, rejection error) entry {
	return entry{offset: r.Offset, change: r.Change, inFrame: r.InFrame, size: r.Change.Size(), topic: topic, rejection: rejection}
}

func (e entry) originalRecord() event.Record {
	if e.original != nil {
		e.change = e.original
	}
	return event.Record{Offset: e.offset, Change: e.change, InFrame: e.inFrame}
}

// withOwnChange returns e with a change that aliases no frame: one small change of a lane that does not advance would keep a
// whole frame alive, and a window of such changes thousands of frames (I6). A change from memory has its own bytes already.
func (e entry) withOwnChange() entry {
	if e.inFrame {
		e.change, e.inFrame = e.change.Clone(), false
	}
	return e
}

// entryQueue holds unsettled entries in the order of their offsets.
type entryQueue struct {
	entries []entry
	head    int // index of the oldest entry
	bytes   int64
}

// pendingEntries returns the entries, oldest first. The slice is valid until the next change of the queue.
func (q *entryQueue) pendingEntries() []entry { return q.entries[q.head:] }

func (q *entryQueue) entryCount() int { return len(q.entries) - q.head }

// newestOffset returns the offset of the newest entry; 0 if there is none.
func (q *entryQueue) newestOffset() uint64 {
	if q.entryCount() == 0 {
		return 0
	}
	return q.entries[len(q.entries)-1].offset
}

// pushEntry appends e. It reuses the space of popped entries, so that a lane in steady flow does not allocate.
func (q *entryQueue) pushEntry(e entry) {
	if len(q.entries) == cap(q.entries) && q.head > len(q.entries)/2 {
		n := copy(q.entries, q.entries[q.head:])
		clear(q.entries[n:])
		q.entries, q.head = q.entries[:n], 0
	}
	q.entries = append(q.entries, e)
	q.bytes += int64(e.size)
}

func (q *entryQueue) popEntry() entry {
	e := q.entries[q.head]
	q.entries[q.head] = entry{} // releases the change
	q.head++
	if q.head == len(q.entries) {
		q.entries, q.head = q.entries[:0], 0
	}
	q.bytes -= int64(e.size)
	return e
}

// removeEntry removes and returns the entry i, counted from the oldest.
func (q *entryQueue) removeEntry(i int) entry {
	if i == 0 {
		return q.popEntry()
	}
	e := q.entries[q.head+i]
	q.entries = slices.Delete(q.entries, q.head+i, q.head+i+1)
	q.bytes -= int64(e.size)
	return e
}

// truncateEntry replaces the change of the entry i by a truncated one. It returns by how many bytes the queue grew.
func (q *entryQueue) truncateEntry(i int, truncated *event.Change) (grown int64) {
	e := &q.entries[q.head+i]
	if e.original == nil {
		e.original = e.change
	}
	before := e.size
	e.change = truncated
	e.size = e.original.Size() + e.change.Size()
	grown = int64(e.size - before)
	q.bytes += grown
	return grown
}

// keepOldest drops all but the n oldest entries and returns the size of the dropped ones.
func (q *entryQueue) keepOldest(n int) (dropped int64) {
	for _, e := range q.pendingEntries()[n:] {
		dropped += int64(e.size)
	}
	clear(q.entries[q.head+n:])
	q.entries = q.entries[:q.head+n]
	if n == 0 {
		q.entries, q.head = nil, 0
	}
	q.bytes -= dropped
	return dropped
}
