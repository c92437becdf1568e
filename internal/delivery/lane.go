package delivery

import (
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// lane is the queue of one ordered channel of the destination and how far that channel got. All fields but failing
// and buried belong to the [backlog], which guards them by its lock.
type lane struct {
	name    sinks.Lane
	settled uint64 // every change of this lane up to here is acknowledged or a dead letter

	entries []entry // from head on: waiting or in flight, ascending by offset
	head    int

	// scheduled means that the lane is in the workqueue, in the hands of a worker or waiting out a back-off. Whoever
	// sets it must add the lane to the workqueue. Adding only then keeps the dispatcher from cutting a back-off short.
	scheduled bool

	failing bool // the last Publish failed; belongs to the worker that has the lane
	buried  bool // a dead letter must be durable before the next Publish, see sinks.Stateful; likewise
}

// entry is one queued change.
type entry struct {
	offset uint64
	change *event.Change
	size   int  // change.Size(), with whole.Size() where there is one
	owned  bool // the change aliases nothing: it was cloned

	topic *sinks.Template // see sinks.Message

	whole *event.Change // what change was made of where it was too large, and what a dead letter holds; else nil
}

// pending returns the entries not yet settled, oldest first.
func (l *lane) pending() []entry { return l.entries[l.head:] }

// push appends e. The space of popped entries is used again, so that a lane in steady flow does not allocate.
func (l *lane) push(e entry) {
	if len(l.entries) == cap(l.entries) && l.head > len(l.entries)/2 {
		n := copy(l.entries, l.entries[l.head:])
		clear(l.entries[n:])
		l.entries, l.head = l.entries[:n], 0
	}
	l.entries = append(l.entries, e)
}

// pop removes and returns the oldest entry.
func (l *lane) pop() entry {
	e := l.entries[l.head]
	l.entries[l.head] = entry{} // lets go of the change
	l.head++
	if l.head == len(l.entries) {
		l.entries, l.head = l.entries[:0], 0
	}
	return e
}
