package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/parts/values"
)

// theLast is created last of all.
const theLast = "the-last"

// widgets is the resource that the histories are about.
var widgets = consumer.Resource{Cluster: "e2e", Group: workload.WidgetGroup, Resource: "widgets"}

// TestStreamRebuildsEtcdAtEveryRevision lets custom resources live random lives, kills the exporter meanwhile,
// and rebuilds the selected ones from each bus by the reference consumer: at every revision they must be what etcd had. Each
// change must name its author.
func TestStreamRebuildsEtcdAtEveryRevision(t *testing.T) {
	require.Long(t)
	s := newFixture(t, []workload.Kind{workload.Widgets}, func(settings *exporter.Settings) {
		settings.Rule = map[string]any{
			"labelSelector": workload.SelectedLabel + "=yes", "namespaces": map[string]any{"include": []string{settings.Stream}},
			"before": "full", "changed": "values",
		}
	})
	seed := newRandom(t).Uint64()
	var writers writers
	live := func(half uint64) {
		s.must(s.cluster.Live(t.Context(), workload.Histories{
			Namespace: s.name, Objects: 600, Steps: 8, Clients: clients, Seed: seed + half, Wrote: writers.note,
		}))
	}
	s.must(s.exporter.Start(t.Context()))
	live(0)
	s.must(s.exporter.Kill())
	live(1)
	s.must(s.exporter.Start(t.Context()))
	// The object created last proves that everything before it has arrived.
	o := bus.Object{Group: workload.WidgetGroup, Resource: "widgets", Namespace: s.name, Name: theLast}
	s.must(s.cluster.CreateSelected(t.Context(), workload.Widgets, s.name, o.Name))
	for _, b := range s.buses {
		s.await(b, func(records []bus.Record) string { return s.lacks(records, o) })
	}
	s.must(s.exporter.Stop())
	s.receiveAll()
	h := s.history()
	for _, b := range s.buses {
		s.rebuild(b, h)
		writers.judge(t, b)
	}
}

// writers are the authors of each revision.
type writers struct {
	mu sync.Mutex
	of map[string]workload.Writer
}

func (w *writers) note(revision string, by workload.Writer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = make(map[string]workload.Writer)
	}
	if _, made := w.of[revision]; !made { // a write that changes nothing is answered with the revision that is there
		w.of[revision] = by
	}
}

// judge compares the actors on a bus with the writers. No actor may be named that did not write. An update that set fields,
// by a manager that had not written the object before, must name it; others may leave no trace, see docs/events.md.
func (w *writers) judge(t *testing.T, b *received) {
	t.Helper()
	named, silent := 0, 0
	for _, r := range b.records {
		var c struct {
			Coalesced bool
			Actor     *struct{ Manager, Operation, Subresource string }
		}
		if err := json.Unmarshal(r.Payload, &c); err != nil {
			t.Fatal(err)
		}
		by, known := w.of[r.ResourceVersion]
		switch {
		case c.Coalesced || r.Type != "added" && r.Type != "updated":
		case c.Actor == nil && r.Type == "updated" && known && by.Once && by.Sets:
			t.Errorf("%s: %s names nobody, and was made by %+v", b.Name(), r.ID, by)
		case c.Actor == nil:
			silent++
		case !known && r.Name == theLast:
		case c.Actor.Manager != by.Manager || c.Actor.Operation != by.Operation || c.Actor.Subresource != by.Subresource:
			t.Errorf("%s: %s names %+v, and was made by %+v", b.Name(), r.ID, *c.Actor, by)
		default:
			named++
		}
	}
	t.Logf("%s: %d changes name who made them, %d cannot", b.Name(), named, silent)
	if named == 0 {
		t.Errorf("%s: no change names who made it", b.Name())
	}
}

// lacks returns what of the objects' newest states has not come.
func (s *fixture) lacks(records []bus.Record, last bus.Object) string {
	newest := make(map[bus.Object]int64)
	for _, r := range records {
		newest[r.Object] = max(newest[r.Object], r.Revision)
	}
	if newest[last] == 0 {
		return "the last object"
	}
	table, err := read(records)
	if err != nil {
		return err.Error()
	}
	missing := 0
	state, err := s.etcd.State(s.t.Context(), s.resources)
	s.must(err)
	for _, r := range state {
		if got, exists := table.Get(widgets, consumer.Key{Namespace: r.Object.Namespace, Name: r.Object.Name}); exists && got.ResourceVersion != fmt.Sprint(r.Revision) {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Sprintf("%d objects that are older in the stream than in etcd", missing)
	}
	return ""
}

// read is what a consumer makes of all records.
func read(records []bus.Record) (*consumer.Table, error) {
	table := &consumer.Table{}
	for _, r := range records {
		record, err := consumer.Parse(r.Payload)
		if err != nil {
			return nil, err
		}
		if err := table.Apply(record); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// rebuild replays a bus by revision and compares each with etcd.
func (s *fixture) rebuild(b *received, h *oracle.History) {
	s.t.Helper()
	records := slices.Clone(b.records)
	slices.SortStableFunc(records, func(x, y bus.Record) int { return cmp.Compare(x.Revision, y.Revision) })
	table := &consumer.Table{}
	next, patches := 0, 0
	for _, r := range h.Revisions {
		if r.Object.Namespace != s.name {
			continue
		}
		for ; next < len(records) && records[next].Revision <= r.Revision; next++ {
			record, err := consumer.Parse(records[next].Payload)
			s.must(err)
			s.must(table.Apply(record))
			patches += s.patched(records[next])
		}
		got, exists := table.Get(widgets, consumer.Key{Namespace: r.Object.Namespace, Name: r.Object.Name})
		want := selected(s.t, r)
		switch {
		case exists != (want != nil):
			s.t.Fatalf("%s: %v at %d: etcd's object is selected: %t, the stream's exists: %t", b.Name(), r.Object, r.Revision, want != nil, exists)
		case exists && !reflect.DeepEqual(want, plain(s.t, got.Body)):
			s.t.Fatalf("%s: %v at %d:\netcd had %v\nthe stream says %s", b.Name(), r.Object, r.Revision, want, got.Body)
		}
	}
	for _, f := range table.Snapshots() {
		if !f.Ended || !f.Verified {
			s.t.Errorf("%s: snapshot %+v", b.Name(), f)
		}
	}
	s.t.Logf("%s: %d revisions, %d records, %d patches", b.Name(), len(h.Revisions), len(b.records), patches)
	if patches == 0 {
		s.t.Errorf("%s: no update had a patch", b.Name())
	}
}

// selected is the object that etcd has at a revision, if the selector takes it.
func selected(t *testing.T, r oracle.Revision) map[string]any {
	t.Helper()
	if r.Op == oracle.Deleted {
		return nil
	}
	o := plain(t, r.Value)
	labels, _ := o["metadata"].(map[string]any)["labels"].(map[string]any)
	if labels[workload.SelectedLabel] != "yes" {
		return nil
	}
	return o
}

// plain decodes an object without what etcd and the stream each have alone.
func plain(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(body, &o); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	metadata := o["metadata"].(map[string]any)
	delete(metadata, "managedFields")
	delete(metadata, "resourceVersion")
	return o
}

// patched checks that what an update lists as changed makes after of before, and counts it.
func (s *fixture) patched(r bus.Record) int {
	s.t.Helper()
	var c struct{ Changed []any }
	if r.Type != "updated" || r.Before == nil || json.Unmarshal(r.Payload, &c) != nil || c.Changed == nil {
		return 0
	}
	var before, after any
	s.must(json.Unmarshal(r.Before, &before))
	s.must(json.Unmarshal(r.After, &after))
	if got, err := values.Apply(before, c.Changed); err != nil || !reflect.DeepEqual(got, after) {
		s.t.Fatalf("%s: %v makes %v of what was before (%v), want %v", r.ID, c.Changed, got, err, after)
	}
	return 1
}
