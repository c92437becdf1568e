package selection

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Explanation is the result of resolving rules. It is a copy; the caller owns it.
type Explanation struct {
	// Matches are the resources that the names of the rules select, in the order of the rules. If several rules select a
	// resource, the first has its scopes, and the others have a SkipReason.
	Matches []Match
	// Unserved are the selected names that are not served, in the order of the rules.
	Unserved []Unserved
	// Unanswered are the groups that did not answer discovery: nothing is known about them.
	Unanswered []string
}

// Match is one resource that a name of a rule selects.
type Match struct {
	Rule, Select int // the name is rules[Rule].Select[Select]
	Resource     event.Resource
	Namespaced   bool
	Assumed      bool    // Namespaced is an assumption, because it is unknown
	Scopes       []Scope // the scopes to watch; empty with a SkipReason
	SkipReason   string  // why this rule does not watch the resource, a few words; empty if it does
}

// Unserved is a selected name that the API server does not serve now.
type Unserved struct {
	Rule, Select int
	Name         string // as written
	Reason       string
	Aliased      []string // resources that kubectl knows by this name: singular, kind, short, or without the group
	Nearest      string   // the resource with the most similar name, if one is near
	Unwatchable  bool     // it is served, and cannot be watched
	Assumed      bool     // as in Match
	Scopes       []Scope  // the scopes to watch, derived from the name; empty for a wildcard, or if an earlier rule owns the resource
}

// Scopes returns the scopes of all matches, in the order of the rules.
func (e *Explanation) Scopes() []Scope {
	var all []Scope
	for _, m := range e.Matches {
		all = append(all, m.Scopes...)
	}
	return all
}

// NamedNamespaces returns the namespaces that rules name literally for namespaced resources: sorted, without duplicates.
// rules are the resolved rules.
func (e *Explanation) NamedNamespaces(rules []Rule) []string {
	var names []string
	for _, s := range e.allScopes() {
		if s.Namespaced {
			names = append(names, rules[s.Rule].Namespaces.literalNames()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// NamespaceGlob is a glob by which rules select namespaces.
type NamespaceGlob struct {
	Glob     string
	excludes [][]string // of each rule that has the glob
}

// HasMatch reports whether each rule that has the glob selects one of the namespaces by it.
func (g NamespaceGlob) HasMatch(names []string) bool {
	return !slices.ContainsFunc(g.excludes, func(exclude []string) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			return matchesAny([]string{g.Glob}, name) && !matchesAny(exclude, name)
		})
	})
}

// NamespaceGlobs returns the globs by which rules select namespaces for namespaced resources: sorted, without duplicates and
// without those that match every namespace. rules are the resolved rules.
func (e *Explanation) NamespaceGlobs(rules []Rule) []NamespaceGlob {
	var globs []NamespaceGlob
	for i, rule := range rules {
		if !slices.ContainsFunc(e.allScopes(), func(s Scope) bool { return s.Rule == i && s.Namespaced }) {
			continue
		}
		for _, glob := range rule.Namespaces.Include {
			if !isGlob(glob) || strings.Trim(glob, "*") == "" {
				continue
			}
			at, found := slices.BinarySearchFunc(globs, glob, func(g NamespaceGlob, text string) int { return strings.Compare(g.Glob, text) })
			if !found {
				globs = slices.Insert(globs, at, NamespaceGlob{Glob: glob})
			}
			globs[at].excludes = append(globs[at].excludes, rule.Namespaces.Exclude)
		}
	}
	return globs
}

// allScopes returns the scopes of all matches and of what is not served yet.
func (e *Explanation) allScopes() []Scope {
	all := e.Scopes()
	for _, u := range e.Unserved {
		all = append(all, u.Scopes...)
	}
	return all
}

// Resolve resolves rules, which must be valid, against a catalog.
func Resolve(rules []Rule, c Catalog) *Explanation {
	r := resolver{
		rules: rules, catalog: c, duplicate: duplicateEventsResource(rules, c),
		ownerOf: Owners(rules), awaited: map[event.Resource]bool{}, reported: map[ruleResource]bool{},
	}
	for i, rule := range rules {
		for j, p := range parsePatterns(rule.Select) {
			found := c.findMatching(p)
			if len(found) == 0 {
				r.addUnserved(i, j, p)
			}
			for _, s := range found {
				r.addMatch(i, j, s)
			}
		}
	}
	return &r.out
}

// ResolveWritten resolves rules by their text alone, without a cluster. Each literal name counts as served. A wildcard is a
// match with the resource "*", and with the group "*" if it selects every group. Kinds are empty, and so are versions that
// the name does not have.
func ResolveWritten(rules []Rule) (*Explanation, error) {
	if err := Validate(rules); err != nil {
		return nil, err
	}
	e := Resolve(rules, catalogFromText(rules))
	for i := range e.Matches {
		e.Matches[i].Assumed = !isScopeKnown(e.Matches[i].Resource)
	}
	return e, nil
}

type resolver struct {
	rules     []Rule
	catalog   Catalog
	duplicate event.Resource // the events resource that is not watched, see duplicateEventsResource
	ownerOf   func(event.Resource) (rule int, owned bool)
	awaited   map[event.Resource]bool // unserved resources that a rule waits for
	reported  map[ruleResource]bool
	out       Explanation
}

// ruleResource identifies a resource that a rule names. It is reported once, however many names of the rule select it.
type ruleResource struct {
	rule     int
	resource event.Resource
}

func (r *resolver) addMatch(rule, name int, s Served) {
	id := withoutVersion(s.Resource)
	if r.reported[ruleResource{rule, id}] {
		return
	}
	r.reported[ruleResource{rule, id}] = true
	owner, _ := r.ownerOf(id)
	m := Match{Rule: rule, Select: name, Resource: s.Resource, Namespaced: s.Namespaced}
	switch {
	case r.rules[rule].excludesResource(id):
		m.SkipReason = "excluded by this rule"
	case id == r.duplicate:
		m.SkipReason = fmt.Sprintf("the same objects as %s, which are watched", otherEventsResource(id))
	case owner != rule:
		m.SkipReason = fmt.Sprintf("already selected by resources[%d]", owner)
	default:
		m.Scopes = r.rules[rule].scopesFor(rule, s)
		for i := range m.Scopes {
			m.Scopes[i].ByWildcard = !isNamed(r.rules, id)
		}
	}
	r.out.Matches = append(r.out.Matches, m)
}

func (r *resolver) addUnserved(rule, name int, p pattern) {
	u := Unserved{Rule: rule, Select: name, Name: p.text}
	r.catalog.explainUnserved(&u, p)
	s := p.assumedServed()
	id := withoutVersion(s.Resource)
	if owner, owned := r.ownerOf(id); owned && owner == rule && !r.awaited[id] && !p.isWildcard() {
		r.awaited[id] = true
		u.Assumed, u.Scopes = !isScopeKnown(s.Resource), r.rules[rule].scopesFor(rule, s)
	}
	r.out.Unserved = append(r.out.Unserved, u)
}

func isNamed(rules []Rule, r event.Resource) bool {
	return slices.ContainsFunc(rules, func(rule Rule) bool {
		return slices.ContainsFunc(parsePatterns(rule.Select), func(p pattern) bool { return !p.isWildcard() && p.matchesResource(r) })
	})
}

// MaySelect reports whether some rule may select a resource of a group.
func MaySelect(rules []Rule, group string) bool {
	return slices.ContainsFunc(rules, func(rule Rule) bool {
		return slices.ContainsFunc(parsePatterns(rule.Select), (pattern{resource: "*", group: group}).overlaps)
	})
}

// withoutVersion returns the resource without version and kind, which rules do not distinguish.
func withoutVersion(r event.Resource) event.Resource {
	return event.Resource{Group: r.Group, Resource: r.Resource}
}

// Events are served twice, by the core group and by events.k8s.io: the same objects with the same UIDs.
var (
	coreEvents = event.Resource{Resource: "events"}
	newEvents  = event.Resource{Group: "events.k8s.io", Resource: "events"}
)

// duplicateEventsResource returns the one of the two events resources that is not watched: events.k8s.io, unless a rule
// names it.
func duplicateEventsResource(rules []Rule, c Catalog) event.Resource {
	for _, rule := range rules {
		for _, p := range parsePatterns(rule.Select) {
			if !p.anyGroup && p.matchesResource(newEvents) && len(c.findMatching(p)) > 0 {
				return coreEvents
			}
		}
	}
	return newEvents
}

func otherEventsResource(r event.Resource) event.Resource {
	if r == coreEvents {
		return newEvents
	}
	return coreEvents
}
