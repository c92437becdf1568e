package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fields holds the values of an object by their path, such as "spec.template.spec.containers[web].image".
type fields map[string]string

// fieldsOf takes an object apart. Counters of the API server are left out: they differ in each revision and mean
// nothing.
func fieldsOf(object map[string]any) fields {
	f := make(fields)
	f.add("", object)
	for _, own := range []string{"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid",
		"metadata.resourceVersion", "metadata.generation", "metadata.creationTimestamp"} {
		delete(f, own)
	}
	return f
}

func (f fields) add(path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			f.add(strings.TrimPrefix(path+"."+key, "."), inner)
		}
	case []any:
		for i, inner := range v {
			f.add(fmt.Sprintf("%s[%s]", path, element(i, inner)), inner)
		}
	case string:
		f[path] = v
	default:
		text, err := json.Marshal(v)
		if err != nil {
			text = []byte(err.Error())
		}
		f[path] = string(text)
	}
}

// element names an element of a list by what it calls itself, so that one that moved is the same one.
func element(index int, value any) string {
	if m, ok := value.(map[string]any); ok {
		for _, key := range []string{"name", "type"} {
			if name, ok := m[key].(string); ok {
				return name
			}
		}
	}
	return fmt.Sprint(index)
}

// differences describes in a few words each what leads from one state of an object to the next, in the order of the paths.
func differences(before, after fields) []string {
	paths := make(map[string]bool)
	for path := range before {
		paths[path] = true
	}
	for path := range after {
		paths[path] = true
	}
	var all []string
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		was, had := before[path]
		is, has := after[path]
		switch {
		case !had:
			all = append(all, "+"+shortPath(path)+"="+shortValue(is))
		case !has:
			all = append(all, "-"+shortPath(path))
		case was != is:
			all = append(all, shortPath(path)+" "+shortValue(was)+"→"+shortValue(is))
		}
	}
	return all
}

// shortPath keeps the end of a long path, which is the most specific.
func shortPath(path string) string {
	const most = 32
	for len(path) > most {
		_, rest, cut := strings.Cut(strings.TrimPrefix(path, "…"), ".")
		if !cut {
			break
		}
		path = "…" + rest
	}
	return path
}

func shortValue(value string) string {
	const most = 24
	value = strings.Join(strings.Fields(value), " ") // one line
	if value == "" {
		return `""`
	}
	return clip(value, most)
}

// clip cuts a text to a width in characters.
func clip(text string, width int) string {
	letters := []rune(text)
	if len(letters) <= width {
		return text
	}
	return string(letters[:max(width-1, 0)]) + "…"
}
