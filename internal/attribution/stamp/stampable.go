package stamp

import "github.com/kubecdc/kubecdc/pkg/event"

// A mutating policy does more than its patch: the API server converts the object to the version of the request and, after
// the patch, back into the object that it already has, which may add to lists instead of replacing them. So the policy
// selects only what a test has written through each version, with and without it.

// builtInVersions are the versions of the groups of Kubernetes in which the policy stamps. A later version is not selected,
// so that no write through it can be refused, and no stamp is believed while it is served.
var builtInVersions = map[string][]string{
	"": {"v1"}, "apps": {"v1"}, "batch": {"v1"}, "policy": {"v1"}, "autoscaling": {"v1", "v2"},
	"admissionregistration.k8s.io": {"v1", "v1alpha1", "v1beta1"}, "apiextensions.k8s.io": {"v1"}, "apiregistration.k8s.io": {"v1"},
	"certificates.k8s.io": {"v1", "v1alpha1", "v1beta1"}, "coordination.k8s.io": {"v1", "v1alpha2", "v1beta1"},
	"discovery.k8s.io": {"v1"}, "events.k8s.io": {"v1"}, "flowcontrol.apiserver.k8s.io": {"v1"},
	"internal.apiserver.k8s.io": {"v1alpha1"}, "lifecycle.k8s.io": {"v1alpha1"}, "networking.k8s.io": {"v1", "v1beta1"},
	"node.k8s.io": {"v1"}, "rbac.authorization.k8s.io": {"v1"}, "resource.k8s.io": {"v1", "v1alpha3", "v1beta1", "v1beta2"},
	"scheduling.k8s.io": {"v1", "v1alpha3", "v1beta1"}, "storage.k8s.io": {"v1", "v1beta1"}, "storagemigration.k8s.io": {"v1", "v1beta1"},
}

// Why types of Kubernetes are not stamped.
const (
	lossyVersions = "autoscaling/v1 has no metrics: the API server would refuse a write through it, because it would keep them twice"
	twoGroups     = "an Event is served in two groups, and each would take the other's stamp for that of another object"
	noPolicies    = "the API server applies no such policy to admission policies"
)

var unstamped = map[string]string{
	"horizontalpodautoscalers.autoscaling": lossyVersions,
	"events":                               twoGroups,
	"events.events.k8s.io":                 twoGroups,
	"mutatingadmissionpolicies.admissionregistration.k8s.io":         noPolicies,
	"mutatingadmissionpolicybindings.admissionregistration.k8s.io":   noPolicies,
	"validatingadmissionpolicies.admissionregistration.k8s.io":       noPolicies,
	"validatingadmissionpolicybindings.admissionregistration.k8s.io": noPolicies,
}

// WhyUnstamped returns why the policy leaves a resource out; "" if it stamps it.
func WhyUnstamped(resource event.Resource) string {
	return unstamped[event.Resource{Group: resource.Group, Resource: resource.Resource}.String()]
}

// stampedVersions returns the versions of a group in which the policy stamps. Custom resources have all: the API server
// patches them as they are in the request, and converts nothing.
func stampedVersions(group string) []string {
	if versions, builtIn := builtInVersions[group]; builtIn {
		return versions
	}
	return []string{"*"}
}
