package config

import (
	"encoding"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/pkg/credentials"
)

// decoder decodes the YAML nodes of one file strictly into structs and reports every mismatch. It is used by one goroutine.
type decoder struct {
	*reporter
	secrets     []string           // see [Config.Secrets]
	secretFiles []credentials.File // files with a secret, by path of the key
}

// decodeValue decodes n, which is at path, into v, which is settable.
func (d *decoder) decodeValue(n *yaml.Node, v reflect.Value, path string) {
	if _, ok := d.lines[path]; !ok {
		d.lines[path] = n.Line
	}
	switch {
	case n.Kind == yaml.AliasNode:
		d.addProblem(path, Problem{Line: n.Line, Message: "YAML aliases are not supported; write the value out"})
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		d.addProblem(path, Problem{Line: n.Line, Message: "has no value",
			Expected: expectedFor(v.Type(), path) + emptyMappingHint(v.Type())})
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		SetDefaults(v.Interface())
		d.decodeValue(n, v.Elem(), path)
	case isMapping(v.Type()):
		d.decodeStruct(n, v, path)
	case v.Kind() == reflect.Slice:
		d.decodeList(n, v, path)
	default:
		d.decodeScalar(n, v, path)
	}
}

func (d *decoder) decodeStruct(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.reportWrongType(n, v, path)
		return
	}
	known := fieldsOf(v.Type())
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := joinPath(path, key.Value)
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			d.addProblem(path, Problem{Line: key.Line, Message: "a key must be a plain word", Found: describeNode(key)})
			continue
		}
		if first, ok := seen[key.Value]; ok {
			d.addProblem(at, Problem{Line: key.Line, Message: fmt.Sprintf("given twice, first on line %d", first)})
			continue
		}
		seen[key.Value] = key.Line
		f, ok := known[key.Value]
		if !ok {
			d.addProblem(at, unknownKeyProblem(key, known))
			continue
		}
		d.lines[at] = key.Line
		d.decodeValue(value, v.FieldByIndex(f.index), at)
	}
}

func (d *decoder) decodeList(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.reportWrongType(n, v, path)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		at := path + "[" + strconv.Itoa(i) + "]"
		SetDefaults(v.Index(i).Addr().Interface())
		d.decodeValue(item, v.Index(i), at)
	}
}

// decodeScalar decodes a plain value, or for strings also a reference, which is written as a mapping.
func (d *decoder) decodeScalar(n *yaml.Node, v reflect.Value, path string) {
	text := n.Value
	switch {
	case (v.Kind() == reflect.String || v.Type() == secretType) && n.Kind == yaml.MappingNode:
		source, name, ok := d.readReference(n, path)
		if !ok {
			return
		}
		if source == "file" && v.Type() == secretType {
			d.noteSecretFile(path, name)
			v.Set(reflect.ValueOf(credentials.InFile(name)))
			return
		}
		if text, ok = d.resolveReference(n, path, source, name); !ok {
			return
		}
	case n.Kind != yaml.ScalarNode, !slices.Contains(yamlTagsFor(v.Type(), lastKey(path)), n.ShortTag()):
		d.reportWrongType(n, v, path)
		return
	default:
		if !d.checkLiteral(path, text) {
			return
		}
		if _, err := os.Stat(text); err == nil && v.Type() == secretType && strings.Contains(text, "/") {
			d.addWarning(path, Problem{Message: "is the path of a file, which is not read", Expected: "{file: PATH}"})
		}
	}
	if v.Kind() == reflect.String || v.Type() == secretType {
		d.recordSecrets(path, text)
	}
	if bad := setScalar(v, text, isSize(v.Type(), lastKey(path))); bad != nil {
		d.addProblem(path, Problem{Line: n.Line, Message: bad.message, Found: describeUnlessSecret(n, path), Expected: bad.expected})
	}
}

func (d *decoder) reportWrongType(n *yaml.Node, v reflect.Value, path string) {
	d.addProblem(path, Problem{Line: n.Line, Message: "wrong type", Found: describeUnlessSecret(n, path),
		Expected: expectedFor(v.Type(), path)})
}

// isMapping reports whether a value of type t is written as a mapping.
func isMapping(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textUnmarshalerType)
}

// yamlTagsFor lists the YAML types that are accepted for a scalar of type t. Strings are strict: YAML reads 0123, on and 1e3
// as other types, so they require quotes.
func yamlTagsFor(t reflect.Type, key string) []string {
	switch {
	case t == durationType, isSize(t, key):
		return []string{"!!str", "!!int"}
	case t.Kind() == reflect.Bool:
		return []string{"!!bool"}
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		return []string{"!!int"}
	}
	return []string{"!!str"}
}

// expectedFor describes the values that a key of type t accepts.
func expectedFor(t reflect.Type, path string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType:
		return expectDuration
	case isSize(t, lastKey(path)):
		return expectBytes
	case isMapping(t):
		return "a mapping with " + joinKeys(fieldsOf(t))
	case t == secretType:
		return expectSecret
	case reflect.PointerTo(t).Implements(textUnmarshalerType), t.Kind() == reflect.String:
		return "a string (in quotes where it looks like something else)"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a whole number"
}

// emptyMappingHint is the hint for the key of a mapping that is given without a value.
func emptyMappingHint(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if isMapping(t) {
		return "; {} takes every default"
	}
	return ""
}

// describeUnlessSecret describes the node at path, without its value if that may be a secret.
func describeUnlessSecret(n *yaml.Node, path string) string {
	if n.Kind == yaml.ScalarNode && mayBeSecret(path) {
		return "a value that is not shown"
	}
	return describeNode(n)
}

func describeNode(n *yaml.Node) string {
	const maxLength = 60
	text := n.Value
	if len(text) > maxLength {
		text = strings.ToValidUTF8(text[:maxLength], "") + "…"
	}
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch tag := n.ShortTag(); tag {
	case "!!str":
		return strconv.Quote(text)
	case "!!int", "!!float":
		return "the number " + text
	case "!!bool":
		return "the boolean " + text
	case "!!timestamp":
		return "the date " + text
	default:
		return fmt.Sprintf("%q with the YAML tag %s", text, tag)
	}
}

// lastKey returns the last mapping key of a path: "bytes" of "sinks[0].batch.bytes", "urls" of "urls[3]".
func lastKey(path string) string {
	path = path[strings.LastIndexByte(path, '.')+1:]
	key, _, _ := strings.Cut(path, "[")
	return key
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// Bytes is a size in bytes. In a file it is a plain number or a number with a unit: "10Gi", "64Mi", "500k".
type Bytes int64

// units of sizes. The four binary units come first, because Bytes.String uses only those.
var units = []struct {
	suffix string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// String formats the size with the largest binary unit that keeps it exact: "10Gi", "1536Mi", "1000".
func (b Bytes) String() string {
	for i := 3; i >= 0; i-- {
		if f := units[i].factor; b != 0 && int64(b)%f == 0 {
			return strconv.FormatInt(int64(b)/f, 10) + units[i].suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

const (
	expectBytes    = `a number of bytes, such as 1048576, "64Mi" or "10Gi"`
	expectSecret   = "{file: PATH}, {env: NAME}, or a string"
	expectDuration = `a number with a unit, such as "100ms", "30s", "5m" or "90d"`
)

// mismatch is the reason why a value does not fit its key, and the expected form.
type mismatch struct{ message, expected string }

func parseBytes(s string) (int64, *mismatch) {
	digits, factor := s, int64(1)
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, factor = d, u.factor
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	switch {
	case err != nil:
		return 0, &mismatch{"not a size", expectBytes}
	case n < 0:
		return 0, &mismatch{"must not be negative", expectBytes}
	case n > math.MaxInt64/factor:
		return 0, &mismatch{"too large", expectBytes}
	}
	return n * factor, nil
}

func parseDuration(s string) (time.Duration, *mismatch) {
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 32)
		d = time.Duration(max(min(n, int64(maxDuration/day)+1), -1)) * day
	}
	switch {
	case err != nil:
		return 0, &mismatch{"not a duration", expectDuration}
	case d < 0:
		return 0, &mismatch{"must not be negative", expectDuration}
	case d > maxDuration:
		return 0, &mismatch{"too long", "at most " + maxDuration.String()}
	}
	return d, nil
}

const day = 24 * time.Hour

// maxDuration is a hundred years: sums of a few durations do not overflow.
const maxDuration = 100 * 365 * 24 * time.Hour

var (
	durationType        = reflect.TypeFor[time.Duration]()
	secretType          = reflect.TypeFor[credentials.Secret]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// setScalar parses text into v. isSize means that an integer is a number of bytes and may have a unit.
func setScalar(v reflect.Value, text string, isSize bool) *mismatch {
	switch t := v.Type(); {
	case reflect.PointerTo(t).Implements(textUnmarshalerType):
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil {
			return &mismatch{message: err.Error()}
		}
		return nil
	case t == durationType:
		d, bad := parseDuration(text)
		v.SetInt(int64(d))
		return bad
	case isSize:
		n, bad := parseBytes(text)
		if bad == nil && v.OverflowInt(n) {
			bad = &mismatch{"too large", expectBytes}
		}
		v.SetInt(n)
		return bad
	}
	return setBuiltin(v, text)
}

func setBuiltin(v reflect.Value, text string) *mismatch {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return &mismatch{"not a boolean", "true or false"}
		}
		v.SetBool(text == "true")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return &mismatch{"not a whole number", "a whole number"}
		}
		v.SetInt(n)
	default:
		return &mismatch{message: "cannot be set from a file: no YAML value makes a " + v.Type().String()}
	}
	return nil
}

// isSize reports whether an integer is a size: its type is [Bytes] or its key ends in "bytes".
func isSize(t reflect.Type, key string) bool {
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		return t == reflect.TypeFor[Bytes]() || t != durationType && (key == "bytes" || strings.HasSuffix(key, "Bytes"))
	}
	return false
}
