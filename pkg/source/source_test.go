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

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

func TestFirstListIsSnapshotThenChanges(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	s, _, _ := startSource(t, f, st)
	st.awaitEmitted(t, "snapshot a@11")
	f.writeEvents("ADDED", "b")
	st.awaitEmitted(t, "snapshot a@11", "added b@12")
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "snapshot a@11", "added b@12", "updated a@13")
	f.writeEvents("DELETED", "b")
	st.awaitEmitted(t, "snapshot a@11", "added b@12", "updated a@13", "deleted b@14")
	if got := f.requestLog(); !slices.Equal(got, []string{"LIST rv=", "WATCH rv=11"}) {
		t.Errorf("requests %q", got)
	}
	awaitState(t, st, s, Live)
	st.awaitTrue(t, "readiness", func() bool { return s.Ready() && len(condition.Summarize(s.Conditions())) == 0 })
	c := st.changeAt(0)
	if c.Cluster != "c" || c.Resource != (event.Resource{Version: "v1", Resource: "pods", Kind: "Kind"}) || c.Actor != nil || strings.Contains(string(c.After), "managedFields") {
		t.Errorf("change %+v\nafter %s", c, c.After)
	}
}

func TestClusterNameIsKubeSystemUID(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.dials.Store(2)
	f.writeEvents("ADDED", "a")
	s, _, _ := startSource(t, f, st, func(c *Config) { c.Cluster = "" })
	st.awaitEmitted(t, "snapshot a@11")
	if c := st.changeAt(0).Cluster; c != "cluster-uid" || s.Cluster() != c {
		t.Errorf("cluster %q, %q", c, s.Cluster())
	}
}

func TestResumeSendsNoList(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	s, _, stop := startSource(t, f, st)
	awaitState(t, st, s, Live)
	stop()

	f.writeEvents("DELETED", "a")
	f.writeEvents("MODIFIED", "b")
	before := len(f.requestLog())
	s, _, _ = startSource(t, f, st)
	st.awaitTrue(t, "changes", func() bool { return len(st.transcript()) == 4 })
	got := st.transcript()[2:]
	slices.Sort(got)
	if !slices.Equal(got, []string{"deleted a@13", "updated b@14"}) {
		t.Errorf("emitted %q", got)
	}
	if got := f.requestLog()[before:]; !slices.Equal(got, []string{"ASK rv=12", "WATCH rv=12"}) {
		t.Errorf("requests %q", got)
	}
	if got := s.Status()[0]; got.Lists != 0 || got.Relists != 0 || !got.Synced {
		t.Errorf("status %+v", got)
	}
}

// TestGivenDiscoveryIsUsedAtOnce starts without a discovery request; one follows soon.
func TestGivenDiscoveryIsUsedAtOnce(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
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
		f.update(func() { n = f.polls })
		return n
	}
	groups, before := f.groups, polls()
	f.update(func() { f.groups = nil })
	startSource(t, f, st, func(c *Config) { c.Discovery = &Discovery{Catalog: catalog, Failed: failed} })
	st.awaitTrue(t, "the objects", func() bool { return len(st.transcript()) == 2 })
	f.update(func() { f.groups = groups })
	f.writeEvents("ADDED", "c")
	st.awaitTrue(t, "a change, and a poll", func() bool { return len(st.transcript()) == 3 && polls() > before })
}

func TestLostHistoryEmitsGapThenDifferences(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old resource version: 12 (20)")
	for name, fault := range map[string]http.HandlerFunc{
		"in the stream": nil,
		"as a status":   func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, gone) },
	} {
		t.Run(name, func(t *testing.T) {
			f, st := newFakeAPI(t), newStore()
			f.writeEvents("ADDED", "a", "b")
			s, log, stop := startSource(t, f, st)
			st.awaitTrue(t, "the first list", func() bool { return len(st.transcript()) == 2 })
			awaitState(t, st, s, Live)
			f.writeEvents("MODIFIED", "a")
			st.awaitTrue(t, "an update", func() bool { return len(st.transcript()) == 3 })

			faults := []http.HandlerFunc{}
			if fault != nil {
				faults = append(faults, passThrough(f), fault) // the first one answers the position check
			}
			f.breakStreamsAfter(func() {
				f.rv = 20
				f.history = []fakeEvent{{11, "ADDED", "a"}, {13, "MODIFIED", "a"}, {19, "ADDED", "c"}}
				f.oldest = 15
			}, faults...)
			st.awaitTrue(t, "the differences", func() bool { return len(st.transcript()) == 6 })
			got := st.transcript()[3:]
			slices.Sort(got[1:])
			if !slices.Equal(got, []string{"gap 13-20", "added c@19~", "deleted b@12~"}) {
				t.Errorf("emitted %q", got)
			}
			f.writeEvents("MODIFIED", "c")
			st.awaitTrue(t, "live", func() bool { return slices.Contains(st.transcript(), "updated c@21") })
			if got := s.Status()[0]; got.Relists != 1 || f.countRequests("LIST") != 2 {
				t.Errorf("status %+v requests %q", got, f.requestLog())
			}
			stop()
			if log.CountOf("no longer has the history") != 1 {
				t.Errorf("log\n%s", log)
			}
		})
	}
}

// TestOtherAPIServersAreTriedBeforeHistoryIsLost uses an API server that has just started, and so has no history, behind an
// address where another one has it.
func TestOtherAPIServersAreTriedBeforeHistoryIsLost(t *testing.T) {
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
			f.writeEvents("ADDED", "a")
			s, log, _ := startSource(t, f, st)
			awaitState(t, st, s, Live)
			again := func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Connection") != "close" {
					t.Error("a connection to the same API server is reused")
				}
				fault(w, r)
			}
			f.breakStreams(passThrough(f), fault, again, again)
			f.writeEvents("MODIFIED", "a")
			st.awaitEmitted(t, "snapshot a@11", "updated a@12")
			if got := s.Status()[0]; got.Relists != 0 || got.Lists != 1 {
				t.Errorf("status %+v requests %q", got, f.requestLog())
			}
			st.awaitTrue(t, "a line in the log", func() bool { return log.CountOf("another API server still has the history") == 1 })
		})
	}
}

// passThrough is no fault.
func passThrough(f *fakeAPI) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { f.answerWatch(w, r) }
}

func TestOutagesLoseNoEventAndNoHistory(t *testing.T) {
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
			f.writeEvents("ADDED", "a")
			s, _, _ := startSource(t, f, st)
			st.awaitEmitted(t, "snapshot a@11")
			f.writeEvents("MODIFIED", "a")
			st.awaitEmitted(t, "snapshot a@11", "updated a@12")
			if fault == nil {
				f.dials.Store(3)
				f.server.CloseClientConnections()
			} else {
				// The first fault hits the position check, or the watch after it.
				f.breakStreams(fault, passThrough(f), fault, fault)
			}
			f.writeEvents("ADDED", "b")
			f.writeEvents("DELETED", "a")
			st.awaitTrue(t, "the changes of the outage", func() bool { return len(st.transcript()) >= 4 })
			got := st.transcript()
			slices.Sort(got) // the order of objects is undefined
			if !slices.Equal(got, []string{"added b@13", "deleted a@14", "snapshot a@11", "updated a@12"}) {
				t.Errorf("emitted %q", got)
			}
			awaitState(t, st, s, Live)
			if got := s.Status()[0]; got.Relists != 0 {
				t.Errorf("status %+v requests %q", got, f.requestLog())
			}
		})
	}
}
