package source

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// requestedStore has the objects a to c, which are known, and a snapshot of them is requested for the sink "new".
func requestedStore(f *fakeAPI) *store {
	f.writeEvents("ADDED", "a", "b", "c")
	st := newStore()
	st.storeState("pods", "13",
		event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"},
		event.Known{Key: "ns/b", UID: "uid-b", ResourceVersion: "12"},
		event.Known{Key: "ns/c", UID: "uid-c", ResourceVersion: "13"})
	st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
	return st
}

func (s *store) request(resource string, all ...event.SnapshotRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scopes[resource][0].AddSnapshotRequests(all...)
}

// requestsOf returns what is requested of the scopes of a resource.
func (s *store) requestsOf(resource string) (all string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range s.scopes[resource] {
		all += scope.Requests
	}
	return all
}

// awaitSinkSnapshot waits until nothing is requested any more, and checks the frames of the snapshots for single sinks: they
// begin in several attempts and end once. The digest is that of the records of the last attempt.
func (s *store) awaitSinkSnapshot(t *testing.T, position string, attempts, count int) {
	t.Helper()
	s.awaitTrue(t, "the end of the snapshot", func() bool { return s.requestsOf("pods") == "" })
	frames := slices.DeleteFunc(s.snapshotFrames(), func(c *event.Change) bool { return c.OnlySink == "" })
	if len(frames) != attempts+1 {
		t.Fatalf("%d frames of %d attempts: %+v", len(frames), attempts, frames)
	}
	end := frames[attempts]
	var digest event.Digest
	ids := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.Type == event.Snapshot && c.Snapshot.ID == end.Snapshot.ID {
			digest.Add(c.Namespace, c.Name, c.UID, c.ResourceVersion)
		}
	}
	for i, c := range frames {
		if last := i == attempts; c.OnlySink != "new" || (c.Type == event.SnapshotEnd) != last || !strings.HasPrefix(c.Snapshot.ID, "request.") {
			t.Errorf("frame %d: %s of %+v", i, c.Type, c.Snapshot)
		}
		ids[c.Snapshot.ID] = true
	}
	if position == "" {
		position = end.Snapshot.Position
	}
	if got := end.Snapshot; got.Position != position || end.ResourceVersion != position || got.Count != count || got.Digest != digest.String() || len(ids) != attempts {
		t.Errorf("the end is %+v, in %d attempts; want %d objects at %s with the digest %s", got, len(ids), count, position, digest.String())
	}
}

// holdList lets the next list wait until release is called; asked is closed when it has come.
func (f *fakeAPI) holdList() (asked chan struct{}, release func()) {
	asked, held := make(chan struct{}), make(chan struct{})
	f.update(func() {
		f.lists = append(f.lists, func(w http.ResponseWriter, r *http.Request) {
			close(asked)
			select {
			case <-held:
				f.answerList(w)
			case <-r.Context().Done():
			}
		})
	})
	return asked, func() { close(held) }
}

func TestRequestedSnapshotGoesToItsSinkAlone(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	st.request("pods", event.SnapshotRequest{Sink: "other", ID: "second"})
	s, _, _ := startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11 to new", "snapshot b@12 to new", "snapshot c@13 to new",
		"snapshot a@11 to other", "snapshot b@12 to other", "snapshot c@13 to other")
	st.awaitTrue(t, "the end", func() bool { return st.requestsOf("pods") == "" && s.Status()[0].Snapshot.OK() })
	for _, c := range st.snapshotFrames() {
		if c.OnlySink == "" {
			t.Errorf("every sink gets %+v", c.Snapshot)
		}
	}
}

// TestSnapshotNeverStepsBack: a live change comes before the list that was sent before it.
func TestSnapshotNeverStepsBack(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	asked, release := f.holdList()
	s, _, _ := startSource(t, f, st)
	<-asked
	if got := s.Status()[0].Snapshot; got.Code != condition.SnapshotPending || !strings.Contains(got.Cause, "sink new gets 3 objects") {
		t.Errorf("meanwhile the condition is %+v", got)
	}
	f.writeEvents("MODIFIED", "a")
	f.writeEvents("DELETED", "b")
	f.writeEvents("ADDED", "d")
	live := []string{"updated a@14", "snapshot a@14 to new", "deleted b@15", "added d@16"}
	st.awaitEmitted(t, live...)
	f.writeEvents("MODIFIED", "a") // has its record of the snapshot
	live = append(live, "updated a@17")
	st.awaitEmitted(t, live...)
	release()
	st.awaitEmitted(t, append(live, "snapshot c@13 to new")...)
	st.awaitSinkSnapshot(t, "13", 1, 2)
}

// TestSnapshotIsCompleteByChangesAlone: where all objects change before they are listed, nothing is waited for.
func TestSnapshotIsCompleteByChangesAlone(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	asked, _ := f.holdList()
	_, _, _ = startSource(t, f, st)
	<-asked
	f.writeEvents("MODIFIED", "a", "b")
	f.writeEvents("DELETED", "c")
	st.awaitSinkSnapshot(t, "13", 1, 2)
}

func TestSnapshotOfNothingIsFramed(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	st.storeState("pods", "10")
	st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
	_, _, _ = startSource(t, f, st)
	st.awaitSinkSnapshot(t, "10", 1, 0)
}

func TestSnapshotStartsAgainAfterARestart(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	asked, _ := f.holdList()
	_, _, stop := startSource(t, f, st)
	<-asked
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "updated a@14", "snapshot a@14 to new")
	stop()
	f.writeEvents("DELETED", "a")
	_, _, _ = startSource(t, f, st)
	st.awaitSinkSnapshot(t, "", 2, 2) // it may start before or after the watch has brought the last change
}

func TestSnapshotStartsAgainAfterLostHistory(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	asked, _ := f.holdList()
	_, _, _ = startSource(t, f, st)
	<-asked
	f.writeEvents("MODIFIED", "a") // which the snapshot has, and the next attempt has again
	st.awaitEmitted(t, "updated a@14", "snapshot a@14 to new")
	f.breakStreamsAfter(func() {
		f.rv += 100
		f.oldest = f.rv
	})
	st.awaitSinkSnapshot(t, "114", 2, 3)
	if got := st.transcript(); got[2] != "gap 14-114" {
		t.Errorf("emitted %q", got)
	}
}

// TestSnapshotFollowsEditedRules: the scopes that replace others take over what was requested of them.
func TestSnapshotFollowsEditedRules(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	_, _, _ = startSource(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"pods"}, Namespaces: selection.Namespaces{Include: []string{"ns"}}}}
	})
	st.awaitSinkSnapshot(t, "13", 1, 3)
}

func TestSnapshotOfAForbiddenResourceWaits(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.deny = true
		st.storeState("pods", "11", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"})
		st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Forbidden)
		time.Sleep(10 * time.Minute)
		if got := s.Status()[0].Snapshot; got.Code != condition.SnapshotPending {
			t.Errorf("the condition is %+v", got)
		}
		f.update(func() { f.deny = false })
		st.awaitSinkSnapshot(t, "11", 1, 1)
	})
}

// TestSnapshotReadsAgainWhatWasNotFound: a server whose list lags behind its watch brings nothing of an object.
func TestSnapshotReadsAgainWhatWasNotFound(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		st.storeState("pods", "11", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"})
		st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
		f.lists = []http.HandlerFunc{
			func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"10"},"items":[` + objectJSON("a", 9) + `]}`))
			},
			func(w http.ResponseWriter, _ *http.Request) {
				writeStatus(w, apierrors.NewServiceUnavailable("starting"))
			},
		}
		_, _, stop := startSource(t, f, st, on)
		defer stop()
		st.awaitSinkSnapshot(t, "11", 1, 1)
		st.awaitEmitted(t, "snapshot a@11 to new")
	})
}

// TestNoWatermarkForASinkBeforeItsSnapshot: it does not have everything up to the position.
func TestNoWatermarkForASinkBeforeItsSnapshot(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	asked, release := f.holdList()
	_, _, _ = startSource(t, f, st, func(c *Config) {
		c.Watermarks = []WatermarkSeries{{Every: 10 * time.Millisecond, Sinks: []string{"new", "old"}}}
	})
	<-asked
	f.writeEvents("MODIFIED", "b")
	st.awaitTrue(t, "a watermark", func() bool { return len(st.watermarksFor("old")) > 0 })
	if early := st.watermarksFor("new"); len(early) > 0 {
		t.Errorf("before the snapshot there is the watermark %+v", early[0])
	}
	release()
	st.awaitSinkSnapshot(t, "13", 1, 3)
	f.writeEvents("MODIFIED", "b")
	st.awaitTrue(t, "a watermark after the snapshot", func() bool { return len(st.watermarksFor("new")) > 0 })
}

func (s *store) watermarksFor(sink string) (all []*event.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.Type == event.Watermark && slices.Contains(c.Watermark.Sinks, sink) {
			all = append(all, c)
		}
	}
	return all
}

// TestASnapshotIsRequestedOfARunningScope by a signal: it stays requested with its count, live changes go on, and the
// watermarks of a sink that has everything do so, too.
func TestASnapshotIsRequestedOfARunningScope(t *testing.T) {
	f := newFakeAPI(t)
	f.writeEvents("ADDED", "a", "b")
	st := newStore()
	st.storeState("pods", "12",
		event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"},
		event.Known{Key: "ns/b", UID: "uid-b", ResourceVersion: "12"})
	s, _, _ := startSource(t, f, st, func(c *Config) {
		c.Watermarks = []WatermarkSeries{{Every: 10 * time.Millisecond, Sinks: []string{"new"}}}
	})
	awaitState(t, st, s, Live)
	for i, id := range []string{"request", "again"} {
		asked, release := f.holdList()
		request := event.SnapshotRequest{Sink: "new", ID: id, Signal: true}
		st.request("pods", request)
		s.EmitRequested()
		<-asked
		before := len(st.watermarksFor("new"))
		f.writeEvents("MODIFIED", "b")
		st.awaitTrue(t, "a watermark during the snapshot", func() bool { return len(st.watermarksFor("new")) > before })
		release()
		st.awaitTrue(t, "the end of the snapshot", func() bool { return strings.HasSuffix(st.requestsOf("pods"), id+" signal ended=2\n") })
		if frames := st.snapshotFrames(); len(frames) != 2*(i+1) || !strings.HasPrefix(frames[2*i].Snapshot.ID, id+".") {
			t.Errorf("%d frames: %+v", len(frames), frames)
		}
	}
	got := slices.DeleteFunc(st.transcript(), func(line string) bool { return strings.HasPrefix(line, "watermark") })
	want := []string{"updated b@13", "snapshot b@13 to new", "snapshot a@11 to new", "updated b@14", "snapshot b@14 to new", "snapshot a@11 to new"}
	if !slices.Equal(got, want) {
		t.Errorf("emitted %q", got)
	}
}

// TestASnapshotOfOneNamespaceHasItsObjectsAlone, and its frame names it.
func TestASnapshotOfOneNamespaceHasItsObjectsAlone(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	st.storeState("configmaps", "13")
	st.scopes["pods"][0].Requests = ""
	st.known["pods"]["other/d"] = event.Known{Key: "other/d", UID: "uid-d", ResourceVersion: "13"}
	st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request", Namespace: "ns", Signal: true})
	_, _, _ = startSource(t, f, st)
	st.awaitTrue(t, "the end", func() bool { return strings.HasSuffix(st.requestsOf("pods"), "namespace=ns ended=3\n") })
	for _, c := range st.snapshotFrames() {
		if c.OnlySink == "new" && c.Namespace != "ns" {
			t.Errorf("%s is of the namespace %q", c.Type, c.Namespace)
		}
	}
}

// TestASnapshotOfSingleObjectsDeletesTheOthers that do not exist when it starts: one that is created meanwhile comes behind.
func TestASnapshotOfSingleObjectsDeletesTheOthers(t *testing.T) {
	f := newFakeAPI(t)
	st := requestedStore(f)
	st.scopes["pods"][0].Requests = ""
	st.known["pods"]["ns/c"] = event.Known{Key: "ns/c", EmittedElsewhere: "uid-c 13 "} // which the watch is to bring
	objects := event.EncodeObjectKeys([]string{"ns/a", "ns/c", "ns/d", "ns/e", "other/x"})
	st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request", Objects: objects, Signal: true})
	asked, release := f.holdList()
	_, _, _ = startSource(t, f, st)
	<-asked
	f.writeEvents("ADDED", "d")
	st.awaitEmitted(t, "deleted d@13~ to new", "deleted e@13~ to new", "deleted x@13~ to new", "added d@14")
	release()
	st.awaitEmitted(t, "deleted d@13~ to new", "deleted e@13~ to new", "deleted x@13~ to new", "added d@14", "snapshot a@11 to new")
	st.awaitTrue(t, "the end", func() bool { return strings.HasSuffix(st.requestsOf("pods"), " ended=1 absent=3\n") })
}

// removeRequests removes all requests for snapshots of a resource.
func (s *store) removeRequests(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scopes[resource][0].Requests = ""
}

// TestACanceledSnapshotIsNotWaitedFor: neither one of a resource that is forbidden, nor one that is being read. Its frame
// ends without being whole. What is requested afterwards is emitted.
func TestACanceledSnapshotIsNotWaitedFor(t *testing.T) {
	t.Run("of a forbidden resource", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
			f.deny = true
			st.storeState("pods", "11", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"})
			st.request("pods", event.SnapshotRequest{Sink: "new", ID: "canceled", Signal: true})
			s, _, stop := startSource(t, f, st, on)
			defer stop()
			awaitState(t, st, s, Forbidden)
			st.awaitTrue(t, "the condition", func() bool { return !s.Status()[0].Snapshot.OK() })
			st.removeRequests("pods")
			s.EmitRequested()
			time.Sleep(time.Minute)
			st.awaitTrue(t, "the end of the condition", func() bool { return s.Status()[0].Snapshot.OK() })
			st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request", Signal: true})
			s.EmitRequested()
			f.update(func() { f.deny = false })
			st.awaitTrue(t, "the end of the next one", func() bool { return strings.HasSuffix(st.requestsOf("pods"), " ended=1\n") })
			if frames := st.snapshotFrames(); len(frames) != 2 || !strings.HasPrefix(frames[0].Snapshot.ID, "request.") {
				t.Errorf("%d frames: %+v", len(frames), frames)
			}
		})
	})
	t.Run("that is being read", func(t *testing.T) {
		f := newFakeAPI(t)
		st := requestedStore(f)
		st.removeRequests("pods")
		st.request("pods", event.SnapshotRequest{Sink: "new", ID: "canceled", Signal: true})
		asked, release := f.holdList()
		defer release()
		s, _, _ := startSource(t, f, st)
		<-asked
		f.writeEvents("MODIFIED", "a")
		st.awaitEmitted(t, "updated a@14", "snapshot a@14 to new")
		st.request("pods", event.SnapshotRequest{Sink: "other", ID: "next", Signal: true})
		s.EmitRequested() // which does not begin the first one again
		st.mu.Lock()
		st.scopes["pods"][0].RemoveSnapshotRequests(func(r event.SnapshotRequest) bool { return r.ID == "canceled" })
		st.mu.Unlock()
		s.EmitRequested()
		st.awaitTrue(t, "the end of the next one", func() bool { return strings.HasSuffix(st.requestsOf("pods"), "next signal ended=3\n") })
		var frames []string
		for _, c := range st.snapshotFrames() {
			frames = append(frames, string(c.Type)+" to "+c.OnlySink)
		}
		if want := []string{"snapshot.begin to new", "partial.end to new", "snapshot.begin to other", "snapshot.end to other"}; !slices.Equal(frames, want) {
			t.Errorf("the frames are %q, want %q", frames, want)
		}
		if end := st.snapshotFrames()[1].Snapshot; end.Count != 1 || end.Position != "13" {
			t.Errorf("the end of the canceled one is %+v", end)
		}
	})
}

func TestScopesAreSelectedByResourceAndNamespace(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	s, _, _ := startSource(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"pods"}, Namespaces: selection.Namespaces{Include: []string{"a", "b"}}}}
	})
	st.awaitTrue(t, "discovery", func() bool { _, _, discovered := s.SelectScopes(Selected{}); return discovered })
	for _, c := range []struct {
		of               Selected
		scopes, unknowns int
	}{
		{Selected{}, 2, 0}, {Selected{Namespace: "a"}, 1, 0}, {Selected{Names: []string{"pods"}, Namespace: "b"}, 1, 0},
		{Selected{Names: []string{"pods", "nodes"}}, 2, 1}, {Selected{Names: []string{"nodes"}}, 0, 1},
		{Selected{Namespace: "c"}, 0, 0}, {Selected{Names: []string{"pods", "*"}}, 2, 0},
		{Selected{Objects: []string{"a/x", "a/y", "c/z", "cluster-scoped"}}, 1, 0}, {Selected{Objects: []string{"x"}}, 0, 0},
	} {
		scopes, unknown, _ := s.SelectScopes(c.of)
		if len(scopes) != c.scopes || len(unknown) != c.unknowns {
			t.Errorf("%+v selects %v, unknown are %v", c.of, scopes, unknown)
		}
		if c.of.Objects != nil && c.scopes > 0 && !slices.Equal(scopes[0].Objects, c.of.Objects[:2]) {
			t.Errorf("%+v selects %v", c.of, scopes)
		}
	}
}
