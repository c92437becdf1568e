package selection

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// catalogFromText returns a catalog in which each literal name and each wildcard of the rules is a served resource.
func catalogFromText(rules []Rule) Catalog {
	c := Catalog{}
	for _, rule := range rules {
		for _, p := range parsePatterns(rule.Select) {
			s := p.assumedServed()
			if !slices.Contains(c[s.Resource.Group], s) {
				c[s.Resource.Group] = append(c[s.Resource.Group], s)
			}
		}
	}
	return c
}

// assumedServed returns the resource that the pattern names, with what is known from the name alone.
func (p pattern) assumedServed() Served {
	group := p.group
	if p.anyGroup {
		group = "*"
	}
	return Served{
		Resource:   event.Resource{Group: group, Version: p.version, Resource: p.resource},
		Namespaced: !slices.Contains(clusterScoped[group], p.resource),
	}
}

// IsBuiltin reports whether the group of a resource is built into kube-apiserver, so that its types have no
// CustomResourceDefinition. It is false for a wildcard of all groups.
func IsBuiltin(r event.Resource) bool {
	_, known := clusterScoped[r.Group]
	return known || r.Group != "*" && !strings.ContainsRune(r.Group, '.')
}

// isScopeKnown reports whether clusterScoped knows the resource; for a wildcard, all resources it stands for.
func isScopeKnown(r event.Resource) bool {
	inNone, known := clusterScoped[r.Group]
	return known && (r.Resource != "*" || len(inNone) == 0)
}

// clusterScoped lists the groups built into kube-apiserver, each with its cluster-scoped resources. Kubernetes never changes
// the scope of a resource.
var clusterScoped = map[string][]string{
	"":                             {"namespaces", "nodes", "persistentvolumes", "componentstatuses"},
	"admissionregistration.k8s.io": {"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations"},
	"apiextensions.k8s.io":         {"customresourcedefinitions"},
	"apiregistration.k8s.io":       {"apiservices"},
	"apps":                         nil,
	"autoscaling":                  nil,
	"batch":                        nil,
	"certificates.k8s.io":          {"certificatesigningrequests", "clustertrustbundles"},
	"coordination.k8s.io":          nil,
	"discovery.k8s.io":             nil,
	"events.k8s.io":                nil,
	"flowcontrol.apiserver.k8s.io": {"flowschemas", "prioritylevelconfigurations"},
	"internal.apiserver.k8s.io":    {"storageversions"},
	"networking.k8s.io":            {"ingressclasses", "ipaddresses", "servicecidrs"},
	"node.k8s.io":                  {"runtimeclasses"},
	"policy":                       nil,
	"rbac.authorization.k8s.io":    {"clusterrolebindings", "clusterroles"},
	"resource.k8s.io":              {"deviceclasses", "devicetaintrules", "resourceslices"},
	"scheduling.k8s.io":            {"priorityclasses"},
	"storage.k8s.io":               {"csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"},
	"storagemigration.k8s.io":      {"storageversionmigrations"},
}
