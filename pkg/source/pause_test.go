package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// pauser is a guard that pauses the first rule.
type pauser struct {
	mu      sync.Mutex
	paused  bool
	changed chan struct{}
	turns   sync.WaitGroup
}

func newPauser() *pauser { return &pauser{changed: make(chan struct{})} }

// set pauses or resumes the rule, and waits until nothing is emitted that began before.
func (p *pauser) set(paused bool) {
	p.mu.Lock()
	p.paused = paused
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	if paused {
		p.turns.Wait()
	}
}

func (p *pauser) guard(c *Config) { c.Guard = p }

func (p *pauser) SetTypes([]GuardedType) {}

func (p *pauser) Held(rule int) (condition.Problem, Changed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused && rule == 0 {
		return condition.Problem{Code: condition.RulePaused, Cause: "paused"}, Changed{p.changed}
	}
	return condition.Problem{}, Changed{nil, p.changed}
}

func (p *pauser) BeginTurn(rule int) (end func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused && rule == 0 {
		return nil, &HeldError{Problem: condition.Problem{Code: condition.RulePaused, Cause: "paused"}}
	}
	p.turns.Add(1)
	return p.turns.Done, nil
}

func (p *pauser) BeginRequest(selection.Scope) (verify func(context.Context) error) {
	return func(context.Context) error { return nil }
}

// TestAPausedRuleGoesOnWhereItWas: nothing of it is read or emitted during the pause, and the watch continues from its
// position.
func TestAPausedRuleGoesOnWhereItWas(t *testing.T) {
	f, st, p := newFakeAPI(t), newStore(), newPauser()
	f.writeEvents("ADDED", "a", "b")
	s, log, stop := startSource(t, f, st, p.guard)
	awaitState(t, st, s, Live)
	p.set(true)
	awaitState(t, st, s, Paused)
	got := s.Status()[0].Condition
	if got.Code != condition.RulePaused || got.Severity != condition.Degraded || got.Deadline.IsZero() || !s.Ready() {
		t.Errorf("the condition is %+v, ready %v", got, s.Ready())
	}
	f.writeEvents("MODIFIED", "a")
	f.writeEvents("DELETED", "b")
	f.writeEvents("ADDED", "c")
	requests := f.countRequests("")
	s.EmitRequested()
	st.awaitEmitted(t, "snapshot a@11", "snapshot b@12")
	if f.countRequests("") != requests {
		t.Errorf("a paused rule is read: %q", f.requestLog())
	}
	p.set(false)
	st.awaitTrue(t, "what has waited", func() bool { return len(st.transcript()) == 5 })
	if got := st.transcript()[2:]; !slices.Equal(got, []string{"updated a@13", "deleted b@14", "added c@15"}) {
		t.Errorf("emitted %q", got)
	}
	awaitState(t, st, s, Live)
	if got := s.Status()[0]; got.Relists != 0 || got.Lists != 1 {
		t.Errorf("after the pause it is listed: %q", f.requestLog())
	}
	stop()
	if log.CountOf("the rule is paused by a signal") > 1 {
		t.Errorf("log\n%s", log)
	}
}

// TestAPausedRuleBeginsWithAGapOnceTheHistoryIsGone: one gap, and then the differences, deletes among them.
func TestAPausedRuleBeginsWithAGapOnceTheHistoryIsGone(t *testing.T) {
	f, st, p := newFakeAPI(t), newStore(), newPauser()
	f.writeEvents("ADDED", "a", "b")
	s, _, _ := startSource(t, f, st, p.guard)
	awaitState(t, st, s, Live)
	p.set(true)
	awaitState(t, st, s, Paused)
	f.update(func() {
		f.rv = 20
		f.history = []fakeEvent{{11, "ADDED", "a"}, {13, "MODIFIED", "a"}, {19, "ADDED", "c"}}
		f.oldest = 15
	})
	p.set(false)
	st.awaitTrue(t, "the differences", func() bool { return len(st.transcript()) == 6 })
	got := st.transcript()[2:]
	slices.Sort(got[1:])
	if !slices.Equal(got, []string{"gap 12-20", "added c@19~", "deleted b@12~", "updated a@13~"}) {
		t.Errorf("emitted %q", got)
	}
}

// TestAPausedRuleHoldsNoOtherUp: its scopes give way, in the middle of their first lists too, and go on in the same
// snapshot.
func TestAPausedRuleHoldsNoOtherUp(t *testing.T) {
	f, st, p := newFakeAPI(t), newStore(), newPauser()
	f.groups = []apidiscovery.APIGroupDiscovery{coreGroup("pods", "nodes")}
	f.writeEvents("ADDED", "a", "b")
	inList, paused := make(chan struct{}), make(chan struct{})
	f.lists = []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/pods" {
			t.Errorf("the first list is %s", r.URL)
		}
		close(inList)
		<-paused
		f.answerList(w)
	}}
	nodes := make(chan struct{})
	s, _, _ := startSource(t, f, st, p.guard, func(c *Config) {
		c.Rules = []selection.Rule{{Select: []string{"pods"}}, {Select: []string{"nodes"}}}
		if c.Guard != nil {
			c.Guard = laterNodes{p, nodes}
		}
	})
	<-inList
	p.set(true)
	close(paused)
	close(nodes)
	st.awaitPosition(t, "nodes", "12")
	st.awaitTrue(t, "the pause", func() bool { return len(s.Status()) == 2 && s.Status()[1].State == Paused })
	for _, line := range st.kinds("pods") {
		t.Errorf("a paused rule has emitted %s", line)
	}
	p.set(false)
	st.awaitPosition(t, "pods", "12")
	if got := st.kinds("pods"); len(got) != 4 {
		t.Errorf("emitted %q", got)
	}
}

// laterNodes lets the second rule begin when ready is closed.
type laterNodes struct {
	*pauser
	ready chan struct{}
}

func (l laterNodes) Held(rule int) (condition.Problem, Changed) {
	select {
	case <-l.ready:
	default:
		if rule == 1 {
			return condition.Problem{Code: condition.RedactionHeld, Cause: "later"}, Changed{l.ready}
		}
	}
	return l.pauser.Held(rule)
}

// kinds returns the types of the changes of a resource, in order.
func (s *store) kinds(resource string) (all []event.Type) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.changes {
		if c.Resource.Resource == resource {
			all = append(all, c.Type)
		}
	}
	return all
}

// TestTheObjectsOfAPausedResourceAreDeletedAfterThePause although the resource is gone before its end.
func TestTheObjectsOfAPausedResourceAreDeletedAfterThePause(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		p := newPauser()
		f.writeEvents("ADDED", "a")
		s, _, stop := startSource(t, f, st, on, p.guard)
		defer stop()
		awaitState(t, st, s, Live)
		p.set(true)
		awaitState(t, st, s, Paused)
		f.update(func() { f.groups, f.absent = []apidiscovery.APIGroupDiscovery{coreGroup("nodes")}, true })
		time.Sleep(10 * time.Minute)
		st.awaitEmitted(t, "snapshot a@12")
		if got := s.Status()[0].State; got != Paused {
			t.Errorf("the state is %s", got)
		}
		p.set(false)
		st.awaitEmitted(t, "snapshot a@12", "deleted a@12~")
	})
}

// TestWhatIsReadBesideAPausedWatchWaits: a snapshot for one sink goes on after the pause, and no watermark claims what is
// not there.
func TestWhatIsReadBesideAPausedWatchWaits(t *testing.T) {
	f, p := newFakeAPI(t), newPauser()
	st := requestedStore(f)
	asked, release := f.holdList()
	s, _, stop := startSource(t, f, st, p.guard, func(c *Config) {
		c.Watermarks = []WatermarkSeries{{Every: 10 * time.Millisecond, Sinks: []string{"old"}}}
	})
	<-asked
	p.set(true)
	awaitState(t, st, s, Paused)
	f.writeEvents("MODIFIED", "b")
	before, emitted := len(st.watermarksFor("old")), len(st.transcript())
	release()
	st.awaitTrue(t, "the list", func() bool { return s.Status()[0].Lists == 1 })
	if after := len(st.transcript()); after != emitted || s.Status()[0].Snapshot.Code != condition.SnapshotPending {
		t.Errorf("during the pause %q are emitted, and the snapshot is %+v", st.transcript()[emitted:], s.Status()[0].Snapshot)
	}
	if after := len(st.watermarksFor("old")); after != before {
		t.Errorf("%d watermarks during the pause", after-before)
	}
	p.set(false)
	st.awaitSinkSnapshot(t, "13", 1, 3)
	f.writeEvents("MODIFIED", "b")
	st.awaitTrue(t, "a watermark after the pause", func() bool { return len(st.watermarksFor("old")) > before })
	p.set(true)
	awaitState(t, st, s, Paused)
	st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
	s.EmitRequested()
	stop() // while something waits for the watch
}

// TestAStalledRuleKeepsNoOtherFromReading: what was read beside its watches when they stopped waits, and goes on when they
// do. Meanwhile other rules get their snapshots and missing bodies.
func TestAStalledRuleKeepsNoOtherFromReading(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, ended <-chan struct{}){
		"paused":  nil,
		"hanging": func(_ http.ResponseWriter, ended <-chan struct{}) { <-ended },
		"forbidden": func(w http.ResponseWriter, _ <-chan struct{}) {
			writeStatus(w, apierrors.NewForbidden(schema.GroupResource{}, "", nil))
		},
	} {
		t.Run(name+", snapshots", func(t *testing.T) {
			testReadingBesideAStalledRule(t, answer, concurrentSnapshots, false, func(st *store, _ *logs.Buffer, name string) bool {
				return st.requestsOf(name) == ""
			})
		})
		t.Run(name+", bodies", func(t *testing.T) {
			testReadingBesideAStalledRule(t, answer, concurrentFills, true, func(_ *store, log *logs.Buffer, name string) bool {
				return log.CountOf("can now include the state before\" scope="+name+" ") == 1
			})
		})
	}
}

// testReadingBesideAStalledRule answers the watches of a rule, or pauses it if answer is nil, once as many of its types are
// read as are read at once. isRead reports whether a type was read to its end.
func testReadingBesideAStalledRule(
	t *testing.T, answer func(w http.ResponseWriter, ended <-chan struct{}),
	atOnce int, bodiless bool, isRead func(*store, *logs.Buffer, string) bool,
) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		names := []string{"pods"}
		for i := range 2 * atOnce {
			names = append(names, fmt.Sprintf("stalled%d", i))
		}
		f.groups, st.bodiless = []apidiscovery.APIGroupDiscovery{coreGroup(names...)}, bodiless
		for _, name := range names {
			if st.storeState(name, "11", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"}); !bodiless {
				st.request(name, event.SnapshotRequest{Sink: "new", ID: "request"})
			}
		}
		p, asked := newPauser(), make(chan struct{}, len(names))
		stalled, begun, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s, log, stop := startSource(t, f, st, on, p.guard, func(c *Config) {
			connectTo(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				isStalled, isWatch := strings.Contains(r.URL.Path, "/stalled"), r.URL.Query().Get("watch") != ""
				switch {
				case isStalled && !isWatch:
					select {
					case asked <- struct{}{}:
					case <-begun: // a later list
					}
					<-begun
				case isStalled && isClosed(stalled) && !isClosed(ended) && answer != nil:
					answer(w, ended)
					return
				case strings.HasSuffix(r.URL.Path, "/pods") && isWatch:
					<-begun
				}
				f.ServeHTTP(w, r)
			}))
			c.Rules = []selection.Rule{{Select: names[1:]}, {Select: names[:1]}}
		})
		defer stop()
		for range atOnce {
			<-asked
		}
		p.set(answer == nil)
		close(stalled)
		f.breakStreams()
		synctest.Wait() // no watch is left that what is read now could be beside
		close(begun)
		began := time.Now()
		st.awaitTrue(t, "what the other rule needs", func() bool { return isRead(st, log, "pods") })
		if took := time.Since(began); took > 3*apiserver.SlowAfter {
			t.Errorf("after %s", took)
		}
		for _, name := range names[1:] {
			if isRead(st, log, name) {
				t.Errorf("%s was read without its watch", name)
			}
		}
		p.set(false)
		close(ended)
		st.awaitTrue(t, "what the stalled rule needs", func() bool {
			return !slices.ContainsFunc(names, func(name string) bool { return !isRead(st, log, name) })
		})
		st.awaitTrue(t, "readiness", s.Ready)
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// refuser is a guard that refuses turns at random although nothing is held: a pause that ends at once. What takes turns in
// step with something else would be refused for ever by a fixed order.
type refuser struct{ *pauser }

func (r *refuser) BeginTurn(int) (end func(), err error) {
	if rand.IntN(2) == 0 {
		return nil, &HeldError{Problem: condition.Problem{Code: condition.RulePaused, Cause: "paused"}}
	}
	return func() {}, nil
}

// TestWhatHasNoTurnIsDoneLater: changes, lists, what is read beside the watch, and watermarks.
func TestWhatHasNoTurnIsDoneLater(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.writeEvents("ADDED", "a")
		s, _, stop := startSource(t, f, st, on, func(c *Config) {
			c.Guard = &refuser{newPauser()}
			c.Watermarks = []WatermarkSeries{{Every: time.Second, Sinks: []string{"old"}}}
		})
		defer stop()
		awaitState(t, st, s, Live)
		st.request("pods", event.SnapshotRequest{Sink: "new", ID: "request"})
		s.EmitRequested()
		st.awaitSinkSnapshot(t, "", 1, 1)
		for range 3 {
			before := len(st.watermarksFor("old"))
			f.writeEvents("MODIFIED", "a")
			st.awaitTrue(t, "a watermark", func() bool { return len(st.watermarksFor("old")) > before })
		}
		frames := slices.DeleteFunc(st.snapshotFrames(), func(c *event.Change) bool { return c.OnlySink != "" })
		if len(frames) != 2 {
			t.Errorf("the first list has the frames %+v", frames)
		}
	})
}
