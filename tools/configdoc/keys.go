package main

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// key is one key of the file.
type key struct {
	path     string // "sinks[].kafka.brokers"
	name     string // "brokers"
	kind     string // for people: "duration"
	value    string // default, as YAML; "" where there is none
	doc      string
	children []key // of a mapping, or of the items of a list
	list     bool  // children describe one item of a list
	variable bool  // an environment variable overrides it
}

// collectKeys describes every key of the file. root is the top of the repository, where comments are read.
func collectKeys(root string) ([]key, error) {
	c := commentReader{root: root, structs: map[string]map[string]string{}}
	cfg := config.Default()
	return c.structKeys(reflect.ValueOf(cfg), "", true)
}

func (c commentReader) structKeys(v reflect.Value, path string, single bool) ([]key, error) {
	docs, err := c.fieldDocs(v.Type())
	if err != nil {
		return nil, err
	}
	var keys []key
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := f.Tag.Get("mapstructure")
		switch name {
		case "":
			continue
		case ",squash":
			inner, err := c.structKeys(v.Field(i), path, single)
			if err != nil {
				return nil, err
			}
			keys = append(keys, inner...)
			continue
		}
		k := key{name: name, path: strings.TrimPrefix(path+"."+name, "."), doc: docs[f.Name]}
		if err := c.describeKey(&k, v.Field(i), single); err != nil {
			return nil, err
		}
		k.doc = replaceFieldNames(k.doc, v.Type())
		k.value = statedDefault(k)
		keys = append(keys, k)
	}
	return keys, nil
}

// describeKey fills in what follows from the type and the default of a key.
func (c commentReader) describeKey(k *key, v reflect.Value, single bool) (err error) {
	t := v.Type()
	switch {
	case t == reflect.TypeFor[time.Duration]():
		k.kind, k.value = "duration", formatDuration(time.Duration(v.Int()))
	case t == reflect.TypeFor[*bool](): // a pointer, so that an absent key is true
		k.kind, k.value = "boolean", "true"
	case t == reflect.TypeFor[credentials.Secret]():
		k.kind, k.value = "secret", `""`
	case t.Kind() == reflect.Pointer:
		k.kind = "mapping"
		k.children, err = c.structKeys(defaultStruct(t.Elem()), k.path, false)
	case t.Kind() == reflect.Struct:
		k.kind = "mapping"
		k.children, err = c.structKeys(v, k.path, single)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		k.kind, k.list, k.path, k.value = "list", true, k.path+"[]", "[]"
		k.children, err = c.structKeys(defaultStruct(t.Elem()), k.path, false)
	case t.Kind() == reflect.Slice:
		k.kind, k.value = "strings", "[]"
	case t.Kind() == reflect.String:
		k.kind, k.value, k.variable = "string", strconv.Quote(v.String()), single
	case t.Kind() == reflect.Bool:
		k.kind, k.value = "boolean", strconv.FormatBool(v.Bool())
	case t == reflect.TypeFor[config.Bytes](), strings.HasSuffix(k.name, "Bytes"):
		k.kind, k.value = "size", config.Bytes(v.Int()).String()
	default:
		k.kind, k.value = "number", fmt.Sprint(v.Interface())
	}
	k.variable = single && k.children == nil && t.Kind() != reflect.Slice
	return err
}

// defaultStruct returns a struct of type t with its defaults, if it declares them.
func defaultStruct(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	config.SetDefaults(p.Interface())
	if d, ok := p.Interface().(interface{ SetDefaults() }); ok {
		d.SetDefaults()
	}
	return p.Elem()
}

// formatDuration writes d without the zero units that time.Duration adds: "2m", not "2m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// replaceFieldNames writes the names of keys where a comment has those of Go fields. Names of one plain word read well as
// they are.
func replaceFieldNames(doc string, t reflect.Type) string {
	for i := range t.NumField() {
		f := t.Field(i)
		if key := f.Tag.Get("mapstructure"); key != "" && key != ",squash" && camelPattern.MatchString(f.Name) {
			doc = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(doc, key)
		}
	}
	return doc
}

// camelPattern are names of several words.
var camelPattern = regexp.MustCompile(`[a-z].*[A-Z]|[A-Z]{2}[a-z]`)

// statedDefaultPattern matches the default in the comment of a key that has it for its zero value: "Default 10s; at least
// 100ms.", or "zstd (default, fastest level)".
var statedDefaultPattern = regexp.MustCompile(`\bDefault ("[^"]*"|[\w,]*\w)|([\w-]+) \(default[,;)]`)

// statedDefault returns the default of a key: the one in its comment if the value is zero, else the value.
func statedDefault(k key) string {
	stated := statedDefaultPattern.FindStringSubmatch(k.doc)
	if stated == nil || !isZeroValue(k.value) {
		return k.value
	}
	value := stated[1] + stated[2]
	switch k.kind {
	case "string":
		return strconv.Quote(strings.Trim(value, `"`))
	case "number", "size":
		return strings.ReplaceAll(value, ",", "")
	}
	return value
}

// isZeroValue reports whether value is the zero value of a type.
func isZeroValue(value string) bool { return slices.Contains([]string{`""`, "0", "0s", "[]"}, value) }
