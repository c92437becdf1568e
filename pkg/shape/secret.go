package shape

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// SecretMetadata lists additional metadata of Secrets to show.
type SecretMetadata struct {
	// Labels that are shown with their values; "*" stands for all. Of other labels only the names are shown.
	Labels []string `mapstructure:"labels"`
	// Annotations that are shown with their values, in addition to those known to be harmless, see docs/shaping.md. Of other
	// annotations only the names are shown.
	Annotations []string `mapstructure:"annotations"`
}

func isSecret(r event.Resource) bool { return r.Group == "" && r.Resource == "secrets" }

// Members of a Secret that are shown, apart from labels and annotations. All other members, including those of later
// versions of Kubernetes, are redacted.
var (
	shownMembers  = []string{"apiVersion", "kind", "type", "immutable"}
	shownMetadata = []string{
		"name", "namespace", "uid", "resourceVersion", "generateName", "generation", "selfLink",
		"creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
	}
	shownOwnerMembers = []string{"apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"}
)

// harmlessAnnotations hold only names, references, times or switches, regardless of the Secret's contents. An annotation
// that may hold a value, a digest of a value or free text must not be added. docs/shaping.md lists them.
var harmlessAnnotations = []string{
	"kubernetes.io/service-account.name",
	"kubernetes.io/service-account.uid",

	"meta.helm.sh/release-name",
	"meta.helm.sh/release-namespace",
	"helm.sh/hook",
	"helm.sh/hook-delete-policy",
	"helm.sh/hook-weight",
	"helm.sh/resource-policy",

	"argocd.argoproj.io/compare-options",
	"argocd.argoproj.io/hook",
	"argocd.argoproj.io/sync-options",
	"argocd.argoproj.io/sync-wave",
	"argocd.argoproj.io/tracking-id",
	"kustomize.toolkit.fluxcd.io/prune",
	"kustomize.toolkit.fluxcd.io/reconcile",
	"kustomize.toolkit.fluxcd.io/ssa",

	"cert-manager.io/alt-names",
	"cert-manager.io/certificate-name",
	"cert-manager.io/common-name",
	"cert-manager.io/ip-sans",
	"cert-manager.io/issuer-group",
	"cert-manager.io/issuer-kind",
	"cert-manager.io/issuer-name",
	"cert-manager.io/uri-sans",

	"auth.openshift.io/certificate-hostnames",
	"auth.openshift.io/certificate-issuer",
	"auth.openshift.io/certificate-not-after",
	"auth.openshift.io/certificate-not-before",
	"openshift.io/owning-component",
	"openshift.io/token-secret.name",

	"reflector.v1.k8s.emberstack.com/reflection-allowed",
	"reflector.v1.k8s.emberstack.com/reflection-allowed-namespaces",
	"reflector.v1.k8s.emberstack.com/reflection-auto-enabled",
	"reflector.v1.k8s.emberstack.com/reflection-auto-namespaces",
	"reflector.v1.k8s.emberstack.com/reflects",
	"replicator.v1.mittwald.de/replicate-from",
	"sealedsecrets.bitnami.com/cluster-wide",
	"sealedsecrets.bitnami.com/managed",
	"sealedsecrets.bitnami.com/namespace-wide",
}

// everyLabel stands for all labels.
const everyLabel = "*"

// redactAll and showSingle are leaves of the trees below: a redacted value, and a scalar that is shown.
var (
	redactAll  = &path.Tree{Ends: true}
	showSingle = &path.Tree{Strict: true}
)

// showOnly returns the tree of an object in which members with these names are shown if they are scalars; all others are
// redacted.
func showOnly(names []string) *path.Tree {
	t := &path.Tree{Names: map[string]*path.Tree{}, Other: redactAll, Strict: true}
	for _, name := range names {
		t.Names[name] = showSingle
	}
	return t
}

// redactionTree returns the tree that is applied to every Secret.
func (m SecretMetadata) redactionTree() *path.Tree {
	root, metadata := showOnly(shownMembers), showOnly(shownMetadata)
	labels, annotations := showOnly(m.Labels), showOnly(slices.Concat(harmlessAnnotations, m.Annotations))
	annotations.Copies = true
	if slices.Contains(m.Labels, everyLabel) {
		labels.Other = showSingle
	}
	root.Names["metadata"] = metadata
	metadata.Names["labels"], metadata.Names["annotations"] = labels, annotations
	metadata.Names["ownerReferences"] = &path.Tree{Element: showOnly(shownOwnerMembers), Other: redactAll, Strict: true}
	metadata.Names["finalizers"] = &path.Tree{Element: showSingle, Other: redactAll, Strict: true}
	return root
}

// validateNames reports invalid names, and annotations that hold copies of Secrets.
func (m SecretMetadata) validateNames(problem problemFunc) {
	for i, name := range m.Labels {
		if name != everyLabel && !isQualifiedName(name) {
			problem("secretMetadata.labels["+strconv.Itoa(i)+"]",
				`%q is not a label name; write the complete name, or "*" for all`, name)
		}
	}
	for i, name := range m.Annotations {
		at := "secretMetadata.annotations[" + strconv.Itoa(i) + "]"
		switch {
		case !isQualifiedName(name):
			problem(at, "%q is not an annotation name; write the complete name, as in example.com/owner", name)
		case copyKindOf(name) != noCopy:
			problem(at, "%q holds a copy of the Secret's contents and is never shown", name)
		}
	}
}

// isQualifiedName reports whether a label or annotation may have this name: an optional prefix with a slash, and a name.
func isQualifiedName(name string) bool { return qualifiedName.MatchString(name) }

// describeShown returns all settings, for the fingerprint of a policy.
func (m SecretMetadata) describeShown() string { return fmt.Sprintf("%q %q", m.Labels, m.Annotations) }

var qualifiedName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
