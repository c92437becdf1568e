package deltas

import (
	"github.com/kubecdc/kubecdc/pkg/event"
)

// A snapshot is the first list of a scope: begin, every object, end. What was told of it is in the journal, and so is that
// it is in progress, which it is until there is a position. So a restart within it goes on with the same snapshot: what was
// told stays silent, the rest follows, then the end.

// beginSnapshot tells that a snapshot begins, behind what must come first, unless it has begun already.
func (q *Queue) beginSnapshot(first ...*event.Change) error {
	if q.snapshot != nil {
		return nil
	}
	begin := q.scope().control(event.SnapshotBegin, "", q.cfg.Now())
	begin.Snapshot = &event.SnapshotInfo{ID: q.cfg.SnapshotID()}
	q.snapshot = begin.Snapshot
	return q.tell(Observation{Changes: append(first, begin), Snapshot: begin.Snapshot.ID})
}

// takeSnapshot tells the first list of the scope, and its end when all of it is told: the end is where a consumer may rely
// on it, so nothing that is newer than the list stands before it.
func (q *Queue) takeSnapshot(list []any, resourceVersion string, origin Origin) error {
	var first []*event.Change
	if origin.Reason != "" {
		first = append(first, q.gap(origin, resourceVersion))
	}
	if err := q.beginSnapshot(first...); err != nil {
		return err
	}
	objects, err := q.objectsOf(list)
	if err != nil {
		return err
	}
	end := q.scope().control(event.SnapshotEnd, resourceVersion, q.cfg.Now())
	end.Snapshot = &event.SnapshotInfo{ID: q.snapshot.ID, Position: resourceVersion, Count: len(objects), Digest: digestOf(objects)}
	if err := q.compare(objects, resourceVersion, First); err != nil {
		return err
	}
	if err := q.drain(); err != nil {
		return err
	}
	q.snapshot, q.retell = nil, false
	q.order.Lock()
	defer q.order.Unlock()
	q.ledger.enter(resourceVersion, true) // with the end, so that there is a position only when that is told (I1)
	q.stats.count([]*event.Change{end})
	return q.append(q.life, Observation{
		Scope: q.cfg.Scope.ID, Changes: []*event.Change{end}, Forget: q.known.forgetGone(q.ledger.position),
	})
}

func digestOf(objects []*Object) string {
	var d event.Digest
	for _, o := range objects {
		d.Add(o.Namespace, o.Name, o.UID, o.ResourceVersion)
	}
	return d.String()
}
