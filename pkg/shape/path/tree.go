package path

import (
	"fmt"
	"slices"
)

// Tree is a set of paths, as seen from one value while an object is walked. It is immutable and may be recursive.
type Tree struct {
	Ends    bool             // a path ends here
	Strict  bool             // a value of an unexpected form is treated as if a path ended here
	Copies  bool             // the members are annotations, some of which hold copies of objects
	Names   map[string]*Tree // by member name; nil if no path continues there
	Other   *Tree            // for all other members; nil for none
	Element *Tree            // for the elements of an array; nil for none
}

// Member returns the tree for a member; nil if no path continues there.
func (t *Tree) Member(name []byte) *Tree {
	if next, ok := t.Names[string(name)]; ok {
		return next
	}
	return t.Other
}

// MemberOrNil is Member for a tree that may be nil.
func (t *Tree) MemberOrNil(name []byte) *Tree {
	if t == nil {
		return nil
	}
	return t.Member(name)
}

// ElementOrNil returns the tree for the elements of a tree that may be nil.
func (t *Tree) ElementOrNil() *Tree {
	if t == nil {
		return nil
	}
	return t.Element
}

// Union returns the tree of the paths of t and under. The trees of t must not be recursive; those of under may be.
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

// maxTrees bounds the trees that combinations of wildcards can produce.
const maxTrees = 4096

// NewTree returns the tree of paths; nil for none.
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
		return nil, fmt.Errorf("these paths combined have too many wildcards")
	}
	return root, nil
}

// pathPosition is a position within one path.
type pathPosition struct{ path, segment int }

type treeBuilder struct {
	paths []Path
	built map[string]*Tree // by positions
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
			element = append(element, at) // [*] was omitted
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
