package app

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// watchedScopes is a source that watches scopes, by resource.
type watchedScopes struct {
	scopes   map[string][]string
	notified int
}

func (w *watchedScopes) SelectScopes(of source.Selected) (scopes []source.SelectedScope, unknown []string, discovered bool) {
	for resource, ids := range w.scopes {
		for _, id := range ids {
			if len(of.Names) == 0 || slices.Contains(of.Names, resource) {
				scopes = append(scopes, source.SelectedScope{Resource: resource, ID: id, Objects: of.Objects})
			}
		}
	}
	for _, name := range of.Names {
		if w.scopes[name] == nil {
			unknown = append(unknown, name)
		}
	}
	return scopes, unknown, true
}

func (w *watchedScopes) EmitRequested() { w.notified++ }

func (w *watchedScopes) EmitWatermarks() {}

// watchPods makes a journal and its source watch pods and secrets.
func watchPods(t *testing.T, j *journal.Journal) *watchedScopes {
	t.Helper()
	w := &watchedScopes{scopes: map[string][]string{"pods": {"pods"}, "secrets": {"secrets"}}}
	for resource, ids := range w.scopes {
		r := event.Resource{Version: "v1", Resource: resource, Kind: resource}
		if err := j.SetScopes(t.Context(), r, []event.StoredScope{{ID: ids[0], Position: "1"}}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func openSnapshots(t *testing.T, j *journal.Journal, w *watchedScopes, sinks ...string) *requestedSnapshots {
	t.Helper()
	all := []config.Sink{}
	for _, name := range sinks {
		all = append(all, config.Sink{Name: name})
	}
	return newRequestedSnapshots(openControl(t, j), w, all, nil)
}

// requestsIn returns what is requested in a journal as "resource sink", and "ended" behind what has ended.
func requestsIn(j *journal.Journal) (all []string) {
	for _, r := range j.RequestedSnapshots() {
		text := r.Resource + " " + r.Sink
		if r.Ended {
			text += " ended"
		}
		all = append(all, text)
	}
	return all
}

func (s *requestedSnapshots) mustSubmit(t *testing.T, r signals.Request) signals.Signal {
	t.Helper()
	r.Kind = signals.Snapshot
	signal, err := s.registry.Execute(t.Context(), r, func(r signals.Request) (signals.Signal, error) { return s.submit(t.Context(), r) })
	if err != nil {
		t.Fatal(err)
	}
	return signal
}

// mustAdvance returns a signal after a look at what has ended.
func (s *requestedSnapshots) mustAdvance(t *testing.T, id string) signals.Signal {
	t.Helper()
	if err := s.advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := s.registry.List()
	return all[slices.IndexFunc(all, func(o signals.Signal) bool { return o.ID == id })]
}

// endSnapshot appends the end of a requested snapshot.
func endSnapshot(t *testing.T, j *journal.Journal, resource, id string, count int) {
	t.Helper()
	end := event.Observation{
		Resource: event.Resource{Version: "v1", Resource: resource, Kind: resource}, Scope: resource, EndedRequest: id, EndedCount: count,
	}
	end.Changes = []*event.Change{{
		Type: event.SnapshotEnd, Resource: end.Resource, OnlySink: "a", ResourceVersion: "1",
		Snapshot: &event.SnapshotInfo{ID: id + ".x", Position: "1", Count: count},
	}}
	mustAppend(t, j, end)
}

// TestASnapshotEndsOnceItsSinkHasEveryEnd, over restarts, and its requests go then.
func TestASnapshotEndsOnceItsSinkHasEveryEnd(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	w := watchPods(t, j)
	s := openSnapshots(t, j, w, "a", "b")
	signal := s.mustSubmit(t, signals.Request{Sink: "a"})
	if got := requestsIn(j); signal.State != signals.Active || w.notified != 1 || !slices.Equal(got, []string{"pods a", "secrets a"}) {
		t.Fatalf("%+v requests %q, the source was notified %d times", signal, got, w.notified)
	}
	if again := s.mustSubmit(t, signals.Request{Sink: "a"}); again.State != signals.Refused || !strings.Contains(again.Result, signal.ID) {
		t.Errorf("a second one is %+v", again)
	}
	endSnapshot(t, j, "pods", signal.ID, 3)
	stop()

	j, stop = runJournal(t, dir)
	s = openSnapshots(t, j, w, "a", "b")
	if err := s.removeEnded(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Active || !slices.Equal(requestsIn(j), []string{"pods a ended", "secrets a"}) {
		t.Errorf("after a restart: %+v, %q", got, requestsIn(j))
	}
	endSnapshot(t, j, "secrets", signal.ID, 4)
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Active {
		t.Errorf("before its sink has the ends: %+v", got)
	}
	if err := j.Settle(t.Context(), "a", event.Cursor{Low: j.Newest()}, nil); err != nil {
		t.Fatal(err)
	}
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Done || got.Count != 7 || got.Result != "7 objects of 2 resources" || len(requestsIn(j)) > 0 {
		t.Errorf("in the end: %+v, %q", got, requestsIn(j))
	}
	stop()

	j, stop = runJournal(t, dir)
	defer stop()
	if all := openControl(t, j).registry.List(); len(all) != 2 || all[0].State != signals.Done {
		t.Errorf("stored is %+v", all)
	}
}

// TestASnapshotWhoseRequestsAreLostIsRequestedAgain after a crash, or a failover to a state from before; and what has ended
// already is not emitted again.
func TestASnapshotWhoseRequestsAreLostIsRequestedAgain(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	w := watchPods(t, j)
	s := openSnapshots(t, j, w, "a", "b")
	signal := s.mustSubmit(t, signals.Request{Sink: "a", Select: []string{"pods"}})
	remove := func(event.SnapshotRequest) bool { return true }
	if err := j.RemoveRequestedSnapshots(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Active || w.notified != 2 || !slices.Equal(requestsIn(j), []string{"pods a"}) {
		t.Errorf("%+v, %q, the source was notified %d times", got, requestsIn(j), w.notified)
	}
	stored := signal.End(signals.Done, signal.Created, 1, "of another exporter")
	if err := s.registry.Commit(t.Context(), signal.ID, func(b *signals.Book) { b.Put(stored) }); err != nil {
		t.Fatal(err)
	}
	if err := s.removeEnded(t.Context()); err != nil || len(requestsIn(j)) > 0 {
		t.Errorf("requests of an ended signal: %q, %v", requestsIn(j), err)
	}
}

// TestASnapshotMayBeRequestedOnceTheStateHasTheEndOfTheOneBefore, though the journal that takes over has it as active.
func TestASnapshotMayBeRequestedOnceTheStateHasTheEndOfTheOneBefore(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	s := openSnapshots(t, j, watchPods(t, j), "a", "b")
	before := s.mustSubmit(t, signals.Request{Sink: "a"})
	s.registry.Update(func(b *signals.Book) { b.Put(before.End(signals.Aborted, before.Created, 0, "canceled")) })
	next := s.mustSubmit(t, signals.Request{Sink: "a", Select: []string{"pods"}})
	if got := requestsIn(j); next.State != signals.Active || !slices.Equal(got, []string{"pods a"}) {
		t.Errorf("%+v, and requested is %q", next, got)
	}
}

// TestACanceledSnapshotEndsOnce, its requests go, and the sink can have another one. That holds after a restart, also if the
// exporter ended before the requests were gone.
func TestACanceledSnapshotEndsOnce(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	w := watchPods(t, j)
	s := openSnapshots(t, j, w, "a", "b")
	signal := s.mustSubmit(t, signals.Request{Sink: "a"})
	endSnapshot(t, j, "pods", signal.ID, 3)
	cancel := func(id string) signals.Signal {
		t.Helper()
		c, err := s.cancel(t.Context(), signals.Request{Kind: signals.Cancel, Target: id})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := cancel(signal.ID)
	if first.State != signals.Done || first.Sink != "a" || first.Result != "snapshot "+signal.ID+" is canceled" || len(requestsIn(j)) > 0 || w.notified != 2 {
		t.Errorf("%+v, %q, the source was notified %d times", first, requestsIn(j), w.notified)
	}
	ended := s.mustAdvance(t, signal.ID)
	if ended.State != signals.Aborted || ended.Result != "canceled by signal "+first.ID+"; parts of it had ended, with 3 objects" {
		t.Errorf("the canceled one is %+v", ended)
	}
	if again := cancel(signal.ID); again.State != signals.Nothing || again.Result != "snapshot "+signal.ID+" has ended before: aborted" {
		t.Errorf("canceled once more: %+v", again)
	}
	if unknown := cancel("x"); unknown.State != signals.Refused {
		t.Errorf("an unknown one: %+v", unknown)
	}
	next := s.mustSubmit(t, signals.Request{Sink: "a", Select: []string{"pods"}})
	if next.State != signals.Active {
		t.Fatalf("the next one is %+v", next)
	}
	aborted := next.End(signals.Aborted, next.Created, 0, "canceled by signal x") // stored, and then the exporter ends
	if err := s.registry.Commit(t.Context(), next.ID, func(b *signals.Book) { b.Put(aborted) }); err != nil {
		t.Fatal(err)
	}
	stop()

	j, stop = runJournal(t, dir)
	defer stop()
	s = openSnapshots(t, j, w, "a", "b")
	if err := s.removeEnded(t.Context()); err != nil || len(requestsIn(j)) > 0 {
		t.Errorf("after a restart: %q, %v", requestsIn(j), err)
	}
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Aborted || got.Ended != ended.Ended {
		t.Errorf("after a restart the canceled one is %+v", got)
	}
	paused, err := s.signalControl.submit(t.Context(), signals.Request{Kind: signals.Pause, Sink: "a"}, &config.Config{Sinks: s.sinks})
	if err != nil {
		t.Fatal(err)
	}
	if got := cancel(paused.ID); got.State != signals.Refused || !strings.Contains(got.Result, "exporter signal resume --sink a") {
		t.Errorf("a pause: %+v", got)
	}
}

func TestEverySnapshotHasAnEnd(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	w := watchPods(t, j)
	s := openSnapshots(t, j, w, "a", "b")
	for _, c := range []struct {
		request signals.Request
		state   signals.State
		result  string
	}{
		{signals.Request{Sink: "c"}, signals.Refused, `no sink "c" is configured; there are: a, b`},
		{signals.Request{Sink: "a", Namespace: "shop*"}, signals.Refused, `"shop*" is a pattern, and not the name of one namespace`},
		{signals.Request{Sink: "a", Namespace: "shop x"}, signals.Refused, `snapshot.namespaces.include[0]: "shop x" cannot match any namespace: names hold lower-case letters, digits and "-"`},
		{signals.Request{Sink: "a", Select: []string{"Pods"}}, signals.Refused, `snapshot.select[0]: "Pods" is not a resource: use the plural in lower case, not the kind`},
		{signals.Request{Sink: "a", Select: []string{"pods", "nodes"}}, signals.Refused, "nothing that is watched is named nodes"},
		{signals.Request{Sink: "a", Select: []string{"nodes"}}, signals.Nothing, "nothing that is watched is selected"},
		{signals.Request{Sink: "a", Objects: []string{"shop/x"}}, signals.Refused, "objects are of one resource, and the signal names none"},
		{signals.Request{Sink: "a", Select: []string{"*"}, Objects: []string{"shop/x"}}, signals.Refused, "objects are of one resource, and the signal names *"},
		{signals.Request{Sink: "a", Select: []string{"nodes"}, Objects: []string{"x"}}, signals.Nothing, "nothing that is watched is selected: a namespaced object is NAMESPACE/NAME, another one NAME"},
		{signals.Request{Sink: "a", Select: []string{"pods"}}, signals.Active, "1 resources follow, between live changes"},
		{signals.Request{Sink: "b", Select: []string{"pods"}}, signals.Active, "1 resources follow, between live changes"},
	} {
		if got := s.mustSubmit(t, c.request); got.State != c.state || got.Result != c.result {
			t.Errorf("%+v: %s, %q", c.request, got.State, got.Result)
		}
	}
	all := s.registry.List()
	if err := j.Declare(t.Context(), journal.Declaration{Sinks: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	s = newRequestedSnapshots(s.signalControl, w, []config.Sink{{Name: "b"}}, nil)
	if got := s.mustAdvance(t, all[len(all)-2].ID); got.State != signals.Aborted || got.Result != "the sink was removed" {
		t.Errorf("of a removed sink: %+v", got)
	}
	if err := j.DropResource(t.Context(), "pods"); err != nil {
		t.Fatal(err)
	}
	delete(w.scopes, "pods")
	if got := s.mustAdvance(t, all[len(all)-1].ID); got.State != signals.Nothing {
		t.Errorf("of a resource that is no more: %+v", got)
	}
}
