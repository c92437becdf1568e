package selection

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/nearest"
)

// Served is a resource that the API server serves.
type Served struct {
	Resource    event.Resource
	Namespaced  bool
	Unwatchable bool   // it cannot be listed and watched, and is never selected
	Aliases     string // the other names that kubectl accepts: singular, kind and short names, separated by commas
}

// Catalog holds what the API server serves: by group, with versions in the order of its preference. It is immutable.
type Catalog map[string][]Served

// ReadCatalog makes a catalog of discovery documents. Groups in failed did not answer and keep their entry in old: an
// aggregated API server that is down still has its resources.
func ReadCatalog(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, failed []string, old Catalog) Catalog {
	byVersion := map[string][]metav1.APIResource{}
	for _, l := range lists {
		byVersion[l.GroupVersion] = l.APIResources
	}
	c := Catalog{}
	for _, g := range groups {
		for _, version := range versionsByPreference(g) {
			gv := schema.GroupVersion{Group: g.Name, Version: version}
			for _, r := range byVersion[gv.String()] {
				if !strings.ContainsRune(r.Name, '/') {
					c[g.Name] = append(c[g.Name], Served{
						Resource:   event.Resource{Group: g.Name, Version: version, Resource: r.Name, Kind: r.Kind},
						Namespaced: r.Namespaced, Unwatchable: !isWatchable(r),
						Aliases: strings.Join(append([]string{r.SingularName, strings.ToLower(r.Kind)}, r.ShortNames...), ","),
					})
				}
			}
		}
	}
	for _, group := range failed {
		// The previous entry is complete; the current one may lack a version.
		if before, ok := old[group]; ok {
			c[group] = before
		}
	}
	return c
}

// versionsByPreference returns the versions of a group, the preferred one first.
func versionsByPreference(g *metav1.APIGroup) []string {
	versions := []string{}
	if v := g.PreferredVersion.Version; v != "" {
		versions = append(versions, v)
	}
	for _, v := range g.Versions {
		if !slices.Contains(versions, v.Version) {
			versions = append(versions, v.Version)
		}
	}
	return versions
}

func isWatchable(r metav1.APIResource) bool {
	return slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch")
}

// With returns a copy of the catalog with additional resources.
func (c Catalog) With(more []Served) Catalog {
	all := maps.Clone(c)
	for _, s := range more {
		all[s.Resource.Group] = append(slices.Clone(all[s.Resource.Group]), s)
	}
	return all
}

// Serves reports whether the resource is served in exactly this version.
func (c Catalog) Serves(r event.Resource) bool {
	return slices.ContainsFunc(c[r.Group], func(s Served) bool { return s.Resource == r && !s.Unwatchable })
}

// Has reports whether the resource is served in any version.
func (c Catalog) Has(r event.Resource) bool {
	return slices.ContainsFunc(c[r.Group], func(s Served) bool {
		return withoutVersion(s.Resource) == withoutVersion(r) && !s.Unwatchable
	})
}

// findMatching returns what a pattern selects, each resource once, in the version of the pattern or the preferred one,
// sorted by group and name.
func (c Catalog) findMatching(p pattern) []Served {
	var found []Served
	for _, group := range slices.Sorted(maps.Keys(c)) {
		seen := map[string]bool{}
		for _, s := range c[group] {
			if s.Unwatchable || !p.matchesResource(s.Resource) || p.version != "" && p.version != s.Resource.Version || seen[s.Resource.Resource] {
				continue
			}
			seen[s.Resource.Resource] = true
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b Served) int {
		return cmp.Or(strings.Compare(a.Resource.Group, b.Resource.Group), strings.Compare(a.Resource.Resource, b.Resource.Resource))
	})
	return found
}

// explainUnserved fills in why a name selects nothing, with what may have been meant: a missing group, a singular or short
// name, a name misspelt.
func (c Catalog) explainUnserved(u *Unserved, p pattern) {
	if p.isWildcard() {
		u.Reason = "the API server serves nothing of this group that can be watched; it is watched as soon as it is served"
		return
	}
	var names []string
	for _, group := range slices.Sorted(maps.Keys(c)) {
		for _, s := range c[group] {
			name := s.Resource.String()
			switch {
			case s.Unwatchable && p.matchesResource(s.Resource):
				u.Unwatchable, u.Reason = true, "it is served, but cannot be watched: its server offers no list, or no watch"
				return
			case s.Unwatchable:
				continue
			case p.version == "" && (p.group == "" || p.group == group) && s.hasName(p.resource) && !slices.Contains(u.Aliased, name):
				u.Aliased = append(u.Aliased, name)
			}
			names = append(names, name)
		}
	}
	u.Reason, u.Nearest = "the API server does not serve this; it is watched as soon as it is served", nearest.Name(p.text, names)
	if meant := cmp.Or(strings.Join(u.Aliased, " or "), u.Nearest); meant != "" {
		u.Reason = "the API server does not serve this; did you mean " + meant + "?"
	}
}

func (s Served) hasName(name string) bool {
	return name == s.Resource.Resource || slices.Contains(strings.Split(s.Aliases, ","), name)
}

// OfKind returns the resource of a kind in a group, in the preferred version. If the group is not known, it is the first one
// that has the kind.
func (c Catalog) OfKind(group, kind string, known bool) (found Served, ok bool) {
	for _, g := range slices.Sorted(maps.Keys(c)) {
		for _, s := range c[g] {
			if s.Resource.Kind == kind && (g == group || !known) {
				return s, true
			}
		}
	}
	return Served{}, false
}

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
