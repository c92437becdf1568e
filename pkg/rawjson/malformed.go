package rawjson

import "fmt"

// MalformedError says that bytes are not one JSON value as RFC 8259 has it. It quotes nothing of them: they may be secret.
type MalformedError struct {
	What   string
	Offset int // in bytes
}

// Error implements error.
func (e *MalformedError) Error() string { return fmt.Sprintf("%s at byte %d", e.What, e.Offset) }

// MalformedAt is the error of a negative index.
func MalformedAt(i int) error { return &MalformedError{"malformed JSON", FailAt(i)} }

// CheckEnd checks that b is one value and nothing else but white space, of which end is the index behind it.
func CheckEnd(b []byte, end int) error {
	if end < 0 {
		return MalformedAt(end)
	}
	if rest := SkipSpace(b, end); rest != len(b) {
		return MalformedAt(FailAt(rest))
	}
	return nil
}
