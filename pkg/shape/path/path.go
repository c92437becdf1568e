package path

import (
	"fmt"
	"strings"
)

// Segment is one step of a path.
type Segment struct {
	Name     string // of a member, unless Wildcard
	Wildcard bool   // every member of an object, every element of an array
}

// Path selects values within an object.
type Path []Segment

// quotedCharacters require a name to be written as ["…"].
const quotedCharacters = ".[]\"'*, \t\n"

const maxSegments = 32

// Parse parses a path: names of members from the top of the object, separated by dots. [*] stands for every element of a
// list or every member of a map; ["…"] is a name with dots or other special characters. A name applied to a list is looked
// up in each element, so [*] is optional there.
func Parse(text string) (Path, error) {
	var p Path
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
		return nil, fmt.Errorf(
			`%q is not a path: start at the top of the object, for example spec.containers[*].env[*].value`, text)
	case len(p) > maxSegments:
		return nil, fmt.Errorf("%q has %d parts, at most %d are allowed", text, len(p), maxSegments)
	}
	if err := p.checkReachable(); err != nil {
		return nil, fmt.Errorf("%q cannot match anything: %w", text, err)
	}
	return p, nil
}

func parseSegment(rest string, first bool) (Segment, string, error) {
	if strings.HasPrefix(rest, "[") {
		return parseBracket(rest)
	}
	if !first {
		if rest[0] != '.' {
			return Segment{}, "", fmt.Errorf(`expected "." or "["`)
		}
		rest = rest[1:]
	}
	end := strings.IndexAny(rest, quotedCharacters)
	if end < 0 {
		end = len(rest)
	}
	if end == 0 {
		return Segment{}, "", fmt.Errorf(`expected a name ([*] stands for all, ["…"] for a name with special characters)`)
	}
	return Segment{Name: rest[:end]}, rest[end:], checkName(rest[:end])
}

func parseBracket(rest string) (Segment, string, error) {
	if after, ok := strings.CutPrefix(rest, "[*]"); ok {
		return Segment{Wildcard: true}, after, nil
	}
	for _, quote := range []string{`"`, `'`} {
		inner, ok := strings.CutPrefix(rest, "["+quote)
		if !ok {
			continue
		}
		name, after, closed := strings.Cut(inner, quote+"]")
		if !closed || name == "" {
			return Segment{}, "", fmt.Errorf(`expected a name and then %s]`, quote)
		}
		return Segment{Name: name}, after, checkAlphabet(name)
	}
	return Segment{}, "", fmt.Errorf(`expected [*] for every element or member, or ["name"]`)
}

// OfNames returns the path of members with these names.
func OfNames(names ...string) Path {
	p := make(Path, len(names))
	for i, name := range names {
		p[i].Name = name
	}
	return p
}

// Includes reports whether every value selected by other is selected by p, or part of a value that p selects. A [*] in other
// that p omits stands for the elements of a list.
func (p Path) Includes(other Path) bool {
	i := 0
	for _, s := range other {
		switch {
		case i == len(p):
			return true
		case p[i] == s, p[i].Wildcard:
			i++
		case !s.Wildcard:
			return false
		}
	}
	return i == len(p)
}

// Overlaps reports whether a value selected by one path can contain, equal or be part of a value selected by the other.
func (p Path) Overlaps(other Path) bool {
	for i := range min(len(p), len(other)) {
		if !p[i].Wildcard && !other[i].Wildcard && p[i].Name != other[i].Name {
			return false
		}
	}
	return true
}

// String returns the path as it is configured.
func (p Path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.Wildcard:
			b.WriteString("[*]")
		case strings.ContainsAny(s.Name, quotedCharacters), checkName(s.Name) != nil:
			quote := `"`
			if strings.Contains(s.Name, `"]`) {
				quote = "'"
			}
			b.WriteString("[" + quote + s.Name + quote + "]")
		case i > 0:
			b.WriteString("." + s.Name)
		default:
			b.WriteString(s.Name)
		}
	}
	return b.String()
}
