package shape

import (
	"maps"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// routed are the routes of a test, over sinks named audit and main.
type routed struct {
	t *testing.T
	*Router
}

func routesOf(t *testing.T, routes ...Route) routed {
	t.Helper()
	r, err := NewRouter(routes, []string{"audit", "main"})
	if err != nil {
		t.Fatal(err)
	}
	return routed{t, r}
}

// want says where a change must go in audit and in main: to a topic, to the sink's own, or (-) not there.
func (r routed) want(name, want string, c *event.Change) {
	r.t.Helper()
	var got []string
	for _, sink := range []string{"audit", "main"} {
		topic, yes := r.To(sink, c)
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

func only(namespace string) func(string) bool {
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
		Route{Takes: resourceIs("events")},
		Route{Takes: resourceIs("secrets"), To: map[string]string{"audit": "secrets"}},
		Route{Takes: resourceIs("*"), Types: []string{"deleted"}, To: map[string]string{"audit": "", "main": ""}},
		Route{Takes: resourceIs("*"), Namespace: only("n"), Classes: []string{"status"}, To: map[string]string{"main": "status"}},
		Route{Takes: resourceIs("deployments"), Filter: `object.spec.n == 1 && change.name == "a"`, To: map[string]string{"main": "ones"}},
	)
	status := updatedTo(deployment, `{"spec":{"n":1}}`)
	status.Class = event.ClassStatus
	elsewhere := *status
	elsewhere.Namespace = "m"

	r.want("dropped", "- -", deletedOf("events"))
	r.want("to one", "secrets -", updatedTo(secret, `{}`))
	r.want("by type", "own own", deletedOf("pods"))
	r.want("by class", "- status", status)
	r.want("in another namespace", "- ones", &elsewhere)
	r.want("by filter", "- ones", updatedTo(deployment, `{"spec":{"n":1}}`))
	r.want("not by filter", "own own", updatedTo(deployment, `{"spec":{"n":2}}`))
	r.want("the filter fails", "own own", updatedTo(deployment, `{"spec":{}}`))
	r.want("matched by none", "own own", updatedTo(event.Resource{Resource: "pods"}, `{}`))

	stats := r.Stats()
	if s := stats[0]; len(s.Sent) > 0 || !maps.Equal(s.Dropped, map[string]uint64{"audit": 1, "main": 1}) {
		t.Errorf("%+v, want what was dropped", s)
	}
	if s := stats[1]; !maps.Equal(s.Sent, map[string]uint64{"audit": 1}) || !maps.Equal(s.Dropped, map[string]uint64{"main": 1}) {
		t.Errorf("%+v, want what was sent to one sink and kept from the other", s)
	}
	if s := stats[4]; s.Failed != 2 || s.Failure == "" {
		t.Errorf("%+v, want one failure for each sink", s)
	}
}

// A record about a whole resource must be where the changes are that it speaks of.
func TestARecordOfAResourceGoesToEverySinkThatGetsItsChanges(t *testing.T) {
	r := routesOf(t,
		Route{Takes: resourceIs("events")},
		Route{Takes: resourceIs("secrets"), To: map[string]string{"audit": "secrets"}},
		Route{Takes: resourceIs("leases"), Types: []string{"updated"}, To: map[string]string{"audit": "renewals"}},
		Route{Takes: resourceIs("leases")},
		Route{Takes: resourceIs("nodes"), Classes: []string{"status"}, To: map[string]string{"main": "heartbeats"}},
		Route{Takes: resourceIs("nodes"), To: map[string]string{"main": "nodes"}},
		Route{Takes: resourceIs("services"), Namespace: only("a")},
		Route{Takes: resourceIs("pods"), Filter: `change.name == "x"`, To: map[string]string{"audit": "x"}},
	)
	r.want("dropped", "- -", gapOf("events", ""))
	r.want("of one sink", "secrets -", gapOf("secrets", ""))
	r.want("of which a part goes somewhere", "renewals -", gapOf("leases", ""))
	r.want("of two topics", "- nodes", gapOf("nodes", ""))
	r.want("of a dropped namespace", "- -", gapOf("services", "a"))
	r.want("of another namespace", "own own", gapOf("services", "b"))
	r.want("of all namespaces", "own own", gapOf("services", ""))
	r.want("of which a part goes elsewhere", "own own", gapOf("pods", ""))
}
