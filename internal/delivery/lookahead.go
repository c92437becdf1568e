package delivery

import (
	"context"
	"hash/maphash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// maxTriedPerAttempt bounds the changes that one retry of a suspected lane tries behind the rejected one. The next retry
	// continues behind them.
	maxTriedPerAttempt = 1000
	// maxTriedObjects bounds the objects that are remembered as tried. Then the look-ahead begins again at its head.
	maxTriedObjects = 10_000
)

// lookAhead looks in the journal for changes that a suspected destination accepts: those of the same lane behind the head,
// which it rejected. One acceptance proves the destination well; nothing is settled by it, and the lane begins with its head
// again. Of each object only the first change is tried: none may follow a newer one of its object that was accepted (I3).
type lookAhead struct {
	journal  Journal
	resolver *laneResolver
	backlog  *backlog

	mu   sync.Mutex
	last *aheadPosition // of the lane that looked ahead last; the others begin at their heads again, which bounds memory (I6)
}

// aheadPosition is how far the look-ahead of a lane has come. The worker that holds the lane owns it.
type aheadPosition struct {
	lane       sinks.Lane
	head, next uint64 // offsets: of the rejected change, and of the last one that was looked at
	tried      map[uint64]bool
}

var keySeed = maphash.MakeSeed()

// find returns whether accepts returns true for a change behind head. It tries a part of them, the following ones at the
// next call, and ends when accepts returns an error.
func (a *lookAhead) find(ctx context.Context, l *lane, head sinks.Message, accepts func(sinks.Message) (bool, error)) bool {
	at := a.positionOf(l.name, head)
	for tries := 0; tries < maxTriedPerAttempt && at.next < a.backlog.readPosition(); {
		records, err := a.journal.Read(ctx, at.next)
		if err != nil {
			return false // the readers of the pipeline report it
		}
		for _, record := range records {
			at.next = record.Offset
			m, ours := a.messageOf(record, l.name)
			key := keyHash(record.Change)
			if !ours || at.tried[key] {
				continue
			}
			at.tried[key] = true
			accepted, err := accepts(m)
			if accepted || err != nil {
				return accepted
			}
			if tries++; tries == maxTriedPerAttempt {
				break
			}
		}
	}
	return false
}

// positionOf returns where to continue: at the head if there is no other place.
func (a *lookAhead) positionOf(lane sinks.Lane, head sinks.Message) *aheadPosition {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.last; at == nil || at.lane != lane || at.head != head.Offset || at.next >= a.backlog.readPosition() || len(at.tried) >= maxTriedObjects {
		a.last = &aheadPosition{lane, head.Offset, head.Offset, map[uint64]bool{keyHash(head.Change): true}}
	}
	return a.last
}

// messageOf returns the message of a change, if that belongs to a lane and is not delivered yet. A watermark is none: it
// would claim that the head stands before it.
func (a *lookAhead) messageOf(record event.Record, lane sinks.Lane) (m sinks.Message, ok bool) {
	to := a.resolver.routeOf(record.Change)
	if to.Skip || record.Change.Type == event.Watermark {
		return m, false
	}
	a.resolver.mu.Lock()
	defer a.resolver.mu.Unlock()
	all, err := a.resolver.resolveLanes(record, to)
	if err != nil || len(all) != 1 || all[0].lane != lane || a.resolver.isAlreadyDelivered(all[0]) {
		return m, false
	}
	e := all[0].entry
	return sinks.Message{Offset: e.offset, Change: e.change, Topic: e.topic}, true
}

func keyHash(c *event.Change) uint64 { return maphash.String(keySeed, c.Key()) }
