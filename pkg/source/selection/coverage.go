package selection

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// SelectsAll reports whether the rule selects every resource that a name, written as in Select, can mean, and the index of
// the entry that does. Namespaces and selectors are ignored: the first rule that selects a resource owns all of it.
func (r Rule) SelectsAll(name string) (index int, yes bool) {
	q, err := parsePattern(name)
	if err != nil || slices.ContainsFunc(parsePatterns(r.Exclude), q.overlaps) {
		return 0, false
	}
	return r.findEntry(func(p pattern) bool { return p.coversPattern(q) })
}

// SelectsByWildcard reports whether Select takes this resource through a wildcard, and the index of that entry.
func (r Rule) SelectsByWildcard(resource event.Resource) (index int, yes bool) {
	if r.excludesResource(resource) {
		return 0, false
	}
	return r.findEntry(func(p pattern) bool { return p.isWildcard() && p.matchesResource(resource) })
}

// findEntry returns the first entry of Select with a pattern that satisfies is.
func (r Rule) findEntry(is func(pattern) bool) (index int, found bool) {
	index = slices.IndexFunc(r.Select, func(text string) bool {
		p, err := parsePattern(text)
		return err == nil && is(p)
	})
	return index, index >= 0
}

// Matcher returns a function that reports whether the rule selects what was read of a resource in its version, regardless
// of other rules: it routes and shows changes, which carry their version. The rule of a resource is that of [Owners].
func (r Rule) Matcher() func(event.Resource) bool {
	selected, excluded := parsePatterns(r.Select), parsePatterns(r.Exclude)
	return func(resource event.Resource) bool {
		return slices.ContainsFunc(selected, func(p pattern) bool {
			return p.matchesResource(resource) && (p.version == "" || p.version == resource.Version)
		}) && !anyMatches(excluded, resource)
	}
}

// Owners returns a function that returns the rule that owns a resource, and everything that is stored of it: the first one
// that names it. It depends on the rules alone, neither on the version of the resource nor on what is served now, so that
// what was stored under other rules, or of a type that is gone, has the owner that is watched.
func Owners(rules []Rule) func(event.Resource) (rule int, owned bool) {
	selected, excluded := make([][]pattern, len(rules)), make([][]pattern, len(rules))
	for i, r := range rules {
		selected[i], excluded[i] = parsePatterns(r.Select), parsePatterns(r.Exclude)
	}
	return func(resource event.Resource) (int, bool) {
		for i := range rules {
			if anyMatches(selected[i], resource) && !anyMatches(excluded[i], resource) {
				return i, true
			}
		}
		return 0, false
	}
}

// Awaits reports whether a rule would select the resource if it were served, or served in another version than those of c.
func (c Catalog) Awaits(rules []Rule, r event.Resource) bool {
	served := c.Has(r)
	return slices.ContainsFunc(rules, func(rule Rule) bool {
		return !rule.excludesResource(r) && slices.ContainsFunc(parsePatterns(rule.Select), func(p pattern) bool {
			return p.matchesResource(r) && (!served || p.version != "")
		})
	})
}

// Overlaps reports whether some resource can be selected by both rules.
func (r Rule) Overlaps(other Rule) bool {
	for _, p := range parsePatterns(r.Select) {
		for _, q := range parsePatterns(other.Select) {
			if p.overlaps(q) && !r.excludesAll(q) && !other.excludesAll(p) && !r.excludesAll(p) && !other.excludesAll(q) {
				return true
			}
		}
	}
	return false
}

// excludesAll reports whether Exclude covers everything that p names.
func (r Rule) excludesAll(p pattern) bool {
	return slices.ContainsFunc(parsePatterns(r.Exclude), func(x pattern) bool { return x.coversPattern(p) })
}

// excludesResource reports whether Exclude names the resource.
func (r Rule) excludesResource(resource event.Resource) bool {
	return anyMatches(parsePatterns(r.Exclude), resource)
}

// IsNarrowed reports whether the rule selects only some objects of its resources.
func (r Rule) IsNarrowed() bool {
	return len(r.Namespaces.Include)+len(r.Namespaces.Exclude) > 0 || r.LabelSelector != "" || r.FieldSelector != ""
}

// IsWildcard reports whether a name, written as in Select, stands for several resources.
func IsWildcard(name string) bool {
	p, err := parsePattern(name)
	return err == nil && p.isWildcard()
}

// Triggers returns the resources in which changes indicate that types come or go. An exporter with the right to watch them
// (only the verb watch) finds new types within a second or two; without it, by polling every few seconds. The result is nil
// if every rule names groups without a dot: those are built into the API server.
func Triggers(rules []Rule) []event.Resource {
	for _, rule := range rules {
		for _, p := range parsePatterns(rule.Select) {
			if p.anyGroup || strings.ContainsRune(p.group, '.') {
				return []event.Resource{
					{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions", Kind: "CustomResourceDefinition"},
					{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices", Kind: "APIService"},
				}
			}
		}
	}
	return nil
}
