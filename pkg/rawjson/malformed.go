package rawjson

import "fmt"

// MalformedError reports that bytes are not one valid JSON value (RFC 8259). It does not quote them, because they may be
// secret.
type MalformedError struct {
	What   string
	Offset int // in bytes
}

// Error returns the problem and the byte offset.
func (e *MalformedError) Error() string { return fmt.Sprintf("%s at byte %d", e.What, e.Offset) }

// MalformedAt returns the error for a negative index in b.
func MalformedAt(b []byte, i int) error {
	offset := FailAt(i)
	if depthAt(b[:min(offset, len(b))]) > MaxDepth {
		return &MalformedError{fmt.Sprintf("nested deeper than %d levels", MaxDepth), offset}
	}
	return &MalformedError{"malformed JSON", offset}
}

// depthAt returns how many brackets are open at the end of b, which ends between two values.
func depthAt(b []byte) (depth int) {
	for i := 0; i < len(b); {
		switch byteClasses[b[i]] {
		case classQuote:
			if i = skipTrustedString(b, i); i < 0 {
				return depth
			}
			continue
		case classOpening:
			depth++
		case classClosing:
			depth--
		}
		i++
	}
	return depth
}

// CheckEnd checks that only white space follows the value in b that ends at index end. A negative end is returned as an
// error.
func CheckEnd(b []byte, end int) error {
	if end < 0 {
		return MalformedAt(b, end)
	}
	if rest := SkipSpace(b, end); rest != len(b) {
		return MalformedAt(b, FailAt(rest))
	}
	return nil
}

// FailAt encodes the index of an error as a negative number, so that walking functions return one int. It is its own
// inverse.
func FailAt(i int) int { return ^i }
