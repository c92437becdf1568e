package source

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

func TestTheFirstListIsASnapshotAndChangesFollow(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.write("ADDED", "a")
	s, _, _ := running(t, f, st)
	st.awaitEmitted(t, "snapshot a@11")
	f.write("ADDED", "b")
	st.awaitEmitted(t, "snapshot a@11", "added b@12")
	f.write("MODIFIED", "a")
	st.awaitEmitted(t, "snapshot a@11", "added b@12", "updated a@13")
	f.write("DELETED", "b")
	st.awaitEmitted(t, "snapshot a@11", "added b@12", "updated a@13", "deleted b@14")
	if n := f.count("LIST"); n != 0 {
		t.Errorf("%d LISTs where WatchList works", n)
	}
	awaitState(t, st, s, Live)
	st.await(t, "readiness", func() bool { ready, reasons := s.Ready(); return ready && len(reasons) == 0 })
	c := st.change(0)
	if c.Cluster != "c" || c.Resource != (event.Resource{Version: "v1", Resource: "pods", Kind: "Kind"}) || c.Actor != nil || strings.Contains(string(c.After), "managedFields") {
		t.Errorf("change %+v\nafter %s", c, c.After)
	}
}

func TestTheClusterIsNamedByTheUIDOfKubeSystem(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.dials.Store(2)
	f.write("ADDED", "a")
	s, _, _ := running(t, f, st, func(c *Config) { c.Cluster = "" })
	st.awaitEmitted(t, "snapshot a@11")
	if c := st.change(0).Cluster; c != "cluster-uid" || s.Cluster() != c {
		t.Errorf("cluster %q, %q", c, s.Cluster())
	}
}

func TestAResumeSendsNoList(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.write("ADDED", "a", "b")
	_, _, stop := running(t, f, st)
	st.await(t, "the first list", func() bool { return len(st.emitted()) == 2 })
	st.await(t, "position", func() bool { return st.position("pods") == "12" })
	stop()

	f.write("DELETED", "a")
	f.write("MODIFIED", "b")
	before := len(f.requests())
	s, _, _ := running(t, f, st)
	st.await(t, "changes", func() bool { return len(st.emitted()) == 4 })
	got := st.emitted()[2:]
	slices.Sort(got)
	if !slices.Equal(got, []string{"deleted a@13", "updated b@14"}) {
		t.Errorf("emitted %q", got)
	}
	if got := f.requests()[before:]; !slices.Equal(got, []string{"ASK rv=12", "WATCH rv=12"}) {
		t.Errorf("requests %q", got)
	}
	if got := s.Status()[0]; got.Lists != 0 || got.Relists != 0 || !got.Synced {
		t.Errorf("status %+v", got)
	}
}

// TestWhatTheAPIServerWasFoundToServeIsReadAtOnce: it need not be asked before, and is asked soon.
func TestWhatTheAPIServerWasFoundToServeIsReadAtOnce(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.write("ADDED", "a", "b")
	client, err := apiserver.NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	catalog, failed, err := client.Discover(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	polls := func() (n int) {
		f.change(func() { n = f.polls })
		return n
	}
	groups, before := f.groups, polls()
	f.change(func() { f.groups = nil })
	running(t, f, st, func(c *Config) { c.Found = &Found{Catalog: catalog, Failed: failed} })
	st.await(t, "what is there", func() bool { return len(st.emitted()) == 2 })
	f.change(func() { f.groups = groups })
	f.write("ADDED", "c")
	st.await(t, "a change, and a question", func() bool { return len(st.emitted()) == 3 && polls() > before })
}

func TestLostHistoryIsEmittedAndTheDifferencesFollow(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old resource version: 12 (20)")
	for name, fault := range map[string]http.HandlerFunc{
		"in the stream": nil,
		"as a status":   func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, gone) },
	} {
		t.Run(name, func(t *testing.T) {
			f, st := newFakeAPI(t), newStore()
			f.write("ADDED", "a", "b")
			s, log, stop := running(t, f, st)
			st.await(t, "the first list", func() bool { return len(st.emitted()) == 2 })
			awaitState(t, st, s, Live)
			f.write("MODIFIED", "a")
			st.await(t, "an update", func() bool { return len(st.emitted()) == 3 })

			faults := []http.HandlerFunc{}
			if fault != nil {
				faults = append(faults, pass(f), fault) // the first answers whether the position was reached
			}
			f.breakWith(func() {
				f.rv = 20
				f.history = []fakeEvent{{11, "ADDED", "a"}, {13, "MODIFIED", "a"}, {19, "ADDED", "c"}}
				f.oldest = 15
			}, faults...)
			st.await(t, "the differences", func() bool { return len(st.emitted()) == 6 })
			got := st.emitted()[3:]
			slices.Sort(got[1:])
			if !slices.Equal(got, []string{"gap 13-20", "added c@19~", "deleted b@12~"}) {
				t.Errorf("emitted %q", got)
			}
			f.write("MODIFIED", "c")
			st.await(t, "live", func() bool { return slices.Contains(st.emitted(), "updated c@21") })
			if got := s.Status()[0]; got.Relists != 1 || f.count("WATCHLIST") != 1 || f.count("LIST") != 1 {
				t.Errorf("status %+v requests %q", got, f.requests())
			}
			stop()
			if log.count("no longer has the history") != 1 {
				t.Errorf("log\n%s", log)
			}
		})
	}
}

// TestAnotherAPIServerIsAskedBeforeHistoryCountsAsLost meets an API server that has just started, and so knows nothing of
// what was before, behind an address where another one knows it.
func TestAnotherAPIServerIsAskedBeforeHistoryCountsAsLost(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old resource version: 12 (20)")
	status := func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, gone) }
	inStream := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, err := json.Marshal(statusJSON(gone))
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, `{"type":"ERROR","object":%s}`+"\n", text)
	}
	for name, fault := range map[string]http.HandlerFunc{"in the stream": inStream, "as a status": status} {
		t.Run(name, func(t *testing.T) {
			f, st := newFakeAPI(t), newStore()
			f.write("ADDED", "a")
			s, log, _ := running(t, f, st)
			awaitState(t, st, s, Live)
			again := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Connection") != "close" {
					t.Error("a connection that leads to the same API server is used again")
				}
				fault(w, r)
			}
			f.breakAll(pass(f), fault, again, again)
			f.write("MODIFIED", "a")
			st.awaitEmitted(t, "snapshot a@11", "updated a@12")
			if got := s.Status()[0]; got.Relists != 0 || got.Lists != 0 || f.count("WATCHLIST") != 1 {
				t.Errorf("status %+v requests %q", got, f.requests())
			}
			st.await(t, "a line in the log", func() bool { return log.count("another API server has the history") == 1 })
		})
	}
}

// pass is no fault.
func pass(f *fakeAPI) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { f.watch(w, r, "ASK") }
}

func TestNoOutageLosesAnEventOrMakesAList(t *testing.T) {
	status := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, err) }
	}
	inStream := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, text)
			w.(http.Flusher).Flush()
		}
	}
	gr := schema.GroupResource{Resource: "pods"}
	truncated := `{"type":"MODIFIED","object":` + objectJSON("a", 999)
	for name, fault := range map[string]http.HandlerFunc{
		"500": status(apierrors.NewInternalError(fmt.Errorf("broken"))),
		"503": status(apierrors.NewServiceUnavailable("starting")),
		"429": status(apierrors.NewTooManyRequestsError("slow down")),
		"401": status(apierrors.NewUnauthorized("token")),
		"504": status(apierrors.NewTimeoutError("timeout", 0)),
		"409": status(apierrors.NewConflict(gr, "x", nil)),
		"502 page": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		},
		"500 in the stream":      inStream(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}}` + "\n"),
		"429 in the stream":      inStream(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429}}` + "\n"),
		"unknown in the stream":  inStream(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":418}}` + "\n"),
		"garbage":                inStream("garbage\n"),
		"binary garbage":         inStream("\x00\x01\x02{{{{\n"),
		"half an event":          inStream(truncated),
		"half an event in lines": inStream(truncated + "\n"),
		"unknown type":           inStream(`{"type":"WAT","object":{}}` + "\n"),
		"very short":             inStream(""),
		"reset":                  func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"wrong content type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html></html>")
		},
		"refused": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, st := newFakeAPI(t), newStore()
			f.write("ADDED", "a")
			s, _, _ := running(t, f, st)
			st.awaitEmitted(t, "snapshot a@11")
			f.write("MODIFIED", "a")
			st.awaitEmitted(t, "snapshot a@11", "updated a@12")
			if fault == nil {
				f.dials.Store(3)
				f.server.CloseClientConnections()
			} else {
				// The first fault meets the question whether the position was reached, or the watch behind it.
				f.breakAll(fault, pass(f), fault, fault)
			}
			f.write("ADDED", "b")
			f.write("DELETED", "a")
			st.await(t, "what happened meanwhile", func() bool { return len(st.emitted()) >= 4 })
			got := st.emitted()
			slices.Sort(got) // between objects there is no order
			if !slices.Equal(got, []string{"added b@13", "deleted a@14", "snapshot a@11", "updated a@12"}) {
				t.Errorf("emitted %q", got)
			}
			awaitState(t, st, s, Live)
			if got := s.Status()[0]; got.Relists != 0 || got.Lists != 0 || f.count("WATCHLIST") != 1 {
				t.Errorf("status %+v requests %q", got, f.requests())
			}
		})
	}
}
