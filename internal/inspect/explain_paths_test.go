package inspect

import (
	"bytes"
	"testing"
)

func TestAPathThatMatchesNothingIsPointedOut(t *testing.T) {
	var b bytes.Buffer
	writePaths(&b, []pathReport{
		{Key: "redactPaths[0]", Path: "spec.token", Matched: 12, Objects: 40},
		{Key: "redactPaths[1]", Path: "spec.tokne", Objects: 40, Absent: true, Nearest: "spec.token"},
		{Key: "redactPaths[2]", Path: "spec.optional", Objects: 40},
		{Key: "fields.drop[0]", Path: "status"},
	})
	const want = `  redactPaths[0] spec.token matches 12 of 40 objects
  redactPaths[1] spec.tokne matches 0 of 40 objects: no selected type has it, did you mean spec.token?
  redactPaths[2] spec.optional matches 0 of 40 objects: no object has it now
  fields.drop[0] status matches 0 of 0 objects
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
