package shape

import (
	"encoding/json"
	"strconv"
)

// decode returns an object as CEL reads it: maps, lists, strings, booleans, nil, whole numbers as int64 where they fit and
// other numbers as float64.
func decode(object []byte) (map[string]any, error) {
	d := decoder{b: object}
	start := skipSpace(object, 0)
	v, end := d.value(start, 0)
	if err := closed(object, end); err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, malformed(fail(start))
	}
	return m, nil
}

type decoder struct{ b []byte }

// value returns the value at i and the index behind it.
func (d *decoder) value(i, depth int) (any, int) {
	if i >= len(d.b) || depth > deepest {
		return nil, fail(i)
	}
	switch d.b[i] {
	case '{':
		object := map[string]any{}
		m := enter(d.b, i)
		for m.next() {
			name := string(m.key)
			object[name], m.i = d.value(m.i, depth+1)
		}
		return object, m.i
	case '[':
		list := []any{}
		e := enterArray(d.b, i)
		for e.next() {
			var v any
			v, e.i = d.value(e.i, depth+1)
			list = append(list, v)
		}
		return list, e.i
	}
	end := skipValue(d.b, i, depth)
	if end < 0 {
		return nil, end
	}
	return scalar(d.b[i:end]), end
}

func scalar(v []byte) any {
	switch v[0] {
	case '"':
		return string(text(v))
	case 't':
		return true
	case 'f':
		return false
	case 'n':
		return nil
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n
	}
	f, _ := json.Number(v).Float64() // what is too large is infinite
	return f
}
