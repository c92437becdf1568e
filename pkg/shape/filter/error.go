package filter

import (
	"errors"
	"regexp"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// evaluationError describes a failed evaluation without quoting values of the object, because it is shown on the status
// page.
type evaluationError struct{ reason string }

func (e *evaluationError) Error() string { return e.reason }

// knownCELErrors maps prefixes of CEL's error messages to the text that is shown. The rest of a message may quote the
// object.
var knownCELErrors = []struct{ begins, shown string }{
	{"no such key", "no such key"},
	{"no such attribute", "no such key"},
	{"no such overload", "no such overload: a value has another type than the expression expects"},
	{"division by zero", "division by zero"},
	{"modulus by zero", "division by zero"},
	{"index out of bounds", "index out of bounds"},
	{"operation cancelled: actual cost limit exceeded", "actual cost limit exceeded"},
	{"actual cost limit exceeded", "actual cost limit exceeded"},
	{"integer overflow", "integer overflow"},
	{"type conversion error", "a value cannot be converted"},
	{"unsupported type conversion", "a value cannot be converted"},
	{"duplicate map key", "duplicate map key"},
}

var missingKey = regexp.MustCompile(`^no such (?:key|attribute)[^:]*: ([A-Za-z0-9_.-]+)`)

// sanitizeError returns an error that quotes only names from the expression itself.
func sanitizeError(err error, expression string) error {
	var malformed *rawjson.MalformedError
	if errors.As(err, &malformed) {
		return err
	}
	text := err.Error()
	if m := missingKey.FindStringSubmatch(text); m != nil && (strings.Contains(expression, "."+m[1]) || strings.Contains(expression, `"`+m[1]+`"`)) {
		return &evaluationError{"no such key: " + m[1]}
	}
	for _, f := range knownCELErrors {
		if strings.HasPrefix(text, f.begins) {
			return &evaluationError{f.shown}
		}
	}
	return &evaluationError{"the expression failed on an object"}
}
