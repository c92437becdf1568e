package shape

import (
	"fmt"
	"strings"
)

// segment is one step of a path.
type segment struct {
	name string // of a member
	any  bool   // every member of an object, every element of an array
}

// path names values within an object.
type path []segment

// notInNames are the signs that a name has to be written in ["…"] for.
const notInNames = ".[]\"'*, \t\n"

const (
	maxSegments = 32  // segments
	maxPaths    = 100 // of one kind in one rule
)

// parsePath reads a path: names of members, separated by dots, from the top of the object. [*] stands for every element of
// a list or every member of a map; ["…"] is a name that holds dots or other signs. A name that meets a list is looked for
// in each of its elements, so that [*] may be left out there.
func parsePath(text string) (path, error) {
	var p path
	rest := text
	for rest != "" {
		s, after, err := parseSegment(rest, len(p) == 0)
		if err != nil {
			return nil, fmt.Errorf("%q: %w at position %d", text, err, len(text)-len(rest)+1)
		}
		p, rest = append(p, s), after
	}
	switch {
	case len(p) == 0:
		return nil, fmt.Errorf(`%q is no path: write it from the top of the object, for example spec.containers[*].env[*].value`, text)
	case len(p) > maxSegments:
		return nil, fmt.Errorf("%q has %d parts, at most %d are allowed", text, len(p), maxSegments)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%q can match nothing: %w", text, err)
	}
	return p, nil
}

func parseSegment(rest string, first bool) (segment, string, error) {
	if strings.HasPrefix(rest, "[") {
		return parseBracket(rest)
	}
	if !first {
		if rest[0] != '.' {
			return segment{}, "", fmt.Errorf(`expected "." or "["`)
		}
		rest = rest[1:]
	}
	end := strings.IndexAny(rest, notInNames)
	if end < 0 {
		end = len(rest)
	}
	if end == 0 {
		return segment{}, "", fmt.Errorf(`expected a name ([*] stands for all, ["…"] for a name with other signs)`)
	}
	return segment{name: rest[:end]}, rest[end:], checkName(rest[:end])
}

func parseBracket(rest string) (segment, string, error) {
	if after, ok := strings.CutPrefix(rest, "[*]"); ok {
		return segment{any: true}, after, nil
	}
	for _, quote := range []string{`"`, `'`} {
		inner, ok := strings.CutPrefix(rest, "["+quote)
		if !ok {
			continue
		}
		name, after, closed := strings.Cut(inner, quote+"]")
		if !closed || name == "" {
			return segment{}, "", fmt.Errorf(`expected a name and then %s]`, quote)
		}
		return segment{name: name}, after, nil
	}
	return segment{}, "", fmt.Errorf(`expected [*] for every element or member, or ["name"]`)
}

// identity names the members that say which object this is. They are in every event and cannot be taken out.
var identity = []path{
	{{name: "apiVersion"}},
	{{name: "kind"}},
	{{name: "metadata"}, {name: "name"}},
	{{name: "metadata"}, {name: "namespace"}},
	{{name: "metadata"}, {name: "uid"}},
	{{name: "metadata"}, {name: "resourceVersion"}},
}

// touches says that something p names is, holds or is part of what the other path names.
func (p path) touches(other path) bool {
	for i := range min(len(p), len(other)) {
		if !p[i].any && !other[i].any && p[i].name != other[i].name {
			return false
		}
	}
	return true
}

// String writes the path as it is configured.
func (p path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.any:
			b.WriteString("[*]")
		case strings.ContainsAny(s.name, notInNames), checkName(s.name) != nil:
			quote := `"`
			if strings.Contains(s.name, `"]`) {
				quote = "'"
			}
			b.WriteString("[" + quote + s.name + quote + "]")
		case i > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	return b.String()
}
