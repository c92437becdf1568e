package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// lane is the queue of one ordered channel of the destination and how far that channel got. Its fields belong to the
// [backlog], which guards them by its lock, except where said.
type lane struct {
	name    sinks.Lane
	settled uint64 // every change of this lane up to here is acknowledged or a dead letter

	entries  []entry // from head on: waiting or in flight, ascending by offset
	head     int
	bytes    int64 // of what is from head on
	inFlight int   // so many of these are in the hands of a worker

	// A lane is behind when changes of it were read and are in the journal only: those from next on. 0: it is not.
	lagsFrom    uint64
	lagObserved time.Time // when the oldest of these was observed, as far as known
	pass        uint64    // the last pass that loads it, see backlog.pass; 0 after something has ended that

	failing   bool   // the last Publish failed
	inDoubt   bool   // it failed because the whole sink is away; what it was to publish may be there
	retryUpTo uint64 // the newest change of that Publish: the next one begins with the same changes
	reloading bool   // the back-off is over, and the changes to try again with are to be read first

	// scheduled means that the lane is in the workqueue, in the hands of a worker or waiting out a back-off. Whoever
	// sets it must add the lane to the workqueue. Adding only then keeps the dispatcher from cutting a back-off short.
	scheduled  bool
	publishing bool // a worker has it
	paused     bool // it is about to be repartitioned

	membership   laneMembership // the sets of the backlog that hold it
	usedRecently bool           // since the last look for idle lanes
	delivering   bool           // the last Publish was accepted

	// Of the worker that has the lane.
	destination        *destination // see breaker.of
	toleratedOffset    uint64       // the change that was rejected last, and is to be a dead letter; see breaker
	unavailableSince   uint64       // one more than were accepted when it was told first that the sink is away; 0: it was not
	storeBeforePublish bool         // a dead letter must be durable before the next Publish, see sinks.Stateful
}

// entry is one queued change.
type entry struct {
	offset uint64
	change *event.Change
	size   int             // change.Size(), with whole.Size() where there is one
	topic  *sinks.Template // see sinks.Message

	original  *event.Change // what change was made of where it was too large, and what a dead letter holds; else nil
	rejection error         // why no lane of the sink takes it; else nil
}

// originalRecord is the change as it was read.
func (e entry) originalRecord() event.Record {
	if e.original != nil {
		e.change = e.original
	}
	return event.Record{Offset: e.offset, Change: e.change}
}

// withOwnChange returns e with a change that is its own. What was read aliases its journal frame: a small change of a lane that does
// not advance would keep a whole frame alive, and a window of such changes thousands of them (I6).
func (e entry) withOwnChange() entry {
	e.change = e.change.Clone()
	return e
}

// newEntry returns r as an entry.
func newEntry(r event.Record, topic *sinks.Template, rejected error) entry {
	return entry{offset: r.Offset, change: r.Change, size: r.Change.Size(), topic: topic, rejection: rejected}
}

// pendingEntries returns the entries not yet settled, oldest first.
func (l *lane) pendingEntries() []entry { return l.entries[l.head:] }

// appendEntry appends e. The space of popped entries is used again, so that a lane in steady flow does not allocate.
func (l *lane) appendEntry(e entry) {
	if len(l.entries) == cap(l.entries) && l.head > len(l.entries)/2 {
		n := copy(l.entries, l.entries[l.head:])
		clear(l.entries[n:])
		l.entries, l.head = l.entries[:n], 0
	}
	l.entries = append(l.entries, e)
}

// popEntry removes and returns the oldest entry.
func (l *lane) popEntry() entry {
	e := l.entries[l.head]
	l.entries[l.head] = entry{} // lets go of the change
	l.head++
	if l.head == len(l.entries) {
		l.entries, l.head = l.entries[:0], 0
	}
	return e
}

// truncateQueue drops all but the n oldest entries.
func (l *lane) truncateQueue(n int) {
	clear(l.entries[l.head+n:])
	l.entries = l.entries[:l.head+n]
	if n == 0 {
		l.entries, l.head = nil, 0
	}
}

// settledUpTo returns the offset up to which every change of the lane is settled; read is how far the journal was read.
func (l *lane) settledUpTo(read uint64) uint64 {
	switch p := l.pendingEntries(); {
	case len(p) > 0:
		return p[0].offset - 1
	case l.lagsFrom > 0:
		return l.lagsFrom - 1
	default:
		return max(read, l.settled)
	}
}

// oldestObserved returns when the oldest change that is not settled was observed; zero when that is not known, or there is none.
func (l *lane) oldestObserved() time.Time {
	if p := l.pendingEntries(); len(p) > 0 {
		return p[0].change.ObservedAt
	}
	return l.lagObserved
}
