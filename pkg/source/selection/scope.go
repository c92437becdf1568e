package selection

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// namespaceField selects objects by their namespace in a field selector.
const namespaceField = "metadata.namespace"

// Scope is what one watch covers: a resource, optionally in one namespace, optionally only objects that a selector matches.
type Scope struct {
	// ID names the scope in the journal. It is the same in every process with the same rule, and has no version, so that the
	// cluster can be upgraded: "deployments.apps;ns=web;l=app=shop".
	ID            string
	Resource      event.Resource
	Rule          int    // index of the rule that made it
	Namespaced    bool   // the resource's objects live in namespaces
	Namespace     string // the one watched; "" for all
	LabelSelector string
	FieldSelector string                      // without the namespace, which is Namespace
	Filter        func(namespace string) bool // of a cluster-wide watch; nil selects all
	ChangeFilter  string                      // see Rule.WithFilter; "" for none
	MetadataOnly  bool                        // only the metadata of each object is read, see Rule.Capture
	Resync        time.Duration               // see Rule.Resync
	ByWildcard    bool                        // no rule names the resource
	Mandatory     bool                        // a missing right ends the exporter, see Rule.OnForbidden
}

// scopesFor returns the scopes of one resource under a rule with that index.
func (r Rule) scopesFor(index int, s Served) []Scope {
	base := Scope{
		ChangeFilter: r.filter,
		Rule:         index, Resource: s.Resource, Namespaced: s.Namespaced,
		LabelSelector: r.LabelSelector, FieldSelector: r.FieldSelector,
		MetadataOnly: r.Capture == CaptureMetadata, Resync: r.Resync, Mandatory: r.OnForbidden == Fail,
	}
	if !s.Namespaced {
		return []Scope{base.withID("")}
	}
	only, otherFields := splitNamespace(r.FieldSelector)
	names := r.Namespaces.Names()
	if names == nil {
		base.Filter = r.Namespaces.Filter()
		base = base.withID(r.Namespaces.filterID())
		base.Namespace, base.FieldSelector = only, otherFields
		return []Scope{base}
	}
	var all []Scope
	for _, name := range names {
		if only != "" && name != only {
			continue
		}
		one := base.withID(";ns=" + name)
		one.Namespace, one.FieldSelector = name, otherFields
		all = append(all, one)
	}
	return all
}

// splitNamespace separates the one namespace that a field selector names, "" if it names none, from the other fields. A
// namespace is requested by its address: kube-apiserver 1.37 makes wrong continue tokens for metadata.namespace=X, so that
// all pages but the first are empty, and a right in that namespace is sufficient.
func splitNamespace(fieldSelector string) (namespace, others string) {
	selector, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return "", fieldSelector
	}
	namespace, found := selector.RequiresExactMatch(namespaceField)
	if !found || namespace == "" {
		return "", fieldSelector
	}
	rest, err := selector.Transform(func(field, value string) (string, string, error) {
		if field == namespaceField {
			return "", "", nil // no requirement
		}
		return field, value, nil
	})
	if err != nil {
		return "", fieldSelector
	}
	return namespace, rest.String()
}

func (s Scope) withID(namespaces string) Scope {
	s.ID = s.Resource.String() + namespaces
	if s.LabelSelector != "" {
		s.ID += ";l=" + s.LabelSelector
	}
	if s.FieldSelector != "" {
		s.ID += ";f=" + s.FieldSelector
	}
	if s.ChangeFilter != "" {
		s.ID += filteredPart + fingerprintOf(s.ChangeFilter)
	}
	return s
}

// filteredPart precedes the fingerprint of the filter in the ID of a scope.
const filteredPart = ";filter="

// IsFilteredID reports whether a filter decides which changes of the scope with this ID are emitted.
func IsFilteredID(id string) bool { return strings.Contains(id, filteredPart) }

// filterID distinguishes namespace filters: another filter selects other objects, so positions and known objects are not
// shared.
func (n Namespaces) filterID() string {
	part := func(key string, globs []string) string {
		if len(globs) == 0 {
			return ""
		}
		globs = slices.Clone(globs)
		slices.Sort(globs)
		return key + strings.Join(slices.Compact(globs), ",")
	}
	return part(";in=", n.Include) + part(";ex=", n.Exclude)
}

// IsNamespacedID reports whether the scope with this ID is bound to namespaces, so that its resource is namespaced.
func IsNamespacedID(id string) bool {
	_, rest, _ := strings.Cut(id, ";")
	key, _, _ := strings.Cut(rest, "=")
	return key == "ns" || key == "in" || key == "ex"
}

// Fingerprint identifies what the scope selects, in a few letters. Watermarks carry it, so that a reader does not compare
// what one selection has written with what another one selects.
func (s Scope) Fingerprint() string { return fingerprintOf(s.ID) }

func fingerprintOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// ObjectName returns the name of the one object that the field selector matches; "" if it can match several. An RBAC rule
// with that resource name is sufficient to watch the scope.
func (s Scope) ObjectName() string {
	selector, err := fields.ParseSelector(s.FieldSelector)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch(metav1.ObjectNameField)
	return name
}

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
