package shape

import (
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// malformedError says that bytes are not one JSON object as RFC 8259 has it. It quotes nothing of them: they may be secret.
type malformedError struct {
	what   string
	offset int
}

func (e *malformedError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.offset) }

// malformed is the error of a negative index.
func malformed(i int) error { return &malformedError{"malformed JSON", rawjson.Fail(i)} }

// closed checks that b is one JSON object and nothing else but white space, of which end is the index behind it.
func closed(b []byte, end int) error {
	if end < 0 {
		return malformed(end)
	}
	if rest := rawjson.SkipSpace(b, end); rest != len(b) {
		return malformed(rawjson.Fail(rest))
	}
	return nil
}
