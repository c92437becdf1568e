package rawjson

import (
	"bytes"
	"encoding/json"
)

// Unquote returns what a valid JSON string, given with its quotes, says. Without escapes it aliases the string.
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
		return inner // not reached for what SkipString has passed
	}
	return []byte(s)
}

// unescapeSimple returns what a string with simple escapes says: a JSON text within a string has no others. One with a code point
// is for encoding/json, which costs five times as much.
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
