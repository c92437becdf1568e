// Package values applies what a record of the contract has in its member changed, by the words of docs/events.md alone.
package values

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Apply returns what a list of path, from and to makes of a state. Both are decoded JSON; the state is modified. It returns
// an error if a value is left out, or if a from is not what is there.
func Apply(state any, list []any) (any, error) {
	for _, one := range list {
		d, _ := one.(map[string]any)
		path, _ := d["path"].(string)
		var err error
		if state, err = apply(state, strings.Split(path, "/")[1:], d); err != nil {
			return nil, fmt.Errorf("%v: %w", d, err)
		}
	}
	return state, nil
}

func apply(v any, path []string, d map[string]any) (any, error) {
	to, has := d["to"]
	if d["omitted"] != nil {
		return nil, fmt.Errorf("it is left out")
	}
	if len(path) == 0 {
		if from, had := d["from"]; !had || text(from) != text(v) {
			return nil, fmt.Errorf("%s is there", text(v))
		}
		return to, nil
	}
	segment := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	_, had := d["from"]
	enters := len(path) == 1 && !had
	leaves := len(path) == 1 && !has
	var err error
	switch v := v.(type) {
	case map[string]any:
		inner, there := v[segment]
		if there == enters {
			return nil, fmt.Errorf("%q is there: %v", segment, there)
		}
		if enters {
			v[segment] = to
			return v, nil
		}
		if v[segment], err = apply(inner, path[1:], d); leaves {
			delete(v, segment)
		}
		return v, err
	case []any:
		at := place(v, segment)
		if index, keyed := d["index"]; enters && keyed {
			if at >= 0 {
				return nil, fmt.Errorf("%s is there", segment)
			}
			at, _ = strconv.Atoi(fmt.Sprint(index))
		}
		switch {
		case at < 0 || at > len(v) || at == len(v) && !enters:
			return nil, fmt.Errorf("there is no %s", segment)
		case enters:
			return slices.Insert(v, at, to), nil
		}
		if v[at], err = apply(v[at], path[1:], d); leaves {
			v = slices.Delete(v, at, at+1)
		}
		return v, err
	}
	return nil, fmt.Errorf("%s has no members", text(v))
}

// place returns where the item of a segment is, by its index or its keys; -1 if it is not there.
func place(items []any, segment string) int {
	keys, isKey := strings.CutPrefix(segment, "[")
	if !isKey {
		if at, err := strconv.Atoi(segment); err == nil {
			return at
		}
		return -1
	}
	return slices.IndexFunc(items, func(item any) bool {
		members, _ := item.(map[string]any)
		for _, pair := range strings.Split(strings.TrimSuffix(keys, "]"), ",") {
			name, value, _ := strings.Cut(pair, "=")
			if v, there := members[name]; !there || fmt.Sprint(v) != value {
				return false
			}
		}
		return true
	})
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
