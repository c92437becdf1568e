package source

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// storeAfterFailover is a store that was taken over without bodies: a is known in its current version, b in an older one,
// and c is gone.
func storeAfterFailover(f *fakeAPI) *store {
	f.writeEvents("ADDED", "a", "b", "b")
	st := newStore()
	st.bodiless = true
	st.storeState("pods", "13",
		event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"},
		event.Known{Key: "ns/b", UID: "uid-b", ResourceVersion: "12"},
		event.Known{Key: "ns/c", UID: "uid-c", ResourceVersion: "9"})
	return st
}

func TestBodiesAreReadOnceAfterFailover(t *testing.T) {
	f := newFakeAPI(t)
	st := storeAfterFailover(f)
	s, _, stop := startSource(t, f, st)
	st.awaitTrue(t, "the body that is known", func() bool { return slices.Equal(st.filledResources(), []string{"ns/a@11"}) })
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "updated a@14")
	if got := st.changeAt(0); got.Class == "" {
		t.Errorf("the previous state was read, so the change must have its class: %+v", got)
	}
	if got := s.Status()[0]; got.Lists != 1 || got.Relists != 0 {
		t.Errorf("requests %q", f.requestLog())
	}
	stop()
	s, _, _ = startSource(t, f, st)
	awaitState(t, st, s, Live)
	f.writeEvents("MODIFIED", "b")
	st.awaitEmitted(t, "updated a@14", "updated b@15")
	if got := s.Status()[0]; got.Lists != 0 {
		t.Errorf("read again: %q", f.requestLog())
	}
}

// TestFirstChangeHasItsStateBefore though the list of all objects hangs: the state of each object that changes is requested
// by itself, once.
func TestFirstChangeHasItsStateBefore(t *testing.T) {
	f := newFakeAPI(t)
	f.writeEvents("ADDED", "a", "b", "c")
	st := newStore()
	st.bodiless = true
	st.storeState("pods", "13",
		event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"},
		event.Known{Key: "ns/b", UID: "uid-b", ResourceVersion: "12"},
		event.Known{Key: "ns/c", UID: "uid-c", ResourceVersion: "13"})
	asked := make(chan struct{}, 8)
	f.lists = []http.HandlerFunc{func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}}
	s, _, _ := startSource(t, f, st)
	<-asked
	f.writeEvents("MODIFIED", "a", "c")
	st.awaitEmitted(t, "updated a@14", "updated c@15")
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "updated a@14", "updated c@15", "updated a@16")
	for i := range 3 {
		if got := st.changeAt(i); got.Class == "" {
			t.Errorf("%s@%s has no state before", got.Name, got.ResourceVersion)
		}
	}
	if got := s.Status()[0]; got.Lists != 3 {
		t.Errorf("%d lists: %q", got.Lists, f.requestLog())
	}
}

func TestFailingBodyListDoesNotDelayTheWatch(t *testing.T) {
	expired := func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, apierrors.NewResourceExpired("compacted"))
	}
	firstPage := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"13","continue":"more"},"items":[%s]}`, objectJSON("a", 11))
	}
	torn := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"13"},"items":[{"metadata"`)
	}
	for name, lists := range map[string][]http.HandlerFunc{
		"410": {expired}, "a token that expires": {firstPage, expired}, "an answer that breaks off": {torn},
		"too many requests": {func(w http.ResponseWriter, _ *http.Request) {
			writeStatus(w, apierrors.NewTooManyRequestsError("later"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeAPI(t)
			st := storeAfterFailover(f)
			f.lists = lists
			s, _, _ := startSource(t, f, st)
			st.awaitTrue(t, "the body that is known", func() bool { return slices.Equal(st.filledResources(), []string{"ns/a@11"}) })
			f.writeEvents("MODIFIED", "b")
			st.awaitEmitted(t, "updated b@14")
			awaitState(t, st, s, Live) // the first change may precede the steady state of the watch
			if got := s.Status()[0]; got.Relists != 0 {
				t.Errorf("%+v: %q", got, f.requestLog())
			}
		})
	}
}

func TestHungBodyListDelaysNothing(t *testing.T) {
	f := newFakeAPI(t)
	st := storeAfterFailover(f)
	asked := make(chan struct{}, 8)
	hang := func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}
	f.lists = []http.HandlerFunc{hang, hang, hang}
	s, _, stop := startSource(t, f, st)
	<-asked
	f.writeEvents("MODIFIED", "a", "b")
	st.awaitEmitted(t, "updated a@14", "updated b@15")
	awaitState(t, st, s, Live)
	stop()
	if !st.bodiless {
		t.Error("BodiesFilled was called although the bodies were not read")
	}
}
