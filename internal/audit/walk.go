package audit

import (
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// skipValue is the answer of who leaves a value to be passed over.
const skipValue = 0

// scanMembers calls f with each member of the object that begins at i, and the index of its value, where there is one. f returns
// the index behind the value, pass, or a negative index. What is no object is passed over.
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

// scanElements calls f with the index of each element of the array that begins at i. What is no array is passed over.
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

// stringAt returns a copy of the string at i; "" where there is none.
func stringAt(b []byte, i int) string {
	if i >= len(b) || b[i] != '"' {
		return ""
	}
	end := rawjson.SkipString(b, i)
	if end < 0 {
		return ""
	}
	return string(rawjson.Unquote(b[i:end]))
}

func appendStrings(b []byte, i int, list *[]string) int {
	return scanElements(b, i, func(i int) int {
		if s := stringAt(b, i); s != "" {
			*list = append(*list, s)
		}
		return rawjson.SkipTrustedValue(b, i)
	})
}

// intAt returns the integer at i; 0 where there is none.
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

// hasElements says whether an array has an element.
func hasElements(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	i = rawjson.SkipSpace(b, i+1)
	return i < len(b) && b[i] != ']'
}
