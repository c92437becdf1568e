package journal

import (
	"errors"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// observeBorder appends the beginning or the end of a snapshot of Pods, for one sink or, "", for all.
func observeBorder(j *runningJournal, kind event.Type, id, sink string) {
	j.t.Helper()
	c := &event.Change{Type: kind, Cluster: "c", Resource: resourceNamed("pods"), OnlySink: sink, Snapshot: &event.SnapshotInfo{ID: id}}
	if kind == event.SnapshotEnd {
		c.Snapshot.Position = "100"
	}
	j.mustAppend(event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: c.Snapshot.Position})
}

// standing returns the delete of a row of a Pod in a version.
func standing(n int, version string) *event.Change {
	c := podChange(n, 0)
	return &event.Change{Type: event.Deleted, Cluster: "c", Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: version}
}

// removed returns how many of the rows were orphans.
func removed(j *runningJournal, r *OrphanReading, p OrphanPass, rows ...*event.Change) int {
	j.t.Helper()
	n, err := j.RemoveOrphans(j.t.Context(), r, p, rows)
	if err != nil {
		j.t.Fatal(err)
	}
	return n
}

func beginReading(j *runningJournal) *OrphanReading {
	j.t.Helper()
	r, _, err := j.BeginOrphanReading(j.t.Context(), "table")
	if err != nil {
		j.t.Fatal(err)
	}
	return r
}

// TestAPassIsDueBehindASnapshotUntilItHasEnded, over restarts, and under the name that its sink has now.
func TestAPassIsDueBehindASnapshotUntilItHasEnded(t *testing.T) {
	opts := Options{
		Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"table", "late", "stream"}, ReadBack: []string{"table", "late"}, Starts: map[string]Start{"late": StartNow}, Destinations: map[string]string{"table": "there"}},
	}
	j := startJournal(t, opts)
	observeBorder(j, event.SnapshotBegin, "1", "")
	j.waitFor(1)
	if due := j.OrphanPasses("table"); len(due) != 0 {
		t.Errorf("due before the end: %+v", due)
	}
	observeBorder(j, event.SnapshotEnd, "1", "")
	j.waitFor(2)
	if len(j.OrphanPasses("stream")) != 0 || len(j.OrphanPasses("late")) != 0 {
		t.Error("a pass is due for a sink that is not read back, or did not get the snapshot")
	}
	j.stopAndClose()
	opts.Sinks, opts.ReadBack, opts.Destinations = []string{"rows", "late", "stream"}, []string{"rows", "late"}, map[string]string{"rows": "there"}
	j = startJournal(t, opts)
	due := j.OrphanPasses("rows")
	if len(due) != 1 || due[0].Snapshot != "1" || due[0].Position != "100" || due[0].Offset != 2 {
		t.Fatalf("due are %+v", due)
	}
	observeBorder(j, event.SnapshotBegin, "2", "")
	j.waitFor(3)
	if _, err := j.RemoveOrphans(t.Context(), beginReading(j), due[0], nil); !errors.Is(err, ErrOutrun) || len(j.OrphanPasses("rows")) != 0 {
		t.Errorf("the next snapshot has begun, and the pass of the last one goes on: %v", err)
	}
	observeBorder(j, event.SnapshotEnd, "3", "late")
	j.waitFor(4)
	if err := j.RemoveOrphanPass(t.Context(), j.OrphanPasses("late")[0]); err != nil || len(j.OrphanPasses("late")) != 0 {
		t.Errorf("still due: %+v, %v", j.OrphanPasses("late"), err)
	}
}

// TestOnlyOrphansGetDeletes: not what exists in the version that stands there, nor what has changed since the snapshot or
// while the destination was read, in whatever way.
func TestOnlyOrphansGetDeletes(t *testing.T) {
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"table"}, ReadBack: []string{"table"}}})
	observePod(j, 1, "50")  // stands there
	observePod(j, 2, "60")  // its record of the snapshot did not get there
	observePod(j, 3, "120") // has changed since the snapshot, which the sink does not get
	observeBorder(j, event.SnapshotEnd, "1", "")
	j.waitFor(4)
	pass, reading := j.OrphanPasses("table")[0], beginReading(j)
	observePod(j, 4, "70")      // selected since, by edited rules
	filtered := podChange(5, 0) // a change that a filter leaves out
	known := event.Known{Key: filtered.Namespace + "/" + filtered.Name, UID: filtered.UID, ResourceVersion: "80"}
	j.mustAppend(event.Observation{Resource: filtered.Resource, Scope: "pods", Known: []event.Known{known}, Position: "130"})
	other := standing(6, "40")
	other.OnlySink = "other"
	j.mustAppend(event.Observation{Resource: other.Resource, Scope: "pods", Changes: []*event.Change{other}}) // an orphan there, too
	rows := []*event.Change{standing(1, "50"), standing(2, "40"), standing(3, "40"), standing(4, "40"), standing(5, "40"), standing(6, "40")}
	if n := removed(j, reading, pass, rows...); n != 2 {
		t.Errorf("%d deletes were appended", n)
	}
	if n := removed(j, reading, pass, standing(6, "40")); n != 0 {
		t.Errorf("%d deletes were appended twice", n)
	}
	records := j.readTo(6, 8)
	for i, want := range []int{2, 6} {
		if c := records[i].Change; c.Type != event.Deleted || c.OnlySink != "table" || c.Name != standing(want, "").Name {
			t.Errorf("record %d is %+v", i, c)
		}
	}
	j.EndOrphanReading(t.Context(), reading)
	if reading = beginReading(j); removed(j, reading, pass, standing(5, "40")) != 1 {
		t.Error("what was read again, and is still of an older version, gets no delete")
	}
}

// TestTooManyChangesWhileADestinationIsReadEndThat, so that memory stays bounded.
func TestTooManyChangesWhileADestinationIsReadEndThat(t *testing.T) {
	j := startJournal(t, Options{Dir: t.TempDir(), Declaration: Declaration{Sinks: []string{"table"}, ReadBack: []string{"table"}}})
	observeBorder(j, event.SnapshotEnd, "1", "")
	j.waitFor(1)
	pass, reading := j.OrphanPasses("table")[0], beginReading(j)
	keys := make([]string, maxTouched)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	j.mustAppend(event.Observation{Resource: resourceNamed("pods"), Scope: "pods", RemovedKeys: keys, Position: "200"})
	if _, err := j.RemoveOrphans(t.Context(), reading, pass, nil); !errors.Is(err, ErrOutrun) {
		t.Errorf("the reading goes on: %v", err)
	}
}
