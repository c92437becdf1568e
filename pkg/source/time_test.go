package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// memoryTransport is an http.RoundTripper that calls a handler in the same process, so that time can be virtual.
type memoryTransport struct{ handler http.Handler }

func (m memoryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body, w := io.Pipe()
	a := &pipedResponse{w: w, header: http.Header{}, ready: make(chan int, 1)}
	go func() {
		defer func() {
			if recover() != nil {
				_ = w.CloseWithError(io.ErrUnexpectedEOF)
			}
			_ = w.Close()
			a.Flush()
		}()
		m.handler.ServeHTTP(a, r)
	}()
	select {
	case code := <-a.ready:
		go func() { // like a connection with a canceled request
			<-r.Context().Done()
			_ = body.CloseWithError(r.Context().Err())
		}()
		return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: a.header, Body: body, Request: r, ProtoMajor: 1, ProtoMinor: 1}, nil
	case <-r.Context().Done():
		_ = body.CloseWithError(r.Context().Err())
		return nil, r.Context().Err()
	}
}

// CloseIdleConnections does nothing: there are no connections.
func (memoryTransport) CloseIdleConnections() {}

type pipedResponse struct {
	w      *io.PipeWriter
	header http.Header
	ready  chan int
	sent   bool
}

func (a *pipedResponse) Header() http.Header { return a.header }
func (a *pipedResponse) Flush()              { a.WriteHeader(http.StatusOK) }
func (a *pipedResponse) WriteHeader(code int) {
	if !a.sent {
		a.sent = true
		a.ready <- code
	}
}
func (a *pipedResponse) Write(p []byte) (int, error) {
	a.Flush()
	return a.w.Write(p)
}

// inVirtualTime runs a test against a fake in memory. The fake writes "added a" before the test begins.
func inVirtualTime(t *testing.T, test func(*testing.T, *fakeAPI, *store, func(*Config))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f, st := &fakeAPI{t: t, lookups: map[string]int{}, rv: 10, cluster: "cluster-uid", changed: make(chan struct{}), cut: make(chan struct{}), hang: make(chan struct{})}, newStore()
		f.groups = append(f.groups, coreGroup("pods"))
		st.timeout = 24 * time.Hour
		f.writeEvents("ADDED", "a")
		test(t, f, st, func(c *Config) {
			connectTo(t, c, f)
			c.Interval = time.Minute
		})
	})
}

// connectTo gives a configuration a client of an API server in memory.
func connectTo(t *testing.T, c *Config, api http.Handler) {
	t.Helper()
	client, err := apiserver.NewClient(&rest.Config{Host: "http://api", Transport: memoryTransport{api}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	c.Client = client
}

func TestForbiddenTypeDegradesAloneAndRecovers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.deny = true
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Forbidden)
		time.Sleep(10 * time.Minute)
		if failing := condition.Summarize(s.Conditions()); s.Ready() || len(failing) != 2 || failing[0].Code != condition.NothingWatched ||
			failing[1].Name() != "resource/pods" {
			t.Errorf("ready %v, %+v", s.Ready(), failing)
		}
		if n := log.CountOf("code=ResourceForbidden"); n != 1 {
			t.Errorf("%d lines\n%s", n, log)
		}
		const missing = ` is forbidden: User "kubecdc" cannot watch resource "pods"`
		if got := s.Status()[0].Condition.Cause; got != "list"+missing {
			t.Errorf("reason %q, want %q", got, "list"+missing)
		}
		if n := len(f.requestLog()); n < 20 || n > 45 {
			t.Errorf("%d requests in ten minutes, want one in 15 to 30 seconds", n)
		}
		f.update(func() { f.deny = false })
		st.awaitEmitted(t, "snapshot a@11")
		awaitState(t, st, s, Live)

		f.update(func() { f.deny = true })
		f.breakStreams()
		awaitState(t, st, s, Forbidden) // the refused position check contains an object name
		if got := s.Status()[0].Condition.Cause; got != "watch"+missing {
			t.Errorf("reason %q, want %q", got, "watch"+missing)
		}
		f.update(func() { f.deny = false })
		f.writeEvents("MODIFIED", "a")
		st.awaitEmitted(t, "snapshot a@11", "updated a@12")
		if s.Status()[0].Relists != 0 {
			t.Error("history was lost over rights that were missing for a while")
		}
	})
}

func TestUnreadableClusterNameIsAnErrorWithRemedy(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		cfg := Config{Rules: []selection.Rule{{Select: []string{"pods"}}}, Load: st.loadResource, SetScopes: st.setScopes, StoredResources: st.storedResources, Append: st.appendObservation, DropResource: st.dropResource, Log: slog.New(slog.DiscardHandler)}
		on(&cfg)
		f.nameless = true
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "set cluster.name, or allow get on that namespace") {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestFailingJournalEndsTheSource(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		full := errors.New("disk is on fire")
		cfg := Config{
			Cluster: "c", Rules: []selection.Rule{{Select: []string{"pods"}}}, Load: st.loadResource, StoredResources: st.storedResources, SetScopes: st.setScopes, DropResource: st.dropResource, Log: slog.New(slog.DiscardHandler),
			Append: func(context.Context, event.Observation) error { return full },
		}
		on(&cfg)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(t.Context()); !errors.Is(err, full) || !strings.Contains(err.Error(), "pods") {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestListWithoutPositionIsAFailure uses an API server with lists that cannot be watched from.
func TestListWithoutPositionIsAFailure(t *testing.T) {
	for name, version := range map[string]string{"none": "", "any": "0"} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				for range 1000 {
					f.faults = append(f.faults, func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Type", "application/json")
						fmt.Fprintf(w, `{"kind":"PodList","metadata":{"resourceVersion":%q},"items":[{"metadata":{"name":"a","uid":"u"}}]}`, version)
					})
				}
				s, _, stop := startSource(t, f, st, on)
				defer stop()
				awaitState(t, st, s, Unreachable)
				time.Sleep(10 * time.Minute)
				if got := s.Status()[0]; got.State != Unreachable || !strings.Contains(got.Condition.Cause, "that cannot be watched from") {
					t.Errorf("status %+v", got)
				}
				if n := len(f.requestLog()); n > 120 {
					t.Errorf("%d requests in ten minutes", n)
				}
				if got := st.snapshotFrames(); len(got) != 0 {
					t.Errorf("emitted %+v", got)
				}
				f.update(func() { f.faults = nil })
				awaitState(t, st, s, Live)
			})
		})
	}
}

// TestLateExpiredAnswerIsHistoryLoss uses an API server that accepts watches, and expires them after they count as steady.
func TestLateExpiredAnswerIsHistoryLoss(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		faults := []http.HandlerFunc{passThrough(f)}
		for range maxExpiredWatches {
			faults = append(faults, func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				time.Sleep(2 * steadyAfter)
				text, err := json.Marshal(statusJSON(apierrors.NewResourceExpired("too old resource version")))
				if err != nil {
					t.Error(err)
				}
				fmt.Fprintf(w, `{"type":"ERROR","object":%s}`+"\n", text)
			})
		}
		f.breakStreams(faults...)
		st.awaitEmitted(t, "snapshot a@11", "gap 11-11")
		awaitState(t, st, s, Live)
	})
}

// stallMidList sends a list with one object that never ends.
func stallMidList(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"11"},"items":[%s,`, objectJSON("a", 11))
	<-r.Context().Done()
}

func TestStalledListIsRequestedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		refuse := func(w http.ResponseWriter, _ *http.Request) {
			writeStatus(w, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil))
		}
		f.faults = append(f.faults, refuse, stallMidList)
		s, _, stop := startSource(t, f, st, on)
		defer stop()
		began := time.Now()
		awaitState(t, st, s, Unreachable)
		if took := time.Since(began); took > apiserver.SlowAfter+time.Second {
			t.Errorf("reported after %s", took)
		}
		st.awaitPosition(t, "pods", "11")
		if took := time.Since(began); took > apiserver.HeadersTimeout+time.Second {
			t.Errorf("retried after %s", took)
		}
	})
}

func TestStalledListsDoNotBlockOthers(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		names := []string{"pods"}
		for i := range 2 * concurrentLists {
			names = append(names, fmt.Sprintf("hung%d", i))
		}
		f.groups = []apidiscovery.APIGroupDiscovery{coreGroup(names...)}
		_, _, stop := startSource(t, f, st, on, func(c *Config) {
			connectTo(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "/hung") && r.URL.Query().Get("watch") == "" {
					stallMidList(w, r)
					return
				}
				f.ServeHTTP(w, r)
			}))
			c.Rules = []selection.Rule{{Select: names[1:]}, {Select: names[:1]}}
		})
		defer stop()
		began := time.Now()
		st.awaitPosition(t, "pods", "11")
		if took := time.Since(began); took > 3*apiserver.SlowAfter {
			t.Errorf("after %s", took)
		}
	})
}

func TestServerEndingEveryWatchIsUnreachable(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		short := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
		}
		for range maxShortWatches {
			f.breakStreams(passThrough(f), short)
		}
		awaitState(t, st, s, Unreachable)
		awaitState(t, st, s, Live)
		if log.CountOf("code=ResourceFailing") != 1 || s.Status()[0].Relists != 0 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestDayOfOutageLogsOneLine(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		f.update(func() { f.down = true })
		f.breakStreams()
		time.Sleep(12 * time.Hour)
		if n := log.CountOf("level=WARN"); n != 2 { // one of the scope, one of discovery
			t.Errorf("%d lines\n%s", n, log)
		}
		if ready := s.Ready(); ready {
			t.Error("ready without an API server")
		}
		f.update(func() { f.down = false })
		f.writeEvents("MODIFIED", "a")
		st.awaitEmitted(t, "snapshot a@11", "updated a@12")
		awaitState(t, st, s, Live)
	})
}

// TestOutageOfEveryTypeLogsTwoLines takes the API server away from 180 types and discovery for ten minutes: one line when it
// goes, one when it is back. If it comes back without the history, there is one more line.
func TestOutageOfEveryTypeLogsTwoLines(t *testing.T) {
	for name, lost := range map[string]bool{"and no more": false, "and one more for lost history": true} {
		t.Run(name, func(t *testing.T) {
			want := 2
			if lost {
				want++
			}
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
				var all []string
				for n := range 180 {
					all = append(all, fmt.Sprintf("type%03ds", n))
				}
				f.groups = []apidiscovery.APIGroupDiscovery{coreGroup(all...)}
				s, log, stop := startSource(t, f, st, on, func(c *Config) {
					c.Rules = []selection.Rule{{Select: []string{"*"}}}
					c.Interval = time.Second // discovery notices at the same time; otherwise it has a line of its own
				})
				defer stop()
				alive := func() bool {
					live := 0
					for _, one := range s.Status() {
						if one.State == Live && st.positionOf(one.Scope) != "" {
							live++
						}
					}
					return live == len(all)
				}
				st.awaitTrue(t, "all types", alive)
				time.Sleep(time.Minute)
				before := log.CountOf("msg=")
				f.breakStreamsAfter(func() { f.down = true })
				time.Sleep(10 * time.Minute)
				for _, one := range s.Status() {
					if one.State != Unreachable || !strings.Contains(one.Condition.Remedy, "http://api") {
						t.Fatalf("status %+v", one)
					}
				}
				f.update(func() {
					f.down = false
					if lost {
						f.oldest, f.rv = f.rv+500, f.rv+1000
					}
				})
				st.awaitTrue(t, "all types", alive)
				time.Sleep(time.Minute)
				if n := log.CountOf("msg=") - before; n != want {
					t.Errorf("%d lines, want %d\n%s", n, want, log)
				}
			})
		})
	}
}

// answerInitializing is the answer of an API server that is filling its cache of a resource.
func answerInitializing(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		err := apierrors.NewTooManyRequests("storage is (re)initializing", 1)
		if code == http.StatusInternalServerError {
			err = apierrors.NewInternalError(errors.New("storage is (re)initializing"))
		}
		writeStatus(w, err)
	}
}

func TestInitializingServerIsWaitedForQuietly(t *testing.T) {
	for _, code := range []int{http.StatusTooManyRequests, http.StatusInternalServerError} {
		inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
			for range 5 {
				f.faults = append(f.faults, answerInitializing(code))
			}
			began := time.Now()
			s, log, stop := startSource(t, f, st, on)
			defer stop()
			time.Sleep(10 * time.Millisecond)
			if got := s.Status()[0]; got.State != Syncing || !strings.Contains(got.Condition.Cause, "storage is (re)initializing") {
				t.Errorf("%d: status %+v", code, got)
			}
			st.awaitEmitted(t, "snapshot a@11")
			if took := time.Since(began); took > 6*time.Second {
				t.Errorf("%d: took %s", code, took)
			}
			awaitState(t, st, s, Live)

			f.breakStreams(answerInitializing(code), answerInitializing(code)) // the API server restarts
			awaitState(t, st, s, Syncing)
			f.writeEvents("MODIFIED", "a")
			st.awaitEmitted(t, "snapshot a@11", "updated a@12")
			awaitState(t, st, s, Live)
			if log.CountOf("level=WARN") != 0 || log.CountOf("not watching yet") > 1 {
				t.Errorf("%d: log\n%s", code, log)
			}
		})
	}
}

func TestServerThatStaysInitializingIsUnreachable(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		for range 3600 { // a conversion webhook is down
			f.faults = append(f.faults, answerInitializing(http.StatusTooManyRequests))
		}
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Unreachable)
		time.Sleep(10 * time.Minute)
		if got := s.Status()[0]; got.State != Unreachable || log.CountOf("level=WARN") != 1 {
			t.Errorf("status %+v, log\n%s", got, log)
		}
		f.update(func() { f.faults = nil })
		awaitState(t, st, s, Live)

		f.breakStreams(answerInitializing(http.StatusTooManyRequests), answerInitializing(http.StatusTooManyRequests))
		awaitState(t, st, s, Syncing) // another restart begins a new period
		awaitState(t, st, s, Live)
	})
}

func TestUnopenedWatchIsUnreachable(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		f.breakStreams(passThrough(f), func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(30 * time.Second)
			f.answerWatch(w, r)
		})
		began := time.Now()
		awaitState(t, st, s, Unreachable)
		if after := time.Since(began); after < apiserver.SlowAfter || after > apiserver.SlowAfter+time.Second {
			t.Errorf("unreachable after %s, want %s", after, apiserver.SlowAfter)
		}
		awaitState(t, st, s, Live)
		if log.CountOf("level=WARN") != 1 || log.CountOf("has not answered") != 1 {
			t.Errorf("log\n%s", log)
		}
	})
}

func TestBackoffGrowsWithJitter(t *testing.T) {
	unavailable := apierrors.NewServiceUnavailable("down")
	var p backoff
	longest := time.Duration(0)
	seen := map[time.Duration]bool{}
	for range 50 {
		d := p.nextWait(unavailable)
		longest = max(longest, d)
		seen[d] = true
		if d < minWait/2 || d > maxWait {
			t.Errorf("wait of %s", d)
		}
	}
	if longest < maxWait/2 || len(seen) < 40 {
		t.Errorf("longest %s, %d different", longest, len(seen))
	}
	p.reset()
	if d := p.nextWait(unavailable); d > minWait {
		t.Errorf("%s after a reset", d)
	}
	if d := p.nextWait(apierrors.NewTooManyRequests("", 60)); d != time.Minute {
		t.Errorf("%s although Retry-After was a minute", d)
	}
	if d := p.nextWait(apierrors.NewTooManyRequests("", 86400)); d > maxRetryAfter {
		t.Errorf("%s although Retry-After was a day", d)
	}
	missing := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	p.reset()
	if d := p.nextWait(missing); d > 2*minDeniedWait {
		t.Errorf("%s after the first denial", d)
	}
	p.failures = 20
	if d := p.nextWait(missing); d < maxDeniedWait || d > 2*maxDeniedWait {
		t.Errorf("%s after repeated denials", d)
	}
}

func TestRefusalAfterOutageIsRetriedSoon(t *testing.T) {
	var p backoff
	for range 20 {
		p.nextWait(apierrors.NewServiceUnavailable("down"))
	}
	refused := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	if d := p.nextWait(refused); d > 2*minDeniedWait {
		t.Errorf("%s after the first denial at the end of an outage", d)
	}
	for range 20 {
		p.nextWait(refused)
	}
	if d := p.nextWait(apierrors.NewServiceUnavailable("down")); d > minWait {
		t.Errorf("%s after the first failure of another kind", d)
	}
}
