package audit

import (
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// skipValue is the result of a callback that leaves the value to be skipped.
const skipValue = 0

// scanMembers calls f for each member of the object that starts at i, with the index of the value. f returns the index
// after the value, skipValue, or a negative index. A value that is not an object is skipped. It returns the index after the
// object.
func scanMembers(b []byte, i int, f func(key []byte, i int) int) int {
	if i >= len(b) || b[i] != '{' {
		return rawjson.SkipTrustedValue(b, i)
	}
	m := rawjson.EnterObject(b, i)
	for m.Next() {
		if m.I >= len(b) {
			return rawjson.FailAt(len(b))
		}
		if end := f(m.Key, m.I); end != skipValue {
			m.I = end
		} else {
			m.I = rawjson.SkipTrustedValue(b, m.I)
		}
	}
	return m.I
}

// scanElements calls f with the index of each element of the array that starts at i. A value that is not an array is
// skipped.
func scanElements(b []byte, i int, f func(i int) int) int {
	if i >= len(b) || b[i] != '[' {
		return rawjson.SkipTrustedValue(b, i)
	}
	e := rawjson.EnterArray(b, i)
	for e.Next() {
		e.I = f(e.I)
	}
	return e.I
}

// stringAt returns a copy of the string at i; "" if it is not a string.
func stringAt(b []byte, i int) (s string) {
	readString(b, i, &s)
	return s
}

// readString sets s to a copy of the string at i, or to "" if it is not a string. It returns the index after the value.
func readString(b []byte, i int, s *string) int {
	text, end := textAt(b, i)
	*s = string(text)
	return end
}

// readWord is readString without a copy of a word that most events have.
func readWord(b []byte, i int, s *string) int {
	text, end := textAt(b, i)
	for _, word := range commonWords {
		if string(text) == word {
			*s = word
			return end
		}
	}
	*s = string(text)
	return end
}

// textAt returns the text of the string at i, which may alias b, or nil if it is not a string, and the index after the
// value.
func textAt(b []byte, i int) (text []byte, end int) {
	if i < len(b) && b[i] == '"' {
		if end = rawjson.SkipString(b, i); end > 0 {
			return rawjson.Unquote(b[i:end]), end
		}
	}
	return nil, rawjson.SkipTrustedValue(b, i)
}

var commonWords = [...]string{Complete, "patch", "update", "create", "delete", "get", "list", "watch"}

// usualStrings is how many groups or addresses most users have at most.
const usualStrings = 4

func appendStrings(b []byte, i int, list *[]string) int {
	return scanElements(b, i, func(i int) int {
		text, end := textAt(b, i)
		if len(text) > 0 {
			if *list == nil {
				*list = make([]string, 0, usualStrings)
			}
			*list = append(*list, string(text))
		}
		return end
	})
}

// intAt returns the integer at i; 0 if it is not one.
func intAt(b []byte, i int) int {
	end := rawjson.SkipTrustedValue(b, i)
	if end < 0 || end-i > 18 {
		return 0
	}
	n, err := strconv.Atoi(string(b[i:end]))
	if err != nil {
		return 0
	}
	return n
}

// hasElements reports whether the value at i is a non-empty array.
func hasElements(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	i = rawjson.SkipSpace(b, i+1)
	return i < len(b) && b[i] != ']'
}
