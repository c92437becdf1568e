package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// table is a destination of rows, by lane. Every row has a key of its own, as the destination compares it.
type table [][]sinks.StoredRecord

// add appends the row of a change, in the native form.
func (t table) add(lane int, c *event.Change) {
	value, key := format.AppendJSON(nil, c), c.Key()
	t.addRecord(lane, sinks.StoredRecord{Key: key, Value: value, Header: func(string) string { return "" }})
}

func (t table) addRecord(lane int, r sinks.StoredRecord) {
	r.Lane, r.Position = lane, int64(len(t[lane]))
	t[lane] = append(t[lane], r)
}

// StoredLanes implements [sinks.StoredReader].
func (t table) Targets(context.Context, ...string) ([]string, error) { return nil, nil }

func (t table) StoredLanes(context.Context, string) (lanes []sinks.StoredLane, _ error) {
	for i := range t {
		lanes = append(lanes, sinks.StoredLane{Index: i, Count: len(t), End: int64(len(t[i])), Replaces: true})
	}
	return lanes, nil
}

// ReadStored implements [sinks.StoredReader].
func (t table) ReadStored(_ context.Context, spans []sinks.StoredSpan, each func(sinks.StoredRecord) error) error {
	for _, s := range spans {
		for _, r := range t[s.Index][s.From:s.To] {
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close implements [sinks.StoredReader].
func (table) Close(context.Context) error { return nil }

func rowOf(cluster, namespace, name, version string) *event.Change {
	return &event.Change{
		Type: event.Added, Cluster: cluster, Resource: pods, Namespace: namespace, Name: name, UID: "uid-" + name,
		ResourceVersion: version, After: []byte(`{"kind":"Pod"}`),
	}
}

// orphans returns what is found behind a snapshot at version 1000, as "namespace/name@version".
func (t table) orphans(test *testing.T, namespace string, held int) []string {
	test.Helper()
	o := &Orphans{Reader: t, Cluster: "c", MaxRows: held, Snapshots: []EndedSnapshot{{Resource: pods, Namespace: namespace, ID: "7", Position: "1000"}}}
	found := map[string]bool{}
	if err := o.Find(test.Context(), func(snapshot int, rows []*event.Change) error {
		if held > 0 && len(rows) > held || snapshot != 0 {
			test.Errorf("%d rows at once, of snapshot %d", len(rows), snapshot)
		}
		for _, r := range rows {
			if r.Type != event.Deleted || !r.FinalStateUnknown || r.Cluster != "c" || r.ID() != fmt.Sprintf("c/%s/%s/deleted/7", r.UID, r.ResourceVersion) {
				test.Errorf("found %+v", r)
			}
			found[r.Namespace+"/"+r.Name+"@"+r.ResourceVersion] = true
		}
		return nil
	}); err != nil {
		test.Fatal(err)
	}
	return slices.Sorted(maps.Keys(found))
}

func TestOrphansAreRowsThatTheSnapshotWouldHaveReplaced(t *testing.T) {
	all := make(table, 1)
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
	header := func(string) string { return "" }
	all.addRecord(0, sinks.StoredRecord{Key: rowOf("c", "ns", "overwritten", "").Key(), Value: []byte("theirs"), Header: header})
	all.addRecord(0, sinks.StoredRecord{Key: rowOf("c", "ns", "purged", "").Key(), RemovesUnnamed: true, Header: header})
	if got := all.orphans(t, "", 0); !slices.Equal(got, []string{"ns/ghost@11", "other/ghost@12"}) {
		t.Errorf("found %q", got)
	}
	if got := all.orphans(t, "other", 0); !slices.Equal(got, []string{"other/ghost@12"}) {
		t.Errorf("in one namespace, found %q", got)
	}
}

// TestARowWithANewerOneInAnotherLaneIsNoOrphan: a topic has grown, and the object goes to another partition.
func TestARowWithANewerOneInAnotherLaneIsNoOrphan(t *testing.T) {
	all := make(table, 2)
	all.add(0, rowOf("c", "ns", "moved", "10"))
	listed := rowOf("c", "ns", "moved", "20")
	listed.Type, listed.Snapshot = event.Snapshot, &event.SnapshotInfo{ID: "7"}
	all.add(1, listed)
	all.add(0, rowOf("c", "ns", "ghost", "11"))
	all.add(1, rowOf("c", "ns", "ghost", "12"))
	if got := all.orphans(t, "", 0); len(got) == 0 || slices.ContainsFunc(got, func(o string) bool { return !strings.HasPrefix(o, "ns/ghost@") }) {
		t.Errorf("found %q", got)
	}
}

func TestMoreOrphansThanCanBeHeldAreFoundInParts(t *testing.T) {
	all := make(table, 3)
	var want []string
	for i := range 200 {
		c := rowOf("c", "ns", fmt.Sprintf("ghost-%03d", i), "10")
		all.add(i%3, c)
		want = append(want, "ns/"+c.Name+"@10")
	}
	if got := all.orphans(t, "", 7); !slices.Equal(got, want) {
		t.Errorf("found %d of %d", len(got), len(want))
	}
}
