package shape

import (
	"fmt"
	"slices"
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
	longestPath = 32  // segments
	mostPaths   = 100 // of one kind in one rule
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
	case len(p) > longestPath:
		return nil, fmt.Errorf("%q has %d parts, at most %d are allowed", text, len(p), longestPath)
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
	return segment{name: rest[:end]}, rest[end:], nil
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
	return segment{}, "", fmt.Errorf(`expected [*] or ["name"]`)
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

// place is how far one path has come.
type place struct{ path, segment int }

// tree tells, while an object is walked, which paths go on in a value. It is immutable and may refer to itself.
type tree struct {
	ends    bool             // a path ends here
	special bool             // the path with index 0 ends here, see grow
	names   map[string]*tree // of members; nil for one in which no path goes on
	other   *tree            // every other member; nil for none
	element *tree            // of an array; nil for none
}

// member returns where the paths go on in the member of that name; nil for nowhere.
func (t *tree) member(name []byte) *tree {
	if next, ok := t.names[string(name)]; ok {
		return next
	}
	return t.other
}

// mostTrees bounds what wildcards of many paths can multiply to.
const mostTrees = 4096

// grow makes the tree of paths. Where special is set, the path it holds comes first and its end is marked as special
// and not as an end.
func grow(special path, paths []path) (*tree, error) {
	g := grower{paths: append([]path{special}, paths...), grown: map[string]*tree{}}
	var places []place
	for i, p := range g.paths {
		if p != nil {
			places = append(places, place{i, 0})
		}
	}
	root := g.tree(places)
	if len(g.grown) > mostTrees {
		return nil, fmt.Errorf("these paths have too many wildcards between them")
	}
	return root, nil
}

type grower struct {
	paths []path
	grown map[string]*tree // by places
}

func (g *grower) tree(places []place) *tree {
	if len(places) == 0 || len(g.grown) > mostTrees {
		return nil
	}
	slices.SortFunc(places, func(a, b place) int {
		if a.path != b.path {
			return a.path - b.path
		}
		return a.segment - b.segment
	})
	places = slices.Compact(places)
	key := fmt.Sprint(places)
	if t := g.grown[key]; t != nil {
		return t
	}
	t := &tree{}
	g.grown[key] = t
	var other, element []place
	names := map[string][]place{}
	for _, at := range places {
		p := g.paths[at.path]
		switch next := (place{at.path, at.segment + 1}); {
		case at.segment == len(p) && at.path == 0:
			t.special = true
		case at.segment == len(p):
			t.ends = true
		case p[at.segment].any:
			other, element = append(other, next), append(element, next)
		default:
			names[p[at.segment].name] = append(names[p[at.segment].name], next)
			element = append(element, at) // [*] was left out
		}
	}
	for name, next := range names {
		if t.names == nil {
			t.names = map[string]*tree{}
		}
		t.names[name] = g.tree(append(next, other...))
	}
	t.other, t.element = g.tree(other), g.tree(element)
	return t
}

// String writes the path as it is configured.
func (p path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.any:
			b.WriteString("[*]")
		case strings.ContainsAny(s.name, notInNames):
			b.WriteString(`["` + s.name + `"]`)
		case i > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	return b.String()
}
