package source

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

func TestFuturePositionIsHistoryLoss(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	st.storeState("pods", "1000", event.Known{Key: "ns/gone", UID: "uid-gone", ResourceVersion: "900"})
	s, log, stop := startSource(t, f, st)
	st.awaitTrue(t, "the differences", func() bool { return len(st.transcript()) == 3 })
	got := st.transcript()
	slices.Sort(got[1:])
	if !slices.Equal(got, []string{"gap 1000-11", "added a@11~", "deleted gone@900~"}) {
		t.Errorf("emitted %q", got)
	}
	stop()
	if s.Status()[0].Relists != 1 || log.CountOf("ahead of the API server, which is at 11") != 1 {
		t.Errorf("log\n%s", log)
	}
}

func TestLaggingAPIServerIsWaitedFor(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	st.storeState("pods", "12")
	tooLarge := func(w http.ResponseWriter, _ *http.Request) {
		err := apierrors.NewTimeoutError("Too large resource version", 1)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge})
		writeStatus(w, err)
	}
	f.faults = []http.HandlerFunc{tooLarge}
	s, _, _ := startSource(t, f, st)
	awaitState(t, st, s, Live)
	f.writeEvents("MODIFIED", "b")
	st.awaitEmitted(t, "updated b@13")
	if got := s.Status()[0]; got.Relists != 0 {
		t.Errorf("a lag was treated as a loss: %q", f.requestLog())
	}
}

func TestInterruptedFirstListIsRepeated(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	broken := func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, apierrors.NewServiceUnavailable("starting"))
	}
	f.faults = []http.HandlerFunc{abort, broken, abort}
	_, _, _ = startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11")
}

func TestFirstListIsEmittedWhileBeingRead(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	f.faults = []http.HandlerFunc{firstPageOfTwo, func(http.ResponseWriter, *http.Request) {
		st.awaitEmitted(t, "snapshot a@11")
		if p := st.positionOf("pods"); p != "" {
			t.Errorf("position %q before the end of the list", p)
		}
		panic(http.ErrAbortHandler)
	}}
	_, _, _ = startSource(t, f, st)
	st.awaitPosition(t, "pods", "12")
	st.awaitEmitted(t, "snapshot a@11", "snapshot b@12")
	checkFrames(t, st.snapshotFrames(), "12", 2) // the interrupted list belongs to the same snapshot
}

// firstPageOfTwo answers with the first page of a list.
func firstPageOfTwo(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PodList","metadata":{"resourceVersion":"12","continue":"more"},"items":[%s]}`, objectJSON("a", 11))
}

// checkFrames expects one snapshot.
func checkFrames(t *testing.T, frames []*event.Change, position string, count int) {
	t.Helper()
	if len(frames) != 2 || frames[0].Type != event.SnapshotBegin || frames[1].Type != event.SnapshotEnd {
		t.Fatalf("frames %+v", frames)
	}
	begin, end := frames[0].Snapshot, frames[1].Snapshot
	if begin.ID == "" || begin.ID != end.ID || end.Position != position || end.Count != count || frames[1].ResourceVersion != position {
		t.Errorf("begins with %+v, ends with %+v", begin, end)
	}
}

func TestFirstListHasOneSnapshotFrame(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	s, _, stop := startSource(t, f, st)
	awaitState(t, st, s, Live)
	checkFrames(t, st.snapshotFrames(), "10", 0) // an empty snapshot is framed too
	stop()
	f.writeEvents("ADDED", "a")
	_, _, stop = startSource(t, f, st)
	st.awaitEmitted(t, "added a@11")
	stop()
	if n := len(st.snapshotFrames()); n != 2 {
		t.Errorf("%d snapshot frames of a resumed scope, want 2", n)
	}
}

func TestRestartWithinFirstListContinuesSnapshot(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	hold := make(chan struct{})
	f.faults = []http.HandlerFunc{firstPageOfTwo, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}}
	s, _, stop := startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11")
	if got := s.Status()[0]; got.Synced || got.State != Syncing {
		t.Errorf("while the list is read: %+v", got)
	}
	stop()
	close(hold)
	s, _, _ = startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11", "snapshot b@12")
	st.awaitPosition(t, "pods", "12")
	checkFrames(t, st.snapshotFrames(), "12", 2)
	awaitState(t, st, s, Live)
	if got := s.Status()[0]; !got.Synced {
		t.Errorf("after the first list: %+v", got)
	}
}

func TestEachNamespaceHasItsOwnSnapshot(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	_, _, _ = startSource(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"pods"}, Namespaces: selection.Namespaces{Include: []string{"n", "m"}}}}
	})
	st.awaitTrue(t, "two snapshots", func() bool { return len(st.snapshotFrames()) == 4 })
	ids := map[string]string{}
	for _, c := range st.snapshotFrames() {
		if id, ok := ids[c.Namespace]; ok && id != c.Snapshot.ID || c.Namespace == "" {
			t.Errorf("%s %q names namespace %q", c.Type, c.Snapshot.ID, c.Namespace)
		}
		ids[c.Namespace] = c.Snapshot.ID
	}
	if len(ids) != 2 || ids["n"] == ids["m"] {
		t.Errorf("snapshots %v", ids)
	}
}

func TestReformattedStreamIsReadAfterFallback(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	st.storeState("pods", "10")
	f.noWatchList = true // the position check then uses a LIST
	f.indented = true
	s, _, _ := startSource(t, f, st)
	st.awaitEmitted(t, "added a@11")
	if got := s.Status()[0]; got.DecodeErrors == 0 || got.Relists != 0 {
		t.Errorf("status %+v", got)
	}
}

func TestResourceIsWatchedOnceServed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.groups = nil
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Waiting)
		time.Sleep(time.Minute)
		f.update(func() { f.groups = append(f.groups, coreGroup("pods")) })
		st.awaitEmitted(t, "snapshot a@11")
		awaitState(t, st, s, Live)
		if log.CountOf("selected but not served") != 1 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestObjectsOfVanishedResourceAreDeleted(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	s, _, _ := startSource(t, f, st)
	awaitState(t, st, s, Live)
	f.update(func() { f.groups, f.absent = []apidiscovery.APIGroupDiscovery{coreGroup("nodes")}, true })
	f.breakStreams()
	st.awaitTrue(t, "the scope to be dropped", func() bool { return st.dropCount() == 1 })
	got := st.transcript()[2:]
	slices.Sort(got)
	if !slices.Equal(got, []string{"deleted a@11~", "deleted b@12~"}) {
		t.Errorf("emitted %q", st.transcript())
	}
	awaitState(t, st, s, Waiting)

	f.update(func() {
		f.groups, f.absent, f.history = []apidiscovery.APIGroupDiscovery{coreGroup("pods")}, false, nil
	})
	f.writeEvents("ADDED", "c")
	st.awaitTrue(t, "the recreated objects", func() bool {
		return slices.Contains(st.transcript(), "snapshot c@13") || slices.Contains(st.transcript(), "added c@13")
	})
}

func TestVanishedResourceIsRemoved(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.writeEvents("ADDED", "a")
		s, log, stop := startSource(t, f, st, on, func(c *Config) { c.Rules = []selection.Rule{{Select: []string{"*"}}} })
		defer stop()
		awaitState(t, st, s, Live)
		f.update(func() { f.groups, f.absent = nil, true })
		f.breakStreams()
		time.Sleep(10 * time.Minute)
		if got := s.Status(); len(got) != 0 || st.dropCount() != 1 || log.CountOf("no longer served") != 1 {
			t.Errorf("status %+v, dropped %d times, log\n%s", got, st.dropCount(), log)
		}
	})
}

func TestObjectsOfResourceVanishedWhileAwayAreDeleted(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.groups = []apidiscovery.APIGroupDiscovery{coreGroup("nodes")}
	st.storeState("pods", "12", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"})
	f.absent = true
	_, _, _ = startSource(t, f, st)
	st.awaitTrue(t, "the scope to be dropped", func() bool { return st.dropCount() == 1 })
	if got := st.transcript(); !slices.Equal(got, []string{"deleted a@11~"}) {
		t.Errorf("emitted %q", got)
	}
	if c := st.changeAt(0); c.Resource != (event.Resource{Version: "v1", Resource: "pods", Kind: "Kind"}) {
		t.Errorf("deleted as %+v, want version and kind", c.Resource)
	}
}

func TestUnansweredGroupKeepsItsResources(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	s, _, _ := startSource(t, f, st)
	awaitState(t, st, s, Live)
	stale := coreGroup()
	stale.Versions[0].Freshness = "Stale"
	f.update(func() { f.groups = []apidiscovery.APIGroupDiscovery{stale, groupOf("apps", "v1", "deployments")} })
	polls := f.discoveryPolls()
	st.awaitTrue(t, "some polls", func() bool { return f.discoveryPolls() > polls+10 })
	got := s.Status()
	if len(got) != 2 || got[0].Condition.Code != condition.GroupUnanswered || got[1].State != Live || st.dropCount() != 0 || !s.Ready() {
		t.Errorf("status %+v", got)
	}
}
