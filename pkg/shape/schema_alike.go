package shape

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// A path names one place of a value, and its type may be used at others: an environment variable of a container also in
// init containers. This file finds those that no path covers.

// UncoveredPlace is a place of the same type as one that redactPaths name, which none of them covers.
type UncoveredPlace struct {
	Path string // that would cover it
	Like string // the configured path of the other place
}

// objectType is the type of an object in a schema: its name in the OpenAPI document, "" where it is written in place, as in
// definitions of custom resources, and the names of its members.
type objectType struct {
	name    string
	members []string // sorted, without those of every object
}

// alikeMembers is how many members two types must share to be taken for versions of one type, such as Container and
// EphemeralContainer, or a container that a definition describes.
const alikeMembers = 5

// isLike reports whether two types are the same, or versions of one.
func (t objectType) isLike(other objectType) bool {
	if t.name != "" && t.name == other.name {
		return true
	}
	shared := 0
	for _, name := range t.members {
		if _, has := slices.BinarySearch(other.members, name); has {
			shared++
		}
	}
	more := max(len(t.members), len(other.members))
	if t.name == "" || other.name == "" {
		return shared > 1 && shared == more || shared >= alikeMembers && 5*shared >= 4*more
	}
	return shared >= alikeMembers && 5*shared >= 4*more
}

// commonMembers are those of every object.
var commonMembers = []string{"apiVersion", "kind", "metadata", "status"}

// typeOf returns the type of a node, a reference or the schema itself.
func (s *Schema) typeOf(n *schemaNode) objectType {
	var t objectType
	for range maxSchemaDepth {
		switch {
		case n == nil:
			return t
		case n.Ref != "":
			t.name = n.Ref
			n = s.all[strings.TrimPrefix(n.Ref, "#/components/schemas/")]
		case len(n.AllOf) == 1 && n.Properties == nil && n.Items == nil:
			n = n.AllOf[0]
		default:
			t.members = slices.DeleteFunc(slices.Sorted(maps.Keys(n.Properties)), func(name string) bool { return slices.Contains(commonMembers, name) })
			return t
		}
	}
	return t
}

// splitLast splits a path before its last name.
func splitLast(p path.Path) (owner, last path.Path) {
	at := len(p) - 1
	for at > 0 && p[at].Wildcard {
		at--
	}
	return p[:at], p[at:]
}

// typePlaces are the places in one type of objects that matter to the paths of a policy.
type typePlaces struct {
	owners    map[int][]objectType // by path: of the objects with the value that the path names
	uncovered []typedPlace
}

// typedPlace is a place that no path covers, of a value of the same name as that of a path, or of an object of the type that
// a path names as a whole.
type typedPlace struct {
	path  int // the index of the path
	place path.Path
	whole bool
	owner objectType // of the object with the value
}

// findPlaces finds what matters to paths in a schema; tree is that of the paths.
func (s *Schema) findPlaces(paths map[int]path.Path, tree *path.Tree) typePlaces {
	found := typePlaces{owners: map[int][]objectType{}}
	for i, p := range paths {
		owner, last := splitLast(p)
		s.eachNode(s.root, owner, 0, func(n *schemaNode) {
			if _, has := s.resolveRef(n).Properties[last[0].Name]; has {
				found.owners[i] = append(found.owners[i], s.typeOf(n))
			}
		})
	}
	w := placeWalk{schema: s, paths: paths, found: &found, above: map[*schemaNode]bool{}, whole: map[int][]objectType{}}
	for i, p := range paths {
		s.eachNode(s.root, p, 0, func(n *schemaNode) {
			if t := s.typeOf(n); len(t.members) >= alikeMembers {
				w.whole[i] = append(w.whole[i], t)
			}
		})
	}
	w.walk(s.root, nil, tree)
	return found
}

// eachNode calls each for the nodes that a path leads to.
func (s *Schema) eachNode(n *schemaNode, p path.Path, depth int, each func(*schemaNode)) {
	resolved := s.resolveRef(n)
	switch {
	case resolved == nil || depth > maxSchemaDepth:
	case resolved.Items != nil: // [*] may be omitted
		if len(p) > 0 && p[0].Wildcard {
			p = p[1:]
		}
		s.eachNode(resolved.Items, p, depth+1, each)
	case len(p) == 0:
		each(n)
	case p[0].Wildcard:
		for _, member := range resolved.Properties {
			s.eachNode(member, p[1:], depth+1, each)
		}
		if _, rest := resolved.additionalMembers(); rest != nil {
			s.eachNode(rest, p[1:], depth+1, each)
		}
	default:
		if member, has := resolved.Properties[p[0].Name]; has {
			s.eachNode(member, p[1:], depth+1, each)
		} else if _, rest := resolved.additionalMembers(); rest != nil {
			s.eachNode(rest, p[1:], depth+1, each)
		}
	}
}

// maxWalkedNodes bounds the walk through one schema.
const maxWalkedNodes = 100_000

// placeWalk walks through a schema, and the tree of the paths beside it.
type placeWalk struct {
	schema *Schema
	paths  map[int]path.Path
	found  *typePlaces
	whole  map[int][]objectType // of what paths name, by path
	above  map[*schemaNode]bool // types may contain themselves
	nodes  int
}

func (w *placeWalk) walk(n *schemaNode, at path.Path, tree *path.Tree) {
	resolved := w.schema.resolveRef(n)
	if w.nodes++; resolved == nil || w.above[resolved] || w.nodes > maxWalkedNodes || tree != nil && tree.Ends {
		return
	}
	w.above[resolved] = true
	defer delete(w.above, resolved)
	if resolved.Items != nil {
		w.walk(resolved.Items, append(at, path.Segment{Wildcard: true}), tree.ElementOrNil())
		return
	}
	if len(at) > 0 {
		w.recordPlaces(n, resolved, at, tree)
	}
	for _, name := range slices.Sorted(maps.Keys(resolved.Properties)) {
		if len(at) > 0 || !slices.Contains(commonMembers[:3], name) { // paths in metadata are checked with the configuration
			w.walk(resolved.Properties[name], append(at, path.Segment{Name: name}), tree.MemberOrNil([]byte(name)))
		}
	}
	if _, rest := resolved.additionalMembers(); rest != nil {
		var other *path.Tree
		if tree != nil {
			other = tree.Other
		}
		w.walk(rest, append(at, path.Segment{Wildcard: true}), other)
	}
}

// recordPlaces records the members of an object that have the name of a value that a path names, and are not covered.
func (w *placeWalk) recordPlaces(n, resolved *schemaNode, at path.Path, tree *path.Tree) {
	t := w.schema.typeOf(n)
	for i, p := range w.paths {
		if tree == nil && slices.ContainsFunc(w.whole[i], t.isLike) {
			w.found.uncovered = append(w.found.uncovered, typedPlace{path: i, place: slices.Clone(at), whole: true})
		}
		_, last := splitLast(p)
		if _, has := resolved.Properties[last[0].Name]; !has {
			continue
		}
		if tree.MemberOrNil([]byte(last[0].Name)) == nil { // one that names a part of it has seen it
			w.found.uncovered = append(w.found.uncovered, typedPlace{path: i, place: slices.Concat(at, last), owner: t})
		}
	}
}

// Uncovered returns the places in the schemas that were added which are of the same type as a place that redactPaths name,
// and which none of them covers.
func (c *PathCounter) Uncovered() (all []UncoveredPlace) {
	owners := map[int][]objectType{}
	for _, of := range c.places {
		for i, types := range of.owners {
			owners[i] = append(owners[i], types...)
		}
	}
	named := map[string]bool{}
	for _, of := range c.places {
		for _, u := range of.uncovered {
			text := u.place.String()
			if !named[text] && (u.whole || slices.ContainsFunc(owners[u.path], u.owner.isLike)) {
				named[text] = true
				all = append(all, UncoveredPlace{text, c.Paths[u.path].Path})
			}
		}
	}
	slices.SortFunc(all, func(a, b UncoveredPlace) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// maxNamedPlaces bounds the places in one text.
const maxNamedPlaces = 12

// DescribeUncovered returns the places as text, some of them where they are many; "" for none.
func DescribeUncovered(places []UncoveredPlace) string {
	var b strings.Builder
	for i, u := range places {
		if i == maxNamedPlaces {
			fmt.Fprintf(&b, ", and %d more", len(places)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (as %s)", u.Path, u.Like)
	}
	return b.String()
}
