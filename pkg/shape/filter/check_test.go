package filter

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func TestUnsatisfiableFiltersAreRejected(t *testing.T) {
	for _, text := range []string{
		`1 / 0 == 1`, `false`, `1 == 2`, `duration("5 parsecs") == duration("1s")`,
		`change.type == "create"`, `"modified" != change.type`, `change.type in ["added", "delete"]`, `change.class == "Spec"`,
		`object.metadata.name.matches("(")`, `object.spec.paused && false`, `false && object.spec.a / object.spec.b > 1`,
		`[1, 2].exists(n, n == 3)`, `change.type == "added" && change.type == "deleted"`,
		`change.type == "added" && change.class == "spec"`, `!(change.type in ["added", "updated", "deleted", "snapshot", "sync", "attributed"])`,
		`change.type == "deleted" && change.type != "deleted" && has(object.spec)`, `string(object.metadata.name) == "a" && [].size() > 0`,
		`change.name != change.name`, `object.spec.a < object.spec.a`, `change.type == "added" && change.finalStateUnknown`,
	} {
		if _, err := Compile(text, false); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
	for _, text := range []string{
		`true`, `object.spec.replicas / 2 == 1`, `change.type == "added"`, `change.type in ["added", "sync"] || change.class == ""`,
		`[1, 2].exists(n, n == object.spec.n)`, `[1, 2].exists(n, n == 2)`, `object.spec.paused || true`,
		`change.type == "attributed"`, `change.type != "attributed"`, `change.class == "spec" && change.type == "updated"`,
		`size(change.name) > 3 && size(change.name) < 5`, `size(change.name) == 0`, `size(change.name) < 1000000000`, `"a" == "a"`,
		`change.name != change.namespace`, `change.name.startsWith("a") && change.name == "b"`, `change.name < "b" && change.name != "a"`,
		`size(change.name) == 1 && change.name != "x"`, `change.name in object.spec.names && change.name == "a"`, `["a"].exists(n, n == change.name)`,
		`change.actor.manager == "x" && change.actor.manager != "y"`, `change.name == "create"`, `object.spec.a != "create"`,
	} {
		if _, err := Compile(text, false); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestOutcomesAreThoseOfTheChanges compares what is said of a kind with the result for changes of that kind.
func TestOutcomesAreThoseOfTheChanges(t *testing.T) {
	pods := Known{Values: map[string]string{"change.resource": "pods", "change.group": ""}}
	for text, want := range map[string]map[Kind]Outcome{
		`true`:                                       {{Type: event.Added}: Always, {Type: event.Sync}: Always},
		`change.type == "added"`:                     {{Type: event.Added}: Always, {Type: event.Sync}: Never},
		`change.class == "status"`:                   {{event.Updated, event.ClassStatus}: Always, {Type: event.Updated}: Never},
		`change.resource == "pods"`:                  {{Type: event.Added}: Always},
		`change.group == "apps"`:                     {{Type: event.Added}: Never},
		`change.name == "a"`:                         {{Type: event.Added}: Sometimes},
		`has(object.spec) || change.type != "x"`:     nil, // refused
		`has(object.spec) && change.type == "added"`: {{Type: event.Added}: Sometimes, {Type: event.Sync}: Never},
	} {
		f, err := Compile(text, false)
		if (err != nil) != (want == nil) {
			t.Errorf("%s: %v", text, err)
		}
		for kind, outcome := range want {
			if got := f.OutcomeFor(kind, pods); got != outcome {
				t.Errorf("%s for %v is %v, want %v", text, kind, got, outcome)
			}
			yes, err := f.Matches(&event.Change{Type: kind.Type, Class: kind.Class, Resource: event.Resource{Resource: "pods"}, After: []byte("{}")}, nil)
			if err != nil || yes && outcome == Never || !yes && outcome == Always {
				t.Errorf("%s for %v: %v (%v), said to be %v", text, kind, yes, err, outcome)
			}
		}
	}
}

// TestWhatIsKnownIsEvaluated gives the expression what all changes of a rule have in common, and compares the outcome with
// changes of such a rule.
func TestWhatIsKnownIsEvaluated(t *testing.T) {
	named := Known{Values: map[string]string{"change.namespace": "a"}}
	metadata := Known{MetadataOnly: true}
	for _, c := range []struct {
		text  string
		known Known
		want  Outcome
	}{
		{`change.namespace == "a"`, named, Always}, {`change.namespace == "c"`, named, Never}, {`change.namespace.startsWith("x")`, named, Never},
		{`size(change.namespace) == 1`, named, Always}, {`change.namespace in ["a", "b", "c"]`, named, Always},
		{`change.name == "a"`, named, Sometimes},
		{`object.spec.a == 1`, metadata, Fails}, {`has(object.spec)`, metadata, Never}, {`!has(object.spec)`, metadata, Always},
		{`object.?spec.?a.orValue(1) == 1`, metadata, Always}, {`object["spec"] == 1`, metadata, Fails},
		{`has(object.metadata.labels.a)`, metadata, Sometimes}, {`object.kind == "Pod" && object.apiVersion == "v1"`, metadata, Sometimes},
		{`object == null || has(object.spec)`, metadata, Sometimes}, {`object[change.name] == 1`, metadata, Sometimes},
		{`[object].exists(o, has(o.spec))`, metadata, Sometimes}, {`change.name == "x" || object.spec.a == 1`, metadata, Sometimes},
		{`"spec" in object`, metadata, Sometimes}, {`object.metadata.labels.exists(l, l == "a")`, metadata, Sometimes},
		{`has(oldObject.spec)`, metadata, Never}, {`has(oldObject.metadata.labels)`, metadata, Sometimes},
	} {
		f, err := Compile(c.text, true)
		if err != nil {
			t.Fatal(err)
		}
		kind := Kind{event.Updated, event.ClassSpec}
		if got := f.OutcomeFor(kind, c.known); got != c.want {
			t.Errorf("%s is %v, want %v", c.text, got, c.want)
		}
		object := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"a"}}}`)
		yes, err := f.Matches(&event.Change{Type: kind.Type, Class: kind.Class, Namespace: "a", Name: "x", After: object}, object)
		if yes && (c.want == Never || c.want == Fails) || !yes && c.want == Always || err != nil && c.want != Fails && c.want != Sometimes {
			t.Errorf("%s: %t (%v), said to be %v", c.text, yes, err, c.want)
		}
	}
}
