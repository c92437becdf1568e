package shape

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/nearest"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// Schema is the OpenAPI v3 schema of one type, as an API server publishes it.
type Schema struct {
	root *schemaNode
	all  map[string]*schemaNode // for references
}

// schemaNode holds the parts of a schema that decide which members an object can have.
type schemaNode struct {
	Ref        string                 `json:"$ref"`
	AllOf      []*schemaNode          `json:"allOf"`
	Type       string                 `json:"type"`
	Properties map[string]*schemaNode `json:"properties"`
	Additional json.RawMessage        `json:"additionalProperties"` // a schema or a boolean
	Items      *schemaNode            `json:"items"`
	Preserve   bool                   `json:"x-kubernetes-preserve-unknown-fields"`
	Embedded   bool                   `json:"x-kubernetes-embedded-resource"`
	Kinds      []schemaKind           `json:"x-kubernetes-group-version-kind"`
}

type schemaKind struct{ Group, Version, Kind string }

// Schemas are those of one OpenAPI v3 document. It is not modified after ParseSchemas.
type Schemas struct{ all map[string]*schemaNode }

// ParseSchemas reads an OpenAPI v3 document, which an API server has for each group and version.
func ParseSchemas(document []byte) (*Schemas, error) {
	var d struct {
		Components struct {
			Schemas map[string]*schemaNode `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("OpenAPI v3 document: %w", err)
	}
	return &Schemas{d.Components.Schemas}, nil
}

// MetadataSchema returns the schema of objects that are captured without anything but apiVersion, kind and metadata.
func MetadataSchema() *Schema {
	return &Schema{root: (&schemaNode{}).withObjectMembers()}
}

// ParseDefinition reads a CustomResourceDefinition. It returns the schema of one of its versions, and an identity that every
// edit of the definition changes.
func ParseDefinition(definition []byte, version string) (s *Schema, identity string, err error) {
	var d struct {
		Metadata definitionMetadata
		Spec     struct {
			PreserveUnknownFields bool
			Versions              []struct {
				Name   string
				Schema struct {
					Root *schemaNode `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := json.Unmarshal(definition, &d); err != nil {
		return nil, "", fmt.Errorf("definition: %w", err)
	}
	if d.Metadata.UID == "" {
		return nil, "", errors.New("the definition has no UID")
	}
	for _, v := range d.Spec.Versions {
		if v.Name == version {
			root := v.Schema.Root
			if root == nil || d.Spec.PreserveUnknownFields { // then the API server removes no member
				root = &schemaNode{Preserve: true}
			}
			return &Schema{root: root.withObjectMembers()}, d.Metadata.identity(), nil
		}
	}
	return nil, "", fmt.Errorf("the definition has no version %q", version)
}

// definitionMetadata identifies a state of a CustomResourceDefinition.
type definitionMetadata struct {
	UID        string
	Generation int64
}

func (m definitionMetadata) identity() string { return fmt.Sprintf("%s/%d", m.UID, m.Generation) }

// DefinitionIdentity returns the identity of a CustomResourceDefinition by its metadata alone; "" if it has none.
func DefinitionIdentity(definition []byte) string {
	var d struct{ Metadata definitionMetadata }
	if err := json.Unmarshal(definition, &d); err != nil || d.Metadata.UID == "" {
		return ""
	}
	return d.Metadata.identity()
}

// withObjectMembers adds the members that each object has and that a definition leaves out. Paths in metadata are checked
// with the configuration.
func (n *schemaNode) withObjectMembers() *schemaNode {
	all := *n
	all.Properties = maps.Clone(n.Properties)
	if all.Properties == nil {
		all.Properties = map[string]*schemaNode{}
	}
	text := &schemaNode{Type: "string"}
	all.Properties["apiVersion"], all.Properties["kind"], all.Properties["metadata"] = text, text, &schemaNode{Preserve: true}
	return &all
}

// Find returns the schema of a kind; false if the document has none.
func (s *Schemas) Find(group, version, kind string) (*Schema, bool) {
	for _, n := range s.all {
		if n != nil && slices.Contains(n.Kinds, schemaKind{group, version, kind}) {
			return &Schema{root: n, all: s.all}, true
		}
	}
	return nil, false
}

// PathMatch is whether a path can match in objects of a type.
type PathMatch int

// The values of PathMatch, the better ones higher.
const (
	PathUnknown  PathMatch = iota // neither a schema nor an object has been seen
	PathAbsent                    // no object of the type has such a member
	PathPossible                  // the schema leaves open which members exist
	PathKnown                     // the schema or an object has it
)

// Match returns whether the schema has a path, and if not the nearest path that it has, or "".
func (s *Schema) Match(p path.Path) (PathMatch, string) {
	match, nearest := s.matchFrom(s.root, p, 0)
	if match != PathAbsent || nearest == nil {
		return match, ""
	}
	return match, nearest.String()
}

// maxSchemaDepth bounds the references that are followed for one path.
const maxSchemaDepth = 100

// matchFrom matches the path p from a node. The second result is the nearest path from there, where p is absent.
func (s *Schema) matchFrom(n *schemaNode, p path.Path, depth int) (PathMatch, path.Path) {
	n = s.resolveRef(n)
	switch {
	case n == nil || depth > maxSchemaDepth:
		return PathPossible, nil
	case len(p) == 0:
		return PathKnown, nil
	case n.Items != nil: // [*] may be omitted
		if p[0].Wildcard {
			return prefixed(p[:1])(s.matchFrom(n.Items, p[1:], depth+1))
		}
		return s.matchFrom(n.Items, p, depth+1)
	case p[0].Wildcard:
		return s.matchMembers(n, p, depth)
	}
	if member, ok := n.Properties[p[0].Name]; ok {
		return prefixed(p[:1])(s.matchFrom(member, p[1:], depth+1))
	}
	if open, rest := n.additionalMembers(); open {
		if rest == nil {
			return PathPossible, nil
		}
		return prefixed(p[:1])(s.matchFrom(rest, p[1:], depth+1))
	}
	return PathAbsent, s.nearestMember(n, p, depth)
}

// matchMembers matches a path that begins with [*] in an object: the best of all members counts.
func (s *Schema) matchMembers(n *schemaNode, p path.Path, depth int) (best PathMatch, nearest path.Path) {
	best = PathAbsent
	open, rest := n.additionalMembers()
	if open {
		best, nearest = PathPossible, nil
		if rest != nil {
			best, nearest = prefixed(p[:1])(s.matchFrom(rest, p[1:], depth+1))
		}
	}
	for _, member := range n.Properties {
		if match, near := prefixed(p[:1])(s.matchFrom(member, p[1:], depth+1)); match > best {
			best, nearest = match, near
		}
	}
	return best, nearest
}

// nearestMember returns p with its first name corrected, if the result is a path of the schema or near one; nil otherwise.
func (s *Schema) nearestMember(n *schemaNode, p path.Path, depth int) path.Path {
	names := make([]string, 0, len(n.Properties))
	for name := range n.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	near := nearest.Name(p[0].Name, names)
	if near == "" {
		return nil
	}
	first := path.OfNames(near)
	match, rest := s.matchFrom(n.Properties[near], p[1:], depth+1)
	if match == PathAbsent {
		if rest == nil {
			return nil
		}
		return append(first, rest...)
	}
	return append(first, p[1:]...)
}

// prefixed puts a prefix before the nearest path of a result.
func prefixed(prefix path.Path) func(PathMatch, path.Path) (PathMatch, path.Path) {
	return func(match PathMatch, nearest path.Path) (PathMatch, path.Path) {
		if nearest == nil {
			return match, nil
		}
		return match, append(slices.Clone(prefix), nearest...)
	}
}

// resolveRef follows references; nil for one that leads nowhere.
func (s *Schema) resolveRef(n *schemaNode) *schemaNode {
	for range maxSchemaDepth {
		switch {
		case n == nil:
			return nil
		case n.Ref != "":
			n = s.all[strings.TrimPrefix(n.Ref, "#/components/schemas/")]
		case len(n.AllOf) == 1 && n.Properties == nil && n.Items == nil: // a reference beside a default
			n = n.AllOf[0]
		default:
			return n
		}
	}
	return nil
}

// additionalMembers reports whether an object can have members beside its properties, and their schema; nil for any.
func (n *schemaNode) additionalMembers() (open bool, members *schemaNode) {
	switch {
	case n.Preserve || n.Embedded || len(n.AllOf) > 0:
		return true, nil
	case string(n.Additional) == "false":
		return false, nil
	case string(n.Additional) == "true":
		return true, nil
	case len(n.Additional) > 0:
		if json.Unmarshal(n.Additional, &members) != nil {
			members = nil
		}
		return true, members
	}
	return len(n.Properties) == 0 && (n.Type == "" || n.Type == "object"), nil
}

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
