package source

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// served is a resource that the API server lists and watches.
type served struct {
	resource   event.Resource
	namespaced bool
}

// catalog is what the API server serves: by group, in its order of preference of versions. It is not changed once made.
type catalog map[string][]served

// discover asks the API server what it serves. Groups that could not be asked stay as they were in old: an aggregated
// API server that is down has not taken its resources along. The names of such groups are returned.
func discover(ctx context.Context, client discovery.DiscoveryInterfaceWithContext, old catalog) (catalog, []string, error) {
	groups, lists, err := discovery.ServerGroupsAndResourcesWithContext(ctx, client)
	var partial *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partial) {
		return nil, nil, err
	}
	failed := map[string]bool{}
	if partial != nil {
		for gv := range partial.Groups {
			failed[gv.Group] = true
		}
	}
	return readCatalog(groups, lists, failed, old), slices.Sorted(maps.Keys(failed)), nil
}

func readCatalog(groups []*metav1.APIGroup, lists []*metav1.APIResourceList, failed map[string]bool, old catalog) catalog {
	byVersion := map[string][]metav1.APIResource{}
	for _, l := range lists {
		byVersion[l.GroupVersion] = l.APIResources
	}
	c := catalog{}
	for _, g := range groups {
		for _, version := range versionsOf(g) {
			gv := schema.GroupVersion{Group: g.Name, Version: version}
			for _, r := range byVersion[gv.String()] {
				if watchable(r) {
					c[g.Name] = append(c[g.Name], served{
						resource:   event.Resource{Group: g.Name, Version: version, Resource: r.Name, Kind: r.Kind},
						namespaced: r.Namespaced,
					})
				}
			}
		}
	}
	for group := range failed {
		// What was found before is whole, what is found now may lack a version.
		if before, ok := old[group]; ok {
			c[group] = before
		}
	}
	return c
}

// versionsOf gives a group's versions, the one its server prefers first.
func versionsOf(g *metav1.APIGroup) []string {
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

func watchable(r metav1.APIResource) bool {
	return !strings.ContainsRune(r.Name, '/') && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch")
}

// Events are served twice, by the core group and by events.k8s.io: the same objects with the same UIDs.
var (
	coreEvents = event.Resource{Resource: "events"}
	newEvents  = event.Resource{Group: "events.k8s.io", Resource: "events"}
)

func isSame(a, b event.Resource) bool { return a.Group == b.Group && a.Resource == b.Resource }

// unserved is a selected name that nothing serves.
type unserved struct {
	name   string // as written
	reason string
}

// resolve says what the rules select of a catalog: scopes in the order of the rules, and the names waited for. Rules
// must be valid.
func resolve(rules []Rule, c catalog) ([]Scope, []unserved) {
	var (
		scopes  []Scope
		waiting []unserved
		taken   = map[event.Resource]bool{} // by group and resource
	)
	leave := twin(rules, c)
	for i, rule := range rules {
		excluded := patterns(rule.Exclude)
		for _, p := range patterns(rule.Select) {
			found := c.find(p)
			known := func(u unserved) bool { return u.name == p.text }
			if len(found) == 0 && !p.wildcard() && !slices.ContainsFunc(waiting, known) {
				waiting = append(waiting, unserved{name: p.text, reason: c.whyUnserved(p)})
			}
			for _, s := range found {
				id := event.Resource{Group: s.resource.Group, Resource: s.resource.Resource}
				if taken[id] || isSame(id, leave) || slices.ContainsFunc(excluded, func(x pattern) bool { return x.matches(id) }) {
					continue
				}
				taken[id] = true
				scopes = append(scopes, rule.scopes(i, s)...)
			}
		}
	}
	return scopes, waiting
}

// twin is the one of the two kinds of events to leave alone: the newer, unless a rule names it.
func twin(rules []Rule, c catalog) event.Resource {
	for _, rule := range rules {
		for _, p := range patterns(rule.Select) {
			if !p.anyGroup && p.matches(newEvents) && len(c.find(p)) > 0 {
				return coreEvents
			}
		}
	}
	return newEvents
}

func patterns(texts []string) []pattern {
	all := make([]pattern, 0, len(texts))
	for _, text := range texts {
		if p, err := parsePattern(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// find gives what a pattern selects, each resource once, in the version asked for or preferred, in a stable order.
func (c catalog) find(p pattern) []served {
	var found []served
	for _, group := range slices.Sorted(maps.Keys(c)) {
		seen := map[string]bool{}
		for _, s := range c[group] {
			if !p.matches(s.resource) || p.version != "" && p.version != s.resource.Version || seen[s.resource.Resource] {
				continue
			}
			seen[s.resource.Resource] = true
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(a, b served) int {
		return cmp.Or(strings.Compare(a.resource.Group, b.resource.Group), strings.Compare(a.resource.Resource, b.resource.Resource))
	})
	return found
}

// serves says whether the resource is served in exactly this version.
func (c catalog) serves(r event.Resource) bool {
	return slices.ContainsFunc(c[r.Group], func(s served) bool { return s.resource == r })
}

// has says whether the resource is served in any version.
func (c catalog) has(r event.Resource) bool {
	return slices.ContainsFunc(c[r.Group], func(s served) bool { return isSame(s.resource, r) })
}

// equal says whether the same is served in the same versions.
func (c catalog) equal(other catalog) bool {
	return maps.EqualFunc(c, other, slices.Equal)
}

// whyUnserved helps with the usual slip, a group left out.
func (c catalog) whyUnserved(p pattern) string {
	if p.group == "" {
		for _, group := range slices.Sorted(maps.Keys(c)) {
			for _, s := range c[group] {
				if group != "" && s.resource.Resource == p.resource {
					return "nothing serves this; did you mean " + s.resource.String() + "?"
				}
			}
		}
	}
	return "nothing serves this; it will be watched as soon as something does"
}
