package selection

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Takes says whether the rule selects every resource that the name, written as in Select, can mean, and by which of its
// entries. Namespaces and selectors do not count: of several rules the first that selects a resource has it alone.
func (r Rule) Takes(name string) (index int, yes bool) {
	q, err := parsePattern(name)
	if err != nil || slices.ContainsFunc(patterns(r.Exclude), q.meets) {
		return 0, false
	}
	return r.find(func(p pattern) bool { return p.covers(q) })
}

// Sweeps says whether Select takes this resource through a wildcard, and by which of its entries.
func (r Rule) Sweeps(resource event.Resource) (index int, yes bool) {
	if r.excludes(resource) {
		return 0, false
	}
	return r.find(func(p pattern) bool { return p.wildcard() && p.matches(resource) })
}

// find returns the first entry of Select that is such a pattern.
func (r Rule) find(is func(pattern) bool) (index int, found bool) {
	index = slices.IndexFunc(r.Select, func(text string) bool {
		p, err := parsePattern(text)
		return err == nil && is(p)
	})
	return index, index >= 0
}

// Taker returns a function that says whether the rule selects a resource in its version, whatever other rules do.
func (r Rule) Taker() func(event.Resource) bool {
	selected, excluded := patterns(r.Select), patterns(r.Exclude)
	return func(resource event.Resource) bool {
		return slices.ContainsFunc(selected, func(p pattern) bool {
			return p.matches(resource) && (p.version == "" || p.version == resource.Version)
		}) && !anyMatches(excluded, resource)
	}
}

// Awaits says whether a rule would select the resource if it was served, or served in another version than those of c.
func (c Catalog) Awaits(rules []Rule, r event.Resource) bool {
	served := c.Has(r)
	return slices.ContainsFunc(rules, func(rule Rule) bool {
		return !rule.excludes(r) && slices.ContainsFunc(patterns(rule.Select), func(p pattern) bool {
			return p.matches(r) && (!served || p.version != "")
		})
	})
}

// Meets says whether some resource may be selected by both rules.
func (r Rule) Meets(other Rule) bool {
	for _, p := range patterns(r.Select) {
		for _, q := range patterns(other.Select) {
			if p.meets(q) && !r.leavesOut(q) && !other.leavesOut(p) && !r.leavesOut(p) && !other.leavesOut(q) {
				return true
			}
		}
	}
	return false
}

// leavesOut says that Exclude covers everything that p names.
func (r Rule) leavesOut(p pattern) bool {
	return slices.ContainsFunc(patterns(r.Exclude), func(x pattern) bool { return x.covers(p) })
}

// excludes says that Exclude names the resource.
func (r Rule) excludes(resource event.Resource) bool {
	return anyMatches(patterns(r.Exclude), resource)
}

// Narrows says that the rule takes some objects of its resources only.
func (r Rule) Narrows() bool {
	return len(r.Namespaces.Include)+len(r.Namespaces.Exclude) > 0 || r.LabelSelector != "" || r.FieldSelector != ""
}

// Wildcard says whether a name, written as in Select, stands for several resources.
func Wildcard(name string) bool {
	p, err := parsePattern(name)
	return err == nil && p.wildcard()
}

// Triggers are the resources whose changes mean that types come or go. An exporter that is allowed to watch them (the verb
// watch alone) finds new types within a second or two, otherwise by asking every few seconds. There are none where every
// rule names groups without a dot: those are built into the API server.
func Triggers(rules []Rule) []event.Resource {
	for _, rule := range rules {
		for _, p := range patterns(rule.Select) {
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
