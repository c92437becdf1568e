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

// writeRBAC returns what o.Output asks for, as YAML. It is written by hand for the sake of its comments.
func writeRBAC(o RBACOptions, cfg *config.Config, found *selection.Explanation) string {
	all := rightsOf(cfg, found, o.Triggers)
	var b strings.Builder
	for _, line := range remarks(o, cfg, found) {
		fmt.Fprintln(&b, "# "+line)
	}
	if o.Output == ForHelm {
		writeHelmValues(&b, all)
		return b.String()
	}
	b.WriteString(strings.Join(documents(o, all), "---\n"))
	return b.String()
}

// writeHelmValues writes the rights as the chart takes them.
func writeHelmValues(b *strings.Builder, all rights) {
	fmt.Fprintln(b, "rbac:\n  clusterRules:")
	writeRules(b, "    ", all[""])
	namespaces := all.namespaces()
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

// documents are the roles and bindings.
func documents(o RBACOptions, all rights) (documents []string) {
	if len(all[""]) > 0 {
		documents = append(documents, role(o, "", all[""]), binding(o, ""))
	}
	for _, namespace := range all.namespaces() {
		documents = append(documents, role(o, namespace, all[namespace]), binding(o, namespace))
	}
	return documents
}

// remarks say what a reviewer has to know.
func remarks(o RBACOptions, cfg *config.Config, found *selection.Explanation) []string {
	lines := []string{
		fmt.Sprintf("The least rights for %s, printed by \"exporter rbac\".", o.Config),
		"Discovery is not in it: every account has it by the API server's own role system:discovery.",
	}
	if !o.Triggers {
		lines = append(lines, "Watching definitions of resources is not in it: without, new resources are noticed a little later (--with-triggers).")
	}
	if names := wildcards(cfg); len(names) > 0 && o.Offline {
		lines = append(lines, fmt.Sprintf("%s: left as wildcards, without the cluster. They allow what is excluded too.", strings.Join(names, ", ")))
	} else if len(names) > 0 {
		lines = append(lines,
			strings.Join(names, ", ")+": the resources that the cluster served when this was printed.",
			"Print it again after an upgrade or when a CRD was installed; until then new resources are forbidden, and the status says so.")
	}
	return append(lines, doubts(cfg, found)...)
}

// wildcards are the wildcards as written, each once.
func wildcards(cfg *config.Config) []string {
	var names []string
	for _, r := range cfg.Resources {
		for _, name := range r.Select {
			if selection.Wildcard(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// doubts name the resources that got Roles without anyone knowing whether their objects live in namespaces.
func doubts(cfg *config.Config, found *selection.Explanation) []string {
	var lines []string
	for _, n := range needs(cfg, found) {
		line := n.name + ": taken for namespaced. What is cluster-scoped needs its rule in a ClusterRole."
		if n.assumed && len(n.scopes) > 0 && n.scopes[0].Namespace != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

func role(o RBACOptions, namespace string, all []right) string {
	var b strings.Builder
	writeHead(&b, o, namespace, "Role")
	fmt.Fprintln(&b, "rules:")
	writeRules(&b, "  ", all)
	return b.String()
}

func writeRules(b *strings.Builder, indent string, all []right) {
	why := ""
	for _, r := range all {
		if r.why != why {
			why = r.why
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

func binding(o RBACOptions, namespace string) string {
	var b strings.Builder
	writeHead(&b, o, namespace, "RoleBinding")
	fmt.Fprintf(&b, "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: %s\n  name: %s\n", kindIn(namespace, "Role"), plainOrQuoted(o.Name))
	fmt.Fprintf(&b, "subjects:\n  - kind: ServiceAccount\n    name: %s\n    namespace: %s\n", plainOrQuoted(o.Account), plainOrQuoted(o.Namespace))
	return b.String()
}

func writeHead(b *strings.Builder, o RBACOptions, namespace, kind string) {
	fmt.Fprintf(b, "apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: %s\n", kindIn(namespace, kind), plainOrQuoted(o.Name))
	if namespace != "" {
		fmt.Fprintf(b, "  namespace: %s\n", plainOrQuoted(namespace))
	}
}

// kindIn is the kind for one namespace or for the whole cluster.
func kindIn(namespace, kind string) string {
	if namespace == "" {
		return "Cluster" + kind
	}
	return kind
}

// plainOrQuoted quotes names that YAML might take for something else than a string.
func plainOrQuoted(name string) string {
	words := []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
	if plainName.MatchString(name) && !slices.Contains(words, name) {
		return name
	}
	return strconv.Quote(name)
}

var plainName = regexp.MustCompile(`^[a-z][-a-z0-9]*$`)
