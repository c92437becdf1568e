package diff

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// difference is one operation of RFC 6902.
type difference struct {
	op      string // add, remove, replace
	pointer string // JSON Pointer (RFC 6901)
	value   []byte // nil for remove
}

// comparison collects the differences between two objects, in an order in which they can be applied.
type comparison struct {
	pointer     []byte
	depth       int // segments of pointer
	differences []difference
}

// findDifferences returns the operations that turn before into after: replaced leaves, and the topmost added or removed
// values. Values alias after.
func findDifferences(before, after []byte) ([]difference, error) {
	var c comparison
	err := c.compareValues(bytes.TrimSpace(before), bytes.TrimSpace(after))
	return c.differences, err
}

func (c *comparison) addDifference(op string, value []byte) {
	c.differences = append(c.differences, difference{op: op, pointer: string(c.pointer), value: value})
}

// withSegment runs f with a segment appended to the pointer.
func (c *comparison) withSegment(step []byte, f func() error) error {
	length := len(c.pointer)
	c.depth++
	c.pointer = append(c.pointer, '/')
	for _, b := range step {
		switch b {
		case '~':
			c.pointer = append(c.pointer, '~', '0')
		case '/':
			c.pointer = append(c.pointer, '~', '1')
		default:
			c.pointer = append(c.pointer, b)
		}
	}
	err := f()
	c.pointer = c.pointer[:length]
	c.depth--
	return err
}

func (c *comparison) compareValues(before, after []byte) error {
	switch {
	case bytes.Equal(before, after):
		return nil
	case c.depth > maxDepth:
	case isObject(before) && isObject(after):
		return c.compareObjects(before, after)
	case isArray(before) && isArray(after):
		return c.compareArrays(before, after)
	case equalScalars(before, after):
		return nil
	}
	c.addDifference("replace", after)
	return nil
}

func (c *comparison) compareObjects(before, after []byte) error {
	pairs, err := pairsOf(before, after)
	if err != nil {
		return err
	}
	for _, p := range pairs {
		if err := c.withSegment(p.name, func() error { return c.compareOptional(p.before, p.after) }); err != nil {
			return err
		}
	}
	return nil
}

// compareOptional compares two values, one of which may be absent.
func (c *comparison) compareOptional(before, after []byte) error {
	switch {
	case before == nil:
		c.addDifference("add", after)
	case after == nil:
		c.addDifference("remove", nil)
	default:
		return c.compareValues(before, after)
	}
	return nil
}

// compareArrays skips the common prefix and suffix, compares the remaining elements one by one, and adds or removes the
// surplus.
func (c *comparison) compareArrays(before, after []byte) error {
	was, is, err := elementsOfBoth(before, after)
	if err != nil {
		return err
	}
	from := 0
	for from < min(len(was), len(is)) && bytes.Equal(was[from], is[from]) {
		from++
	}
	for len(was) > from && len(is) > from && bytes.Equal(was[len(was)-1], is[len(is)-1]) {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	common := min(len(was), len(is))
	for i := from; i < common; i++ {
		segment := strconv.AppendInt(nil, int64(i), 10)
		if err := c.withSegment(segment, func() error { return c.compareValues(was[i], is[i]) }); err != nil {
			return err
		}
	}
	step := func(i int, op string, value []byte) {
		_ = c.withSegment(strconv.AppendInt(nil, int64(i), 10), func() error { c.addDifference(op, value); return nil })
	}
	for i := common; i < len(is); i++ {
		step(i, "add", is[i])
	}
	for i := len(was) - 1; i >= common; i-- { // from the end, so that the indexes stay valid
		step(i, "remove", nil)
	}
	return nil
}

// Pointers returns the sorted, unique locations at which two objects differ; nil if they cannot be compared.
func Pointers(before, after []byte) []string {
	all, err := findDifferences(before, after)
	if err != nil {
		return nil
	}
	pointers := make([]string, len(all))
	for i := range all {
		pointers[i] = all[i].pointer
	}
	slices.Sort(pointers)
	return slices.Compact(pointers)
}

// JSONPatch returns the patch from before to after in RFC 6902. If the patch would be longer than the object, or the objects
// cannot be compared, it replaces the whole object.
func JSONPatch(before, after []byte) []byte {
	all, err := findDifferences(before, after)
	if err != nil {
		return replacementPatch(after)
	}
	b := []byte{'['}
	for i, d := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOperation(b, d)
		if len(b) > len(after)+64 {
			return replacementPatch(after)
		}
	}
	return append(b, ']')
}

func replacementPatch(after []byte) []byte {
	return append(appendOperation([]byte{'['}, difference{op: "replace", value: after}), ']')
}

func appendOperation(b []byte, d difference) []byte {
	b = append(append(b, `{"op":"`...), d.op...)
	b = append(appendQuoted(append(b, `","path":`...), d.pointer), "}"...)
	if d.value == nil {
		return b
	}
	return append(append(append(b[:len(b)-1], `,"value":`...), d.value...), '}')
}

// appendQuoted appends valid UTF-8 as a JSON string.
func appendQuoted(b []byte, s string) []byte {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == '"' || r == '\\' }) {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, err := json.Marshal(s)
	if err != nil { // unreachable: every string can be encoded
		return append(b, `""`...)
	}
	return append(b, quoted...)
}

// errInexpressible reports that a merge patch cannot set null, which means removal, or is too deep.
var errInexpressible = errors.New("RFC 7396 cannot express this")

// MergePatch returns the patch from before to after in RFC 7396, or the result of [JSONPatch] if that cannot express it.
func MergePatch(before, after []byte) []byte {
	b, err := appendMerge(nil, bytes.TrimSpace(before), bytes.TrimSpace(after), 0)
	switch {
	case errors.Is(err, errInexpressible):
		return JSONPatch(before, after)
	case err != nil:
		return replacementPatch(after)
	case len(b) == 0:
		return []byte("{}")
	}
	return b
}

// appendMerge appends the merge patch between two objects; nothing if they are equal. A merge patch cannot replace an object
// as a whole, so deep ones are left to RFC 6902.
func appendMerge(b, before, after []byte, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errInexpressible
	}
	pairs, err := pairsOf(before, after)
	if err != nil {
		return nil, err
	}
	start := len(b)
	for _, p := range pairs {
		mark := len(b)
		if len(b) == start {
			b = append(b, '{')
		} else {
			b = append(b, ',')
		}
		b = append(append(b, p.key...), ':')
		head := len(b)
		switch {
		case p.after == nil:
			b = append(b, "null"...)
		case isObject(p.before) && isObject(p.after):
			if b, err = appendMerge(b, p.before, p.after, depth+1); err != nil {
				return nil, err
			}
		case p.before != nil && (bytes.Equal(p.before, p.after)):
		default:
			if err := checkExpressible(p.after, depth+1); err != nil {
				return nil, err
			}
			b = append(b, p.after...)
		}
		if len(b) == head {
			b = b[:mark]
		}
	}
	if len(b) > start {
		b = append(b, '}')
	}
	return b, nil
}

// checkExpressible returns an error if the value contains null, which a merge patch cannot set. RFC 7396 allows null within
// lists, but widely used libraries remove it there too.
func checkExpressible(v []byte, depth int) error {
	switch {
	case string(v) == "null", depth > maxDepth:
		return errInexpressible
	case isObject(v):
		all, err := entriesOf(v, nil)
		for i := range all {
			if err == nil {
				err = checkExpressible(all[i].value, depth+1)
			}
		}
		return err
	case isArray(v):
		all, err := elementsOf(v)
		for i := range all {
			if err == nil {
				err = checkExpressible(all[i], depth+1)
			}
		}
		return err
	}
	return nil
}
