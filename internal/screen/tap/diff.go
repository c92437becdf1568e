package tap

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what is shown of one change.
const (
	maxLines  = 40  // differences, and lines of one text
	maxValue  = 100 // characters of a value
	maxPath   = 60  // characters that paths are padded to
	maxDepth  = 100 // levels that are compared; values below are shown whole
	keptStart = 20  // characters that are shown of a long beginning that two values share
)

// field is a member of an object that differs. before and after are nil where it is not there: null is explicitNull.
type field struct {
	path          string
	before, after any
}

// differences are collected by a comparison of two states.
type differences struct {
	fields []field
	depth  int // of the values that are compared
}

// explicitNull is a null that is there.
type explicitNull struct{}

// bookkeeping is what every write changes.
var bookkeeping = map[string]bool{"metadata.resourceVersion": true, "metadata.generation": true, "metadata.managedFields": true}

// describeDifference writes field by field what two states of an object differ in.
func (p *Printer) describeDifference(before, after []byte) []string {
	was, err := decodeJSON(before)
	if err != nil {
		return []string{"cannot be compared: " + err.Error()}
	}
	is, err := decodeJSON(after)
	if err != nil {
		return []string{"cannot be compared: " + err.Error()}
	}
	var c differences
	c.compareValues("", was, is)
	fields := slices.DeleteFunc(c.fields, func(f field) bool { return isBookkeeping(f.path) })
	if len(fields) == 0 {
		return []string{p.withStyle(faint, nothingShown)}
	}
	width := 0
	for _, f := range fields {
		width = max(width, min(len([]rune(f.path)), maxPath))
	}
	var lines []string
	for i, f := range fields {
		if len(lines) >= maxLines {
			return append(lines, p.withStyle(faint, "… and "+formatCount(len(fields)-i, "more field")))
		}
		lines = append(lines, p.formatField(f, width)...)
	}
	return lines
}

// nothingShown stands for a difference of which nothing is shown.
const nothingShown = "nothing that is shown: a masked value, or bookkeeping"

// describePaths writes which paths changed, given as JSON Pointers (RFC 6901), in the notation of describeDifference.
func (p *Printer) describePaths(pointers []string) (lines []string) {
	for _, pointer := range pointers {
		if path := pathOfPointer(pointer); !isBookkeeping(path) {
			lines = append(lines, path)
		}
	}
	if len(lines) == 0 && len(pointers) > 0 {
		return []string{p.withStyle(faint, nothingShown)}
	}
	return lines
}

// isBookkeeping reports whether a path is, or is in, a member that every write changes.
func isBookkeeping(path string) bool {
	for member := range bookkeeping {
		if rest, ok := strings.CutPrefix(path, member); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// pathOfPointer writes a JSON Pointer as a path.
func pathOfPointer(pointer string) (path string) {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		name := strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		path = memberPath(path, name)
	}
	return path
}

func decodeJSON(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// compareValues appends what two values at a path differ in.
func (c *differences) compareValues(path string, was, is any) {
	if c.depth == maxDepth {
		if !reflect.DeepEqual(was, is) {
			c.fields = append(c.fields, field{path, was, is})
		}
		return
	}
	c.depth++
	defer func() { c.depth-- }()
	switch a := was.(type) {
	case map[string]any:
		if b, ok := is.(map[string]any); ok {
			c.compareMembers(path, a, b)
			return
		}
	case []any:
		if b, ok := is.([]any); ok {
			c.compareElements(path, a, b)
			return
		}
	default:
		if _, nested := is.(map[string]any); !nested {
			if _, nested = is.([]any); !nested && was == is {
				return
			}
		}
	}
	c.fields = append(c.fields, field{path, was, is})
}

func (c *differences) compareMembers(path string, was, is map[string]any) {
	names := slices.Collect(maps.Keys(was))
	for name := range is {
		if _, both := was[name]; !both {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if path == "" && memberRank(a) != memberRank(b) {
			return memberRank(a) - memberRank(b)
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		compareBoth(c, memberPath(path, name), was, is, name)
	}
}

// memberRank orders the members of an object: what people write comes before what machines do.
func memberRank(name string) int {
	return slices.Index([]string{"", "metadata", "status"}, name) // -1 for all others
}

func compareBoth[K comparable](c *differences, path string, was, is map[K]any, key K) {
	a, inA := was[key]
	b, inB := is[key]
	switch {
	case !inA:
		c.fields = append(c.fields, field{path, nil, markNull(b)})
	case !inB:
		c.fields = append(c.fields, field{path, markNull(a), nil})
	default:
		c.compareValues(path, markNull(a), markNull(b))
	}
}

func markNull(v any) any {
	if v == nil {
		return explicitNull{}
	}
	return v
}

// listKeyMembers are the members that identify elements of a list, the most usual first.
var listKeyMembers = []string{"name", "type", "key", "ip", "uid", "containerPort", "port"}

// compareElements compares elements that have the same name, and where they have none, those at the same place.
func (c *differences) compareElements(path string, was, is []any) {
	for _, by := range listKeyMembers {
		a, first, ok := elementsByMember(was, by)
		if !ok {
			continue
		}
		b, second, ok := elementsByMember(is, by)
		if !ok {
			continue
		}
		if before, after := commonOf(first, b), commonOf(second, a); !slices.Equal(before, after) {
			c.fields = append(c.fields, field{path, before, after})
		}
		for _, name := range second {
			if _, both := a[name]; !both {
				first = append(first, name)
			}
		}
		for _, name := range first {
			compareBoth(c, path+"["+escapeUnprintable(name)+"]", a, b, name)
		}
		return
	}
	a, b := map[int]any{}, map[int]any{}
	for i, v := range was {
		a[i] = v
	}
	for i, v := range is {
		b[i] = v
	}
	for i := range max(len(was), len(is)) {
		compareBoth(c, path+"["+strconv.Itoa(i)+"]", a, b, i)
	}
}

// commonOf returns the names that other has too.
func commonOf(names []string, other map[string]any) (common []string) {
	for _, name := range names {
		if _, both := other[name]; both {
			common = append(common, name)
		}
	}
	return common
}

// elementsByMember returns the elements of a list by one of their members, and the names in order; false if two
// elements have the same name, or one has none.
func elementsByMember(list []any, by string) (elements map[string]any, order []string, ok bool) {
	elements = map[string]any{}
	for _, e := range list {
		object, isObject := e.(map[string]any)
		if !isObject {
			return nil, nil, false
		}
		var name string
		switch v := object[by].(type) {
		case string:
			name = v
		case json.Number:
			name = v.String()
		default:
			return nil, nil, false
		}
		if _, twice := elements[name]; twice {
			return nil, nil, false
		}
		elements[name], order = e, append(order, name)
	}
	return elements, order, true
}

// memberPath is the path of a member. One whose name is a number is written as the index of an element, from which a JSON
// Pointer does not distinguish it.
func memberPath(path, name string) string {
	switch {
	case strings.ContainsAny(name, "./[] ") || strings.Trim(name, "0123456789") == "":
		return path + "[" + escapeUnprintable(name) + "]"
	case path == "":
		return escapeUnprintable(name)
	}
	return path + "." + escapeUnprintable(name)
}

// formatField writes what became of a field.
func (p *Printer) formatField(f field, width int) []string {
	path := f.path + strings.Repeat(" ", max(0, width-len([]rune(f.path))))
	was, wasText := f.before.(string)
	is, isText := f.after.(string)
	if (wasText || f.before == nil) && (isText || f.after == nil) && strings.ContainsRune(was+is, '\n') {
		return append([]string{p.withStyle(cyan, f.path)}, p.diffLines(was, is)...)
	}
	switch {
	case f.before == nil:
		return []string{p.withStyle(cyan, path) + "  " + p.withStyle(green, "+ "+truncate(describeValue(f.after), maxValue))}
	case f.after == nil:
		return []string{p.withStyle(cyan, path) + "  " + p.withStyle(red, "- "+truncate(describeValue(f.before), maxValue))}
	}
	before, after := truncateBoth(describeValue(f.before), describeValue(f.after))
	return []string{p.withStyle(cyan, path) + "  " + p.withStyle(red, before) + " → " + p.withStyle(green, after)}
}

// diffLines writes the lines that two texts differ in.
func (p *Printer) diffLines(was, is string) []string {
	removed, added := unequalLines(strings.Split(was, "\n"), strings.Split(is, "\n"))
	for i := range max(len(removed), len(added)) {
		switch {
		case i >= len(added):
			removed[i] = truncate(escapeUnprintable(removed[i]), maxValue)
		case i >= len(removed):
			added[i] = truncate(escapeUnprintable(added[i]), maxValue)
		default:
			removed[i], added[i] = truncateBoth(escapeUnprintable(removed[i]), escapeUnprintable(added[i]))
		}
	}
	var all []string
	for _, part := range []struct {
		sign  string
		style style
		lines []string
	}{{"- ", red, removed}, {"+ ", green, added}} {
		for i, line := range part.lines {
			if i == maxLines/2 {
				all = append(all, p.withStyle(faint, "  … "+formatCount(len(part.lines)-i, "more line")))
				break
			}
			all = append(all, p.withStyle(part.style, "  "+part.sign+line))
		}
	}
	return all
}

// maxCompared bounds the lines that unequalLines compares with each other.
const maxCompared = 1000

// unequalLines returns the lines of a and of b that are not in their longest common subsequence. Where the part between
// their common beginning and their common end is too long for that, it returns the part.
func unequalLines(a, b []string) (onlyA, onlyB []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	if len(a) > maxCompared || len(b) > maxCompared {
		return a, b
	}
	common := make([][]int, len(a)+1) // of a[i:] and b[j:]
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			onlyA, i = append(onlyA, a[i]), i+1
		default:
			onlyB, j = append(onlyB, b[j]), j+1
		}
	}
	return append(onlyA, a[i:]...), append(onlyB, b[j:]...)
}

// truncateBoth cuts two texts that differ, so that the difference is shown: a long beginning that they share is cut too.
func truncateBoth(a, b string) (string, string) {
	shared, before := 0, []int{} // the shared characters, and where they start
	for i, r := range a {
		if other, _ := utf8.DecodeRuneInString(b[min(i, len(b)):]); i >= len(b) || other != r {
			break
		}
		shared, before = shared+1, append(before, i)
	}
	if shared >= maxValue {
		start := before[shared-keptStart]
		a, b = "…"+a[start:], "…"+b[start:]
	}
	return truncate(a, maxValue), truncate(b, maxValue)
}

// describeValue writes a value on one line.
func describeValue(v any) string {
	switch v := v.(type) {
	case explicitNull:
		return "null"
	case string:
		if v == "" || strings.TrimSpace(v) != v {
			return strconv.Quote(v)
		}
		return escapeUnprintable(v)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err.Error()
	}
	return escapeUnprintable(strings.TrimSuffix(b.String(), "\n"))
}
