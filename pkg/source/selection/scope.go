package selection

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Scope is what one watch covers: a resource, perhaps one namespace of it, perhaps only objects that a selector takes.
type Scope struct {
	// ID names the scope in the journal. It is the same in every process with the same rule and does not hold the
	// version, so that a cluster may be upgraded: "deployments.apps;ns=web;l=app=shop".
	ID            string
	Resource      event.Resource
	Rule          int    // index of the rule that made it
	Namespaced    bool   // the resource's objects live in namespaces
	Namespace     string // the one watched; "" for all
	LabelSelector string
	FieldSelector string
	Filter        func(namespace string) bool // of a cluster-wide watch; nil takes all
	MetadataOnly  bool                        // of each object only its metadata is read, see Rule.Capture
	Resync        time.Duration               // see Rule.Resync
	Mandatory     bool                        // without the right to read it the exporter ends, see Rule.OnForbidden
}

// scopesFor are the scopes of one resource under a rule, which has that index.
func (r Rule) scopesFor(index int, s Served) []Scope {
	base := Scope{
		Rule: index, Resource: s.Resource, Namespaced: s.Namespaced,
		LabelSelector: r.LabelSelector, FieldSelector: r.FieldSelector,
		MetadataOnly: r.Capture == CaptureMetadata, Resync: r.Resync, Mandatory: r.OnForbidden == Fail,
	}
	if !s.Namespaced {
		return []Scope{base.withID("")}
	}
	names := r.Namespaces.watchedNames()
	if names == nil {
		base.Filter = r.Namespaces.Filter()
		return []Scope{base.withID(r.Namespaces.filterID())}
	}
	var all []Scope
	for _, name := range names {
		base.Namespace = name
		all = append(all, base.withID(";ns="+name))
	}
	return all
}

func (s Scope) withID(namespaces string) Scope {
	s.ID = s.Resource.String() + namespaces
	if s.LabelSelector != "" {
		s.ID += ";l=" + s.LabelSelector
	}
	if s.FieldSelector != "" {
		s.ID += ";f=" + s.FieldSelector
	}
	return s
}

// filterID distinguishes filters of namespaces: under another filter other objects are known.
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

// IsNamespacedID says of the ID of a scope that it is bound to namespaces: so the resource has them.
func IsNamespacedID(id string) bool {
	_, rest, _ := strings.Cut(id, ";")
	key, _, _ := strings.Cut(rest, "=")
	return key == "ns" || key == "in" || key == "ex"
}

// ObjectName is the name of the one object that the field selector takes; "" if it may take several. A rule of RBAC with that
// resource name is enough to watch the scope.
func (s Scope) ObjectName() string {
	selector, err := fields.ParseSelector(s.FieldSelector)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch(metav1.ObjectNameField)
	return name
}
