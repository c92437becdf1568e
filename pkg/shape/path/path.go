package path

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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

// knownRoots are the top-level members of built-in resources. Custom resources may have others, so this list is used only to
// detect misspellings and to warn about unusual paths.
var knownRoots = []string{
	"apiVersion", "kind", "metadata", "spec", "status", "data", "stringData", "binaryData", "type", "immutable", "rules",
	"subjects", "roleRef", "aggregationRule", "webhooks", "secrets", "imagePullSecrets", "automountServiceAccountToken",
	"endpoints", "ports", "addressType", "subsets", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode",
	"allowVolumeExpansion", "mountOptions", "allowedTopologies", "handler", "overhead", "scheduling", "value",
	"globalDefault", "preemptionPolicy", "description", "revision", "template", "webhookConfiguration", "driver",
	"reason", "message", "reportingComponent", "reportingInstance", "involvedObject", "source", "firstTimestamp",
	"lastTimestamp", "count", "eventTime", "series", "action", "related", "note", "regarding", "deprecatedCount",
	"deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedSource",
}

// metadataMembers are all members of metadata, and whether they have members themselves. The API server drops others.
var metadataMembers = map[string]bool{
	"name": false, "generateName": false, "namespace": false, "selfLink": false, "uid": false, "resourceVersion": false,
	"generation": false, "creationTimestamp": false, "deletionTimestamp": false, "deletionGracePeriodSeconds": false,
	"labels": true, "annotations": true, "ownerReferences": true, "finalizers": true,
}

// eventPrefixes are prefixes that are valid in filters and events, but not in paths.
var eventPrefixes = []string{"object", "oldObject", "change", "before", "after"}

// checkReachable returns an error if a well-formed path cannot match anything.
func (p Path) checkReachable() error {
	first := p[0]
	switch {
	case first.Wildcard:
		return nil
	case strings.HasPrefix(first.Name, "$"):
		return errors.New(
			`JSONPath is not supported: remove "$." and start with a member of the object, as in spec.replicas`)
	case slices.Contains(eventPrefixes, first.Name):
		return fmt.Errorf("paths start inside the object: remove %q, as in spec.replicas", first.Name+".")
	case first.Name == "metadata":
		return p.checkMetadata()
	case (first.Name == "apiVersion" || first.Name == "kind") && len(p) > 1:
		return fmt.Errorf("%s is a single value without members", first.Name)
	}
	if !slices.Contains(knownRoots, first.Name) {
		if i := slices.IndexFunc(knownRoots, func(r string) bool { return strings.EqualFold(r, first.Name) }); i >= 0 {
			return fmt.Errorf("objects have no %q, did you mean %q?", first.Name, knownRoots[i])
		}
	}
	return nil
}

func (p Path) checkMetadata() error {
	if len(p) == 1 || p[1].Wildcard {
		return nil
	}
	name := p[1].Name
	within, known := metadataMembers[name]
	switch {
	case name == "managedFields":
		return errors.New("metadata.managedFields is always removed")
	case !known:
		return fmt.Errorf("metadata has no %q, only %s", name, strings.Join(sortedKeys(metadataMembers), ", "))
	case !within && len(p) > 2:
		return fmt.Errorf("metadata.%s is a single value without members", name)
	case (name == "labels" || name == "annotations") && len(p) == 3 && !p[2].Wildcard && !isLabelOrAnnotation(name, p[2].Name):
		return fmt.Errorf("%q is no name of %s: those are of ASCII letters, digits, \"-\", \"_\" and \".\", after a domain and \"/\" or without",
			p[2].Name, name)
	case (name == "labels" || name == "annotations") && len(p) > 3:
		return fmt.Errorf(
			`%s hold single values; a name with dots is written metadata.%s["%s"]`, name, name, p[2:].joinNames())
	}
	return nil
}

// qualifiedName is what the API server accepts as the name of a label.
var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)

// isLabelOrAnnotation reports whether labels, or annotations, can have a name. The domain of an annotation may have
// capitals.
func isLabelOrAnnotation(of, name string) bool {
	if of == "annotations" {
		name = strings.ToLower(name)
	}
	return qualifiedName.MatchString(name)
}

// joinNames returns the dotted name that the path was probably meant to be.
func (p Path) joinNames() string {
	names := make([]string, len(p))
	for i, s := range p {
		names[i] = s.Name
	}
	return strings.Join(names, ".")
}

func sortedKeys(m map[string]bool) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// CustomRoot returns the first member of the path, and whether only custom resources can have it.
func (p Path) CustomRoot() (first string, yes bool) {
	return p[0].Name, !p[0].Wildcard && !slices.Contains(knownRoots, p[0].Name)
}

// checkAlphabet returns an error if a name mixes Latin letters with Greek or Cyrillic ones, which look alike.
func checkAlphabet(name string) error {
	latin := strings.ContainsFunc(name, func(r rune) bool { return unicode.Is(unicode.Latin, r) })
	for _, r := range name {
		if latin && unicode.In(r, unicode.Greek, unicode.Cyrillic) {
			return fmt.Errorf("%q has the letter %c (%U), which is of another alphabet than the others", name, r, r)
		}
	}
	return nil
}

// checkName returns an error if the unquoted name of a member is probably a mistake.
func checkName(name string) error {
	// Invisible characters are reported with the file that has them.
	if i := strings.IndexFunc(name, func(r rune) bool { return r > unicode.MaxASCII && unicode.IsPrint(r) }); i >= 0 {
		r, _ := utf8.DecodeRuneInString(name[i:])
		return fmt.Errorf(`%q has the letter %c (%U); a name that really has it is written ["%s"]`, name, r, r, name)
	}
	switch _, err := strconv.ParseUint(name, 10, 64); {
	case err == nil:
		return fmt.Errorf(
			`%s is not a member name: write [*] for every element of a list, or ["%s"] for a member with that name`,
			name, name)
	case strings.Contains(name, "/"):
		return fmt.Errorf(`a name with "/" is written ["%s"]; names are separated by dots`, name)
	}
	return nil
}

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
