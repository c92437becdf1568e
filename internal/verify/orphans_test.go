package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// newTable is a destination of rows. Every row has a key of its own, as the destination compares it.
func newTable(t *testing.T, lanes int) *world {
	w := newWorld(t, 1, lanes)
	w.replaces = true
	return w
}

// add appends the row of a change, in the native form.
func (w *world) add(lane int, c *event.Change) { w.addRow(lane, c.Key(), format.AppendJSON(nil, c)) }

// addRow appends a row; one without a value removes the key.
func (w *world) addRow(lane int, key string, value []byte) {
	w.lanes[lane] = append(w.lanes[lane], stored{at: int64(len(w.lanes[lane])), change: &event.Change{}, key: key, value: value})
}

func rowOf(cluster, namespace, name, version string) *event.Change {
	return &event.Change{
		Type: event.Added, Cluster: cluster, Resource: pods, Namespace: namespace, Name: name, UID: "uid-" + name,
		ResourceVersion: version, After: []byte(`{"kind":"Pod"}`),
	}
}

// orphans returns what is found behind a snapshot at version 1000, as "namespace/name@version".
func (w *world) orphans(namespace string, held int) []string {
	w.t.Helper()
	o := &Orphans{Reader: w, Cluster: "c", MaxRows: held, Snapshots: []EndedSnapshot{{Resource: pods, Namespace: namespace, ID: "7", Position: "1000"}}}
	found := map[string]bool{}
	if err := o.Find(w.t.Context(), func(snapshot int, rows []*event.Change) error {
		if held > 0 && len(rows) > held || snapshot != 0 {
			w.t.Errorf("%d rows at once, of snapshot %d", len(rows), snapshot)
		}
		for _, r := range rows {
			if r.Type != event.Deleted || !r.FinalStateUnknown || r.Cluster != "c" || r.ID() != fmt.Sprintf("c/%s/%s/deleted/7", r.UID, r.ResourceVersion) {
				w.t.Errorf("found %+v", r)
			}
			found[r.Namespace+"/"+r.Name+"@"+r.ResourceVersion] = true
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(found))
}

func TestOrphansAreRowsThatTheSnapshotWouldHaveReplaced(t *testing.T) {
	all := newTable(t, 1)
	listed := rowOf("c", "ns", "listed", "30")
	listed.Type, listed.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"}
	gone := rowOf("c", "ns", "gone", "41")
	gone.Type, gone.After = event.Deleted, nil
	node := rowOf("c", "", "node", "5")
	node.Resource = event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}
	for _, c := range []*event.Change{
		rowOf("c", "ns", "ghost", "10"), rowOf("c", "ns", "ghost", "11"), rowOf("c", "other", "ghost", "12"), rowOf("c", "ns", "listed", "30"),
		listed, rowOf("c", "ns", "gone", "40"), gone, rowOf("c", "ns", "later", "1001"), rowOf("d", "ns", "theirs", "13"), node,
		rowOf("c", "ns", "overwritten", "14"), rowOf("c", "ns", "purged", "15"),
	} {
		all.add(0, c)
	}
	all.addRow(0, rowOf("c", "ns", "overwritten", "").Key(), []byte("theirs"))
	all.addRow(0, rowOf("c", "ns", "purged", "").Key(), nil)
	if got := all.orphans("", 0); !slices.Equal(got, []string{"ns/ghost@11", "other/ghost@12"}) {
		t.Errorf("found %q", got)
	}
	if got := all.orphans("other", 0); !slices.Equal(got, []string{"other/ghost@12"}) {
		t.Errorf("in one namespace, found %q", got)
	}
}

// TestARowWithANewerOneInAnotherLaneIsNoOrphan: a topic has grown, and the object goes to another partition.
func TestARowWithANewerOneInAnotherLaneIsNoOrphan(t *testing.T) {
	all := newTable(t, 2)
	all.add(0, rowOf("c", "ns", "moved", "10"))
	listed := rowOf("c", "ns", "moved", "20")
	listed.Type, listed.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"}
	all.add(1, listed)
	all.add(0, rowOf("c", "ns", "ghost", "11"))
	all.add(1, rowOf("c", "ns", "ghost", "12"))
	if got := all.orphans("", 0); len(got) == 0 || slices.ContainsFunc(got, func(o string) bool { return !strings.HasPrefix(o, "ns/ghost@") }) {
		t.Errorf("found %q", got)
	}
}

func TestMoreOrphansThanCanBeHeldAreFoundInParts(t *testing.T) {
	all := newTable(t, 3)
	var want []string
	for i := range 200 {
		c := rowOf("c", "ns", fmt.Sprintf("ghost-%03d", i), "10")
		all.add(i%3, c)
		want = append(want, "ns/"+c.Name+"@10")
	}
	if got := all.orphans("", 7); !slices.Equal(got, want) {
		t.Errorf("found %d of %d", len(got), len(want))
	}
}
