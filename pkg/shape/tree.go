package shape

import (
	"fmt"
	"slices"
)

// tree tells, while an object is walked, which paths go on in a value. It is immutable and may refer to itself.
type tree struct {
	ends    bool             // a path ends here
	strict  bool             // a value of another form than the tree expects is treated as if a path ended here
	copies  bool             // these are annotations: some of them hold copies of whole objects, see copy.go
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

// to is member of a tree that may be nil.
func (t *tree) to(name []byte) *tree {
	if t == nil {
		return nil
	}
	return t.member(name)
}

// in is the tree of elements of a tree that may be nil.
func (t *tree) in() *tree {
	if t == nil {
		return nil
	}
	return t.element
}

// over is the tree of what t or under says. What has the names, other and element of t must not refer to itself; under may.
func (t *tree) over(under *tree) *tree {
	switch {
	case t == nil || under != nil && under.ends:
		return under
	case under == nil || t.ends:
		return t
	}
	both := &tree{strict: t.strict, copies: t.copies || under.copies, names: map[string]*tree{}}
	for _, names := range []map[string]*tree{t.names, under.names} {
		for name := range names {
			both.names[name] = t.member([]byte(name)).over(under.member([]byte(name)))
		}
	}
	both.other, both.element = t.other.over(under.other), t.element.over(under.element)
	return both
}

// maxTrees bounds what wildcards of many paths can multiply to.
const maxTrees = 4096

// treeOf makes the tree of paths; nil for none.
func treeOf(paths []path) (*tree, error) {
	b := treeBuilder{paths: paths, built: map[string]*tree{}}
	var places []place
	for i, p := range paths {
		if p != nil {
			places = append(places, place{i, 0})
		}
	}
	root := b.tree(places)
	if len(b.built) > maxTrees {
		return nil, fmt.Errorf("these paths have too many wildcards between them")
	}
	return root, nil
}

// place is how far one path has come.
type place struct{ path, segment int }

type treeBuilder struct {
	paths []path
	built map[string]*tree // by places
}

func (b *treeBuilder) tree(places []place) *tree {
	if len(places) == 0 || len(b.built) > maxTrees {
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
	if t := b.built[key]; t != nil {
		return t
	}
	t := &tree{}
	b.built[key] = t
	var other, element []place
	names := map[string][]place{}
	for _, at := range places {
		p := b.paths[at.path]
		switch next := (place{at.path, at.segment + 1}); {
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
		t.names[name] = b.tree(append(next, other...))
	}
	t.other, t.element = b.tree(other), b.tree(element)
	return t
}
