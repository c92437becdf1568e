package diff

import (
	"bytes"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// entry is one member of an object.
type entry struct {
	name  []byte // what the quoted name says
	key   []byte // the name with its quotes, as it stands
	value []byte
}

// ambiguousError says that an object cannot be compared: names in it occur twice or are no text.
type ambiguousError struct{}

func (ambiguousError) Error() string { return "a name that occurs twice in one object, or is no UTF-8" }

// entriesOf lists the members of an object, without looking further into their values than to their ends.
func entriesOf(object []byte, room []entry) ([]entry, error) {
	var seen rawjson.Names
	m := rawjson.EnterObject(object, 0)
	for m.Next() {
		start := m.I
		if m.I = rawjson.SkipValue(object, start, 0); m.I < 0 {
			break
		}
		if seen.IsDuplicate(m.Key) || !utf8.Valid(m.Key) {
			return nil, ambiguousError{}
		}
		end := rawjson.SkipString(object, m.Start)
		room = append(room, entry{name: m.Key, key: object[m.Start:end], value: object[start:m.I]})
	}
	if m.I < 0 {
		return nil, rawjson.MalformedAt(m.I)
	}
	return room, nil
}

// elementsOf lists the elements of an array.
func elementsOf(array []byte) ([][]byte, error) {
	var all [][]byte
	e := rawjson.EnterArray(array, 0)
	for e.Next() {
		start := e.I
		if e.I = rawjson.SkipValue(array, start, 0); e.I >= 0 {
			all = append(all, array[start:e.I])
		}
	}
	if e.I < 0 {
		return nil, rawjson.MalformedAt(e.I)
	}
	return all, nil
}

// pair is a member as two objects have it; a value is nil where one has not.
type pair struct {
	entry         // name and key
	before, after []byte
}

// pairsOf matches the members of two objects: first those of before in their order, then what only after has.
func pairsOf(before, after []byte) ([]pair, error) {
	var room [2][24]entry
	was, err := entriesOf(before, room[0][:0])
	if err != nil {
		return nil, err
	}
	is, err := entriesOf(after, room[1][:0])
	if err != nil {
		return nil, err
	}
	at := index{entries: is}
	pairs := make([]pair, 0, max(len(was), len(is)))
	for i := range was {
		p := pair{entry: was[i], before: was[i].value}
		if k := at.findEntry(was[i].name, i); k >= 0 {
			p.after, is[k].value = is[k].value, nil
		}
		pairs = append(pairs, p)
	}
	for i := range is {
		if is[i].value != nil {
			pairs = append(pairs, pair{entry: is[i], after: is[i].value})
		}
	}
	return pairs, nil
}

// index finds entries by name: mostly where they are expected, as the API server keeps an order.
type index struct {
	entries []entry
	names   map[string]int
}

func (x *index) findEntry(name []byte, guess int) int {
	if guess < len(x.entries) && bytes.Equal(x.entries[guess].name, name) {
		return guess
	}
	if x.names == nil {
		x.names = make(map[string]int, len(x.entries))
		for i := range x.entries {
			x.names[string(x.entries[i].name)] = i
		}
	}
	if i, ok := x.names[string(name)]; ok {
		return i
	}
	return -1
}

// isObject and isArray say what a value that rawjson.SkipValue has passed is.
func isObject(v []byte) bool { return len(v) > 0 && v[0] == '{' }
func isArray(v []byte) bool  { return len(v) > 0 && v[0] == '[' }

// equalScalars says that two different spellings mean the same: those of strings may.
func equalScalars(a, b []byte) bool {
	return a[0] == '"' && b[0] == '"' && bytes.Equal(rawjson.Unquote(a), rawjson.Unquote(b))
}

// equalValues says that two values mean the same, whatever the order of members and the white space.
func equalValues(a, b []byte) (bool, error) { return EqualExcept(a, b, nil) }

// EqualExcept says that two values differ at most where the tree says.
func EqualExcept(a, b []byte, t *path.Tree) (bool, error) {
	switch {
	case bytes.Equal(a, b), t != nil && t.Ends:
		return true, nil
	case isObject(a) && isObject(b):
		pairs, err := pairsOf(a, b)
		if err != nil {
			return false, err
		}
		for _, p := range pairs {
			next := t.MemberOrNil(p.name)
			if p.before == nil || p.after == nil {
				if next == nil || !next.Ends {
					return false, nil
				}
				continue
			}
			if ok, err := EqualExcept(p.before, p.after, next); !ok {
				return false, err
			}
		}
		return true, nil
	case isArray(a) && isArray(b):
		was, is, err := elementsOfBoth(a, b)
		if err != nil || len(was) != len(is) {
			return false, err
		}
		for i := range was {
			if ok, err := EqualExcept(was[i], is[i], t.ElementOrNil()); !ok {
				return false, err
			}
		}
		return true, nil
	}
	return equalScalars(a, b), nil
}

// DiffersAt says that two values differ somewhere where the tree says. Either may be absent, nil.
func DiffersAt(a, b []byte, t *path.Tree) (bool, error) {
	switch {
	case t == nil || bytes.Equal(a, b):
		return false, nil
	case t.Ends:
		if a == nil || b == nil {
			return true, nil
		}
		ok, err := equalValues(a, b)
		return !ok, err
	case isArray(a) || isArray(b):
		return elementsDiffer(a, b, t)
	}
	if !isObject(a) {
		a = nil
	}
	if !isObject(b) {
		b = nil
	}
	pairs, err := pairsOf(orDefault(a, "{}"), orDefault(b, "{}"))
	if err != nil {
		return false, err
	}
	for _, p := range pairs {
		if yes, err := DiffersAt(p.before, p.after, t.Member(p.name)); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

func elementsDiffer(a, b []byte, t *path.Tree) (bool, error) {
	if !isArray(a) || !isArray(b) { // one of them is something else, or absent
		for _, v := range [2][]byte{a, b} {
			if isArray(v) {
				continue
			}
			if yes, err := DiffersAt(v, nil, t); yes || err != nil {
				return yes, err
			}
		}
	}
	was, is, err := elementsOfBoth(orEmptyArray(a), orEmptyArray(b))
	if err != nil {
		return false, err
	}
	for i := range max(len(was), len(is)) {
		if yes, err := DiffersAt(elementAt(was, i), elementAt(is, i), t.Element); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

func elementsOfBoth(a, b []byte) (was, is [][]byte, err error) {
	if was, err = elementsOf(a); err == nil {
		is, err = elementsOf(b)
	}
	return was, is, err
}

func elementAt(all [][]byte, i int) []byte {
	if i < len(all) {
		return all[i]
	}
	return nil
}

func orDefault(v []byte, empty string) []byte {
	if v == nil {
		return []byte(empty)
	}
	return v
}

func orEmptyArray(v []byte) []byte {
	if !isArray(v) {
		return []byte("[]")
	}
	return v
}
