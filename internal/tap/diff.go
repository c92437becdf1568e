package tap

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is shown of one change.
const (
	maxLines = 40  // differences, and lines of one text
	maxValue = 100 // characters of a value
	maxPath  = 60  // characters that paths are padded to
)

// field is a member of an object that differs. before and after are nil where it is not there: null is explicitNull.
type field struct {
	path          string
	before, after any
}

// explicitNull is a null that is there.
type explicitNull struct{}

// bookkeeping is what every write changes.
var bookkeeping = map[string]bool{"metadata.resourceVersion": true, "metadata.generation": true, "metadata.managedFields": true}

// difference writes field by field what two states of an object differ in.
func (p *Printer) difference(before, after []byte) []string {
	was, err := decode(before)
	if err != nil {
		return []string{"cannot be compared: " + err.Error()}
	}
	is, err := decode(after)
	if err != nil {
		return []string{"cannot be compared: " + err.Error()}
	}
	fields := slices.DeleteFunc(compare("", was, is, nil), func(f field) bool { return bookkeeping[f.path] })
	if len(fields) == 0 {
		return []string{p.styled(faint, "nothing that is shown: a masked value, or bookkeeping")}
	}
	width := 0
	for _, f := range fields {
		width = max(width, min(len([]rune(f.path)), maxPath))
	}
	var lines []string
	for i, f := range fields {
		if len(lines) >= maxLines {
			return append(lines, p.styled(faint, "… and "+plural(len(fields)-i, "more field")))
		}
		lines = append(lines, p.field(f, width)...)
	}
	return lines
}

func decode(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// compare appends what two values at a path differ in.
func compare(path string, was, is any, fields []field) []field {
	switch a := was.(type) {
	case map[string]any:
		if b, ok := is.(map[string]any); ok {
			return compareMembers(path, a, b, fields)
		}
	case []any:
		if b, ok := is.([]any); ok {
			return compareElements(path, a, b, fields)
		}
	default:
		if _, nested := is.(map[string]any); !nested {
			if _, nested = is.([]any); !nested && was == is {
				return fields
			}
		}
	}
	return append(fields, field{path, was, is})
}

func compareMembers(path string, was, is map[string]any, fields []field) []field {
	names := slices.Collect(maps.Keys(was))
	for name := range is {
		if _, both := was[name]; !both {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if path == "" && rank(a) != rank(b) {
			return rank(a) - rank(b)
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		fields = compareBoth(member(path, name), was, is, name, fields)
	}
	return fields
}

// rank orders the members of an object: what people write comes before what machines do.
func rank(name string) int {
	return slices.Index([]string{"", "metadata", "status"}, name) // -1 for all others
}

func compareBoth[K comparable](path string, was, is map[K]any, key K, fields []field) []field {
	a, inA := was[key]
	b, inB := is[key]
	switch {
	case !inA:
		return append(fields, field{path, nil, present(b)})
	case !inB:
		return append(fields, field{path, present(a), nil})
	}
	return compare(path, present(a), present(b), fields)
}

func present(v any) any {
	if v == nil {
		return explicitNull{}
	}
	return v
}

// names are the members by which elements of a list are told apart, the most usual first.
var names = []string{"name", "type", "key", "ip", "uid", "containerPort", "port"}

// compareElements compares elements that have the same name, and where they have none, those at the same place.
func compareElements(path string, was, is []any, fields []field) []field {
	for _, by := range names {
		a, first, ok := named(was, by)
		if !ok {
			continue
		}
		b, second, ok := named(is, by)
		if !ok {
			continue
		}
		for _, name := range second {
			if _, both := a[name]; !both {
				first = append(first, name)
			}
		}
		for _, name := range first {
			fields = compareBoth(path+"["+printable(name)+"]", a, b, name, fields)
		}
		return fields
	}
	a, b := map[int]any{}, map[int]any{}
	for i, v := range was {
		a[i] = v
	}
	for i, v := range is {
		b[i] = v
	}
	for i := range max(len(was), len(is)) {
		fields = compareBoth(path+"["+strconv.Itoa(i)+"]", a, b, i, fields)
	}
	return fields
}

// named returns the elements of a list by one of their members, and the names in order; false where that does not tell them
// apart.
func named(list []any, by string) (elements map[string]any, order []string, ok bool) {
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

// member is the path of a member.
func member(path, name string) string {
	switch {
	case strings.ContainsAny(name, "./[] ") || name == "":
		return path + "[" + printable(name) + "]"
	case path == "":
		return printable(name)
	}
	return path + "." + printable(name)
}

// field writes what became of a field.
func (p *Printer) field(f field, width int) []string {
	path := f.path + strings.Repeat(" ", max(0, width-len([]rune(f.path))))
	was, wasText := f.before.(string)
	is, isText := f.after.(string)
	if (wasText || f.before == nil) && (isText || f.after == nil) && strings.ContainsRune(was+is, '\n') {
		return append([]string{p.styled(cyan, f.path)}, p.lines(was, is)...)
	}
	switch {
	case f.before == nil:
		return []string{p.styled(cyan, path) + "  " + p.styled(green, "+ "+value(f.after))}
	case f.after == nil:
		return []string{p.styled(cyan, path) + "  " + p.styled(red, "- "+value(f.before))}
	}
	return []string{p.styled(cyan, path) + "  " + p.styled(red, value(f.before)) + " → " + p.styled(green, value(f.after))}
}

// lines writes what two texts of several lines differ in: what is between their common beginning and their common end.
func (p *Printer) lines(was, is string) []string {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var all []string
	for _, part := range []struct {
		sign  string
		style style
		lines []string
	}{{"- ", red, a}, {"+ ", green, b}} {
		for i, line := range part.lines {
			if i == maxLines/2 {
				all = append(all, p.styled(faint, "  … "+plural(len(part.lines)-i, "more line")))
				break
			}
			all = append(all, p.styled(part.style, "  "+part.sign+shorten(printable(line), maxValue)))
		}
	}
	return all
}

// value writes a value on one line.
func value(v any) string {
	switch v := v.(type) {
	case explicitNull:
		return "null"
	case string:
		if v == "" || strings.TrimSpace(v) != v {
			return shorten(strconv.Quote(v), maxValue)
		}
		return shorten(printable(v), maxValue)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err.Error()
	}
	return shorten(printable(strings.TrimSuffix(b.String(), "\n")), maxValue)
}
