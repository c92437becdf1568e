package path

import (
	"fmt"
	"slices"
)

// Tree tells, while an object is walked, which paths go on in a value. It is immutable and may refer to itself.
type Tree struct {
	Ends    bool             // a path ends here
	Strict  bool             // a value of another form than the tree expects is treated as if a path ended here
	Copies  bool             // these are annotations: some of them hold copies of whole objects
	Names   map[string]*Tree // of members; nil for one in which no path goes on
	Other   *Tree            // every other member; nil for none
	Element *Tree            // of an array; nil for none
}

// Member returns where the paths go on in the member of that name; nil for nowhere.
func (t *Tree) Member(name []byte) *Tree {
	if next, ok := t.Names[string(name)]; ok {
		return next
	}
	return t.Other
}

// MemberOrNil is member of a tree that may be nil.
func (t *Tree) MemberOrNil(name []byte) *Tree {
	if t == nil {
		return nil
	}
	return t.Member(name)
}

// ElementOrNil is the tree of elements of a tree that may be nil.
func (t *Tree) ElementOrNil() *Tree {
	if t == nil {
		return nil
	}
	return t.Element
}

// Union is the tree of what t or under says. What has the names, other and element of t must not refer to itself; under may.
func (t *Tree) Union(under *Tree) *Tree {
	switch {
	case t == nil || under != nil && under.Ends:
		return under
	case under == nil || t.Ends:
		return t
	}
	both := &Tree{Strict: t.Strict, Copies: t.Copies || under.Copies, Names: map[string]*Tree{}}
	for _, names := range []map[string]*Tree{t.Names, under.Names} {
		for name := range names {
			both.Names[name] = t.Member([]byte(name)).Union(under.Member([]byte(name)))
		}
	}
	both.Other, both.Element = t.Other.Union(under.Other), t.Element.Union(under.Element)
	return both
}

// maxTrees bounds what wildcards of many paths can multiply to.
const maxTrees = 4096

// NewTree makes the tree of paths; nil for none.
func NewTree(paths []Path) (*Tree, error) {
	b := treeBuilder{paths: paths, built: map[string]*Tree{}}
	var places []pathPosition
	for i, p := range paths {
		if p != nil {
			places = append(places, pathPosition{i, 0})
		}
	}
	root := b.buildTree(places)
	if len(b.built) > maxTrees {
		return nil, fmt.Errorf("these paths have too many wildcards between them")
	}
	return root, nil
}

// pathPosition is how far one path has come.
type pathPosition struct{ path, segment int }

type treeBuilder struct {
	paths []Path
	built map[string]*Tree // by places
}

func (b *treeBuilder) buildTree(places []pathPosition) *Tree {
	if len(places) == 0 || len(b.built) > maxTrees {
		return nil
	}
	slices.SortFunc(places, func(a, b pathPosition) int {
		if a.path != b.path {
			return a.path - b.path
		}
		return a.segment - b.segment
	})
	places = slices.Compact(places)
	key := fmt.Sprint(places)
	if t := b.built[key]; t != nil {
		return t
	}
	t := &Tree{}
	b.built[key] = t
	var other, element []pathPosition
	names := map[string][]pathPosition{}
	for _, at := range places {
		p := b.paths[at.path]
		switch next := (pathPosition{at.path, at.segment + 1}); {
		case at.segment == len(p):
			t.Ends = true
		case p[at.segment].Wildcard:
			other, element = append(other, next), append(element, next)
		default:
			names[p[at.segment].Name] = append(names[p[at.segment].Name], next)
			element = append(element, at) // [*] was left out
		}
	}
	for name, next := range names {
		if t.Names == nil {
			t.Names = map[string]*Tree{}
		}
		t.Names[name] = b.buildTree(append(next, other...))
	}
	t.Other, t.Element = b.buildTree(other), b.buildTree(element)
	return t
}
