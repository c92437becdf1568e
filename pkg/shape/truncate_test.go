package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

const heavy = `{"apiVersion":"v1","kind":"X","metadata":{"name":"a","annotations":{"long":"%s","short":"y"},"labels":{"l":"m"}},"spec":{"n":1},"status":{"s":2}}`

func TestTruncationRemovesMembersStepByStep(t *testing.T) {
	body := fmt.Sprintf(heavy, strings.Repeat("x", 2000))
	c := updatedTo(deployment, body)
	c.Before, c.Changed = []byte(`{}`), []byte(`["/spec"]`)
	want := []string{
		"[before changed] " + body,
		`[before changed metadata.annotations status] {"apiVersion":"v1","kind":"X","metadata":{"name":"a","annotations":{"short":"y"},"labels":{"l":"m"}},"spec":{"n":1}}`,
		`[before changed metadata.annotations status spec] {"apiVersion":"v1","kind":"X","metadata":{"name":"a","labels":{"l":"m"}}}`,
	}
	whole := c.Clone()
	var steps []string
	for next, ok := TruncateOnce(c); ok; next, ok = TruncateOnce(next) {
		if next.ID() != c.ID() || next.Before != nil || next.Changed != nil {
			t.Errorf("%+v", next)
		}
		steps = append(steps, fmt.Sprint(next.Omitted, " ", string(next.After)))
	}
	if got := strings.Join(steps, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if string(c.After) != string(whole.After) || string(c.Before) != "{}" || c.Omitted != nil {
		t.Error("the change itself was changed")
	}
}

func TestDeletesTruncateTheLastState(t *testing.T) {
	c := &event.Change{Type: event.Deleted, Resource: deployment, Before: []byte(fmt.Sprintf(heavy, "x"))}
	next, ok := TruncateOnce(c)
	if !ok || strings.Contains(string(next.Before), "status") || !strings.Contains(string(next.Before), "spec") {
		t.Errorf("%v %+v", ok, next)
	}
}

func TestTruncationEndsWithoutAStepLeft(t *testing.T) {
	for _, body := range []string{``, `{"metadata":{"name":"a"}}`, `{"kind":`, `null`} {
		if next, ok := TruncateOnce(updatedTo(deployment, body)); ok {
			t.Errorf("%q became %+v", body, next)
		}
	}
	if _, ok := TruncateOnce(&event.Change{Type: event.Gap, Gap: &event.GapInfo{}}); ok {
		t.Error("a gap was truncated")
	}
}

// FuzzTruncateOnce checks that truncation ends, shrinks the change at each step and always produces valid JSON.
func FuzzTruncateOnce(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(heavy, strings.Repeat("x", 2000))), true)
	f.Add([]byte(`{"status":1,"metadata":{"annotations":{}},"a":[]}`), false)
	f.Fuzz(func(t *testing.T, body []byte, deleted bool) {
		c := updatedTo(deployment, string(body))
		if c.Before, c.Changed = []byte("{}"), []byte(`["/a"]`); deleted {
			c.Type, c.Before, c.After, c.Changed = event.Deleted, body, nil, nil
		}
		for steps := 0; ; steps++ {
			next, ok := TruncateOnce(c)
			if !ok {
				return
			}
			if next.Size() >= c.Size() || steps > 3 {
				t.Fatalf("step %d: %+v", steps, next)
			}
			if c = next; steps > 0 && !json.Valid(append(append([]byte{}, c.Before...), c.After...)) {
				t.Fatalf("%q became %q%q", body, c.Before, c.After)
			}
		}
	})
}

// FuzzFields checks that fields produces valid JSON with all members that identify the object.
func FuzzFields(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"v1","metadata":{"name":"a","x":[1,{"y":2}]},"spec":{"a":[{"b":1,"c":2}]}}`))
	f.Add([]byte(` {"metadata" : [ ] , "kind":{"a":1}, "spec":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range []Policy{
			{Fields: Fields{Drop: []string{"spec.a[*].b", "metadata"}}}, {Fields: Fields{Keep: []string{"spec.a[*].b", "metadata.labels"}}},
			{Fields: Fields{Keep: []string{"spec", "metadata[*].y"}, Drop: []string{"[*].a", "kind"}}},
		} {
			r, err := compileRule(p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			out, err := r.fields.selectFrom(body)
			if err != nil {
				continue
			}
			if !json.Valid(body) || !json.Valid(out) || len(out) > len(body) {
				t.Fatalf("%q became %q", body, out)
			}
			was, is := decodeJSON(t, body).(map[string]any), decodeJSON(t, out).(map[string]any)
			for _, name := range []string{"apiVersion", "kind"} {
				if fmt.Sprint(was[name]) != fmt.Sprint(is[name]) {
					t.Fatalf("%q became %q: %s differs", body, out, name)
				}
			}
		}
	})
}
