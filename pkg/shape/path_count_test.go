package shape

import (
	"slices"
	"testing"
)

func TestObjectsThatAPathMatchesAreCounted(t *testing.T) {
	p := Policy{RedactPaths: []string{"spec.containers[*].env[*].value", "spec.typo"}, OnlyIfChanged: []string{"spec"}, Fields: Fields{Drop: []string{"status.x"}}}
	c, err := p.CountPaths()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{
		`{"spec":{"containers":[{"env":[{"name":"A"},{"value":"x"}]}]},"status":{}}`, `{"spec":{"containers":[{"env":[{"value":"x"},{"value":"y"}]}]}}`,
		`{"spec":{"containers":[{"image":"x"}]},"status":{"x":null}}`, `{"spec":`,
	} {
		c.Add([]byte(object))
	}
	want := []PathCount{
		{"fields.drop[0]", "status.x", 1}, {"onlyIfChanged[0]", "spec", 3},
		{"redactPaths[0]", "spec.containers[*].env[*].value", 2}, {"redactPaths[1]", "spec.typo", 0},
	}
	if c.Objects != 4 || !slices.Equal(c.Paths, want) {
		t.Errorf("%d objects, %+v", c.Objects, c.Paths)
	}
}

func TestAPathThatOnlyCustomResourcesHaveIsDoubted(t *testing.T) {
	p := Policy{RedactPaths: []string{"spec.x", "sepc.x", "[*].x"}, IgnoreChanges: []string{"statsu"}}
	var keys []string
	for _, doubt := range p.Doubts() {
		keys = append(keys, doubt.Key)
	}
	if !slices.Equal(keys, []string{"ignoreChanges[0]", "redactPaths[1]"}) {
		t.Errorf("%q", keys)
	}
}
