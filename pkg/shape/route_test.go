package shape

import (
	"maps"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// routerTest is a router for the sinks audit and main.
type routerTest struct {
	t *testing.T
	*Router
}

func routesOf(t *testing.T, routes ...Route) routerTest {
	t.Helper()
	r, err := NewRouter(routes, []string{"audit", "main"})
	if err != nil {
		t.Fatal(err)
	}
	return routerTest{t, r}
}

// wantTopics requires the topics of a change in audit and main: a name, "" for the sink's own topic, or "-" for none.
func (r routerTest) wantTopics(name, want string, c *event.Change) {
	r.t.Helper()
	var got []string
	for _, sink := range []string{"audit", "main"} {
		topic, yes := r.TopicFor(sink, c)
		switch {
		case !yes:
			topic = "-"
		case topic == "":
			topic = "own"
		}
		got = append(got, topic)
	}
	if strings.Join(got, " ") != want {
		r.t.Errorf("%s: goes to %v, want %s", name, got, want)
	}
}

func resourceIs(name string) func(event.Resource) bool {
	return func(r event.Resource) bool { return name == "*" || r.Resource == name }
}

func namespaceIs(namespace string) func(string) bool {
	return func(n string) bool { return n == namespace }
}

func deletedOf(resource string) *event.Change {
	return &event.Change{Type: event.Deleted, Resource: event.Resource{Resource: resource}}
}

func gapOf(resource, namespace string) *event.Change {
	return &event.Change{Type: event.Gap, Resource: event.Resource{Resource: resource}, Namespace: namespace, Gap: &event.GapInfo{}}
}

func TestTheFirstRouteThatMatchesDecides(t *testing.T) {
	r := routesOf(t,
		Route{MatchResource: resourceIs("events")},
		Route{MatchResource: resourceIs("secrets"), Topics: map[string]string{"audit": "secrets"}},
		Route{MatchResource: resourceIs("*"), Types: []string{"deleted"}, Topics: map[string]string{"audit": "", "main": ""}},
		Route{MatchResource: resourceIs("*"), MatchNamespace: namespaceIs("n"), Classes: []string{"status"}, Topics: map[string]string{"main": "status"}},
		Route{MatchResource: resourceIs("deployments"), Filter: `object.spec.n == 1 && change.name == "a"`, Topics: map[string]string{"main": "ones"}},
	)
	status := updatedTo(deployment, `{"spec":{"n":1}}`)
	status.Class = event.ClassStatus
	elsewhere := *status
	elsewhere.Namespace = "m"

	r.wantTopics("dropped", "- -", deletedOf("events"))
	r.wantTopics("to one", "secrets -", updatedTo(secret, `{}`))
	r.wantTopics("by type", "own own", deletedOf("pods"))
	r.wantTopics("by class", "- status", status)
	r.wantTopics("in another namespace", "- ones", &elsewhere)
	r.wantTopics("by filter", "- ones", updatedTo(deployment, `{"spec":{"n":1}}`))
	r.wantTopics("not by filter", "own own", updatedTo(deployment, `{"spec":{"n":2}}`))
	r.wantTopics("the filter fails", "own own", updatedTo(deployment, `{"spec":{}}`))
	r.wantTopics("matched by none", "own own", updatedTo(event.Resource{Resource: "pods"}, `{}`))

	stats := r.Stats()
	if s := stats[0]; len(s.Sent) > 0 || !maps.Equal(s.Dropped, map[string]uint64{"audit": 1, "main": 1}) {
		t.Errorf("%+v, want the dropped change", s)
	}
	if s := stats[1]; !maps.Equal(s.Sent, map[string]uint64{"audit": 1}) || !maps.Equal(s.Dropped, map[string]uint64{"main": 1}) {
		t.Errorf("%+v, want one change sent to one sink only", s)
	}
	if s := stats[4]; s.Failed != 2 || s.Failure == "" {
		t.Errorf("%+v, want one failure for each sink", s)
	}
}

func TestARouteMayAskForAnAnnotation(t *testing.T) {
	r := routesOf(t, Route{
		MatchResource: resourceIs("deployments"), Topics: map[string]string{"main": "blue"},
		Filter: `object.?metadata.?annotations["example.com/team"].orValue("") == "blue"`,
	})
	r.wantTopics("it has the value", "- blue", updatedTo(deployment, `{"metadata":{"annotations":{"example.com/team":"blue"}}}`))
	for _, other := range []string{`{"metadata":{"annotations":{"example.com/team":"red"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{}}`, `{}`} {
		r.wantTopics(other, "own own", updatedTo(deployment, other))
	}
	if s := r.Stats()[0]; s.Failed != 0 {
		t.Errorf("the filter fails: %s", s.Failure)
	}
}

// A control record must go to the same sinks as the changes that it concerns.
func TestControlRecordsGoToEverySinkOfTheirResource(t *testing.T) {
	r := routesOf(t,
		Route{MatchResource: resourceIs("events")},
		Route{MatchResource: resourceIs("secrets"), Topics: map[string]string{"audit": "secrets"}},
		Route{MatchResource: resourceIs("leases"), Types: []string{"updated"}, Topics: map[string]string{"audit": "renewals"}},
		Route{MatchResource: resourceIs("leases")},
		Route{MatchResource: resourceIs("nodes"), Classes: []string{"status"}, Topics: map[string]string{"main": "heartbeats"}},
		Route{MatchResource: resourceIs("nodes"), Topics: map[string]string{"main": "nodes"}},
		Route{MatchResource: resourceIs("services"), MatchNamespace: namespaceIs("a")},
		Route{MatchResource: resourceIs("pods"), Filter: `change.name == "x"`, Topics: map[string]string{"audit": "x"}},
	)
	r.wantTopics("dropped", "- -", gapOf("events", ""))
	r.wantTopics("of one sink", "secrets -", gapOf("secrets", ""))
	r.wantTopics("of which a part goes somewhere", "renewals -", gapOf("leases", ""))
	r.wantTopics("of two topics", "- nodes", gapOf("nodes", ""))
	r.wantTopics("of a dropped namespace", "- -", gapOf("services", "a"))
	r.wantTopics("of another namespace", "own own", gapOf("services", "b"))
	r.wantTopics("of all namespaces", "own own", gapOf("services", ""))
	r.wantTopics("of which a part goes elsewhere", "own own", gapOf("pods", ""))
}

// TestAWatermarkGoesWhereAllChangesOfItsScopeGo: to one topic, without a digest if the sink does not get all changes, and
// nowhere if they are spread over several topics.
func TestAWatermarkGoesWhereAllChangesOfItsScopeGo(t *testing.T) {
	mark := func(resource, namespace string) *event.Change {
		return &event.Change{Type: event.Watermark, Resource: event.Resource{Resource: resource}, Namespace: namespace, Watermark: &event.WatermarkInfo{}}
	}
	r := routesOf(t,
		Route{MatchResource: resourceIs("secrets"), Topics: map[string]string{"audit": "secret"}},
		Route{MatchResource: resourceIs("pods"), MatchNamespace: namespaceIs("prod"), Topics: map[string]string{"main": "", "audit": "prod"}},
		Route{MatchResource: resourceIs("pods"), Topics: map[string]string{"audit": "rest"}},
		Route{MatchResource: resourceIs("jobs"), Filter: "true", Topics: map[string]string{"main": "some"}},
	)
	for _, c := range []struct {
		name, sink string
		change     *event.Change
		topic      string
		yes, whole bool
	}{
		{"all to the topic of a route", "audit", mark("secrets", ""), "secret", true, true},
		{"none", "main", mark("secrets", ""), "", false, false},
		{"spread over two topics", "audit", mark("pods", ""), "", false, true},
		{"a part of them", "main", mark("pods", ""), "", true, false},
		{"a namespace of its own", "audit", mark("pods", "prod"), "prod", true, true},
		{"another namespace", "audit", mark("pods", "dev"), "rest", true, true},
		{"a filter that may fail", "main", mark("jobs", ""), "", false, true},
		{"a filter elsewhere", "audit", mark("jobs", ""), "", true, false},
		{"no route", "main", mark("nodes", ""), "", true, true},
	} {
		topic, yes, whole := r.WatermarkTopic(c.sink, c.change)
		if yes != c.yes || yes && (topic != c.topic || whole != c.whole) {
			t.Errorf("%s: %s gets it: %v, in %q, whole: %v", c.name, c.sink, yes, topic, whole)
		}
	}
}
