package audit

import (
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// pass is the answer of who leaves a value to be passed over.
const pass = 0

// members calls f with each member of the object that begins at i, and the index of its value, where there is one. f returns
// the index behind the value, pass, or a negative index. What is no object is passed over.
func members(b []byte, i int, f func(key []byte, i int) int) int {
	if i >= len(b) || b[i] != '{' {
		return rawjson.PassValue(b, i)
	}
	m := rawjson.Enter(b, i)
	for m.Next() {
		if m.I >= len(b) {
			return rawjson.Fail(len(b))
		}
		if end := f(m.Key, m.I); end != pass {
			m.I = end
		} else {
			m.I = rawjson.PassValue(b, m.I)
		}
	}
	return m.I
}

// elements calls f with the index of each element of the array that begins at i. What is no array is passed over.
func elements(b []byte, i int, f func(i int) int) int {
	if i >= len(b) || b[i] != '[' {
		return rawjson.PassValue(b, i)
	}
	e := rawjson.EnterArray(b, i)
	for e.Next() {
		e.I = f(e.I)
	}
	return e.I
}

// text returns a copy of the string at i; "" where there is none.
func text(b []byte, i int) string {
	if i >= len(b) || b[i] != '"' {
		return ""
	}
	end := rawjson.SkipString(b, i)
	if end < 0 {
		return ""
	}
	return string(rawjson.Text(b[i:end]))
}

func texts(b []byte, i int, list *[]string) int {
	return elements(b, i, func(i int) int {
		if s := text(b, i); s != "" {
			*list = append(*list, s)
		}
		return rawjson.PassValue(b, i)
	})
}

// number returns the integer at i; 0 where there is none.
func number(b []byte, i int) int {
	end := rawjson.PassValue(b, i)
	if end < 0 || end-i > 18 {
		return 0
	}
	n, err := strconv.Atoi(string(b[i:end]))
	if err != nil {
		return 0
	}
	return n
}

// filled says whether an array has an element.
func filled(b []byte, i int) bool {
	if b[i] != '[' {
		return false
	}
	i = rawjson.SkipSpace(b, i+1)
	return i < len(b) && b[i] != ']'
}
