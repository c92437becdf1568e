package filter

import "testing"

func TestUnsatisfiableFiltersAreRejected(t *testing.T) {
	for _, text := range []string{
		`1 / 0 == 1`, `object.spec.replicas / 0 == 1`, `object.spec.replicas % 0 == 1`, `false`, `1 == 2`, `duration("5 parsecs") == duration("1s")`,
		`change.type == "create"`, `"modified" != change.type`, `change.type in ["added", "delete"]`, `change.class == "Spec"`,
		`object.metadata.name.matches("(")`,
	} {
		if _, err := Compile(text, false); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
	for _, text := range []string{
		`true`, `object.spec.replicas / 2 == 1`, `change.type == "added"`, `change.type in ["added", "sync"] || change.class == ""`,
		`[1, 2].exists(n, n == object.spec.n)`, `change.name == "create"`, `object.spec.a != "create"`,
	} {
		if _, err := Compile(text, false); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
