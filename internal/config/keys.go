package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/pkg/nearest"
)

// field locates the struct field of a key.
type field struct {
	index []int // for reflect's FieldByIndex
	order int   // position in the struct, for messages and documents
}

// fieldsOf maps the keys of a struct to its fields. Keys are the mapstructure tags, exactly as written; a field without a
// tag is not part of the file, and the fields of one with ",squash" belong to the outer struct.
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

// closestMatch returns the candidate that word was probably meant to be, or "".
func closestMatch(word string, candidates []string) string { return nearest.Name(word, candidates) }
