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

// Equal reports whether both catalogs have the same resources in the same versions.
func (c Catalog) Equal(other Catalog) bool {
	return maps.EqualFunc(c, other, slices.Equal)
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
