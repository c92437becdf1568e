// Package field writes paths and values of objects as people read them in a terminal.
package field

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/kubecdc/kubecdc/internal/screen/terminal"
)

// bookkeeping is the beginning of the pointers of what every write changes.
var bookkeeping = regexp.MustCompile(`^/metadata/(resourceVersion|generation|managedFields)(/|$)`)

// IsBookkeeping reports whether a pointer is of what every write changes.
func IsBookkeeping(pointer string) bool { return bookkeeping.MatchString(pointer) }

// keyName is the name of a member in the segment of an item: [name=web] is shown as [web].
var keyName = regexp.MustCompile(`([\[,])\w+=`)

// PathOf writes a JSON Pointer as a path. A name that is a number is written as the index of an element, from which a
// pointer does not distinguish it.
func PathOf(pointer string) (path string) {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		name := EscapeUnprintable(strings.NewReplacer("~1", "/", "~0", "~").Replace(part))
		switch {
		case strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]"):
			path += keyName.ReplaceAllString(name, "$1")
		case strings.ContainsAny(name, "./[] ") || strings.Trim(name, "0123456789") == "":
			path += "[" + name + "]"
		case path == "":
			path = name
		default:
			path += "." + name
		}
	}
	return path
}

// DecodeText returns the text of a string; "" of what is not there, and false for other values.
func DecodeText(v []byte) (text string, ok bool) {
	return text, v == nil || v[0] == '"' && json.Unmarshal(v, &text) == nil
}

// Describe writes a value on one line.
func Describe(v []byte) string {
	if text, ok := DecodeText(v); ok {
		if text == "" || strings.TrimSpace(text) != text {
			return strconv.Quote(text)
		}
		return EscapeUnprintable(text)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, v); err != nil {
		return err.Error()
	}
	return EscapeUnprintable(b.String())
}

// EscapeUnprintable writes text from a cluster so that it cannot steer a terminal: what is not printable is escaped.
func EscapeUnprintable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		q := strconv.QuoteToGraphic(s)
		return q[1 : len(q)-1]
	}
	return s
}

// escapeYAML writes a character as YAML does (YAML 1.2.2, section 5.7).
func escapeYAML(b []byte, r rune) []byte { return fmt.Appendf(b, `\U%08x`, r) }

// Truncate cuts a text to at most so many characters.
func Truncate(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// AppendYAML writes a JSON object as a YAML document, with its members in their order.
func AppendYAML(b, object []byte) ([]byte, error) {
	var n yaml.Node // JSON is YAML, but for some control characters
	if err := yaml.Unmarshal(terminal.AppendEscaped(nil, object, escapeYAML), &n); err != nil {
		return b, fmt.Errorf("write a change as YAML: %w", err)
	}
	unquoteJSON(&n)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&n); err != nil {
		return b, fmt.Errorf("write a change as YAML: %w", err)
	}
	return terminal.AppendEscaped(append(b, "---\n"...), out.Bytes(), escapeYAML), nil
}

// unquoteJSON gives nodes the usual style in place of that of JSON; the encoder quotes what needs it. Text with escapes
// stays quoted, since only there an escape is one.
func unquoteJSON(n *yaml.Node) {
	n.Style = 0
	if strings.ContainsFunc(n.Value, terminal.Steers) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		unquoteJSON(c)
	}
}
