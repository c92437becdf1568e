package rawjson

import (
	"encoding/binary"
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
