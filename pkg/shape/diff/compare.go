package diff

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// Difference is a place at which two objects differ: a leaf, or the topmost value that was added or removed.
type Difference struct {
	Path     string // JSON Pointer (RFC 6901) in which an item of a list with keys is [name=web]
	From, To []byte // JSON that aliases the objects; nil if the value is not there
}

// Between returns the differences between two objects, in an order in which they can be applied.
func Between(before, after []byte) (all []Difference) {
	compare(before, after, func(pointer, from, to []byte, _ int) bool {
		all = append(all, Difference{string(pointer), from, to})
		return true
	})
	return all
}

// Items returns the items of a list with their segments: [name=web] where all have a key, else their index.
func Items(list []byte) (segments []string, values [][]byte) {
	values, err := elementsOf(list, 0)
	if err != nil {
		return nil, nil
	}
	keyed, _, ok := findKeys(values, nil)
	for i := range values {
		segment := strconv.AppendInt(nil, int64(i), 10)
		if ok {
			segment = appendEscaped(nil, keyed[i].name)
		}
		segments = append(segments, string(segment))
	}
	return segments, values
}

// Members returns the members of an object in their order; ok is false for another value, and for duplicate names.
func Members(object []byte) (segments []string, values [][]byte, ok bool) {
	if !isObject(object) {
		return nil, nil, false
	}
	entries, err := entriesOf(object, nil, 0)
	for _, e := range entries {
		segments, values = append(segments, string(appendEscaped(nil, e.name))), append(values, e.value)
	}
	return segments, values, err == nil
}

// noIndex is the index of a difference that is no item of a list with keys.
const noIndex = -1

// report takes a difference, and returns whether it takes more. index is the place of an item that was added to a list with
// keys, or removed from it. The pointer is valid until the function returns.
type report func(pointer, from, to []byte, index int) (more bool)

// comparison walks two objects, and reports replaced leaves, and the topmost added or removed values. Values that cannot be
// compared, because of a duplicate name or the depth, are replaced as a whole.
type comparison struct {
	pointer []byte
	depth   int // segments of pointer
	report  report
	ended   bool // report takes no more
}

func compare(before, after []byte, report report) {
	c := comparison{report: report, pointer: make([]byte, 0, 256)}
	c.compareValues(bytes.TrimSpace(before), bytes.TrimSpace(after))
}

// appendEscaped appends a segment of a JSON Pointer.
func appendEscaped(b, segment []byte) []byte {
	for _, ch := range segment {
		switch ch {
		case '~':
			b = append(b, '~', '0')
		case '/':
			b = append(b, '~', '1')
		default:
			b = append(b, ch)
		}
	}
	return b
}

func (c *comparison) add(from, to []byte, index int) {
	c.ended = c.ended || !c.report(c.pointer, from, to, index)
}

func (c *comparison) compareValues(before, after []byte) {
	switch {
	case c.ended, bytes.Equal(before, after):
	case c.depth > maxDepth:
		c.add(before, after, noIndex)
	case isObject(before) && isObject(after):
		c.compareObjects(before, after)
	case isArray(before) && isArray(after):
		c.compareArrays(before, after)
	case !equalScalars(before, after):
		c.add(before, after, noIndex)
	}
}

// compareMember compares two values below the pointer, one of which may be absent, nil.
func (c *comparison) compareMember(segment, before, after []byte, index int) {
	length := len(c.pointer)
	c.depth++
	if c.pointer = appendEscaped(append(c.pointer, '/'), segment); before == nil || after == nil {
		c.add(before, after, index)
	} else {
		c.compareValues(before, after)
	}
	c.depth--
	c.pointer = c.pointer[:length]
}

func (c *comparison) compareObjects(before, after []byte) {
	pairs, err := pairsOf(before, after, c.depth)
	if err != nil {
		c.add(before, after, noIndex)
		return
	}
	if c.depth == 0 {
		slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(rankMember(a.name), rankMember(b.name)) })
	}
	for i := range pairs {
		c.compareMember(pairs[i].name, pairs[i].before, pairs[i].after, noIndex)
	}
}

// rankMember orders the members of an object: what people write comes first, because a bounded list keeps the beginning.
func rankMember(name []byte) int {
	return slices.Index([]string{"", "metadata", "status"}, string(name)) // -1 for all others
}

func (c *comparison) compareArrays(before, after []byte) {
	was, is, err := elementsOfBoth(before, after, c.depth)
	if err != nil {
		c.add(before, after, noIndex)
		return
	}
	switch keyedWas, keyedIs, ok := findKeys(was, is); {
	case !ok:
		c.compareByIndex(was, is)
	case !c.compareByKey(keyedWas, keyedIs):
		c.add(before, after, noIndex)
	}
}

// compareByIndex skips the common prefix and suffix, compares the remaining elements one by one, and adds the surplus, or
// removes it from its end, so that the indexes stay valid.
func (c *comparison) compareByIndex(was, is [][]byte) {
	from := 0
	for from < min(len(was), len(is)) && bytes.Equal(was[from], is[from]) {
		from++
	}
	for len(was) > from && len(is) > from && bytes.Equal(was[len(was)-1], is[len(is)-1]) {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	compareAt := func(i int) {
		c.compareMember(strconv.AppendInt(nil, int64(i), 10), elementAt(was, i), elementAt(is, i), noIndex)
	}
	for i := from; i < len(is) && !c.ended; i++ {
		compareAt(i)
	}
	for i := len(was) - 1; i >= max(from, len(is)) && !c.ended; i-- {
		compareAt(i)
	}
}

// listKeys are the members that identify the items of a list, as the schemas of Kubernetes have them. The first of which all
// items of both lists have a value, no two the same, are the keys of a list.
var listKeys = [...][]string{
	{"mountPath"}, {"devicePath"}, {"containerPort", "protocol"}, {"port", "protocol"}, {"topologyKey", "whenUnsatisfiable"}, {"uid"}, {"name"},
	{"type"}, {"key", "effect"}, {"key"}, {"ip"}, {"containerPort"}, {"port"},
}

// findKeys returns the items of two lists with their segments, such as [name=web]; false if they have no keys.
func findKeys(was, is [][]byte) (before, after []entry, ok bool) {
	first := elementAt(was, 0)
	if first == nil {
		first = elementAt(is, 0)
	}
	if !isObject(first) {
		return nil, nil, false
	}
	var buffer [24]entry
	members, _ := entriesOf(first, buffer[:0], 1) // none of an ambiguous item
	isAbsent := func(name string) bool {
		return !slices.ContainsFunc(members, func(e entry) bool { return string(e.name) == name })
	}
	for _, names := range listKeys {
		if slices.ContainsFunc(names, isAbsent) {
			continue
		}
		if before, ok = keysOf(was, names); ok {
			if after, ok = keysOf(is, names); ok {
				return before, after, true
			}
		}
	}
	return nil, nil, false
}

// keysOf returns the items with their segments; false if an item has none, or another one the same.
func keysOf(items [][]byte, names []string) (keyed []entry, ok bool) {
	var seen rawjson.Names
	keyed = make([]entry, len(items))
	for i, item := range items {
		key := keyOf(item, names)
		if key == nil || seen.IsDuplicate(key) {
			return nil, false
		}
		keyed[i] = entry{name: key, value: item}
	}
	return keyed, true
}

// keyOf returns the segment of an item by members of it: [name=web] or [containerPort=80,protocol=TCP]; nil if it has none.
func keyOf(item []byte, names []string) []byte {
	if !isObject(item) {
		return nil
	}
	var values [2][]byte
	m := rawjson.EnterObject(item, 0)
	for missing := len(names); missing > 0; {
		if !m.Next() {
			return nil
		}
		start := m.I
		m.I = rawjson.SkipTrustedValue(item, start)
		if at := slices.Index(names, string(m.Key)); at >= 0 {
			if values[at] == nil {
				missing--
			}
			if values[at] = keyText(item[start:m.I]); values[at] == nil {
				return nil
			}
		}
	}
	key := append(make([]byte, 0, 48), '[')
	for i, name := range names {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(append(append(key, name...), '='), values[i]...)
	}
	return append(key, ']')
}

// keyText returns the text of a number, or of a string without a comma, which separates keys; nil of another value.
func keyText(v []byte) []byte {
	switch {
	case v[0] == '"':
		v = rawjson.Unquote(v)
		if bytes.IndexByte(v, ',') >= 0 || !isExact(v) {
			return nil
		}
		return v
	case v[0] == '-', v[0] >= '0' && v[0] <= '9':
		return v
	}
	return nil
}

// compareByKey compares the items of two lists by their keys: what was removed from the end on, what is in both, what was
// added in order. It returns false, and has done nothing, if items have changed places.
func (c *comparison) compareByKey(was, is []entry) bool {
	at, last := index{entries: is}, -1
	places, kept := make([]int, len(was)), make([]bool, len(is))
	for i := range was {
		if places[i] = at.findEntry(was[i].name, i); places[i] < 0 {
			continue
		}
		if places[i] < last {
			return false
		}
		last, kept[places[i]] = places[i], true
	}
	for i := len(was) - 1; i >= 0; i-- {
		if places[i] < 0 {
			c.compareMember(was[i].name, was[i].value, nil, i)
		}
	}
	for i, place := range places {
		if place >= 0 {
			c.compareMember(was[i].name, was[i].value, is[place].value, noIndex)
		}
	}
	for i := range is {
		if !kept[i] {
			c.compareMember(is[i].name, nil, is[i].value, i)
		}
	}
	return true
}

// Bounds of what [Values] returns, in bytes of JSON.
const (
	maxValue = 4 << 10  // a value that is longer is left out
	maxList  = 32 << 10 // differences behind are left out, as one of the whole object
)

// Paths returns, as a JSON array, the sorted pointers at which two objects differ; nil if they do not.
func Paths(before, after []byte) []byte {
	var all [][]byte
	compare(before, after, func(pointer, _, _ []byte, _ int) bool {
		all = append(all, appendQuoted(nil, pointer))
		return true
	})
	if all == nil {
		return nil
	}
	slices.SortFunc(all, bytes.Compare)
	return slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]"))
}

// Values returns, as a JSON array, the differences between two objects: the members path, from and to. An item that was
// added to a list with keys, or removed from it, has its index in that list. The member omitted names the values that are
// left out: those that are too long, and the rest of too long a list, as a difference of the whole object.
func Values(before, after []byte) []byte {
	b := make([]byte, 0, 1<<10)
	compare(before, after, func(pointer, from, to []byte, index int) bool {
		length := len(b)
		if b = appendDifference(b, pointer, from, to, index); len(b) <= maxList {
			return true
		}
		b = append(b[:length], `,{"path":"","omitted":["from","to"]}`...)
		return false
	})
	if len(b) == 0 {
		return []byte("[]")
	}
	b[0] = '['
	return append(b, ']')
}

func appendDifference(b, pointer, from, to []byte, index int) []byte {
	b = appendQuoted(append(b, `,{"path":`...), pointer)
	var omitted []byte
	for _, v := range [...]struct {
		name  string
		value []byte
	}{{`"from"`, from}, {`"to"`, to}} {
		switch {
		case v.value == nil:
		case len(v.value) > maxValue:
			omitted = append(append(omitted, ','), v.name...)
		default:
			b = append(append(append(append(b, ','), v.name...), ':'), v.value...)
		}
	}
	if index != noIndex {
		b = strconv.AppendInt(append(b, `,"index":`...), int64(index), 10)
	}
	if omitted != nil {
		b = append(append(append(b, `,"omitted":[`...), omitted[1:]...), ']')
	}
	return append(b, '}')
}

// appendQuoted appends valid UTF-8 as a JSON string.
func appendQuoted(b, s []byte) []byte {
	if !bytes.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == '"' || r == '\\' }) {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, err := json.Marshal(string(s))
	if err != nil { // unreachable: every string can be encoded
		return append(b, `""`...)
	}
	return append(b, quoted...)
}
