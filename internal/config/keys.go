package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// field is a struct field as the file sees it.
type field struct {
	index []int // for reflect's FieldByIndex
	order int   // place in the struct, for documents
}

// fieldsOf maps the keys a struct takes to its fields. Keys are the mapstructure tags, exactly as written; a field
// without a tag is not part of the file, and the fields of one with ",squash" count as the struct's own.
func fieldsOf(t reflect.Type) map[string]field {
	fields := map[string]field{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		switch {
		case options == "squash":
			for key, inner := range fieldsOf(f.Type) {
				fields[key] = field{index: append([]int{i}, inner.index...), order: i<<16 + inner.order>>8}
			}
		case name != "" && name != "-":
			fields[name] = field{index: []int{i}, order: i << 16}
		}
	}
	return fields
}

// keysInStructOrder lists the keys in the order of the struct.
func keysInStructOrder(fields map[string]field) []string {
	return slices.SortedFunc(maps.Keys(fields), func(a, b string) int { return fields[a].order - fields[b].order })
}

func joinKeys(fields map[string]field) string { return strings.Join(keysInStructOrder(fields), ", ") }

func unknownKeyProblem(key *yaml.Node, known map[string]field) Problem {
	p := Problem{Line: key.Line, Message: "unknown key", Expected: "one of " + joinKeys(known)}
	if near := closestMatch(key.Value, keysInStructOrder(known)); near != "" {
		p.Message = `unknown key, did you mean "` + near + `"?`
	}
	return p
}

// closestMatch returns the candidate that word most likely meant, or "" when none is close.
func closestMatch(word string, candidates []string) string {
	best, least := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if n := editDistance(strings.ToLower(word), strings.ToLower(c)); n < least && n < len(c) {
			best, least = c, n
		}
	}
	return best
}

// editDistance counts the edits (insert, delete, replace a byte) from a to b (Levenshtein). Long words are not worth it.
func editDistance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
