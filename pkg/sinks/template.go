package sinks

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// placeholders are the names a template may use, in the order error messages list them.
var placeholders = []string{"cluster", "group", "version", "resource", "kind", "namespace", "name", "type"}

// EmptyValue replaces values that a change does not have: the namespace of a cluster-scoped object, and namespace and name
// of a control record such as a gap, which is about a whole resource.
const EmptyValue = "_"

// Template makes the name of a destination (a topic, a subject) from a change: "k8s.{group}.{resource}". It is
// immutable and safe for concurrent use. The zero value is not usable; [ParseTemplate] makes one.
type Template struct {
	text  string
	parts []templatePart
}

// templatePart is literal text or, if placeholder is set, the place of a value.
type templatePart struct {
	literal     string
	placeholder string
}

// ParseTemplate parses a template. Placeholders are {cluster} {group} {version} {resource} {kind} {namespace} {name} {type};
// everything else is literal text, which cannot contain braces. Its errors contain the text that was found, its position
// (the first byte is 1), and what is allowed.
func ParseTemplate(text string) (*Template, error) {
	if text == "" {
		return nil, errors.New("empty template: write a name such as k8s.{group}.{resource}")
	}
	t := &Template{text: text}
	for at := 0; at < len(text); {
		p, next, err := parsePart(text, at)
		if err != nil {
			return nil, err
		}
		t.parts = append(t.parts, p)
		at = next
	}
	return t, nil
}

// parsePart parses the part at byte at and returns where the next one begins.
func parsePart(text string, at int) (templatePart, int, error) {
	switch text[at] {
	case '}':
		return templatePart{}, 0, fmt.Errorf("unbalanced \"}\" at position %d of %q: no \"{\" opens it", at+1, text)
	case '{':
		return parsePlaceholder(text, at)
	}
	length := strings.IndexAny(text[at:], "{}")
	if length < 0 {
		length = len(text) - at
	}
	return templatePart{literal: text[at : at+length]}, at + length, nil
}

func parsePlaceholder(text string, at int) (templatePart, int, error) {
	end := strings.IndexAny(text[at+1:], "{}")
	if end < 0 || text[at+1+end] == '{' {
		return templatePart{}, 0, fmt.Errorf("unbalanced \"{\" at position %d of %q: no \"}\" closes it", at+1, text)
	}
	name := text[at+1 : at+1+end]
	if !slices.Contains(placeholders, name) {
		return templatePart{}, 0, fmt.Errorf("unknown placeholder %q at position %d of %q; allowed are {%s}",
			"{"+name+"}", at+1, text, strings.Join(placeholders, "} {"))
	}
	return templatePart{placeholder: name}, at + 1 + end + 1, nil
}

// String returns the template as it was written.
func (t *Template) String() string { return t.text }

// UsesPlaceholder reports whether the template has the placeholder of that name, written without braces: Uses("name").
func (t *Template) UsesPlaceholder(placeholder string) bool {
	return placeholder != "" && slices.ContainsFunc(t.parts, func(p templatePart) bool { return p.placeholder == placeholder })
}

// IsConstant reports whether the template has no placeholder: its text is the name for every change.
func (t *Template) IsConstant() bool {
	return !slices.ContainsFunc(t.parts, func(p templatePart) bool { return p.placeholder != "" })
}

// AppendName appends the name for c to dst and returns the extended slice. escape appends a value in a form that the
// destination accepts and returns the extended slice; nil appends values unchanged. Literal text is never escaped. The core
// group is "core", any other empty value is [EmptyValue].
func (t *Template) AppendName(dst []byte, c *event.Change, escape func(dst []byte, token string) []byte) []byte {
	for _, p := range t.parts {
		switch {
		case p.placeholder == "":
			dst = append(dst, p.literal...)
		case escape == nil:
			dst = append(dst, placeholderValue(p.placeholder, c)...)
		default:
			dst = escape(dst, placeholderValue(p.placeholder, c))
		}
	}
	return dst
}

// placeholderValue returns the value of a placeholder; never an empty string.
func placeholderValue(placeholder string, c *event.Change) string {
	var v string
	switch placeholder {
	case "cluster":
		v = c.Cluster
	case "group":
		if c.Resource.Group == "" {
			return "core"
		}
		v = c.Resource.Group
	case "version":
		v = c.Resource.Version
	case "resource":
		v = c.Resource.Resource
	case "kind":
		v = c.Resource.Kind
	case "namespace":
		v = c.Namespace
	case "name":
		v = c.Name
	case "type":
		v = string(c.OriginalType())
	}
	if v == "" {
		return EmptyValue
	}
	return v
}
