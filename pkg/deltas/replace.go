package deltas

import (
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Replace takes a list and the resourceVersion it is true at. What it means is the list's Origin. On Resumed the list is
// not looked at: nothing was read from the API server.
//
// It waits until everything queued before is appended, so that a gap record stands in the stream where the gap is.
func (q *Queue) Replace(list []any, resourceVersion string) error {
	origin := q.cfg.Origin()
	if origin.Kind == Resumed {
		return q.Bookmark(resourceVersion)
	}
	if err := q.drain(); err != nil {
		return err
	}
	if origin.Reason != "" {
		if err := q.tellGap(origin, resourceVersion); err != nil {
			return err
		}
	}
	return q.replace(list, resourceVersion, origin.Kind)
}

// Stage takes an object of a list that is still being read, so that the bodies of a large list need not be in memory at
// once. It returns what may go into the list in its place: an identity without a body where the body is not needed any
// more, else the object itself. The list must follow with Replace, which finds what is staged already told; a list that
// never comes, because the process or the connection ended, does no harm, since nothing staged moves the position.
//
// On First the object is told at once. Where a gap record has to come before it, it is not, because that record needs the
// list's resourceVersion; but of what did not change the body is not needed, and after a gap that is most of it.
//
// It is called from the goroutine that reads the list, while the Reflector waits for the end of it.
func (q *Queue) Stage(o *Object) (*Object, error) {
	if known := q.known.get(o.Key()); !q.wanted(o) || o.is(known) {
		id := o.identity()
		if known.Summary == "" {
			id.Summary = o.Summary // it is to be remembered, see step.listed
		}
		return id, nil
	}
	if origin := q.cfg.Origin(); origin.Kind != First || origin.Reason != "" {
		return o, nil
	}
	it := q.listed(o, First)
	it.staged = true
	if err := q.fifo.Add(it); err != nil {
		return nil, err
	}
	return o.identity(), nil
}

// Vanish takes the news that the resource is no longer served: every object still known is told deleted.
func (q *Queue) Vanish() error {
	if err := q.drain(); err != nil {
		return err
	}
	q.order.Lock()
	position := q.ledger.position
	q.order.Unlock()
	if err := q.replace(nil, position, Relisted); err != nil {
		return err
	}
	return q.drain()
}

func (q *Queue) replace(list []any, resourceVersion string, kind OriginKind) error {
	items := make([]any, 0, len(list))
	for _, obj := range list {
		o, ok := obj.(*Object)
		if !ok {
			return fmt.Errorf("deltas: list carries %T, want *deltas.Object", obj)
		}
		if q.wanted(o) {
			items = append(items, q.listed(o, kind))
		}
	}
	q.stats.event(q.cfg.Now())

	now := q.cfg.Now()
	q.known.tombstone = func(k event.Known) *item {
		it := q.listed(stub(k, now), kind)
		q.order.Lock()
		defer q.order.Unlock()
		q.deleting.mark(it.Key(), it.number)
		return it
	}
	defer func() { q.known.tombstone = nil }()
	if err := q.fifo.Replace(items, resourceVersion); err != nil {
		return err
	}
	// The list's own resourceVersion is reached when every item and every tombstone before it is.
	return q.pass(func() { q.ledger.enter(resourceVersion, true) })
}

// listed wraps an object of a list. It has a number but no place in history: by itself it moves no position.
func (q *Queue) listed(o *Object, kind OriginKind) *item {
	q.order.Lock()
	defer q.order.Unlock()
	return &item{Object: o, number: q.ledger.enter("", false), origin: kind}
}

// drain waits until everything that entered was appended.
func (q *Queue) drain() error {
	q.order.Lock()
	defer q.order.Unlock()
	for q.stopped == nil && !q.ledger.idle() {
		q.drained.Wait()
	}
	return q.stopped
}

func (q *Queue) tellGap(origin Origin, to string) error {
	gap := &event.Change{
		Type: event.Gap, Cluster: q.cfg.Scope.Cluster, Resource: q.scope().Resource,
		ResourceVersion: to, ObservedAt: q.cfg.Now(),
		Gap: &event.GapInfo{From: origin.From, To: to, Reason: origin.Reason},
	}
	q.order.Lock()
	defer q.order.Unlock()
	changes := []*event.Change{gap}
	q.stats.count(changes)
	return q.append(q.life, Observation{Scope: q.cfg.Scope.ID, Changes: changes})
}
