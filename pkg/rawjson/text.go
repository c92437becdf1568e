package rawjson

import (
	"bytes"
	"encoding/json"
)

// Text returns what a valid JSON string, given with its quotes, says. Without escapes it aliases the string.
func Text(quoted []byte) []byte {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return inner // not reached for what SkipString has passed
	}
	return []byte(s)
}
