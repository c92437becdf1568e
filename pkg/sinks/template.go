package sinks

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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
	literal := text[at:]
	if end := strings.IndexAny(literal, "{}"); end >= 0 {
		literal = literal[:end]
	}
	return templatePart{literal: literal}, at + len(literal), nil
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
		v = cmp.Or(c.Resource.Group, "core")
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
	return cmp.Or(v, EmptyValue)
}

// KeyHash returns FNV-1a of the key of c's object (draft-eastlake-fnv), 64 bits. Sinks of destinations without an order of
// their own spread objects over lanes by it. It must never change: cursors are stored by lane.
func KeyHash(c *event.Change) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	sum := uint64(offset)
	for _, b := range c.AppendKey(make([]byte, 0, 256)) {
		sum = (sum ^ uint64(b)) * prime
	}
	return sum
}

// SharesHashes reports whether some hash is i modulo m and j modulo n.
func SharesHashes(i, m, j, n uint64) bool {
	for n != 0 { // m becomes the greatest common divisor; i and j only count modulo that
		m, n = n, m%n
	}
	return i%m == j%m
}

// AppendAttribute appends the value of a CloudEvents attribute as an HTTP or NATS header has it: space, double quote,
// percent and everything but printable ASCII is percent-encoded (http-protocol-binding.md and nats-protocol-binding.md,
// section 3.1.3.2).
func AppendAttribute(dst, value []byte) []byte {
	const digits = "0123456789ABCDEF"
	for _, b := range value {
		if b <= ' ' || b == '"' || b == '%' || b > '~' {
			dst = append(dst, '%', digits[b>>4], digits[b&15])
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}

// IsPort reports whether a text is the number of a port.
func IsPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// CheckRange returns an error unless a number is between two bounds, both included.
func CheckRange(n, low, high int) error {
	if n < low || n > high {
		return fmt.Errorf("%d is not between %d and %d", n, low, high)
	}
	return nil
}

// CheckTimeout returns an error unless a duration is between two bounds, both included.
func CheckTimeout(d, least, most time.Duration) error {
	switch {
	case d < least:
		return fmt.Errorf("too short: found %v, expected at least %v", d, least)
	case d > most:
		return fmt.Errorf("too long: found %v, expected at most %v", d, most)
	}
	return nil
}

// dottedNumbers matches what looks like an IPv4 address.
var dottedNumbers = regexp.MustCompile(`^[0-9]+(\.[0-9]+){3}$`)

// CheckHost returns why nothing can be reached under a host: it looks like an IP address and is none, or is too long. The
// error does not quote it.
func CheckHost(host string) error {
	_, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		return nil
	case strings.ContainsRune(host, ':'):
		return errors.New("the host is not an IPv6 address")
	case dottedNumbers.MatchString(host):
		return errors.New("the host is not an IPv4 address, whose numbers are 0 to 255 without leading zeros")
	case len(host) > 253: // of a name in the DNS
		return errors.New("the host is longer than any name, 253 characters")
	}
	return nil
}
