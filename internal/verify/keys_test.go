package verify

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape/diff"
	"github.com/kubecdc/kubecdc/test/parts/planting"
)

// keptWorld has the objects a and b, and had the object gone, in a format: all of them were there before the exporter if
// listed is set. It replaces records of a key if replaces is set, as a compacted topic and a bucket do.
func keptWorld(t *testing.T, f format.Format, replaces, listed bool) (*world, planting.Objects) {
	w := newWorld(t, 1, 1)
	w.format, w.keyed, w.replaces = f, true, replaces
	for i, name := range []string{"a", "b", "gone"} {
		if w.change(name); listed {
			c := w.lanes[0][i].change
			c.Type, c.ListVersion, c.Snapshot = event.Snapshot, "105", &event.SnapshotInfo{ID: "1"}
			w.lanes[0][i] = w.encode(w.lanes[0][i].at, c)
		}
	}
	state := w.follow(0, event.Updated, 110)
	w.follow(2, event.Deleted, 150)
	w.mark()
	at := func(i int) planting.Record {
		r := w.lanes[0][i]
		return planting.Record{Key: r.key, Value: r.value, Headers: r.header}
	}
	return w, planting.Objects{
		Format: f, Older: at(0), Other: at(1), Former: at(2), Kept: at(3), Gone: at(4), Mark: at(5), State: state, Never: "never",
	}
}

// follow makes a change of the object of a record.
func (w *world) follow(record int, kind event.Type, at int) *event.Change {
	c := *w.lanes[0][record].change
	w.version, c.ListVersion, c.Snapshot = at, "", nil
	c.Type, c.ResourceVersion, c.Before, c.After = kind, strconv.Itoa(at), c.After, bodyOf(c.Name, c.UID, at)
	if w.now[c.Name] = (version{uid: c.UID, resourceVersion: c.ResourceVersion}); kind == event.Deleted {
		c.After = nil
		delete(w.now, c.Name)
	}
	w.appendRecord(0, &c)
	return &c
}

// plant adds a record, and a watermark behind it.
func (w *world) plant(r planting.Record) {
	last := w.lanes[0][len(w.lanes[0])-1]
	w.lanes[0] = append(w.lanes[0], stored{at: last.at + 1, change: &event.Change{}, key: r.Key, value: r.Value, header: r.Headers})
	w.mark()
}

// TestWhateverChangesWhatAReaderHasIsNamed for each plant, in each format, on a bus that replaces records and on one that
// does not; and nothing else is named.
func TestWhateverChangesWhatAReaderHasIsNamed(t *testing.T) {
	names := map[planting.Named]string{planting.Kept: "a", planting.Gone: "gone", planting.Never: "never"}
	for _, p := range planting.All() {
		for _, f := range format.All() {
			for _, how := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
				replaces, listed := how[0], how[1]
				t.Run(fmt.Sprintf("%s/%s/replacing %t/listed %t", p.Name, f, replaces, listed), func(t *testing.T) {
					w, objects := keptWorld(t, f, replaces, listed)
					for _, r := range p.Records(objects) {
						w.plant(r)
					}
					w.bodies = f != format.Upsert // what is named there needs none
					expected := names[p.Named]
					if p.Changes&planting.ReadersOf(f, replaces) == 0 {
						expected = "" // its readers pass over it
					}
					checkNamed(t, w.verify(), expected, p.Kind, f)
				})
			}
		}
	}
}

// checkNamed checks that one object is named, or none, by a word.
func checkNamed(t *testing.T, r *ScopeResult, expected, kind string, f format.Format) {
	t.Helper()
	named := slices.ContainsFunc(r.Differences, func(d Difference) bool {
		return d.Name == expected && (kind == "" || string(d.Kind) == kind || f == format.Debezium && kind == string(Different))
	})
	other := slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Name != expected })
	if other || named != (expected != "") || (r.Outcome == OutcomeEqual) != (expected == "") {
		t.Errorf("want %q %s, got %+v", expected, kind, r)
	}
}

// TestTheVersionInWhichAResourceIsServedIsNoDifference: objects that did not change since have the one before.
func TestTheVersionInWhichAResourceIsServedIsNoDifference(t *testing.T) {
	before, now := []byte(`{"apiVersion":"x/v1","kind":"A","spec":1}`), []byte(`{"apiVersion":"x/v2","kind":"A","spec":1}`)
	if diff.Hash(before, "apiVersion") != diff.Hash(now, "apiVersion") || firstPath(before, now) != samePath {
		t.Errorf("%s differs from %s at %s", before, now, firstPath(before, now))
	}
	if other := []byte(`{"apiVersion":"x/v2","kind":"A","spec":2}`); diff.Hash(before, "apiVersion") == diff.Hash(other, "apiVersion") || firstPath(before, other) != "/spec" {
		t.Errorf("%s does not differ from %s: %s", before, other, firstPath(before, other))
	}
}
