package rawjson_test

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

func TestPartsOfAValueAreFound(t *testing.T) {
	v := rawjson.Value(` {"a": {"b\n": [1, "x\"y", null], "c": null}, "a": 2}`)
	if got := v.Get("a").Member("b\n"); string(got) != `[1, "x\"y", null]` {
		t.Errorf("%s", got)
	}
	for path, want := range map[string]bool{"a": true, "a.c": false, "a.c.d": false, "b": false, "a.b\n.0": false} {
		if got := v.Get(path); (got != nil) != want {
			t.Errorf("%q: %s", path, got)
		}
	}
	elements := slices.Collect(v.Get("a").Member("b\n").Elements())
	if len(elements) != 3 || elements[0].Text() != "" || elements[1].Text() != `x"y` || elements[2].IsText() {
		t.Errorf("%q", elements)
	}
	if from, to := v.Find("a"); string(v[from:to]) != string(v.Member("a")) {
		t.Errorf("%d to %d", from, to)
	}
}

func TestAValueThatEndsTooEarlyHasThePartsBeforeItsEnd(t *testing.T) {
	for _, text := range []string{"", "1", `{"a":1,"b`, `{"a":1,"b":[`, `{"a":1,"b":"`, `{"a":1,`} {
		n := 0
		for range rawjson.Value(text).Members() {
			n++
		}
		if want := min(1, len(text)/2); n != want || rawjson.Value(text).Member("b") != nil {
			t.Errorf("%q: %d members", text, n)
		}
	}
	for range rawjson.Value(`["a`).Elements() {
		t.Error("an element that does not end")
	}
}
