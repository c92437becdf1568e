package deltas

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// follower does with a tracker what pkg/source does with it, without an API server.
type follower struct {
	t       *testing.T
	tracker *Tracker
	stored  event.StoredScope
	append  func(event.Observation)
	newName func(prefix string) string // of a snapshot or a list

	lostAt string // the position that history was lost at, as long as the process lives
	list   List   // begun last
}

// put hands an observation over and notes how far the scope has come.
func (f *follower) put(o event.Observation, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	if len(o.Changes)+len(o.Known)+len(o.Forget) == 0 && o.Lost == "" && (o.Position == "" || o.Position == f.stored.Position) {
		return
	}
	checkObservation(f.t, o)
	f.append(o)
	storeScope(&f.stored, o)
}

// storeScope does what the journal does: a position ends everything else that is stored of a list.
func storeScope(s *event.StoredScope, o event.Observation) {
	if o.Lost != "" {
		s.Position, s.Snapshot, s.Lost = "", "", o.Lost
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.Lost, s.Pass = o.Position, "", ""
	}
}

// storeKnown does what the journal does with what is known.
func storeKnown(known map[string]event.Known, o event.Observation) {
	for _, k := range o.Known {
		known[k.Key] = k
	}
	for _, key := range o.Forget {
		delete(known, key)
	}
}

// checkObservation holds what every observation promises whoever stores it.
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
	for _, key := range o.Forget {
		if keys[key] {
			t.Errorf("%s is known and forgotten in one observation", key)
		}
		keys[key] = true
	}
}

// lose notes that the API server has no history behind the position.
func (f *follower) lose(why string) {
	f.lostAt = f.stored.Position
	f.stored.Position, f.stored.Snapshot, f.stored.Lost = "", "", why
}

// beginList begins a list with the records that must come before its objects (I5). newest is the position of now.
func (f *follower) beginList(newest string) {
	f.list = f.prepareList(newest)
	f.tracker.BeginList(f.list)
}

func (f *follower) prepareList(newest string) List {
	t, s := f.tracker, f.stored
	if s.Snapshot != "" { // it was stopped within that
		return List{Snapshot: &event.SnapshotInfo{ID: s.Snapshot}, Pass: s.Pass, Name: f.newName("L")}
	}
	if s.Lost == "" && t.Known() > 0 {
		s.Lost = "the first list was broken off"
	}
	var first []*event.Change
	if s.Lost != "" {
		first = append(first, t.Gap(f.lostAt, newest, s.Lost))
	}
	if t.Known() > 0 {
		o := t.Observe(first...)
		o.Lost = s.Lost
		f.put(o, nil)
		return List{Pass: s.Pass, Name: f.newName("L")}
	}
	id := f.newName("S")
	o := t.Observe(append(first, t.SnapshotBegin(id))...)
	o.Lost, o.Snapshot = s.Lost, id
	f.put(o, nil)
	return List{Snapshot: &event.SnapshotInfo{ID: id}, Name: f.newName("L")}
}

// beginAgain begins the list again after it was broken off.
func (f *follower) beginAgain() { f.tracker.BeginList(f.list) }

// missing puts what the list lacks.
func (f *follower) missing() {
	for more := true; more; {
		var o event.Observation
		var err error
		o, more, err = f.tracker.Missing()
		f.put(o, err)
	}
}

// endList ends the list.
func (f *follower) endList(position string) {
	f.missing()
	f.put(f.tracker.EndList(position), nil)
}

// gone puts that no known object is there any more; with a pass they only left the selection.
func (f *follower) gone(pass string) {
	f.tracker.BeginList(List{Pass: pass, Name: f.newName("L")})
	f.missing()
}
