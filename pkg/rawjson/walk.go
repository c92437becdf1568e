package rawjson

import (
	"bytes"
	"encoding/json"
)

// Members walks the members of one JSON object. After Next returns true, the value starts at I, and the caller must move I
// to its end. A negative I is an error and ends the walk; after the last member, I is after the closing brace.
type Members struct {
	I     int
	Key   []byte // without quotes and escapes; aliases the text if it has no escapes
	Start int    // index of the opening quote of the name
	Comma int    // index of the preceding comma; -1 for the first

	b     []byte
	first bool
}

// EnterObject starts a walk of the object that starts at i.
func EnterObject(b []byte, i int) Members {
	if i < 0 || i >= len(b) || b[i] != '{' {
		return Members{b: b, I: FailAt(max(i, 0))}
	}
	return Members{b: b, I: i + 1, first: true, Comma: -1}
}

// Next advances to the next member and reports whether there is one.
func (m *Members) Next() bool {
	if m.I < 0 {
		return false
	}
	b := m.b
	i, comma, more := nextItem(b, m.I, m.first, '}')
	if !more {
		m.I = i
		return false
	}
	m.first, m.Comma = false, comma
	if i >= len(b) || b[i] != '"' {
		m.I = FailAt(i)
		return false
	}
	end := SkipString(b, i)
	if end < 0 {
		m.I = end
		return false
	}
	m.Start, m.Key = i, Unquote(b[i:end])
	if i = SkipSpace(b, end); i >= len(b) || b[i] != ':' {
		m.I = FailAt(i)
		return false
	}
	m.I = SkipSpace(b, i+1)
	return true
}

// Elements walks the elements of one JSON array, as [Members] does for objects.
type Elements struct {
	I     int
	Start int // index of the element
	Comma int // index of the preceding comma; -1 for the first

	b     []byte
	first bool
}

// EnterArray starts a walk of the array that starts at i. The caller must have checked the bracket.
func EnterArray(b []byte, i int) Elements {
	return Elements{b: b, I: i + 1, first: true, Comma: -1}
}

// Next advances to the next element and reports whether there is one.
func (e *Elements) Next() bool {
	if e.I < 0 {
		return false
	}
	i, comma, more := nextItem(e.b, e.I, e.first, ']')
	if more {
		e.first, e.Comma, e.Start = false, comma, i
	}
	e.I = i
	return more
}

// nextItem moves from the end of a bracket or value to the start of the next member or element, and returns the index of the
// comma before it, -1 for none. If there is no further item, i is after the closing bracket, or negative.
func nextItem(b []byte, from int, first bool, closing byte) (i, comma int, more bool) {
	i = SkipSpace(b, from)
	switch {
	case i < len(b) && b[i] == closing:
		return i + 1, -1, false
	case first:
		return i, -1, true
	case i < len(b) && b[i] == ',':
		return SkipSpace(b, i+1), i, true
	}
	return FailAt(i), -1, false
}

// Unquote returns the text of a valid JSON string, given with its quotes. If there are no escapes, the result aliases the
// string.
func Unquote(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	if text, ok := unescapeSimple(inner); ok {
		return text
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return inner // unreachable for strings accepted by SkipString
	}
	return []byte(s)
}

// unescapeSimple decodes a string with single-character escapes only, which suffices for JSON text inside a string. Strings
// with \u escapes are left to encoding/json, which is five times slower.
func unescapeSimple(inner []byte) (text []byte, ok bool) {
	text = make([]byte, 0, len(inner))
	for {
		i := bytes.IndexByte(inner, '\\')
		if i < 0 {
			return append(text, inner...), true
		}
		c := simpleEscapes[inner[i+1]]
		if c == 0 {
			return nil, false
		}
		text, inner = append(append(text, inner[:i]...), c), inner[i+2:]
	}
}

var simpleEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// Names detects duplicate names in one object, because their values are ambiguous. The zero value is ready to use.
type Names struct {
	few  [16][]byte
	n    int
	many map[string]bool
}

// IsDuplicate reports whether the name was passed before, and records it. The name is retained and must not be modified.
func (s *Names) IsDuplicate(name []byte) bool {
	if s.many != nil {
		if s.many[string(name)] {
			return true
		}
		s.many[string(name)] = true
		return false
	}
	for _, known := range s.few[:s.n] {
		if bytes.Equal(known, name) {
			return true
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return false
	}
	s.many = map[string]bool{string(name): true}
	for _, known := range s.few {
		s.many[string(known)] = true
	}
	return false
}
