package shape

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
)

// deepest is how many levels of objects and arrays are followed. No API object comes near; what is deeper is refused.
const deepest = 500

// malformedError says that bytes are not one JSON object as RFC 8259 has it. It quotes nothing of them: they may be secret.
type malformedError struct {
	what   string
	offset int
}

func (e *malformedError) Error() string { return fmt.Sprintf("%s at byte %d", e.what, e.offset) }

// fail encodes the offset of an error as a negative index, so that the scanning functions return one int.
func fail(i int) int { return ^i }

// malformed is the error of a negative index.
func malformed(i int) error { return &malformedError{"malformed JSON", ^i} }

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index behind the value that begins at i. It checks everything: what it passes is valid JSON.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > deepest {
		return fail(i)
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{':
		m := enter(b, i)
		for m.next() {
			m.i = skipValue(b, m.i, depth+1)
		}
		return m.i
	case '[':
		e := enterArray(b, i)
		for e.next() {
			e.i = skipValue(b, e.i, depth+1)
		}
		return e.i
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
	return fail(i)
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
			return fail(from)
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
		return fail(from)
	}
	return i
}

// skipDigits passes at least one digit.
func skipDigits(b []byte, i int) (int, bool) {
	from := i
	for i < len(b) && '0' <= b[i] && b[i] <= '9' {
		i++
	}
	return i, i > from
}

// skipString returns the index behind the string whose opening quote is at i. It looks at eight bytes at a time for a
// quote, a backslash or a control character; the lowest byte it finds is one, those above may be false alarms.
func skipString(b []byte, i int) int {
	const (
		ones = 0x0101010101010101
		tops = 0x8080808080808080
	)
	i++
	for i < len(b) {
		if i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q, s := w^(ones*'"'), w^(ones*'\\')
			found := ((q-ones)&^q | (s-ones)&^s | (w-ones*0x20)&^w) & tops
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
			return fail(i)
		case c != '\\':
			i++
		default:
			if i = skipEscape(b, i); i < 0 {
				return i
			}
		}
	}
	return fail(len(b))
}

func skipEscape(b []byte, i int) int {
	if i+1 >= len(b) {
		return fail(i)
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(b) || !isHex(b[k]) {
				return fail(i)
			}
		}
		return i + 6
	}
	return fail(i)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// members walks the members of one JSON object. After next the value begins at i, and whoever takes it moves i behind
// it. A negative i is an error and ends the walk; after the last member i is behind the closing brace.
type members struct {
	b     []byte
	i     int
	key   []byte // without quotes and escapes
	start int    // of the member: its opening quote
	comma int    // before the member; -1 for the first
	first bool
}

func enter(b []byte, i int) members {
	if i < 0 || i >= len(b) || b[i] != '{' {
		return members{b: b, i: fail(max(i, 0))}
	}
	return members{b: b, i: i + 1, first: true, comma: -1}
}

func (m *members) next() bool {
	if m.i < 0 {
		return false
	}
	b, i := m.b, skipSpace(m.b, m.i)
	switch {
	case i < len(b) && b[i] == '}':
		m.i = i + 1
		return false
	case m.first:
		m.first = false
	case i < len(b) && b[i] == ',':
		m.comma = i
		i = skipSpace(b, i+1)
	default:
		m.i = fail(i)
		return false
	}
	if i >= len(b) || b[i] != '"' {
		m.i = fail(i)
		return false
	}
	end := skipString(b, i)
	if end < 0 {
		m.i = end
		return false
	}
	m.start, m.key = i, text(b[i:end])
	if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
		m.i = fail(i)
		return false
	}
	m.i = skipSpace(b, i+1)
	return true
}

// elements walks the elements of one JSON array as members does the members of an object.
type elements struct {
	b     []byte
	i     int
	start int // of the element
	comma int // before the element; -1 for the first
	first bool
}

func enterArray(b []byte, i int) elements {
	return elements{b: b, i: i + 1, first: true, comma: -1}
}

func (e *elements) next() bool {
	if e.i < 0 {
		return false
	}
	b, i := e.b, skipSpace(e.b, e.i)
	switch {
	case i < len(b) && b[i] == ']':
		e.i = i + 1
		return false
	case e.first:
		e.first = false
	case i < len(b) && b[i] == ',':
		e.comma = i
		i = skipSpace(b, i+1)
	default:
		e.i = fail(i)
		return false
	}
	e.start, e.i = i, i
	return true
}

// text returns what a valid JSON string, given with its quotes, says. Without escapes it aliases the string.
func text(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return inner // not reached for what skipString has passed
	}
	return []byte(s)
}

// closed checks that b is one JSON object and nothing else but white space, of which end is the index behind it.
func closed(b []byte, end int) error {
	if end < 0 {
		return malformed(end)
	}
	if rest := skipSpace(b, end); rest != len(b) {
		return malformed(fail(rest))
	}
	return nil
}
