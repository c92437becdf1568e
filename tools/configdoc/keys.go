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

// collect describes every key of the file. root is the top of the repository, where comments are read.
func collect(root string) ([]key, error) {
	c := comments{root: root, structs: map[string]map[string]string{}}
	cfg := config.Default()
	return c.keys(reflect.ValueOf(cfg), "", true)
}

func (c comments) keys(v reflect.Value, path string, single bool) ([]key, error) {
	docs, err := c.of(v.Type())
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
			inner, err := c.keys(v.Field(i), path, single)
			if err != nil {
				return nil, err
			}
			keys = append(keys, inner...)
			continue
		}
		k := key{name: name, path: strings.TrimPrefix(path+"."+name, "."), doc: docs[f.Name]}
		if err := c.describe(&k, v.Field(i), single); err != nil {
			return nil, err
		}
		k.doc = withKeys(k.doc, v.Type())
		k.value = statedDefault(k)
		keys = append(keys, k)
	}
	return keys, nil
}

// describe fills in what follows from the type and the default of a key.
func (c comments) describe(k *key, v reflect.Value, single bool) (err error) {
	t := v.Type()
	switch {
	case t == reflect.TypeFor[time.Duration]():
		k.kind, k.value = "duration", duration(time.Duration(v.Int()))
	case t == reflect.TypeFor[*bool](): // a pointer, so that what is not said is true
		k.kind, k.value = "true or false", "true"
	case t.Kind() == reflect.Pointer:
		k.kind = "mapping"
		k.children, err = c.keys(initial(t.Elem()), k.path, false)
	case t.Kind() == reflect.Struct:
		k.kind = "mapping"
		k.children, err = c.keys(v, k.path, single)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		k.kind, k.list, k.path, k.value = "list", true, k.path+"[]", "[]"
		k.children, err = c.keys(initial(t.Elem()), k.path, false)
	case t.Kind() == reflect.Slice:
		k.kind, k.value = "list of strings", "[]"
	case t.Kind() == reflect.String:
		k.kind, k.value, k.variable = "string", strconv.Quote(v.String()), single
	case t.Kind() == reflect.Bool:
		k.kind, k.value = "true or false", strconv.FormatBool(v.Bool())
	case t == reflect.TypeFor[config.Bytes](), t.Kind() != reflect.Float64 && strings.HasSuffix(k.name, "Bytes"):
		k.kind, k.value = "size", config.Bytes(v.Int()).String()
	default:
		k.kind, k.value = "number", fmt.Sprint(v.Interface())
	}
	k.variable = single && k.children == nil && t.Kind() != reflect.Slice
	return err
}

// initial returns a struct of type t with its defaults, where it says them.
func initial(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	config.Preset(p.Interface())
	if d, ok := p.Interface().(interface{ SetDefaults() }); ok {
		d.SetDefaults()
	}
	return p.Elem()
}

// duration writes d without the zero units that time.Duration adds: "2m", not "2m0s".
func duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// withKeys writes the names of keys where a comment has those of Go fields. Names of one plain word read well as they are.
func withKeys(doc string, t reflect.Type) string {
	for i := range t.NumField() {
		f := t.Field(i)
		if key := f.Tag.Get("mapstructure"); key != "" && key != ",squash" && camel.MatchString(f.Name) {
			doc = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(doc, key)
		}
	}
	return doc
}

// camel are names of several words.
var camel = regexp.MustCompile(`[a-z].*[A-Z]|[A-Z]{2}[a-z]`)

// stated is how a comment says the default of a key whose zero value stands for it: "Default 10s; at least 100ms.", or
// "zstd (default, fastest level)".
var stated = regexp.MustCompile(`\bDefault ("[^"]*"|[\w,]*\w)|([\w-]+) \(default[,;)]`)

// statedDefault is the default of a key: what its comment says where that is the meaning of a zero value, else its value.
func statedDefault(k key) string {
	said := stated.FindStringSubmatch(k.doc)
	if said == nil || !zero(k.value) {
		return k.value
	}
	value := said[1] + said[2]
	switch k.kind {
	case "string":
		return strconv.Quote(strings.Trim(value, `"`))
	case "number", "size":
		return strings.ReplaceAll(value, ",", "")
	}
	return value
}

// zero says that a value is one that a key has without having been given any.
func zero(value string) bool { return slices.Contains([]string{`""`, "0", "0s", "[]"}, value) }
