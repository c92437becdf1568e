package selection

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// explanationLines writes an explanation with one line per match and per unserved name.
func explanationLines(e *Explanation) []string {
	var lines []string
	for _, m := range e.Matches {
		line := fmt.Sprintf("%d/%d %s", m.Rule, m.Select, m.Resource)
		for _, s := range m.Scopes {
			line += " " + s.ID
		}
		if m.SkipReason != "" {
			line += ": " + m.SkipReason
		}
		lines = append(lines, line)
	}
	for _, u := range e.Unserved {
		line := fmt.Sprintf("%d/%d %s waits", u.Rule, u.Select, u.Name)
		for _, s := range u.Scopes {
			line += " " + s.ID
		}
		lines = append(lines, line)
	}
	return lines
}

func namedCatalog(names ...string) Catalog {
	var rules []Rule
	for _, name := range names {
		rules = append(rules, Rule{Select: []string{name}})
	}
	return catalogFromText(rules)
}

func expectLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEveryMatchHasScopesOrAReason(t *testing.T) {
	rules := []Rule{
		{Select: []string{"pods", "nodes", "late.demo.io"}, Namespaces: Namespaces{Include: []string{"web", "shop"}}},
		{Select: []string{"late.demo.io", "*.none.io", "pods", "*"}, Exclude: []string{"secrets"}, LabelSelector: "a=b"},
	}
	e := Resolve(rules, namedCatalog("pods", "nodes", "secrets", "events", "events.events.k8s.io", "jobs.batch"))
	expectLines(t, explanationLines(e),
		"0/0 pods pods;ns=shop pods;ns=web",
		"0/1 nodes nodes",
		"1/2 pods: already selected by resources[0]",
		"1/3 events events;l=a=b",
		"1/3 nodes: already selected by resources[0]",
		"1/3 secrets: excluded by this rule",
		"1/3 jobs.batch jobs.batch;l=a=b",
		"1/3 events.events.k8s.io: the same objects as events, which are watched",
		"0/2 late.demo.io waits late.demo.io;ns=shop late.demo.io;ns=web",
		"1/0 late.demo.io waits",
		"1/1 *.none.io waits",
	)
}

// TestFirstMatchingRuleOwnsTheResource compares the result for random rules with a query of each rule about each resource.
func TestFirstMatchingRuleOwnsTheResource(t *testing.T) {
	names := []string{"pods", "*", "*.apps", "deployments.apps", "events.events.k8s.io", "nodes", "late.demo.io"}
	c := namedCatalog("pods", "nodes", "events", "events.events.k8s.io", "deployments.apps", "daemonsets.apps")
	for _, a := range names {
		for _, b := range names {
			for _, x := range names {
				rules := []Rule{{Select: []string{a, b}, Namespaces: Namespaces{Include: []string{"web"}}}, {Select: []string{b, x}, Exclude: []string{a}}}
				duplicate := newEvents
				if slices.Contains([]string{a, b, x}, "events.events.k8s.io") {
					duplicate = coreEvents
				}
				want := map[event.Resource]int{}
				for _, group := range c {
					for _, s := range group {
						i := slices.IndexFunc(rules, func(r Rule) bool { return r.Matcher()(s.Resource) })
						if i >= 0 && s.Resource != duplicate {
							want[s.Resource] = i
						}
					}
				}
				got := map[event.Resource]int{}
				for _, m := range Resolve(rules, c).Matches {
					if (len(m.Scopes) == 0) != (m.SkipReason != "") {
						t.Errorf("%v: %s has both scopes and a SkipReason, or neither", rules, m.Resource)
					}
					for _, s := range m.Scopes {
						got[s.Resource] = s.Rule
					}
				}
				if !maps.Equal(got, want) {
					t.Errorf("%v:\n got %v\nwant %v", rules, got, want)
				}
			}
		}
	}
}

// TestUnservedVersionIsNotLeftToLaterRules has a first rule that names an unserved version: its redaction and its filter
// would not be those of a later rule. Within a rule, a later name is a second choice.
func TestUnservedVersionIsNotLeftToLaterRules(t *testing.T) {
	e := Resolve([]Rule{{Select: []string{"pods.v9"}}, {Select: []string{"pods.v8"}}, {Select: []string{"*.core"}}}, namedCatalog("pods.v1"))
	expectLines(t, explanationLines(e), "2/0 pods: already selected by resources[0]", "0/0 pods.v9 waits pods", "1/0 pods.v8 waits")
	e = Resolve([]Rule{{Select: []string{"pods.v9", "pods.v1", "pods"}}}, namedCatalog("pods.v1"))
	expectLines(t, explanationLines(e), "0/1 pods pods", "0/0 pods.v9 waits pods")
}

// TestOwnerOfWhatIsStoredIsTheRuleThatIsWatched compares both for resources in every version, served or not.
func TestOwnerOfWhatIsStoredIsTheRuleThatIsWatched(t *testing.T) {
	rules := []Rule{
		{Select: []string{"*.apps"}, Exclude: []string{"deployments.apps"}}, {Select: []string{"deployments.v1.apps"}},
		{Select: []string{"*", "pods.v2"}, Exclude: []string{"secrets"}},
	}
	for name, want := range map[string]int{"deployments.apps": 1, "daemonsets.apps": 0, "pods": 2, "secrets": -1} {
		r := event.ParseResourceName(name)
		for _, r.Version = range []string{"", "v1", "v2"} {
			rule, owned := Owners(rules)(r)
			if owned != (want >= 0) || owned && rule != want {
				t.Errorf("%s in %q: owner %d, %t, want %d", name, r.Version, rule, owned, want)
			}
			for _, s := range Resolve(rules, Catalog{r.Group: {{Resource: r}}}).Scopes() {
				if s.Rule != rule {
					t.Errorf("%s in %q is watched by rule %d, and owned by %d", name, r.Version, s.Rule, rule)
				}
			}
		}
	}
}

func TestWrittenNamesNeedNoCluster(t *testing.T) {
	e, err := ResolveWritten([]Rule{
		{Select: []string{"nodes", "deployments.v1.apps", "things.demo.io", "*.batch"}, Namespaces: Namespaces{Include: []string{"web"}}},
		{Select: []string{"*"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	left := func(line string) bool { return strings.Contains(line, ": ") }
	expectLines(t, slices.DeleteFunc(explanationLines(e), left),
		"0/0 nodes nodes",
		"0/1 deployments.apps deployments.apps;ns=web",
		"0/2 things.demo.io things.demo.io;ns=web",
		"0/3 *.batch *.batch;ns=web",
		"1/0 *.* *.*",
	)
	for _, m := range e.Matches[:4] {
		if want := m.Resource.Group == "demo.io"; m.Assumed != want {
			t.Errorf("%s: its scope is assumed: %v, want %v", m.Resource, m.Assumed, want)
		}
	}
}

func TestInvalidRulesAreNotExplained(t *testing.T) {
	if _, err := ResolveWritten([]Rule{{Select: []string{"Pods"}}}); err == nil || !strings.Contains(err.Error(), "resources[0].select[0]") {
		t.Errorf("got %v, want an error with the path", err)
	}
}
