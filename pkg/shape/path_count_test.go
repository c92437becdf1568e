package shape

import (
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

func TestObjectsThatAPathMatchesAreCounted(t *testing.T) {
	p := Policy{RedactPaths: []string{"spec.containers[*].env[*].value", "spec.typo"}, OnlyIfChanged: []string{"spec"}, Fields: Fields{Drop: []string{"status.x"}}}
	c, err := p.NewPathCounter()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{
		`{"spec":{"containers":[{"env":[{"name":"A"},{"value":"x"}]}]},"status":{}}`, `{"spec":{"containers":[{"env":[{"value":"x"},{"value":"y"}]}]}}`,
		`{"spec":{"containers":[{"image":"x"}]},"status":{"x":null}}`, `{"spec":`,
	} {
		c.AddObject([]byte(object))
	}
	want := []PathCount{
		{"fields.drop[0]", "status.x", 1, PathKnown, ""}, {"onlyIfChanged[0]", "spec", 3, PathKnown, ""},
		{"redactPaths[0]", "spec.containers[*].env[*].value", 2, PathKnown, ""}, {"redactPaths[1]", "spec.typo", 0, PathAbsent, ""},
	}
	if c.Objects != 4 || !slices.Equal(c.Paths, want) {
		t.Errorf("%d objects, %+v", c.Objects, c.Paths)
	}
}

func TestPathsOfCustomResourcesGiveAWarning(t *testing.T) {
	p := Policy{RedactPaths: []string{"spec.x", "sepc.x", "[*].x"}, IgnoreChanges: []string{"statsu"}}
	var keys []string
	for _, doubt := range p.Warnings() {
		keys = append(keys, doubt.Key)
	}
	if !slices.Equal(keys, []string{"ignoreChanges[0]", "redactPaths[1]"}) {
		t.Errorf("%q", keys)
	}
}

// FuzzPathStringRoundTrips checks that the string form of a parsed path parses to the same path.
func FuzzPathStringRoundTrips(f *testing.F) {
	for _, text := range []string{
		"spec", "spec.containers[*].env[*].value", `metadata.annotations["a.b/c"]`, `data["1"]`, "[*].a", "$.x", "/spec", "a..b", "a[", `a["`, `a['b"c']`, `a['b"]c']`, "spec[0]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := path.Parse(text)
		if err != nil {
			return
		}
		again, err := path.Parse(p.String())
		if err != nil || !slices.Equal(p, again) {
			t.Errorf("%q is read as %q and written as %q, which is read as %q (%v)", text, p, p.String(), again, err)
		}
		if _, err := path.NewTree([]path.Path{p}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	})
}
