package inspect

import (
	"bytes"
	"testing"
)

func TestAPathThatMatchesNothingIsPointedOut(t *testing.T) {
	var b bytes.Buffer
	writePaths(&b, []pathReport{{"redactPaths[0]", "spec.token", 12, 40}, {"redactPaths[1]", "spec.tokne", 0, 40}, {"fields.drop[0]", "status", 0, 0}})
	const want = `  redactPaths[0] spec.token matches 12 of 40 objects
  redactPaths[1] spec.tokne matches 0 of 40 objects: a typo, or no object has it now
  fields.drop[0] status matches 0 of 0 objects
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
