package source

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apidiscovery "k8s.io/api/apidiscovery/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// podsRule makes a Source select pods with a rule.
func podsRule(r selection.Rule) func(*Config) {
	r.Select = []string{"pods"}
	return func(c *Config) { c.Rules = []selection.Rule{r} }
}

// runUntilPositioned runs a Source until every scope has a position, and returns what it emitted.
func runUntilPositioned(t *testing.T, f *fakeAPI, st *store, adjust func(*Config)) []string {
	t.Helper()
	n := len(st.transcript())
	s, _, stop := startSource(t, f, st, adjust)
	st.awaitTrue(t, "positions", func() bool {
		all := s.Status()
		return len(all) > 0 && !slices.ContainsFunc(all, func(one Status) bool { return st.positionOf(one.Scope) == "" })
	})
	stop()
	got := st.transcript()[n:]
	slices.SortFunc(got, func(a, b string) int { // gaps stay first; the order of objects is undefined
		if strings.HasPrefix(a, "gap") || strings.HasPrefix(b, "gap") {
			return strings.Compare(b[:1], a[:1])
		}
		return strings.Compare(a, b)
	})
	return got
}

func TestEditedSelectionIsComparedWithKnownObjects(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	for i, edit := range []struct {
		rule selection.Rule
		want []string
	}{
		{selection.Rule{}, []string{"snapshot a@11", "snapshot b@12"}},
		{selection.Rule{}, nil},
		{selection.Rule{Namespaces: selection.Namespaces{Exclude: []string{"other"}}}, []string{"gap -12"}},
		{selection.Rule{Namespaces: selection.Namespaces{Exclude: []string{"ns"}}}, []string{"gap -12", "deleted a@11~ left", "deleted b@12~ left"}},
		{selection.Rule{Namespaces: selection.Namespaces{Exclude: []string{"ns"}}, Resync: time.Hour}, nil},
		{selection.Rule{}, []string{"gap -12", "added a@11~", "added b@12~"}},
		{selection.Rule{Namespaces: selection.Namespaces{Include: []string{"ns"}}}, []string{"gap -12"}},
		{selection.Rule{LabelSelector: "app=web"}, []string{"gap -12"}},
		{selection.Rule{FieldSelector: "metadata.name!=c"}, []string{"gap -12"}},
		{selection.Rule{Namespaces: selection.Namespaces{Include: []string{"none"}}}, []string{"gap -12", "deleted a@11~ left", "deleted b@12~ left"}},
	} {
		if slices.Contains(edit.rule.Namespaces.Include, "none") { // the fake ignores namespaces
			f.update(func() { f.history = nil })
		}
		got := runUntilPositioned(t, f, st, podsRule(edit.rule))
		if !slices.Equal(got, edit.want) {
			t.Errorf("edit %d: emitted %q, want %q", i, got, edit.want)
		}
	}
	ids := map[string]bool{}
	for _, c := range st.changes {
		if ids[c.ID()] {
			t.Errorf("%s was emitted twice", c.ID())
		}
		ids[c.ID()] = true
	}
}

// TestListedObjectsCarryTheVersionOfTheirList edits rules while the cluster goes on: an object that enters the selection has
// the version at which it was seen there, and one that a watch delivers has no other version than its own.
func TestListedObjectsCarryTheVersionOfTheirList(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	runUntilPositioned(t, f, st, podsRule(selection.Rule{Namespaces: selection.Namespaces{Exclude: []string{"other"}}}))
	f.writeEvents("ADDED", "b")
	runUntilPositioned(t, f, st, podsRule(selection.Rule{Namespaces: selection.Namespaces{Exclude: []string{"ns"}}}))
	_, _, stop := startSource(t, f, st, podsRule(selection.Rule{}))
	st.awaitTrue(t, "a comparison", func() bool { return slices.Contains(st.transcript(), "added b@12~") })
	st.awaitPosition(t, "pods", "12")
	f.writeEvents("ADDED", "c")
	st.awaitTrue(t, "a watch event", func() bool { return slices.Contains(st.transcript(), "added c@13") })
	stop()
	for _, c := range st.changes {
		want := "12"
		switch {
		case c.Type == event.Snapshot:
			want = "11"
		case c.Type.IsControl() || c.Name == "c":
			want = ""
		}
		if c.ListVersion != want {
			t.Errorf("%s has the list version %q, want %q", c.ID(), c.ListVersion, want)
		}
	}
}

// TestAFirstListThatOnlyDestinationsHaveBeginsAgain has no scope stored, only what destinations have of two objects. One is
// gone.
func TestAFirstListThatOnlyDestinationsHaveBeginsAgain(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a", "b")
	for name, version := range map[string]string{"a": "11", "gone": "9"} {
		emitted := event.AppendEmittedVersion("", event.EmittedVersion{UID: "uid-" + name, ResourceVersion: version})
		st.storeState("pods", "", event.Known{Key: "ns/" + name, EmittedElsewhere: emitted})
	}
	st.scopes["pods"] = nil
	got := runUntilPositioned(t, f, st, podsRule(selection.Rule{}))
	slices.Sort(got)
	if want := []string{"deleted gone@9~", "gap -12", "snapshot a@11", "snapshot b@12"}; !slices.Equal(got, want) {
		t.Errorf("emitted %q, want %q", got, want)
	}
	checkFrames(t, st.snapshotFrames(), "12", 2)
}

// TestEveryGapHasItsOwnID restores a cluster twice from one backup, each time from the same position, and loses the journal
// twice.
func TestEveryGapHasItsOwnID(t *testing.T) {
	f := newFakeAPI(t)
	f.writeEvents("ADDED", "a", "b")
	for first, begin := range map[string]func(*store, *Config){
		"gap 1000-12": func(st *store, _ *Config) { st.storeState("pods", "1000") },
		"gap -12":     func(_ *store, c *Config) { c.LostReason = "it is gone" },
	} {
		var gaps []*event.Change
		for range 2 {
			st := newStore()
			_, _, stop := startSource(t, f, st, func(c *Config) { begin(st, c) })
			st.awaitTrue(t, "a gap", func() bool { return len(st.transcript()) > 0 })
			if got := st.transcript()[0]; got != first {
				t.Errorf("emitted %s first, want %s", got, first)
			}
			gaps = append(gaps, st.changeAt(0))
			stop()
		}
		if gaps[0].ID() == gaps[1].ID() || gaps[0].Gap.From != gaps[1].Gap.From || gaps[0].Gap.To != gaps[1].Gap.To {
			t.Errorf("%s: %s and %s", first, gaps[0].ID(), gaps[1].ID())
		}
	}
}

func TestUnselectedResourceIsAnnouncedAsLeft(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	st.storeState("secrets", "12", event.Known{Key: "ns/s", UID: "uid-s", ResourceVersion: "11"})
	_, _, _ = startSource(t, f, st)
	st.awaitTrue(t, "the resource to be dropped", func() bool { return st.dropCount() == 1 })
	if got := st.transcript(); !slices.Equal(got, []string{"deleted s@11~ left"}) {
		t.Errorf("emitted %q", got)
	}
	if c := st.changeAt(0); c.Resource != (event.Resource{Version: "v1", Resource: "secrets", Kind: "Kind"}) {
		t.Errorf("deleted as %+v, want version and kind", c.Resource)
	}
}

func TestRulePinnedToUnservedVersionKeepsObjects(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	st.storeState("pods", "12", event.Known{Key: "ns/a", UID: "uid-a", ResourceVersion: "11"})
	_, _, _ = startSource(t, f, st, func(c *Config) { c.Rules = []selection.Rule{{Select: []string{"pods.v2"}}} })
	polls := f.discoveryPolls()
	st.awaitTrue(t, "some polls", func() bool { return f.discoveryPolls() > polls+10 })
	if got := st.transcript(); len(got) != 0 || st.positionOf("pods") != "12" {
		t.Errorf("emitted %q, position %q", got, st.positionOf("pods"))
	}
}

// TestTypeMovedToClusterScopeIsFollowed recreates a type under its name, first without namespaces and then with them, under
// a rule that names a namespace.
func TestTypeMovedToClusterScopeIsFollowed(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	s, _, _ := startSource(t, f, st, inNamespaces("ns"))
	namespaced, clustered := coreGroup("pods"), coreGroup("pods")
	clustered.Versions[0].Resources[0].Scope = apidiscovery.ScopeCluster
	follows := func(scope string) {
		t.Helper()
		st.awaitTrue(t, scope, func() bool {
			all := s.Status()
			return len(all) == 1 && all[0].Scope == scope && all[0].State == Live && st.positionOf(scope) != ""
		})
	}
	follows("pods;ns=ns")
	f.setGroups(clustered)
	follows("pods")
	f.writeEvents("MODIFIED", "a")
	st.awaitTrue(t, "the update", func() bool { return slices.Contains(st.transcript(), "updated a@12") })
	f.setGroups(namespaced)
	follows("pods;ns=ns")
	if got, want := st.transcript(), []string{"snapshot a@11", "gap -11", "updated a@12", "gap -12"}; !slices.Equal(got, want) {
		t.Errorf("emitted %q, want %q", got, want)
	}
}

func TestVersionHiddenByDiscoveryChangesNoSelection(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	older, both := groupOf("example.com", "v1", "widgets"), groupOf("example.com", "v2", "widgets")
	both.Versions = append(both.Versions, older.Versions...)
	f.setGroups(both)
	s, _, _ := startSource(t, f, st, func(c *Config) {
		c.Rules = []selection.Rule{
			{Select: []string{"widgets.v2.example.com"}, Namespaces: selection.Namespaces{Include: []string{"ns"}}},
			{Select: []string{"widgets.example.com"}},
		}
	})
	awaitState(t, st, s, Live)
	for _, served := range []apidiscovery.APIGroupDiscovery{older, both} {
		f.setGroups(served)
		polls := f.discoveryPolls()
		st.awaitTrue(t, "some polls", func() bool { return f.discoveryPolls() > polls+10 })
	}
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "snapshot a@11", "updated a@12")
	if got := s.Status(); len(got) != 1 || got[0].Scope != "widgets.example.com;ns=ns" {
		t.Errorf("follows %+v", got)
	}
}

// TestTypeHiddenAtStartKeepsItsNamespaces starts with a type of which only the scope is stored.
func TestTypeHiddenAtStartKeepsItsNamespaces(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	st.storeState("pods;ns=ns", "10")
	f.setGroups(coreGroup("services"))
	s, _, _ := startSource(t, f, st, inNamespaces("ns"))
	st.awaitEmitted(t, "added a@11")
	if got := s.Status(); len(got) != 1 || got[0].Scope != "pods;ns=ns" || f.countRequests("LIST") != 0 {
		t.Errorf("follows %+v, asked %q", got, f.requestLog())
	}
}

func TestTypeHiddenByDiscoveryIsStillWatched(t *testing.T) {
	f, st := newFakeAPI(t), newStore()
	f.writeEvents("ADDED", "a")
	s, _, stop := startSource(t, f, st)
	awaitState(t, st, s, Live)
	f.setGroups(groupOf("apps", "v1", "deployments"))
	polls := f.discoveryPolls()
	st.awaitTrue(t, "some polls", func() bool { return f.discoveryPolls() > polls+10 })
	f.writeEvents("MODIFIED", "a")
	st.awaitEmitted(t, "snapshot a@11", "updated a@12")
	stop()
	f.writeEvents("MODIFIED", "a")
	_, _, _ = startSource(t, f, st) // and after a restart, with the stored version and kind
	st.awaitEmitted(t, "snapshot a@11", "updated a@12", "updated a@13")
	if st.dropCount() != 0 {
		t.Errorf("dropped %q", st.dropped)
	}
}

func TestUnwatchableListIsReportedOnceWithOneGap(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on)
		defer stop()
		awaitState(t, st, s, Live)
		f.breakStreamsAfter(func() { f.oldest = 1000 }) // no history at all, although lists work
		time.Sleep(time.Hour)
		if got := s.Status()[0]; got.State != Unreachable || !strings.Contains(got.Condition.Cause, "of its own list") || got.Relists > 2 {
			t.Errorf("status %+v", got)
		}
		gaps := slices.DeleteFunc(st.transcript(), func(l string) bool { return !strings.HasPrefix(l, "gap") })
		if len(gaps) > 1 || log.CountOf("level=WARN") > 6 {
			t.Errorf("%d gaps, log\n%s", len(gaps), log)
		}
		f.update(func() { f.oldest = 0 })
		awaitState(t, st, s, Live)
	})
}

func TestHungTypesDoNotBlockOtherLists(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		names := []string{"pods"}
		for i := range 3 * concurrentLists {
			names = append(names, strings.Repeat("x", i+1)+"s")
			f.faults = append(f.faults, hang)
		}
		f.groups[0] = coreGroup(names...)
		s, _, stop := startSource(t, f, st, on, func(c *Config) { c.Rules = []selection.Rule{{Select: []string{"*"}}} })
		defer stop()
		time.Sleep(50 * time.Second) // less than the timeout of requests
		live, named := 0, 0
		for _, one := range s.Status() {
			if one.State == Live {
				live++
			}
			if strings.Contains(one.Condition.Cause, "has not answered") {
				named++
			}
		}
		if live != 1 || named != 3*concurrentLists {
			t.Errorf("%d live, %d reported as hung, want 1 and %d", live, named, 3*concurrentLists)
		}
	})
}

func TestResyncEmitsEveryObjectOncePerPeriod(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		f.writeEvents("ADDED", "b")
		_, _, stop := startSource(t, f, st, on, podsRule(selection.Rule{Resync: time.Minute}))
		defer stop()
		time.Sleep(10*time.Minute - time.Second)
		synced := map[string]int{}
		ids := map[string]bool{}
		for i := range st.transcript() {
			c := st.changeAt(i)
			if c.Type == event.Sync {
				synced[c.Name+"@"+c.ResourceVersion]++
				if len(c.After) == 0 || c.Delta != event.DeltaSync || c.ListVersion != "12" || ids[c.ID()] {
					t.Errorf("emitted %+v", c)
				}
				ids[c.ID()] = true
			}
		}
		if synced["a@11"] != 10 || synced["b@12"] != 10 || len(synced) != 2 {
			t.Errorf("emitted %v in ten minutes, want each object ten times", synced)
		}
	})
}

// TestFailingResyncIsReported has a list that fails beside a watch that works.
func TestFailingResyncIsReported(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, log, stop := startSource(t, f, st, on, podsRule(selection.Rule{Resync: time.Minute}))
		defer stop()
		awaitState(t, st, s, Live)
		f.update(func() {
			for range 100 {
				f.lists = append(f.lists, func(w http.ResponseWriter, _ *http.Request) {
					writeStatus(w, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New(`User "kubecdc" cannot list resource "pods"`)))
				})
			}
		})
		time.Sleep(10 * time.Minute)
		got := s.Status()[0]
		if got.State != Live || !strings.Contains(got.Reread.Cause, `cannot list resource "pods"`) || !strings.Contains(got.Reread.Remedy, "exporter rbac") || log.CountOf("level=WARN") != 1 {
			t.Errorf("status %+v\nlog\n%s", got, log)
		}
		if failing := condition.Summarize(s.Conditions()); !s.Ready() || len(failing) != 1 || failing[0].Code != condition.ResourceUnread {
			t.Errorf("ready %v, %+v", s.Ready(), failing)
		}
		f.update(func() { f.lists = nil })
		time.Sleep(time.Minute)
		if got := s.Status()[0]; !got.Reread.OK() || log.CountOf("can be read beside the watch again") != 1 {
			t.Errorf("status %+v\nlog\n%s", got, log)
		}
	})
}
