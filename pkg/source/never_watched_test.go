package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

// brokenTypes are types that are served and cannot be followed, each in its way.
func brokenTypes(f *fakeAPI) map[string]http.HandlerFunc {
	list := func(version string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"kind":"L","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[]}`, version)
		}
	}
	watching := func(answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				list("7")(w, r)
				return
			}
			answer(w, r)
		}
	}
	return map[string]http.HandlerFunc{
		"versionless": list(""), "unlistable": refuseWith(405), "failing": refuseWith(500), "down": refuseWith(503), "absent": refuseWith(501),
		"unwatchable": watching(refuseWith(405)), "unwatched": watching(refuseWith(404)), "brief": watching(func(http.ResponseWriter, *http.Request) {}),
		"hanging":      func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"redirected":   http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound).ServeHTTP,
		"initializing": answerInitializing(429), "html": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
	}
}

// startWithBroken starts a source beside the broken types.
func startWithBroken(t *testing.T, f *fakeAPI, st *store, rules ...selection.Rule) (s *Source, log *logs.Buffer, stop func()) {
	return startBeside(t, f, st, brokenTypes(f), rules...)
}

// startBeside starts a source of pods beside types that are answered elsewhere.
func startBeside(
	t *testing.T, f *fakeAPI, st *store, broken map[string]http.HandlerFunc, rules ...selection.Rule,
) (s *Source, log *logs.Buffer, stop func()) {
	names := []string{"pods"}
	for name := range broken {
		names = append(names, name)
	}
	slices.Sort(names)
	f.groups = []apidiscovery.APIGroupDiscovery{coreGroup(names...)}
	return startSource(t, f, st, func(c *Config) {
		connectTo(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if answer := broken[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]; answer != nil {
				answer(w, r)
				return
			}
			f.ServeHTTP(w, r)
		}))
		c.Rules = rules
	})
}

// TestAWildcardIsReadyBesideTypesThatNeverWorked within half a minute, and each of them is named with the reason and the way
// to exclude it, once in the log.
func TestAWildcardIsReadyBesideTypesThatNeverWorked(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
		s, log, stop := startWithBroken(t, f, st, selection.Rule{Select: []string{"*"}})
		defer stop()
		time.Sleep(30 * time.Second)
		for look := range 20 {
			if !s.Ready() {
				t.Fatalf("not ready at look %d: %+v", look, condition.Summarize(s.Conditions()))
			}
			time.Sleep(7 * time.Second)
		}
		for name := range brokenTypes(nil) {
			if n := strings.Count(log.String(), fmt.Sprintf("exclude: [\\\"%s\\\"]; or mend what the cause names\" scopes=%s\n", name, name)); n != 1 {
				t.Errorf("%d lines are of %s:\n%s", n, name, log)
			}
		}
		for _, r := range s.Status() {
			if r.Scope == "pods" {
				if r.State != Live {
					t.Errorf("pods are %s", r.State)
				}
				continue
			}
			c := r.Condition
			if c.Code != condition.ResourceNeverWatched || c.Cause == "" || !strings.Contains(c.Remedy, fmt.Sprintf("resources[0].exclude: [%q]", r.Scope)) {
				t.Errorf("%s: %s, %q, %q", r.Scope, c.Code, c.Cause, c.Remedy)
			}
		}
	})
}

// TestManyTypesThatFailBlockNoOther, although eight are listed at a time.
func TestManyTypesThatFailBlockNoOther(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
		broken := map[string]http.HandlerFunc{}
		for name, answer := range brokenTypes(f) {
			for i := range 4 {
				broken[fmt.Sprintf("a%s%d", name, i)] = answer // before the pods
			}
		}
		s, _, stop := startBeside(t, f, st, broken, selection.Rule{Select: []string{"*"}})
		defer stop()
		time.Sleep(30 * time.Second)
		if !s.Ready() {
			t.Errorf("not ready: %+v", condition.Summarize(s.Conditions()))
		}
		for _, r := range s.Status() {
			if (r.Scope == "pods") != (r.State == Live) {
				t.Errorf("%s: %s", r.Scope, r.State)
			}
		}
	})
}

// TestANamedTypeThatNeverWorkedIsNotReady: its name stands in a rule.
func TestANamedTypeThatNeverWorkedIsNotReady(t *testing.T) {
	for name := range brokenTypes(nil) {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, _ func(*Config)) {
				s, _, stop := startWithBroken(t, f, st, selection.Rule{Select: []string{"*"}}, selection.Rule{Select: []string{name}})
				defer stop()
				time.Sleep(40 * time.Second)
				if s.Ready() {
					t.Errorf("ready: %+v", s.Status())
				}
			})
		})
	}
}

// TestATypeOfAWildcardThatWorkedAndFailsIsNotReady.
func TestATypeOfAWildcardThatWorkedAndFailsIsNotReady(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on, func(c *Config) { c.Rules = []selection.Rule{{Select: []string{"*"}}} })
		defer stop()
		awaitState(t, st, s, Live)
		time.Sleep(2 * time.Second)
		var faults []http.HandlerFunc
		for range 100 {
			faults = append(faults, refuseWith(500))
		}
		f.breakStreams(faults...)
		awaitState(t, st, s, Unreachable)
		if c := s.Status()[0].Condition; s.Ready() || c.Code != condition.ResourceFailing {
			t.Errorf("%+v", c)
		}
	})
}

// TestWhatAWildcardCannotTellIsNamed: groups without a match or an answer, and types without a watch.
func TestWhatAWildcardCannotTellIsNamed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		stale := groupOf("dead.example.com", "v1")
		stale.Versions[0].Freshness = "Stale"
		metrics := groupOf("metrics.k8s.io", "v1beta1", "nodes")
		metrics.Versions[0].Resources[0].Verbs = []string{"get", "list"}
		f.groups = append(f.groups, stale, metrics)
		s, _, stop := startSource(t, f, st, on, func(c *Config) {
			c.Rules = []selection.Rule{{Select: []string{"pods", "*.none.example.com", "*.dead.example.com", "things.dead.example.com", "nodes.metrics.k8s.io"}}}
		})
		defer stop()
		time.Sleep(5 * time.Second)
		got := map[string]condition.Status{}
		for _, r := range s.Status() {
			got[r.Scope] = r.Condition
		}
		for name, want := range map[string]condition.Problem{
			"pods": {}, "*.none.example.com": {Code: condition.WildcardUnmatched, Cause: "serves nothing of this group"},
			"*.dead.example.com":      {Code: condition.GroupUnanswered, Cause: "does not answer discovery"},
			"things.dead.example.com": {Code: condition.ResourceNotServed, Cause: "does not answer discovery"},
			"nodes.metrics.k8s.io":    {Code: condition.ResourceUnwatchable, Cause: "it is served, but cannot be watched"},
		} {
			if c, known := got[name]; !known || c.Code != want.Code || !strings.Contains(c.Cause, want.Cause) {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if !s.Ready() {
			t.Error("not ready")
		}
	})
}

// TestRefusedCredentialsAreNamed: they are no fault of one type, also under a wildcard, and history is lost meanwhile.
func TestRefusedCredentialsAreNamed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, f *fakeAPI, st *store, on func(*Config)) {
		s, _, stop := startSource(t, f, st, on, func(c *Config) { c.Rules = []selection.Rule{{Select: []string{"*"}}} })
		defer stop()
		awaitState(t, st, s, Live)
		f.breakStreams(slices.Repeat([]http.HandlerFunc{refuseWith(http.StatusUnauthorized)}, 100)...)
		awaitState(t, st, s, Unreachable)
		if c := s.Status()[0].Condition; c.Code != condition.CredentialsRefused || c.Deadline.IsZero() || s.Ready() {
			t.Errorf("%+v", c)
		}
		f.update(func() { f.faults = nil })
		awaitState(t, st, s, Live)
	})
}
