package diff

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// entry is one member of an object.
type entry struct {
	name  []byte // the name, unquoted
	value []byte
}

// errAmbiguous reports an object that cannot be compared.
var errAmbiguous = errors.New("a duplicate name in one object, or a name that is not UTF-8")

// skipValue skips the value that starts at i. It validates members of the whole value, at depth 0, with all that is in them.
func skipValue(b []byte, i, depth int) int {
	if depth == 0 {
		return rawjson.SkipValue(b, i, 0)
	}
	return rawjson.SkipTrustedValue(b, i)
}

// entriesOf appends the members of an object to buffer.
func entriesOf(object []byte, buffer []entry, depth int) ([]entry, error) {
	var seen rawjson.Names
	m := rawjson.EnterObject(object, 0)
	for m.Next() {
		start := m.I
		if m.I = skipValue(object, start, depth); m.I < 0 {
			break
		}
		if seen.IsDuplicate(m.Key) || !utf8.Valid(m.Key) {
			return nil, errAmbiguous
		}
		buffer = append(buffer, entry{name: m.Key, value: object[start:m.I]})
	}
	if m.I < 0 {
		return nil, rawjson.MalformedAt(object, m.I)
	}
	return buffer, nil
}

func elementsOf(array []byte, depth int) ([][]byte, error) {
	var all [][]byte
	e := rawjson.EnterArray(array, 0)
	for e.Next() {
		start := e.I
		if e.I = skipValue(array, start, depth); e.I >= 0 {
			all = append(all, array[start:e.I])
		}
	}
	if e.I < 0 {
		return nil, rawjson.MalformedAt(array, e.I)
	}
	return all, nil
}

// pair is a member in two objects; a value is nil if that object lacks the member.
type pair struct {
	name          []byte
	before, after []byte
}

// pairsOf matches the members of two objects: first those of before, in order, then those that only after has.
func pairsOf(before, after []byte, depth int) ([]pair, error) {
	var buffer [2][24]entry
	was, err := entriesOf(before, buffer[0][:0], depth)
	if err != nil {
		return nil, err
	}
	is, err := entriesOf(after, buffer[1][:0], depth)
	if err != nil {
		return nil, err
	}
	at := index{entries: is}
	pairs := make([]pair, 0, max(len(was), len(is)))
	for i := range was {
		p := pair{name: was[i].name, before: was[i].value}
		if k := at.findEntry(was[i].name, i); k >= 0 {
			p.after, is[k].value = is[k].value, nil
		}
		pairs = append(pairs, p)
	}
	for i := range is {
		if is[i].value != nil {
			pairs = append(pairs, pair{name: is[i].name, after: is[i].value})
		}
	}
	return pairs, nil
}

// index finds entries by name. It tries the expected position first, because the API server keeps the order.
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

// maxDepth bounds how deep two values are compared. Each level reads the rest of the value again, so the cost of a deep
// value would be quadratic; below, values that differ in any byte are different as a whole.
const maxDepth = 100

// isObject and isArray classify a value that rawjson.SkipValue has accepted.
func isObject(v []byte) bool { return len(v) > 0 && v[0] == '{' }
func isArray(v []byte) bool  { return len(v) > 0 && v[0] == '[' }

// equalScalars reports whether two scalars with different spellings are equal, which only strings can be.
func equalScalars(a, b []byte) bool {
	if a[0] != '"' || b[0] != '"' {
		return false
	}
	text := rawjson.Unquote(a)
	return bytes.Equal(text, rawjson.Unquote(b)) && isExact(text)
}

// isExact reports whether no other string has this text: half of a surrogate pair is read as U+FFFD.
func isExact(text []byte) bool { return !bytes.ContainsRune(text, utf8.RuneError) }

// EqualExcept reports whether two values differ at most at the paths of the tree.
func EqualExcept(a, b []byte, t *path.Tree) (bool, error) { return equalExcept(a, b, t, 0) }

func equalExcept(a, b []byte, t *path.Tree, depth int) (bool, error) {
	switch {
	case bytes.Equal(a, b), t != nil && t.Ends:
		return true, nil
	case depth > maxDepth:
		return false, nil
	case isObject(a) && isObject(b):
		pairs, err := pairsOf(a, b, depth)
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
			if ok, err := equalExcept(p.before, p.after, next, depth+1); !ok {
				return false, err
			}
		}
		return true, nil
	case isArray(a) && isArray(b):
		was, is, err := elementsOfBoth(a, b, depth)
		if err != nil || len(was) != len(is) {
			return false, err
		}
		for i := range was {
			if ok, err := equalExcept(was[i], is[i], t.ElementOrNil(), depth+1); !ok {
				return false, err
			}
		}
		return true, nil
	}
	return equalScalars(a, b), nil
}

// DiffersAt reports whether two values differ at any path of the tree. A value may be absent, nil.
func DiffersAt(a, b []byte, t *path.Tree) (bool, error) { return differsAt(a, b, t, 0) }

func differsAt(a, b []byte, t *path.Tree, depth int) (bool, error) {
	switch {
	case t == nil || bytes.Equal(a, b):
		return false, nil
	case depth > maxDepth:
		return true, nil
	case t.Ends:
		if a == nil || b == nil {
			return true, nil
		}
		ok, err := equalExcept(a, b, nil, depth)
		return !ok, err
	case isArray(a) || isArray(b):
		return elementsDiffer(a, b, t, depth)
	}
	if !isObject(a) {
		a = []byte("{}")
	}
	if !isObject(b) {
		b = []byte("{}")
	}
	pairs, err := pairsOf(a, b, depth)
	if err != nil {
		return false, err
	}
	for _, p := range pairs {
		if yes, err := differsAt(p.before, p.after, t.Member(p.name), depth+1); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

func elementsDiffer(a, b []byte, t *path.Tree, depth int) (bool, error) {
	if !isArray(a) || !isArray(b) { // at least one is not an array, or absent
		for _, v := range [2][]byte{a, b} {
			if isArray(v) {
				continue
			}
			if yes, err := differsAt(v, nil, t, depth+1); yes || err != nil {
				return yes, err
			}
		}
	}
	was, is, err := elementsOfBoth(orEmptyArray(a), orEmptyArray(b), depth)
	if err != nil {
		return false, err
	}
	for i := range max(len(was), len(is)) {
		if yes, err := differsAt(elementAt(was, i), elementAt(is, i), t.Element, depth+1); yes || err != nil {
			return yes, err
		}
	}
	return false, nil
}

func elementsOfBoth(a, b []byte, depth int) (was, is [][]byte, err error) {
	if was, err = elementsOf(a, depth); err == nil {
		is, err = elementsOf(b, depth)
	}
	return was, is, err
}

func elementAt(all [][]byte, i int) []byte {
	if i < len(all) {
		return all[i]
	}
	return nil
}

func orEmptyArray(v []byte) []byte {
	if !isArray(v) {
		return []byte("[]")
	}
	return v
}

// Hash returns the hash of an object without the value of one member. 16 bytes are enough to tell two objects apart.
func Hash(object []byte, without string) string {
	h := sha256.New()
	for m := rawjson.EnterObject(object, rawjson.SkipSpace(object, 0)); m.Next(); {
		from := m.I
		if m.I = rawjson.SkipValue(object, from, 1); m.I < 0 {
			break
		}
		if string(m.Key) == without {
			h.Write(object[:from])
			object = object[m.I:]
			break
		}
	}
	h.Write(object)
	return string(h.Sum(nil)[:16])
}

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
