package inspect

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// writeRBAC returns the rights in the format of o.Output. The YAML is not marshalled, because it has comments.
func writeRBAC(o RBACOptions, cfg *config.Config, found *selection.Explanation) string {
	all := requiredRules(cfg, found, o.Triggers)
	var b strings.Builder
	for _, line := range headerComments(o, cfg, found) {
		fmt.Fprintln(&b, "# "+line)
	}
	if o.Output == ForHelm {
		writeHelmValues(&b, all)
		return b.String()
	}
	b.WriteString(strings.Join(rbacDocuments(o, all), "---\n"))
	return b.String()
}

// writeHelmValues writes the rights as values of the chart.
func writeHelmValues(b *strings.Builder, all roleRules) {
	fmt.Fprintln(b, "rbac:\n  clusterRules:")
	writeRules(b, "    ", all[""])
	namespaces := all.sortedNamespaces()
	if len(namespaces) == 0 {
		fmt.Fprintln(b, "  namespaceRules: {}")
		return
	}
	fmt.Fprintln(b, "  namespaceRules:")
	for _, namespace := range namespaces {
		fmt.Fprintf(b, "    %s:\n", plainOrQuoted(namespace))
		writeRules(b, "      ", all[namespace])
	}
}

// rbacDocuments returns the roles and bindings.
func rbacDocuments(o RBACOptions, all roleRules) (documents []string) {
	if len(all[""]) > 0 {
		documents = append(documents, roleDocument(o, "", all[""]), bindingDocument(o, ""))
	}
	for _, namespace := range all.sortedNamespaces() {
		documents = append(documents, roleDocument(o, namespace, all[namespace]), bindingDocument(o, namespace))
	}
	return documents
}

// headerComments returns the remarks for a reviewer.
func headerComments(o RBACOptions, cfg *config.Config, found *selection.Explanation) []string {
	lines := []string{
		fmt.Sprintf("The least rights for %s, printed by \"exporter rbac\".", o.Config),
		"Discovery is not included: every account has it through the role system:discovery of the API server.",
	}
	if !o.Triggers {
		lines = append(lines, "Watching definitions of resources is not included: without it, new resources are noticed a little later (--with-triggers).")
	}
	if names := writtenWildcards(cfg); len(names) > 0 && o.Offline {
		lines = append(lines, fmt.Sprintf("%s: kept as wildcards, because the cluster was not queried. They also allow excluded resources.", strings.Join(names, ", ")))
	} else if len(names) > 0 {
		lines = append(lines,
			strings.Join(names, ", ")+": the resources that the cluster served when this was printed.",
			"Print it again after an upgrade or when a CRD was installed; until then new resources are forbidden, as the status shows.")
	}
	return append(lines, assumptionComments(cfg, found)...)
}

// writtenWildcards returns the wildcards of the configuration, without duplicates.
func writtenWildcards(cfg *config.Config) []string {
	var names []string
	for _, r := range cfg.Resources {
		for _, name := range r.Select {
			if selection.IsWildcard(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// assumptionComments returns remarks on resources that got Roles although it is unknown whether they are namespaced.
func assumptionComments(cfg *config.Config, found *selection.Explanation) []string {
	var lines []string
	for _, n := range requirements(cfg, found) {
		line := n.name + ": assumed to be namespaced. If it is cluster-scoped, its rule belongs in a ClusterRole."
		if n.assumed && len(n.scopes) > 0 && n.scopes[0].Namespace != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

func roleDocument(o RBACOptions, namespace string, all []roleRule) string {
	var b strings.Builder
	writeMetadata(&b, o, namespace, "Role")
	fmt.Fprintln(&b, "rules:")
	writeRules(&b, "  ", all)
	return b.String()
}

func writeRules(b *strings.Builder, indent string, all []roleRule) {
	why := ""
	for _, r := range all {
		if r.comment != why {
			why = r.comment
			fmt.Fprintf(b, "%s# %s\n", indent, why)
		}
		if r.url != "" {
			fmt.Fprintf(b, "%s- nonResourceURLs: [%q]\n", indent, r.url)
		} else {
			fmt.Fprintf(b, "%s- apiGroups: [%q]\n%s  resources: [%q]\n", indent, r.group, indent, r.resource)
		}
		if r.object != "" {
			fmt.Fprintf(b, "%s  resourceNames: [%q]\n", indent, r.object)
		}
		fmt.Fprintf(b, "%s  verbs: %s\n", indent, r.verbs)
	}
}

func bindingDocument(o RBACOptions, namespace string) string {
	var b strings.Builder
	writeMetadata(&b, o, namespace, "RoleBinding")
	fmt.Fprintf(&b, "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: %s\n  name: %s\n", scopedKind(namespace, "Role"), plainOrQuoted(o.Name))
	fmt.Fprintf(&b, "subjects:\n  - kind: ServiceAccount\n    name: %s\n    namespace: %s\n", plainOrQuoted(o.Account), plainOrQuoted(o.Namespace))
	return b.String()
}

func writeMetadata(b *strings.Builder, o RBACOptions, namespace, kind string) {
	fmt.Fprintf(b, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: %s\n", scopedKind(namespace, kind), plainOrQuoted(o.Name))
	if namespace != "" {
		fmt.Fprintf(b, "  namespace: %s\n", plainOrQuoted(namespace))
	}
}

// scopedKind returns the kind for one namespace, or for the whole cluster.
func scopedKind(namespace, kind string) string {
	if namespace == "" {
		return "Cluster" + kind
	}
	return kind
}

// plainOrQuoted quotes names that YAML would not read as a string.
func plainOrQuoted(name string) string {
	words := []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
	if plainNamePattern.MatchString(name) && !slices.Contains(words, name) {
		return name
	}
	return strconv.Quote(name)
}

var plainNamePattern = regexp.MustCompile(`^[a-z][-a-z0-9]*$`)
