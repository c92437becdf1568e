package filter

import (
	"encoding/json"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// decodeObject decodes an object into CEL's native types: maps, lists, strings, booleans, nil, integers as int64 if they
// fit, and other numbers as float64.
func decodeObject(object []byte) (map[string]any, error) {
	d := decoder{b: object}
	start := rawjson.SkipSpace(object, 0)
	v, end := d.decodeValue(start, 0)
	if err := rawjson.CheckEnd(object, end); err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, rawjson.MalformedAt(object, rawjson.FailAt(start))
	}
	return m, nil
}

type decoder struct{ b []byte }

// decodeValue returns the value at i and the index after it.
func (d *decoder) decodeValue(i, depth int) (any, int) {
	if i >= len(d.b) || depth > rawjson.MaxDepth {
		return nil, rawjson.FailAt(i)
	}
	switch d.b[i] {
	case '{':
		object := map[string]any{}
		m := rawjson.EnterObject(d.b, i)
		for m.Next() {
			name := string(m.Key)
			object[name], m.I = d.decodeValue(m.I, depth+1)
		}
		return object, m.I
	case '[':
		list := []any{}
		e := rawjson.EnterArray(d.b, i)
		for e.Next() {
			var v any
			v, e.I = d.decodeValue(e.I, depth+1)
			list = append(list, v)
		}
		return list, e.I
	}
	end := rawjson.SkipValue(d.b, i, depth)
	if end < 0 {
		return nil, end
	}
	return decodeScalar(d.b[i:end]), end
}

func decodeScalar(v []byte) any {
	switch v[0] {
	case '"':
		return string(rawjson.Unquote(v))
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
	f, _ := json.Number(v).Float64() // out of range: infinity
	return f
}
