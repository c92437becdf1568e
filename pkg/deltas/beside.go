package deltas

import (
	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// sinkSnapshot is a snapshot for one sink, which is emitted between live changes. It has each object once that is known when
// it starts: as it is read, or, if a watch event comes first, as that leaves it. So it does not depend on what the reading
// finds, nor on what filters make of the live changes, and it is complete once every known object was seen in its pass.
type sinkSnapshot struct {
	request  event.SnapshotRequest
	id       string
	position string // of the scope at the start
	sum      sum    // of its records
	absent   int    // objects that were chosen and do not exist
}

// isPartial reports whether the snapshot has only chosen objects, so that what it lacks may exist.
func (s *sinkSnapshot) isPartial() bool { return s.request.Objects != "" }

// StartSnapshot starts the snapshot that is requested for one sink, under an ID, and returns the observation with its begin
// record. position is that of the scope. It replaces one that is in progress, and a list ends it.
//
// If objects are chosen, those that do not exist at the position are deleted right after the begin: the sink may have
// records of them that the exporter has not written. One that is created later has a higher version, and its change comes
// behind.
func (t *Tracker) StartSnapshot(r event.SnapshotRequest, id, position string) event.Observation {
	t.beside = &sinkSnapshot{request: r, id: id, position: position}
	chosen, absent := t.chooseObjects(r)
	t.known.startCountedPass(r.Namespace, chosen)
	begin := t.NewSnapshotBegin(id)
	if t.beside.isPartial() {
		begin.Type = event.PartialBegin
	}
	t.beside.addressRecord(begin)
	changes := []*event.Change{begin}
	for _, key := range absent {
		changes = append(changes, t.newAbsent(key))
	}
	t.beside.absent = len(absent)
	return t.NewObservation(changes...)
}

// chooseObjects returns the objects of a request that the scope can have, nil for all, and those of them that do not exist.
// An object that only some sinks have is neither: the watch is about to bring it to all of them.
func (t *Tracker) chooseObjects(r event.SnapshotRequest) (chosen map[string]bool, absent []string) {
	if r.Objects == "" {
		return nil, nil
	}
	chosen = map[string]bool{}
	for _, key := range r.ObjectKeys() {
		if namespace, _ := splitKey(key); t.scope.Namespace != "" && namespace != t.scope.Namespace {
			continue
		}
		if known := t.known.lookupKey(key); known.UID != "" {
			chosen[key] = true
		} else if !known.Exists() {
			absent = append(absent, key)
		}
	}
	return chosen, absent
}

// newAbsent returns the delete of an object that does not exist at the position of the snapshot. Its UID is not known.
func (t *Tracker) newAbsent(key string) *event.Change {
	s := t.beside
	c := t.scope.newControlRecord(event.Deleted, s.position, t.now())
	c.Namespace, c.Name = splitKey(key)
	c.Delta, c.ListVersion = event.DeltaDeleted, s.position
	c.Coalesced, c.FinalStateUnknown, c.Pass = true, true, s.id+"/"+key
	c.Snapshot, c.OnlySink = &event.SnapshotInfo{ID: s.id}, s.request.Sink
	return c
}

// ObserveExisting processes objects that were read for the snapshot, by a list at this resourceVersion. Objects that the
// snapshot has are left out, and so are those that are not in the known version: for them the watch brings a change.
func (t *Tracker) ObserveExisting(objects []*Object, listVersion string) (event.Observation, error) {
	var missing []*Object
	for _, o := range objects {
		if t.known.isUnseen(o.Key()) {
			missing = append(missing, o)
		}
	}
	return t.observeBeside(missing, t.beside.listAt(listVersion))
}

// addToSnapshot counts the changes of an object that are records of the snapshot, and returns another one if a watch event
// has changed an object that the snapshot does not have yet. before and after are what is known of it.
func (t *Tracker) addToSnapshot(before, after event.Known, changes []*event.Change, ds cache.Deltas) []*event.Change {
	s := t.beside
	if s == nil || len(changes) == 0 {
		return changes
	}
	switch {
	case t.list != nil && t.list.Snapshot == nil: // a resync
	case t.list != nil:
		s.addRecords(changes)
	case before.UID == after.UID && t.known.isUnseen(before.Key):
		if c := stepChangedBeside(t.scope, s, after, ds); c != nil {
			s.addRecords([]*event.Change{c})
			return append(changes, c)
		}
	}
	return changes
}

// listAt returns how objects are interpreted that are read for the snapshot at a resourceVersion.
func (s *sinkSnapshot) listAt(position string) List {
	return List{Snapshot: &event.SnapshotInfo{ID: s.id}, OnlySink: s.request.Sink, Position: position, Beside: true}
}

func (s *sinkSnapshot) addRecords(changes []*event.Change) {
	for _, c := range changes {
		s.sum.digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
		s.sum.count++
	}
}

// MissingInSnapshot returns how many of the known objects the snapshot still lacks, and false if none is in progress.
func (t *Tracker) MissingInSnapshot() (missing int, inProgress bool) {
	return t.known.unseen, t.beside != nil
}

// FinishSnapshot ends the snapshot and returns the observation with its end record, which ends the request. It is complete
// up to the position at which it has started: what has changed since carries a higher version.
func (t *Tracker) FinishSnapshot() event.Observation {
	s := t.beside
	kind := event.SnapshotEnd
	if s.isPartial() {
		kind = event.PartialEnd
	}
	o := t.endSnapshot(kind)
	o.EndedRequest, o.EndedCount, o.EndedAbsent = s.request.ID, s.sum.count, s.absent
	return o
}

// CancelSnapshot ends the snapshot, if one is in progress, without being whole.
func (t *Tracker) CancelSnapshot() event.Observation {
	if t.beside == nil {
		return t.NewObservation()
	}
	return t.endSnapshot(event.PartialEnd)
}

// endSnapshot returns the observation with the end record of the snapshot.
func (t *Tracker) endSnapshot(kind event.Type) event.Observation {
	s := t.beside
	t.beside = nil
	end := t.scope.newControlRecord(kind, s.position, t.now())
	s.addressRecord(end)
	end.Snapshot = &event.SnapshotInfo{ID: s.id, Position: s.position, Count: s.sum.count, Digest: s.sum.digest.String()}
	return t.NewObservation(end)
}

// addressRecord addresses a control record to the sink, and to the namespace if the snapshot has only that.
func (s *sinkSnapshot) addressRecord(c *event.Change) {
	c.OnlySink = s.request.Sink
	if s.request.Namespace != "" {
		c.Namespace = s.request.Namespace
	}
}
