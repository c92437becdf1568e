package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// roleRule is one rule of a role.
type roleRule struct {
	group, resource string
	object          string // name of the only object; "" for all
	url             string // non-resource URL, in place of a resource
	verbs           string // as YAML
	comment         string // path in the configuration that requires it
}

const (
	readVerbs  = `["list", "watch"]`
	listVerbs  = `["list"]`
	watchVerbs = `["watch"]`
)

// roleRules are the rules that a configuration requires, by namespace; "" is the whole cluster.
type roleRules map[string][]roleRule

// addRule adds a rule unless it is covered by one of the namespace or of the whole cluster.
func (r roleRules) addRule(namespace string, one roleRule) {
	for _, where := range []string{"", namespace} {
		if slices.ContainsFunc(r[where], one.isCoveredBy) {
			return
		}
	}
	r[namespace] = append(r[namespace], one)
}

// isCoveredBy reports whether other allows the same.
func (r roleRule) isCoveredBy(other roleRule) bool {
	return r.url == other.url && r.group == other.group && r.resource == other.resource &&
		(r.verbs == other.verbs || (r.verbs == watchVerbs || r.verbs == listVerbs) && other.verbs == readVerbs) && (r.object == other.object || other.object == "")
}

// sortedNamespaces returns the namespaces with rules, without the whole cluster.
func (r roleRules) sortedNamespaces() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r)), func(name string) bool { return name == "" })
}

func requiredRules(cfg *config.Config, found *selection.Explanation, triggers bool) roleRules {
	all := roleRules{}
	for _, n := range requirements(cfg, found) {
		for _, s := range n.scopes {
			all.addRule(s.Namespace, roleRule{
				group: s.Resource.Group, resource: s.Resource.Resource, object: s.ObjectName(), verbs: readVerbs, comment: n.comment,
			})
		}
	}
	all.addInvolvedRules(cfg)
	if cfg.Redaction.Strict {
		all.addDefinitionRules(cfg, found)
	}
	if triggers {
		const why = "--with-triggers: definitions of resources, so that new ones are noticed sooner"
		for _, t := range selection.Triggers(config.SelectionRules(cfg.Resources)) {
			all.addRule("", roleRule{group: t.Group, resource: t.Resource, verbs: watchVerbs, comment: why})
		}
	}
	why := "the UID of this namespace identifies the cluster, to detect another one at the same address"
	if cfg.Cluster.Name == "" {
		why = "cluster.name is empty: the UID of this namespace names the cluster"
	}
	all.addRule("", roleRule{resource: "namespaces", object: "kube-system", verbs: `["get"]`, comment: why})
	for _, name := range found.NamedNamespaces(config.SelectionRules(cfg.Resources)) {
		all.addRule("", roleRule{resource: "namespaces", object: name, verbs: `["get"]`, comment: "namespaces.include: whether each namespace that is named exists"})
	}
	if len(found.NamespaceGlobs(config.SelectionRules(cfg.Resources))) > 0 {
		all.addRule("", roleRule{resource: "namespaces", verbs: listVerbs, comment: "namespaces.include: whether a namespace matches each pattern"})
	}
	all.addLeaseRules(cfg.Election)
	if cfg.Audit.Stamps.Enabled {
		all.addStampRules()
	}
	if cfg.Audit.HasEvents() && cfg.Audit.CountersEvery > 0 {
		all.addRule("", roleRule{url: "/metrics", verbs: `["get"]`, comment: "audit.countersEvery: the counters of lost audit events of the API servers"})
	}
	return all
}

// involvedTypes are what the controllers of Kubernetes name in Events, first those without a namespace.
var involvedTypes = [2][]string{
	{"nodes", "namespaces", "persistentvolumes"},
	{
		"pods", "persistentvolumeclaims", "services", "daemonsets.apps", "deployments.apps", "replicasets.apps", "statefulsets.apps",
		"cronjobs.batch", "jobs.batch", "horizontalpodautoscalers.autoscaling", "ingresses.networking.k8s.io",
	},
}

// addInvolvedRules adds the rules to read the objects of Events.
func (r roleRules) addInvolvedRules(cfg *config.Config) {
	for i, rule := range cfg.Resources {
		namespaces := rule.Namespaces.Names()
		if namespaces == nil {
			namespaces = []string{""}
		}
		for namespaced, types := range involvedTypes {
			if (rule.InvolvedObject == selection.InvolvedObject{}) {
				break
			}
			for _, name := range types {
				group, resource, _ := selection.LiteralName(name)
				for _, namespace := range [2][]string{{""}, namespaces}[namespaced] {
					r.addRule(namespace, roleRule{group: group, resource: resource, verbs: readVerbs, comment: fmt.Sprintf(
						"resources[%d].involvedObject: what Kubernetes names in Events; add the types that others do", i)})
				}
			}
		}
	}
}

// addDefinitionRules adds the rules to read the definitions of types that may be custom resources, where redactPaths have to
// match them.
func (r roleRules) addDefinitionRules(cfg *config.Config, found *selection.Explanation) {
	for _, n := range requirements(cfg, found) {
		if len(cfg.Resources[n.rule].RedactPaths) == 0 {
			continue
		}
		for _, s := range n.scopes {
			if selection.IsBuiltin(s.Resource) {
				continue
			}
			definition := s.Resource.String()
			if strings.Contains(definition, "*") {
				definition = ""
			}
			r.addRule("", roleRule{
				group: "apiextensions.k8s.io", resource: "customresourcedefinitions", object: definition, verbs: `["get"]`,
				comment: "redaction.strict: whether redactPaths match the type, now and after an edit of its definition",
			})
		}
	}
}

// addStampRules adds the rules to find out whether the admission policy is in force, and for which groups.
func (r roleRules) addStampRules() {
	const why = "audit.stamps: whether the admission policy that stamps objects is in force"
	for _, resource := range []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"} {
		r.addRule("", roleRule{group: "admissionregistration.k8s.io", resource: resource, object: stamp.PolicyName, verbs: `["list"]`, comment: why})
	}
	r.addRule("", roleRule{group: "apiregistration.k8s.io", resource: "apiservices", verbs: `["list"]`,
		comment: "audit.stamps: which groups other servers serve, where the policy has no effect"})
}

// addLeaseRules adds the rules to compete for the Lease. A rule for create cannot name the object.
func (r roleRules) addLeaseRules(e config.Election) {
	if !e.Enabled() {
		return
	}
	namespace, name := e.NamespacedName()
	lease := roleRule{group: "coordination.k8s.io", resource: "leases", object: name, verbs: `["get", "update", "watch"]`, comment: "election.lease: " + e.Lease}
	r.addRule(namespace, lease)
	lease.object, lease.verbs = "", `["create"]`
	r.addRule(namespace, lease)
}

// requirement is the access that one name of a rule requires.
type requirement struct {
	rule    int
	name    string // as written
	comment string
	assumed bool // the resource is assumed to be namespaced
	scopes  []selection.Scope
}

// requirements returns those of served resources and of resources that are not served yet, in the order of the rules.
func requirements(cfg *config.Config, found *selection.Explanation) []requirement {
	var all []requirement
	add := func(rule, name int, assumed bool, scopes []selection.Scope) {
		written := cfg.Resources[rule].Select[name]
		all = append(all, requirement{
			rule: rule, name: written, assumed: assumed, scopes: scopes, comment: fmt.Sprintf("%s: %s", pathOf(rule, name), written),
		})
	}
	for _, m := range found.Matches {
		add(m.Rule, m.Select, m.Assumed, m.Scopes)
	}
	for _, u := range found.Unserved {
		add(u.Rule, u.Select, u.Assumed, u.Scopes)
	}
	slices.SortStableFunc(all, func(a, b requirement) int { return a.rule - b.rule })
	return all
}
