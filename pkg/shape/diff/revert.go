package diff

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// listed is a difference in the list of [Values].
type listed struct {
	Path     string          `json:"path"`
	From, To json.RawMessage // nil if absent
	Index    *int            `json:"index"`
	Omitted  []string        `json:"omitted"`
}

// errInapplicable reports a list that lacks values, or is not about the object.
var errInapplicable = errors.New("the list of values does not lead to this object")

// Revert returns the state before a change, from the state after it and the list that [Values] returned. Members may be in
// another order. It returns an error if the list lacks a value.
func Revert(after, list []byte) (before []byte, err error) {
	var differences []listed
	if err := json.Unmarshal(list, &differences); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(after))
	d.UseNumber()
	var object any
	if err := d.Decode(&object); err != nil {
		return nil, err
	}
	for _, one := range slices.Backward(differences) {
		if one.Omitted != nil {
			return nil, errInapplicable
		}
		if object, err = one.revertIn(object, strings.Split(one.Path, "/")[1:]); err != nil {
			return nil, err
		}
	}
	return json.Marshal(object)
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~").Replace

// revertIn reverts a difference at a path below a value, and returns the value.
func (d *listed) revertIn(value any, path []string) (any, error) {
	if len(path) == 0 {
		return d.From, nil
	}
	segment := unescape(path[0])
	switch v := value.(type) {
	case map[string]any:
		inner, err := d.revertIn(v[segment], path[1:])
		if v[segment] = inner; d.From == nil && len(path) == 1 {
			delete(v, segment)
		}
		return v, err
	case []any:
		return d.revertItem(v, segment, path[1:])
	}
	return nil, errInapplicable
}

func (d *listed) revertItem(items []any, segment string, rest []string) (any, error) {
	at, err := strconv.Atoi(segment)
	if err != nil {
		at = slices.IndexFunc(items, func(item any) bool { return hasKey(item, segment) })
	}
	inserts := len(rest) == 0 && d.To == nil
	if inserts && d.Index != nil {
		at = *d.Index
	}
	switch {
	case at < 0 || at > len(items) || at == len(items) && !inserts:
		return nil, errInapplicable
	case inserts:
		return slices.Insert(items, at, any(d.From)), nil
	case len(rest) == 0 && d.From == nil:
		return slices.Delete(items, at, at+1), nil
	}
	items[at], err = d.revertIn(items[at], rest)
	return items, err
}

// hasKey reports whether an item of a list has the segment [name=web] or [containerPort=80,protocol=TCP].
func hasKey(item any, segment string) bool {
	members, isObject := item.(map[string]any)
	for pair := range strings.SplitSeq(strings.TrimSuffix(strings.TrimPrefix(segment, "["), "]"), ",") {
		name, value, _ := strings.Cut(pair, "=")
		isObject = isObject && fmt.Sprint(members[name]) == value
	}
	return isObject
}
