package rawjson

import (
	"bytes"
	"encoding/json"
)

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
