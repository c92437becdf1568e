package deltas

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// follower uses a tracker as pkg/source does, without an API server.
type follower struct {
	t       *testing.T
	tracker *Tracker
	stored  event.StoredScope
	append  func(event.Observation)
	newName func(prefix string) string // returns a name for a snapshot or a list

	lostAt string // the position at which history was lost, kept for the life of the process
	list   List   // the latest list
}

// storeObservation appends an observation and updates the stored position.
func (f *follower) storeObservation(o event.Observation, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	if len(o.Changes)+len(o.Known)+len(o.RemovedKeys) == 0 && o.LostReason == "" && (o.Position == "" || o.Position == f.stored.Position) {
		return
	}
	checkObservation(f.t, o)
	f.append(o)
	storeScope(&f.stored, o)
}

// storeScope updates the stored scope as the journal does: a position ends a list.
func storeScope(s *event.StoredScope, o event.Observation) {
	if o.LostReason != "" {
		s.Position, s.Snapshot, s.LostReason = "", "", o.LostReason
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.LostReason, s.Pass = o.Position, "", ""
	}
}

// storeKnown updates the known objects as the journal does.
func storeKnown(known map[string]event.Known, o event.Observation) {
	for _, k := range o.Known {
		known[k.Key] = k
	}
	for _, key := range o.RemovedKeys {
		delete(known, key)
	}
}

// checkObservation checks the invariants of a single observation.
func checkObservation(t *testing.T, o event.Observation) {
	t.Helper()
	if o.Scope == "" || o.Resource.Resource == "" {
		t.Errorf("an observation of scope %q, resource %+v", o.Scope, o.Resource)
	}
	keys := map[string]bool{}
	for _, k := range o.Known {
		if keys[k.Key] || !k.Exists() {
			t.Errorf("%+v is known twice in one observation, or without a UID", k)
		}
		keys[k.Key] = true
	}
	for _, key := range o.RemovedKeys {
		if keys[key] {
			t.Errorf("%s is both known and removed in one observation", key)
		}
		keys[key] = true
	}
}

// loseHistory records that the API server has compacted the history after the position.
func (f *follower) loseHistory(why string) {
	f.lostAt = f.stored.Position
	f.stored.Position, f.stored.Snapshot, f.stored.LostReason = "", "", why
}

// startList starts a list with the records that must precede its objects (I5). newest is the current position.
func (f *follower) startList(newest string) {
	f.list = f.prepareList(newest)
	f.tracker.StartList(f.list)
}

func (f *follower) prepareList(newest string) List {
	t, s := f.tracker, f.stored
	if s.Snapshot != "" { // the previous process ended within it
		return List{Snapshot: &event.SnapshotInfo{ID: s.Snapshot}, Pass: s.Pass, Name: f.newName("L")}
	}
	if s.LostReason == "" && t.KnownCount() > 0 {
		s.LostReason = "the first list was broken off"
	}
	var first []*event.Change
	if s.LostReason != "" {
		first = append(first, t.NewGap(f.lostAt, newest, s.LostReason))
	}
	if t.KnownCount() > 0 {
		o := t.NewObservation(first...)
		o.LostReason = s.LostReason
		f.storeObservation(o, nil)
		return List{Pass: s.Pass, Name: f.newName("L")}
	}
	id := f.newName("S")
	o := t.NewObservation(append(first, t.NewSnapshotBegin(id))...)
	o.LostReason, o.Snapshot = s.LostReason, id
	f.storeObservation(o, nil)
	return List{Snapshot: &event.SnapshotInfo{ID: id}, Name: f.newName("L")}
}

// restartList restarts the list after a failure.
func (f *follower) restartList() { f.tracker.StartList(f.list) }

// observeMissing appends the objects that the list lacks.
func (f *follower) observeMissing() {
	for more := true; more; {
		var o event.Observation
		var err error
		o, more, err = f.tracker.ObserveMissing()
		f.storeObservation(o, err)
	}
}

// finishList completes the list.
func (f *follower) finishList(position string) {
	f.observeMissing()
	f.storeObservation(f.tracker.FinishList(position), nil)
}

// observeAllGone appends the deletes of all known objects; with a pass they only left the selection.
func (f *follower) observeAllGone(pass string) {
	f.tracker.StartList(List{Pass: pass, Name: f.newName("L")})
	f.observeMissing()
}
