package source

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// explained writes an explanation as one line a match and one a name that waits.
func explained(e *Explanation) []string {
	var lines []string
	for _, m := range e.Matches {
		line := fmt.Sprintf("%d/%d %s", m.Rule, m.Select, m.Resource)
		for _, s := range m.Scopes {
			line += " " + s.ID
		}
		if m.Left != "" {
			line += ": " + m.Left
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

func namedCatalog(names ...string) catalog {
	var rules []Rule
	for _, name := range names {
		rules = append(rules, Rule{Select: []string{name}})
	}
	return written(rules)
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
	e := explain(rules, namedCatalog("pods", "nodes", "secrets", "events", "events.events.k8s.io", "jobs.batch"))
	expectLines(t, explained(e),
		"0/0 pods pods;ns=shop pods;ns=web",
		"0/1 nodes nodes",
		"1/2 pods: resources[0] has it already",
		"1/3 events events;l=a=b",
		"1/3 nodes: resources[0] has it already",
		"1/3 secrets: excluded by this rule",
		"1/3 jobs.batch jobs.batch;l=a=b",
		"1/3 events.events.k8s.io: the same objects as events, which are watched",
		"0/2 late.demo.io waits late.demo.io;ns=shop late.demo.io;ns=web",
		"1/0 late.demo.io waits",
		"1/1 *.none.io waits",
	)
}

// TestExplainedScopesAreThoseThatAreWatched holds explain to resolve, whatever the rules.
func TestExplainedScopesAreThoseThatAreWatched(t *testing.T) {
	names := []string{"pods", "*", "*.apps", "deployments.apps", "events.events.k8s.io", "nodes", "late.demo.io"}
	c := namedCatalog("pods", "nodes", "events", "events.events.k8s.io", "deployments.apps", "daemonsets.apps")
	for _, a := range names {
		for _, b := range names {
			for _, x := range names {
				rules := []Rule{{Select: []string{a, b}, Namespaces: Namespaces{Include: []string{"web"}}}, {Select: []string{b, x}, Exclude: []string{a}}}
				var got, want []string
				for _, m := range explain(rules, c).Matches {
					if (len(m.Scopes) == 0) != (m.Left != "") {
						t.Errorf("%v: %s has scopes and is left, or neither", rules, m.Resource)
					}
					for _, s := range m.Scopes {
						got = append(got, s.ID)
					}
				}
				scopes, _ := resolve(rules, c)
				for _, s := range scopes {
					want = append(want, s.ID)
				}
				expectLines(t, got, want...)
			}
		}
	}
}

func TestWrittenNamesNeedNoCluster(t *testing.T) {
	e, err := ExplainWritten([]Rule{
		{Select: []string{"nodes", "deployments.v1.apps", "things.demo.io", "*.batch"}, Namespaces: Namespaces{Include: []string{"web"}}},
		{Select: []string{"*"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	left := func(line string) bool { return strings.Contains(line, ": ") }
	expectLines(t, slices.DeleteFunc(explained(e), left),
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
	if _, err := ExplainWritten([]Rule{{Select: []string{"Pods"}}}); err == nil || !strings.Contains(err.Error(), "resources[0].select[0]") {
		t.Errorf("got %v, want an error that names the place", err)
	}
}

func TestBuiltInScopesAreWhatTheAPIServerSays(t *testing.T) {
	p := startPlane(t)
	c, err := NewClient(p.config, "test")
	if err != nil {
		t.Fatal(err)
	}
	e, err := c.Explain(t.Context(), []Rule{{Select: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Matches) < 40 || len(e.Unanswered) > 0 {
		t.Fatalf("%d resources, %v unanswered", len(e.Matches), e.Unanswered)
	}
	for _, m := range e.Matches {
		guess := pattern{resource: m.Resource.Resource, group: m.Resource.Group}.served()
		if !isScopeKnown(m.Resource) || guess.namespaced != m.Namespaced {
			t.Errorf("%s is namespaced: %v; the table says %v (known: %v)", m.Resource, m.Namespaced, guess.namespaced, isScopeKnown(m.Resource))
		}
	}
}

// reviews answers access reviews: what is in allowed is allowed; "mute" forbids the question itself.
func reviews(t *testing.T, allowed map[string]bool) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorization.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		a := review.Spec.ResourceAttributes
		if a.Namespace == "mute" {
			writeStatus(w, apierrors.NewForbidden(schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}, "", nil))
			return
		}
		review.Status.Allowed = allowed[strings.Join([]string{a.Verb, a.Group, a.Resource, a.Namespace, a.Name}, "/")]
		review.Status.Reason = "said the authorizer"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	c, err := NewClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func TestAccessIsAskedForEachScope(t *testing.T) {
	deployments := event.Resource{Group: "apps", Version: "v1", Resource: "deployments"}
	c := reviews(t, map[string]bool{"list/apps/deployments/web/": true, "watch/apps/deployments/web/": true, "list/apps/deployments//one": true})
	got, err := c.Access(t.Context(), []Scope{
		{Resource: deployments, Namespace: "web"},
		{Resource: deployments, FieldSelector: "metadata.name=one"},
		{Resource: deployments},
		{Resource: deployments, Namespace: "mute"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Access{
		{List: Allowed, Watch: Allowed},
		{List: Allowed, Watch: Denied, Reason: "said the authorizer"},
		{List: Denied, Watch: Denied, Reason: "said the authorizer"},
		{List: Unknown, Watch: Unknown, Reason: "these credentials may not create SelfSubjectAccessReviews"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOnlyWhatAScopeTakesIsMeasured(t *testing.T) {
	var m Measurement
	s := Scope{Filter: func(namespace string) bool { return namespace == "web" }}
	for _, namespace := range []string{"web", "shop"} {
		o := deltas.NewObject(namespace, "a")
		o.Raw = []byte("0123456789")
		m.add(o, s)
	}
	if m.Changes != 1 || m.Bytes != 10 {
		t.Errorf("counted %+v, want one change of 10 bytes", m)
	}
}

func TestAMeasurementSaysWhyItEndedEarly(t *testing.T) {
	f := newFakeAPI(t)
	f.deny = true
	c, err := NewClient(f.config(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	pods := event.Resource{Version: "v1", Resource: "pods"}
	if got := c.Measure(t.Context(), []Scope{{ID: "pods", Resource: pods}}, 1); got[0].Err == nil || !strings.Contains(got[0].Err.Error(), "forbidden") {
		t.Errorf("got %+v, want that it is forbidden", got[0])
	}
}
