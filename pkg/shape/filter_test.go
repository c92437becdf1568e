package shape

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
)

func TestFiltersChooseChanges(t *testing.T) {
	pod := `{"metadata":{"name":"a","labels":{"team":"shop"},"annotations":{"n":"1"}},"spec":{"replicas":3,"f":1.5,"containers":[{"image":"x:1"},{"image":"y:2"}]},"status":null}`
	c := updatedTo(deployment, pod)
	c.Actor, c.Coalesced = &event.Actor{Manager: "kubectl", Operation: "Update"}, true
	for expression, want := range map[string]bool{
		`object.metadata.labels.team == "shop"`:                                                 true,
		`object.metadata.labels["team"] in ["a", "b"]`:                                          false,
		`has(object.metadata.labels) && !has(object.metadata.finalizers)`:                       true,
		`object.?spec.?template.?x.orValue("none") == "none"`:                                   true,
		`object.spec.containers.exists(c, c.image.startsWith("y:"))`:                            true,
		`object.spec.replicas > 2 && object.spec.replicas < 3.5 && object.spec.f > 1`:           true,
		`object.status == null`:                                                                 true,
		`object == null`:                                                                        false,
		`oldObject == null || oldObject.spec != object.spec`:                                    true,
		`change.type == "updated" && change.class in ["spec", "deleting"]`:                      true,
		`change.resource == "deployments" && change.group == "apps" && change.namespace == "n"`: true,
		`change.actor.manager == "kubectl" && change.actor.subresource == ""`:                   true,
		`change.coalesced && !change.finalStateUnknown`:                                         true,
		`int(object.metadata.annotations.n) == 1`:                                               true,
	} {
		s := newScene(t, Policy{Filter: expression})
		changed := *c
		if got := len(s.shapeChanges(&changed)) == 1; got != want {
			t.Errorf("%s: %v (%s)", expression, got, s.shaper.Stats()[0].Failure)
		}
		if st := s.shaper.Stats()[0]; st.Failed != 0 || (st.Dropped["filter"] == 1) == want {
			t.Errorf("%s: %+v", expression, st)
		}
	}
}

func TestAFilterSeesTheLastStateOfWhatIsDeleted(t *testing.T) {
	s := newScene(t, Policy{Filter: `object == null || object.spec == 1`})
	for body, want := range map[string]int{`{"spec":1}`: 1, `{"spec":2}`: 0, ``: 1} {
		c := &event.Change{Type: event.Deleted, Resource: deployment, Name: "a"}
		if body != "" {
			c.Before = []byte(body)
		}
		if got := s.shapeChanges(c); len(got) != want {
			t.Errorf("%q: %d emitted", body, len(got))
		}
	}
}

func TestAFilterSeesNoSecret(t *testing.T) {
	s := newScene(t, Policy{Filter: `object.data.p == "***" && (oldObject == null || oldObject.data.p == "***")`})
	for range 2 {
		if len(s.shapeChanges(updatedTo(secret, `{"data":{"p":"hunter"}}`))) != 1 {
			t.Error("the filter saw something else")
		}
	}
}

func TestAFilterThatFailsLosesNothing(t *testing.T) {
	s := newScene(t, Policy{Filter: `object.spec.missing == 1`})
	if len(s.shapeChanges(updatedTo(deployment, `{"spec":{}}`))) != 1 || len(s.shapeChanges(updatedTo(deployment, `{"spec":01}`))) != 1 {
		t.Error("a change is lost")
	}
	if st := s.shaper.Stats()[0]; st.Failed != 2 || st.Failure == "" || st.Dropped["filter"] != 0 {
		t.Errorf("%+v", st)
	}
}

func TestACostlyFilterIsCutOff(t *testing.T) {
	const each = `object.spec.l.all(a, object.spec.l.all(b, object.spec.l.all(c, object.spec.l.all(d, a + b + c + d >= 0))))`
	s := newScene(t, Policy{Filter: each})
	body := `{"spec":{"l":[` + strings.Repeat("1,", 999) + `1]}}`
	if len(s.shapeChanges(updatedTo(deployment, body))) != 1 {
		t.Error("the change is lost")
	}
	if st := s.shaper.Stats()[0]; st.Failed != 1 || !strings.Contains(st.Failure, "cost limit") {
		t.Errorf("%+v", st)
	}
	ten := "[1,2,3,4,5,6,7,8,9,0]"
	bomb := strings.Repeat(ten+".map(x, ", 7) + "x" + strings.Repeat(")", 7) + ".size() > 0"
	if _, err := filter.Compile(bomb, true); err == nil || !strings.Contains(err.Error(), "costs at least") {
		t.Errorf("a bomb: %v", err)
	}
}

func TestFilterErrorsAreFoundAtLoad(t *testing.T) {
	for expression, want := range map[string]string{
		`objct.spec == 1`:       `line 1, column 1: "objct" is unknown; known variables are change.actor.manager, `,
		`change.typ == "added"`: `is unknown`,
		`change.type == 1`:      `found no matching overload for '_==_' applied to '(string, int)'`,
		`change.name`:           `its result is string, expected bool`,
		`object.spec`:           `its result is dyn, expected bool (if CEL cannot infer the type: compare it, or write bool(…))`,
		`object.spec ==`:        `Syntax error`,
		`change.name = "web"`:   `line 1, column 13: "=" is not an operator; write "=="`,
		"change.name == \"web\" &&\nchange.type=\"added\"": `line 2, column 12: "=" is not an operator; write "=="`,
		`change.name === "web"`:                            `line 1, column 15: "=" is not an operator; write "=="`,
		`change.coalesced & true`:                          `line 1, column 18: "&" is not an operator; write "&&"`,
		"true &&\n  nonsense":                              `line 2, column 3: "nonsense" is unknown`,
		strings.Repeat("true && ", 3000) + "true":          `bytes long`,
	} {
		if _, err := filter.Compile(expression, true); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: %v, want %s", expression, err, want)
		}
	}
}

// FuzzFilters checks that compiling and evaluating any expression returns an error at worst.
func FuzzFilters(f *testing.F) {
	f.Add(`object.spec.x == 1 && change.type == "added"`, []byte(`{"spec":{"x":1e400}}`))
	f.Add(`oldObject == null || object.a.map(x, x + 1) == [2]`, []byte(`{"a":[1]}`))
	f.Add(`object.s.matches("(a+)+$") || object.s.format([1]) == ""`, []byte(`{"s":"aaaaaaaaaaaaaaaaaaaaaaaaaaa!"}`))
	f.Fuzz(func(t *testing.T, expression string, body []byte) {
		compiled, err := filter.Compile(expression, true)
		if err != nil {
			return
		}
		_, _ = compiled.Matches(updatedTo(deployment, string(body)), nil)
	})
}

func TestAFilterThatFailsQuotesNothingOfTheObject(t *testing.T) {
	const body = `{"metadata":{"name":"hunter"},"spec":{"a":"hunter","b":[1],"c":{"hunter":1},"d":"9223372036854775807"}}`
	for _, expression := range []string{
		`int(object.spec.a) == 1`, `double(object.spec.a) == 1.0`, `timestamp(object.spec.a) == timestamp(0)`, `duration(object.spec.a) == duration("1s")`,
		`object.spec.c[object.spec.a + "!"] == 1`, `object.spec[object.spec.a] == 1`, `object.spec.b[5] == 1`, `object.spec.a + 1 == 2`,
		`object.spec.a.matches(object.spec.a + "(")`, `"%d".format([object.spec.a]) == "1"`, `int(object.spec.d) + 1 == 0`, `bytes(object.spec.b) == b""`,
		`object.spec.missing == 1`, `object.spec.a.missing == 1`, `object.spec.a.charAt(99) == ""`,
	} {
		s := newScene(t, Policy{Filter: expression})
		s.shapeChanges(updatedTo(deployment, body))
		st := s.shaper.Stats()[0]
		if st.Failed != 1 || st.Failure == "" || strings.Contains(st.Failure, "hunter") || strings.Contains(st.Failure, "922337") {
			t.Errorf("%s: %d failures, %q", expression, st.Failed, st.Failure)
		}
	}
}

// TestADeleteOfWhatWasEmittedPassesTheFilter: otherwise an object that the filter no longer matches would stay in tables for
// ever. One that no destination has is deleted only if the filter matches that.
func TestADeleteOfWhatWasEmittedPassesTheFilter(t *testing.T) {
	for filter, want := range map[string][]string{
		`object.spec == 1`: {"added 1", "deleted 1", "added 3", "updated 3", "deleted 3"},
		`object.spec == 1 && change.type != "deleted"`:         {"added 1", "added 3", "updated 3"},
		`change.type == "deleted" || change.class == "status"`: {"deleted 1", "deleted 2", "deleted 3"},
	} {
		for _, restarted := range []bool{false, true} {
			s := newScene(t, Policy{Filter: filter})
			var got []string
			emit := func(typ event.Type, name string, spec string) {
				t.Helper()
				c := updatedTo(deployment, `{"spec":`+spec+`}`)
				if c.Type, c.Name, c.Previous = typ, name, "0"; typ == event.Added {
					c.Previous = ""
				}
				if typ == event.Deleted {
					c.Before, c.After = c.After, nil
				}
				for _, emitted := range s.shapeChanges(c) {
					got = append(got, string(emitted.Type)+" "+emitted.Name)
				}
				if restarted {
					s.restartWith(Policy{Filter: filter}, oneKey)
				}
			}
			emit(event.Added, "1", "1")
			emit(event.Updated, "1", "2")
			emit(event.Deleted, "1", "2")
			emit(event.Added, "2", "2")
			emit(event.Deleted, "2", "2")
			emit(event.Added, "3", "1")
			emit(event.Updated, "3", "1")
			emit(event.Updated, "3", "2")
			emit(event.Deleted, "3", "2")
			if !slices.Equal(got, want) {
				t.Errorf("%s, restarted %t: emitted %q, want %q", filter, restarted, got, want)
			}
		}
	}
}

// TestAnObjectThatOnlyAFormerFilterLeftOutIsNotDeleted: an object that a filter had left out is gone, or another one has its
// name, when the list of the next rules is read. No destination has it, so none learns of its end, unless deletes of what
// was not emitted are what the filter selects.
func TestAnObjectThatOnlyAFormerFilterLeftOutIsNotDeleted(t *testing.T) {
	for filter, want := range map[string][]string{
		"":                         {"added new"},
		`object.spec == 2`:         {"added new"},
		`object.spec == 3`:         nil,
		`change.type == "deleted"`: {"deleted old"},
		`change.type == "deleted" || object.spec == 3`: {"deleted old"},
	} {
		s := newScene(t, Policy{Filter: `object.spec == 1`, Before: "full"})
		old := updatedTo(deployment, `{"spec":2}`)
		old.Type, old.Previous, old.UID = event.Added, "", "old"
		if emitted := s.shapeChanges(old); len(emitted) > 0 {
			t.Fatalf("the former filter has emitted %v", emitted)
		}
		s.restartWith(Policy{Filter: filter, Before: "full"}, oneKey)
		deleted, added := *old, *old
		deleted.Type, deleted.After, deleted.Coalesced, deleted.FinalStateUnknown, deleted.Pass = event.Deleted, nil, true, true, "new"
		deleted.Before = old.After
		added.UID, added.Coalesced = "new", true
		var got []string
		for _, emitted := range s.shapeChanges(&deleted, &added) {
			got = append(got, string(emitted.Type)+" "+emitted.UID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: emitted %q, want %q", filter, got, want)
		}
	}
}
