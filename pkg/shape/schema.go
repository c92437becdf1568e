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
