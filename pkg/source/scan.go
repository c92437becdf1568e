package source

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// span is a half-open range of bytes. The zero span means absent, and so does an empty one: for identity both say "".
type span struct{ start, end int }

func (s span) present() bool         { return s.end > s.start }
func (s span) of(b []byte) []byte    { return b[s.start:s.end] }
func (s span) quoted() span          { return span{s.start - 1, s.end + 1} }
func unquotedSpan(from, to int) span { return span{from + 1, to - 1} }

// fields is what one pass over an object's JSON finds. Spans of strings exclude the quotes and may hold escapes.
type fields struct {
	kind, apiVersion                      span
	namespace, name, uid, resourceVersion span
	generation                            span // number
	annotations                           span // object, with its braces
	metadata                              span // object, with its braces
	items                                 span // array of a list, with its brackets
	managed                               span // metadata.managedFields: the member and exactly one adjoining comma
	parts                                 deltas.Parts
	writers                               [maxWriters]managedEntry
	written                               int // of writers
}

// maxWriters is how many entries of metadata.managedFields are told apart. The API server keeps ten of updates, and those of
// appliers, of which there are few.
const maxWriters = 16

// managedEntry is one entry of metadata.managedFields.
type managedEntry struct {
	manager, operation, subresource, time span
	identity                              uint64 // digest of everything but time and fields
	fieldsV1                              span
}

// malformedError says that bytes from the API server are not the JSON of an object.
type malformedError struct {
	offset int // first byte that cannot be right, counted from the start of what was scanned
	size   int
}

func (e *malformedError) Error() string {
	return fmt.Sprintf("malformed JSON at byte %d of %d", e.offset, e.size)
}

// scan makes one pass over b, which holds one JSON object and nothing else but white space. Every bracket and every
// string is followed to the last byte, so a truncated object is never accepted; the syntax of numbers and the
// insides of objects that are passed over are the API server's word. Strings that make up the identity must be strings,
// and metadata and managedFields must not occur twice, for then there would be no telling which was meant. f must be zero.
func scan(b []byte, f *fields) error {
	end := scanObject(b, skipSpace(b, 0), f)
	if end >= 0 {
		if rest := skipSpace(b, end); rest != len(b) {
			end = fail(rest)
		}
	}
	if end < 0 {
		return &malformedError{offset: ^end, size: len(b)}
	}
	return nil
}

// fail encodes the offset of an error as a negative index, so that the scanning functions return one int.
func fail(i int) int { return ^i }

func scanObject(b []byte, i int, f *fields) int {
	seenMetadata := false
	m := enter(b, i)
	for m.next() {
		switch string(m.key) {
		case "kind":
			m.str(&f.kind)
		case "apiVersion":
			m.str(&f.apiVersion)
		case "items":
			f.items = m.skip()
		case "metadata":
			if seenMetadata {
				return fail(m.start)
			}
			seenMetadata = true
			if !m.at('{') {
				m.skip()
				break
			}
			f.metadata.start = m.i
			m.i = scanMetadata(b, m.i, f)
			f.metadata.end = m.i
		case "status":
			m.digest(&f.parts.Status)
		default:
			m.digest(&f.parts.Rest)
		}
	}
	return m.i
}

func scanMetadata(b []byte, i int, f *fields) int {
	seenManaged := false
	m := enter(b, i)
	for m.next() {
		switch string(m.key) {
		case "name":
			m.str(&f.name)
		case "namespace":
			m.str(&f.namespace)
		case "uid":
			m.str(&f.uid)
		case "resourceVersion":
			m.str(&f.resourceVersion)
		case "generation":
			f.generation = m.skip()
		case "annotations":
			f.annotations = m.digest(&f.parts.Metadata)
		case "deletionTimestamp":
			f.parts.Deleting = !m.at('n')
			m.digest(&f.parts.Metadata)
		case "managedFields":
			if seenManaged {
				return fail(m.start)
			}
			seenManaged = true
			if m.at('[') {
				m.i = scanManaged(b, m.i, f)
			} else {
				m.skip()
			}
			f.managed = m.cut()
		default:
			m.digest(&f.parts.Metadata)
		}
	}
	return m.i
}

// scanManaged passes the array of managed fields and keeps its entries.
func scanManaged(b []byte, i int, f *fields) int {
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i < len(b) && b[i] == '{' && f.written < maxWriters {
			i = scanManagedEntry(b, i, &f.writers[f.written])
			f.written++
		} else {
			f.parts.Crowded = true
			i = skipValue(b, i)
		}
		if i < 0 {
			return i
		}
		i = skipSpace(b, i)
		switch {
		case i < len(b) && b[i] == ',':
			i = skipSpace(b, i+1)
		case i < len(b) && b[i] == ']':
			return i + 1
		default:
			return fail(i)
		}
	}
}

func scanManagedEntry(b []byte, i int, e *managedEntry) int {
	m := enter(b, i)
	for m.next() {
		switch string(m.key) {
		case "manager":
			m.str(&e.manager)
		case "operation":
			m.str(&e.operation)
		case "subresource":
			m.str(&e.subresource)
		case "time":
			m.str(&e.time)
			continue
		case "fieldsV1":
			e.fieldsV1 = m.skip()
			continue
		default:
			m.skip()
		}
		m.fold(&e.identity)
	}
	return m.i
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
		return members{b: b, i: fail(i)}
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
	m.start, m.key = i, b[i+1:end-1]
	if bytes.IndexByte(m.key, '\\') >= 0 {
		m.key = unescape(b[i:end])
	}
	if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
		m.i = fail(i)
		return false
	}
	m.i = skipSpace(b, i+1)
	return true
}

func (m *members) at(c byte) bool { return m.i < len(m.b) && m.b[m.i] == c }

// skip passes the value and returns its extent.
func (m *members) skip() span {
	from := m.i
	m.i = skipValue(m.b, from)
	if m.i < 0 {
		return span{}
	}
	return span{from, m.i}
}

// str takes a string value; null is no value, and anything else is an error.
func (m *members) str(s *span) {
	from, quoted := m.i, m.at('"')
	v := m.skip()
	switch {
	case m.i < 0:
	case quoted:
		*s = unquotedSpan(v.start, v.end)
	case string(v.of(m.b)) == "null":
		*s = span{}
	default:
		m.i = fail(from)
	}
}

// digest passes the value as skip does and takes the member, key and value, into a digest that depends on their order.
func (m *members) digest(sum *uint64) span {
	v := m.skip()
	m.fold(sum)
	return v
}

// fold takes the member that was passed last into a digest.
func (m *members) fold(sum *uint64) {
	if m.i >= 0 {
		*sum = (bits.RotateLeft64(*sum, 5) ^ xxhash.Sum64(m.b[m.start:m.i])) * 0x9e3779b97f4a7c15
	}
}

// cut returns what to remove so that the member whose value was just passed is gone and the rest is still an object.
func (m *members) cut() span {
	if m.i < 0 {
		return span{}
	}
	if m.comma >= 0 {
		return span{m.comma, m.i}
	}
	if after := skipSpace(m.b, m.i); after < len(m.b) && m.b[after] == ',' {
		return span{m.start, after + 1}
	}
	return span{m.start, m.i}
}

const (
	other = iota
	quote
	opening
	closing
)

// class tells the bytes that structure JSON from those that do not.
var class = [256]uint8{'"': quote, '{': opening, '[': opening, '}': closing, ']': closing}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index behind the value that begins at i.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return fail(i)
	}
	switch class[b[i]] {
	case quote:
		return skipString(b, i)
	case opening:
		return skipContainer(b, i)
	}
	from := i
	for i < len(b) && !endsScalar(b[i]) {
		i++
	}
	if i == from {
		return fail(i)
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

// skipString returns the index behind the string whose opening quote is at i. It looks at eight bytes at a time for a
// quote or a backslash: (w-0x01…)&^w&0x80… has the top bit set in the lowest byte of w that is zero.
func skipString(b []byte, i int) int {
	const (
		ones = 0x0101010101010101
		tops = 0x8080808080808080
	)
	i++
	for i+8 <= len(b) {
		w := binary.LittleEndian.Uint64(b[i:])
		q, s := w^(ones*'"'), w^(ones*'\\')
		found := ((q - ones) & ^q & tops) | ((s - ones) & ^s & tops)
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
	return fail(len(b))
}

// skipContainer returns the index behind the object or array that begins at i. The kinds of the open brackets are kept
// as bits of one word; what lies deeper than 64 levels is a container of its own.
func skipContainer(b []byte, i int) int {
	var open uint64
	depth := 0
	for i < len(b) {
		switch class[b[i]] {
		case quote:
			if i = skipString(b, i); i < 0 {
				return i
			}
			continue
		case opening:
			if depth == 64 {
				if i = skipContainer(b, i); i < 0 {
					return i
				}
				continue
			}
			open = open<<1 | bracketKind(b[i])
			depth++
		case closing:
			if open&1 != bracketKind(b[i]) {
				return fail(i)
			}
			open >>= 1
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return fail(len(b))
}

// bracketKind is 1 for '{' and '}' and 0 for '[' and ']': ASCII tells them apart by one bit.
func bracketKind(c byte) uint64 { return uint64(c>>5) & 1 }

// unescape returns the text of a JSON string given with its quotes. A string with a wrong escape keeps its spelling: it
// equals no name that anyone looks for.
func unescape(quoted []byte) []byte {
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return quoted[1 : len(quoted)-1]
	}
	return []byte(s)
}
