package source

import (
	"net/http"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// readNames reads the names of the pods of a fake API server.
func readNames(t *testing.T, f *fakeAPI, at string, filter func(string) bool) (names []string, position string, err error) {
	t.Helper()
	client, err := apiserver.NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	scope := selection.Scope{ID: "pods", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Namespaced: true, Filter: filter}
	position, _, err = ReadScope(t.Context(), client, scope, at, Reading{
		Begin: func(string) error { names = nil; return nil },
		Visit: func(o *deltas.Object) error { names = append(names, o.Name); return nil },
	})
	slices.Sort(names)
	return names, position, err
}

// TestScopeIsReadOnceAtAVersion: failing requests are repeated, and what a reading has visited before it begins again is no
// part of its result.
func TestScopeIsReadOnceAtAVersion(t *testing.T) {
	f := newFakeAPI(t)
	f.writeEvents("ADDED", "a", "b")
	f.lists = []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, apierrors.NewServiceUnavailable("busy")) },
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"12"},"items":[` + objectJSON("x", 11) + `,{"metadata"`))
		},
	}
	names, position, err := readNames(t, f, "12", nil)
	if err != nil || position != "12" || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%v at %s: %v", names, position, err)
	}
	if names, position, err = readNames(t, f, "", func(string) bool { return false }); err != nil || position != "12" || len(names) > 0 {
		t.Errorf("of no namespace: %v at %s: %v", names, position, err)
	}
}

// TestUnavailableVersionIsAnError that differs from a failing API server: another version may be there.
func TestUnavailableVersionIsAnError(t *testing.T) {
	f := newFakeAPI(t)
	f.writeEvents("ADDED", "a")
	for at, answer := range map[string]http.HandlerFunc{
		"5": func(w http.ResponseWriter, _ *http.Request) {
			writeStatus(w, apierrors.NewResourceExpired("compacted"))
		},
		"6": func(w http.ResponseWriter, _ *http.Request) { f.answerList(w) }, // as servers do that do not know exact ones
	} {
		f.lists = []http.HandlerFunc{answer}
		if _, _, err := readNames(t, f, at, nil); !IsVersionUnavailable(err) {
			t.Errorf("at %s: %v", at, err)
		}
	}
	f.deny = true
	if _, _, err := readNames(t, f, "", nil); IsVersionUnavailable(err) || apiserver.Classify(err) != apiserver.Forbidden {
		t.Errorf("without the right: %v", err)
	}
}
