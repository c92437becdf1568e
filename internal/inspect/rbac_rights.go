package inspect

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// right is one rule of a role.
type right struct {
	group, resource string
	object          string // name of the one object it is about; "" for all
	url             string // that it is about in the place of a resource
	verbs           string // as YAML
	why             string // where in the configuration it comes from
}

const (
	readVerbs  = `["list", "watch"]`
	watchVerbs = `["watch"]`
)

// rights are what a configuration needs: by namespace, "" for the whole cluster, each in the order of the rules.
type rights map[string][]right

// add adds a right, once, and not where the whole cluster is allowed already.
func (r rights) add(namespace string, one right) {
	for _, where := range []string{"", namespace} {
		if slices.ContainsFunc(r[where], one.covered) {
			return
		}
	}
	r[namespace] = append(r[namespace], one)
}

// covered says whether other allows the same.
func (r right) covered(other right) bool {
	return r.url == other.url && r.group == other.group && r.resource == other.resource &&
		(r.verbs == other.verbs || r.verbs == watchVerbs && other.verbs == readVerbs) && (r.object == other.object || other.object == "")
}

// namespaces are those with rights, without the whole cluster, sorted.
func (r rights) namespaces() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r)), func(name string) bool { return name == "" })
}

func rightsOf(cfg *config.Config, found *selection.Explanation, triggers bool) rights {
	all := rights{}
	for _, n := range needs(cfg, found) {
		for _, s := range n.scopes {
			all.add(s.Namespace, right{
				group: s.Resource.Group, resource: s.Resource.Resource, object: s.Name(), verbs: readVerbs, why: n.why,
			})
		}
	}
	if triggers {
		const why = "--with-triggers: definitions of resources, so that new ones are noticed sooner"
		for _, t := range selection.Triggers(app.Rules(cfg)) {
			all.add("", right{group: t.Group, resource: t.Resource, verbs: watchVerbs, why: why})
		}
	}
	why := "the UID of this namespace tells that another cluster answers at the same address"
	if cfg.Cluster.Name == "" {
		why = "cluster.name is empty: the UID of this namespace names the cluster"
	}
	all.add("", right{resource: "namespaces", object: "kube-system", verbs: `["get"]`, why: why})
	for _, name := range found.NamedNamespaces(app.Rules(cfg)) {
		all.add("", right{resource: "namespaces", object: name, verbs: `["get"]`, why: "namespaces.include: whether each namespace that is named exists"})
	}
	all.addElection(cfg.Election)
	if cfg.Audit.On() && cfg.Audit.CountersEvery > 0 {
		all.add("", right{url: "/metrics", verbs: `["get"]`, why: "audit.countersEvery: what the API servers count of lost audit events"})
	}
	return all
}

// addElection adds what it takes to compete for a Lease. A right to create cannot name the object.
func (r rights) addElection(e config.Election) {
	if !e.On() {
		return
	}
	namespace, name := e.Place()
	lease := right{group: "coordination.k8s.io", resource: "leases", object: name, verbs: `["get", "update", "watch"]`, why: "election.lease: " + e.Lease}
	r.add(namespace, lease)
	lease.object, lease.verbs = "", `["create"]`
	r.add(namespace, lease)
}

// need is what one name of a rule needs.
type need struct {
	rule    int
	name    string // as written
	why     string
	assumed bool // that the resource is namespaced
	scopes  []selection.Scope
}

// needs are those of resources that are served and of those that are not yet, in the order of the rules.
func needs(cfg *config.Config, found *selection.Explanation) []need {
	var all []need
	add := func(rule, name int, assumed bool, scopes []selection.Scope) {
		written := cfg.Resources[rule].Select[name]
		all = append(all, need{
			rule: rule, name: written, assumed: assumed, scopes: scopes, why: fmt.Sprintf("%s: %s", pathOf(rule, name), written),
		})
	}
	for _, m := range found.Matches {
		add(m.Rule, m.Select, m.Assumed, m.Scopes)
	}
	for _, u := range found.Unserved {
		add(u.Rule, u.Select, u.Assumed, u.Scopes)
	}
	slices.SortStableFunc(all, func(a, b need) int { return a.rule - b.rule })
	return all
}
