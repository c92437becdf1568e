package deltas

import (
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Replace takes a list and the resourceVersion it is true at. What it means is the list's Origin. On Resumed the list is
// not looked at: nothing was read from the API server. On First it is a snapshot, and Replace returns when that is told
// whole. Else it waits until everything queued before is appended, so that a gap record stands in the stream where the gap is.
func (q *Queue) Replace(list []any, resourceVersion string) error {
	origin := q.cfg.Origin()
	if origin.Kind == Resumed {
		return q.Bookmark(resourceVersion)
	}
	if err := q.drain(); err != nil {
		return err
	}
	if origin.Kind == First {
		return q.takeSnapshot(list, resourceVersion, origin)
	}
	if origin.Reason != "" {
		if err := q.tell(Observation{Changes: []*event.Change{q.gap(origin, resourceVersion)}}); err != nil {
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
	if q.retell {
		return o, nil
	}
	if known := q.known.get(o.Key()); !q.wanted(o) || o.is(known) {
		id := o.identity()
		if known.Summary == "" {
			id.Summary = o.Summary // it is to be remembered, see step.listed
		}
		return id, nil
	}
	origin := q.cfg.Origin()
	if origin.Kind != First || origin.Reason != "" && q.snapshot == nil {
		return o, nil
	}
	if err := q.beginSnapshot(); err != nil {
		return nil, err
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
	objects, err := q.objectsOf(list)
	if err != nil {
		return err
	}
	if err := q.compare(objects, resourceVersion, kind); err != nil {
		return err
	}
	// The list's own resourceVersion is reached when every item and every tombstone before it is.
	return q.pass(func() { q.ledger.enter(resourceVersion, true) })
}

// objectsOf returns the objects of a list that are wanted.
func (q *Queue) objectsOf(list []any) ([]*Object, error) {
	objects := make([]*Object, 0, len(list))
	for _, obj := range list {
		o, ok := obj.(*Object)
		if !ok {
			return nil, fmt.Errorf("deltas: list carries %T, want *deltas.Object", obj)
		}
		if q.wanted(o) {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// compare queues the objects of a list that differ from what is known, and a tombstone for everything known that it lacks.
// Everything queued before is appended, so that what is known now is what is known when they are popped. Most of a large
// list is known: it was staged, or did not change. To queue that as well would take more memory than to know it.
func (q *Queue) compare(objects []*Object, resourceVersion string, kind OriginKind) error {
	now := q.cfg.Now()
	q.stats.event(now)
	unchanged := make(map[string]struct{}, len(objects))
	var items []any
	for _, o := range objects {
		if known := q.known.get(o.Key()); !q.retell && saysNothing(known, o) {
			unchanged[o.Key()] = struct{}{}
		} else {
			items = append(items, q.listed(o, kind))
		}
	}
	q.known.unchanged = unchanged
	q.known.tombstone = func(k event.Known) *item {
		it := q.listed(stub(k, now), kind)
		q.order.Lock()
		defer q.order.Unlock()
		q.deleting.mark(it.Key(), it.number)
		return it
	}
	defer func() { q.known.tombstone, q.known.unchanged = nil, nil }()
	return q.fifo.Replace(items, resourceVersion)
}

// listed wraps an object of a list. It has a number but no place in history: by itself it moves no position.
func (q *Queue) listed(o *Object, kind OriginKind) *item {
	q.order.Lock()
	defer q.order.Unlock()
	return &item{Object: o, number: q.ledger.enter("", false), origin: kind, snapshot: q.snapshot, retell: q.retell}
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

func (q *Queue) gap(origin Origin, to string) *event.Change {
	c := q.scope().control(event.Gap, to, q.cfg.Now())
	c.Gap = &event.GapInfo{From: origin.From, To: to, Reason: origin.Reason}
	return c
}

// tell appends what concerns the whole scope.
func (q *Queue) tell(o Observation) error {
	q.order.Lock()
	defer q.order.Unlock()
	o.Scope = q.cfg.Scope.ID
	q.stats.count(o.Changes)
	return q.append(q.life, o)
}
