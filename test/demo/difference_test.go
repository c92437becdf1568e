package main

import (
	"slices"
	"testing"
)

func TestDifferencesNameWhatChangedAndNothingElse(t *testing.T) {
	for _, c := range []struct {
		name, before, after string
		want                []string
	}{
		{"a number", `{"spec": {"replicas": 2}}`, `{"spec": {"replicas": 5}}`, []string{"spec.replicas 2→5"}},
		{"a value that is new", `{"data": {}}`, `{"data": {"a": "x"}}`, []string{"+data.a=x"}},
		{"a value that is gone", `{"data": {"a": "x", "b": "y"}}`, `{"data": {"b": "y"}}`, []string{"-data.a"}},
		{"an empty value", `{"data": {"a": "x"}}`, `{"data": {"a": ""}}`, []string{`data.a x→""`}},
		{"null is not the same as nothing", `{}`, `{"a": null}`, []string{"+a=null"}},
		{"a value of several lines", `{"a": "x"}`, `{"a": "y\n  z\n"}`, []string{"a x→y z"}},
		{"what the API server counts", `{"metadata": {"resourceVersion": "1", "generation": 1}}`, `{"metadata": {"resourceVersion": "2", "generation": 2}}`, nil},
		{"an element by its name",
			`{"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]}`,
			`{"containers": [{"name": "b", "image": "y"}, {"name": "a", "image": "x"}]}`,
			[]string{"containers[b].image x→y"}},
		{"an element by its place", `{"args": ["a", "b"]}`, `{"args": ["a", "c"]}`, []string{"args[1] b→c"}},
		{"a long path", `{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "x"}]}}}}`,
			`{"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "y"}]}}}}`,
			[]string{"…spec.containers[web].image x→y"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := differences(fieldsOf(parsed(c.before)), fieldsOf(parsed(c.after)))
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestHistoryTellsEachEventFromTheOneBefore(t *testing.T) {
	h := make(history)
	deployment := func(kind, replicas string) *event {
		return &event{Type: kind, UID: "u", After: parsed(`{"spec": {"replicas": ` + replicas + `}}`)}
	}
	for _, c := range []struct {
		e    *event
		want string
	}{
		{deployment("snapshot", "2"), "spec.replicas=2"},
		{deployment("updated", "5"), "spec.replicas 2→5"},
		{deployment("updated", "5"), "nothing but its resourceVersion"},
		{&event{Type: deleted, UID: "u", Before: parsed(`{"spec": {"replicas": 5}}`)}, "gone (its last state: 1 field)"},
		{&event{Type: deleted, UID: "v"}, "gone"},
		{deployment("added", "1"), "spec.replicas=1"}, // the state of the deleted one is forgotten
	} {
		if got := h.tell(c.e); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %q, want %q", c.e.Type, got, c.want)
		}
	}
}

func TestALineHoldsWhatFitsAndCountsTheRest(t *testing.T) {
	facts := []string{"spec.replicas 2→5", "data.a x→y", "-data.b"}
	for _, c := range []struct {
		width int
		want  string
	}{
		{80, "spec.replicas 2→5, data.a x→y, -data.b"},
		{38, "spec.replicas 2→5, data.a x→y, -data.b"},
		{37, "spec.replicas 2→5, +2 more"},
		{5, "spec.replicas 2→5, +2 more"}, // the first fact is always there
	} {
		if got := fit(facts, c.width); got != c.want {
			t.Errorf("in %d: %q, want %q", c.width, got, c.want)
		}
	}
	if got, want := fit([]string{"a fact that has no room at all"}, 5), "a fact that has no …"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
