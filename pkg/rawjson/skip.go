package rawjson

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth bounds the nesting of objects and arrays, and thereby the stack. API servers decode JSON with the same bound, so
// no object that they have stored is deeper.
const MaxDepth = 10000

// SkipSpace returns the index of the next byte that is not white space.
func SkipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// SkipValue returns the index after the value that starts at i, at nesting level depth. It validates the value completely
// (RFC 8259).
func SkipValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > MaxDepth {
		return FailAt(i)
	}
	switch b[i] {
	case '"':
		return SkipString(b, i)
	case '{':
		m := EnterObject(b, i)
		for m.Next() {
			m.I = SkipValue(b, m.I, depth+1)
		}
		return m.I
	case '[':
		e := EnterArray(b, i)
		for e.Next() {
			e.I = SkipValue(b, e.I, depth+1)
		}
		return e.I
	}
	return skipScalar(b, i)
}

func skipScalar(b []byte, i int) int {
	switch b[i] {
	case 't':
		return skipLiteral(b, i, "true")
	case 'f':
		return skipLiteral(b, i, "false")
	case 'n':
		return skipLiteral(b, i, "null")
	}
	return skipNumber(b, i)
}

func skipLiteral(b []byte, i int, literal string) int {
	if end := i + len(literal); end <= len(b) && string(b[i:end]) == literal {
		return end
	}
	return FailAt(i)
}

func skipNumber(b []byte, i int) int {
	from := i
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	default:
		var ok bool
		if i, ok = skipDigits(b, i); !ok {
			return FailAt(from)
		}
	}
	ok := true
	if i < len(b) && b[i] == '.' {
		i, ok = skipDigits(b, i+1)
	}
	if ok && i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		i, ok = skipDigits(b, i)
	}
	if !ok {
		return FailAt(from)
	}
	return i
}

// skipDigits requires at least one digit.
func skipDigits(b []byte, i int) (int, bool) {
	from := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i, i > from
}

// Bytes repeated eight times, for searching eight bytes at a time.
const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// SkipString returns the index after the string that starts at i. It searches eight bytes at a time for a quote, a backslash
// or a control character; only the lowest match is reliable, higher ones may be false positives.
func SkipString(b []byte, i int) int {
	i++
	for i < len(b) {
		if i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q, s := w^(lowBits*'"'), w^(lowBits*'\\')
			found := ((q-lowBits)&^q | (s-lowBits)&^s | (w-lowBits*0x20)&^w) & highBits
			if found == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(found) >> 3
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < 0x20:
			return FailAt(i)
		case c != '\\':
			i++
		default:
			if i = skipEscape(b, i); i < 0 {
				return i
			}
		}
	}
	return FailAt(len(b))
}

func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return FailAt(i)
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(b) || !isHex(b[k]) {
				return FailAt(i)
			}
		}
		return i + 6
	}
	return FailAt(i)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

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

const (
	classOther = iota
	classQuote
	classOpening
	classClosing
)

// byteClasses maps bytes to their role in the structure of JSON.
var byteClasses = [256]uint8{'"': classQuote, '{': classOpening, '[': classOpening, '}': classClosing, ']': classClosing}

// SkipTrustedValue returns the index after the value that starts at i. It is faster than [SkipValue] because it trusts that
// a JSON encoder wrote the bytes: it follows brackets and strings, so a truncated value is still detected, but it does not
// check numbers or the syntax between brackets.
func SkipTrustedValue(b []byte, i int) int {
	if i >= len(b) {
		return FailAt(i)
	}
	switch byteClasses[b[i]] {
	case classQuote:
		return skipTrustedString(b, i)
	case classOpening:
		return skipTrustedContainer(b, i)
	}
	from := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == from {
		return FailAt(i)
	}
	return i
}

func endsScalar(c byte) bool {
	switch c {
	case ',', '}', ']', ':', '"', '{', '[', ' ', '\n', '\t', '\r':
		return true
	}
	return false
}

// skipTrustedString returns the index after the string that starts at i. It searches eight bytes at a time for a quote or a
// backslash: (w-0x01…)&^w&0x80… has the top bit set in the lowest byte of w that is zero. The additional checks of
// SkipString would take a tenth of the total time spent on reading an object.
func skipTrustedString(b []byte, i int) int {
	i++
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		q, s := w^(lowBits*'"'), w^(lowBits*'\\')
		found := ((q - lowBits) & ^q & highBits) | ((s - lowBits) & ^s & highBits)
		if found == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(found) >> 3
		if b[i] == '"' {
			return i + 1
		}
		i += 2
	}
	for i < len(b) {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i += 2
		default:
			i++
		}
	}
	return FailAt(len(b))
}

// skipTrustedContainer returns the index after the object or array that starts at i. The kinds of the open brackets are bits
// of one word; a container nested deeper than 64 levels is handled by recursion.
func skipTrustedContainer(b []byte, i int) int {
	var open uint64
	depth := 0
	for i < len(b) {
		switch byteClasses[b[i]] {
		case classQuote:
			if i = skipTrustedString(b, i); i < 0 {
				return i
			}
			continue
		case classOpening:
			if depth == 64 {
				if i = skipTrustedContainer(b, i); i < 0 {
					return i
				}
				continue
			}
			open = open<<1 | bracketKind(b[i])
			depth++
		case classClosing:
			if open&1 != bracketKind(b[i]) {
				return FailAt(i)
			}
			open >>= 1
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return FailAt(len(b))
}

// bracketKind is 1 for '{' and '}' and 0 for '[' and ']', which differ in one bit in ASCII.
func bracketKind(c byte) uint64 { return uint64(c>>5) & 1 }
