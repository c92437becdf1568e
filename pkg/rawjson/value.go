package rawjson

import (
	"iter"
	"strings"
)

// Value is a JSON value that an encoder wrote; nil is none. Few of its parts are found many times faster than all of it is
// decoded. They are in its memory.
type Value []byte

// Members returns the members of an object, with names without quotes and escapes; none of other values.
func (v Value) Members() iter.Seq2[[]byte, Value] {
	return func(yield func([]byte, Value) bool) {
		for m := EnterObject(v, SkipSpace(v, 0)); m.Next(); {
			end := SkipTrustedValue(v, m.I)
			if end < 0 || !yield(m.Key, v[m.I:end:end]) {
				return
			}
			m.I = end
		}
	}
}

// Elements returns the elements of an array; none of other values.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if len(v) == 0 || v[0] != '[' {
			return
		}
		for e := EnterArray(v, 0); e.Next(); {
			end := SkipTrustedValue(v, e.I)
			if end < 0 || !yield(v[e.I:end:end]) {
				return
			}
			e.I = end
		}
	}
}

// Find returns where the value of a member of an object begins and ends; 0 for both if there is none.
func (v Value) Find(name string) (from, to int) {
	for m := EnterObject(v, SkipSpace(v, 0)); m.Next(); {
		end := SkipTrustedValue(v, m.I)
		if end < 0 {
			return 0, 0
		}
		if string(m.Key) == name {
			return m.I, end
		}
		m.I = end
	}
	return 0, 0
}

// Member returns the value of a member of an object; nil if there is none.
func (v Value) Member(name string) Value {
	if from, to := v.Find(name); from < to {
		return v[from:to:to]
	}
	return nil
}

// Get returns the value at a path of members, as in metadata.name; nil if it is null.
func (v Value) Get(path string) Value {
	for name := range strings.SplitSeq(path, ".") {
		v = v.Member(name)
	}
	if string(v) == "null" {
		return nil
	}
	return v
}

// IsText reports whether the value is a string.
func (v Value) IsText() bool { return len(v) > 0 && v[0] == '"' }

// Text returns the text of a string, in memory of its own; "" of other values.
func (v Value) Text() string {
	if !v.IsText() {
		return ""
	}
	return string(Unquote(v))
}
