package inspect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// AuditParts are the names of the parts that [AuditPolicy] prints, in order.
var AuditParts = []string{"policy", "kubeconfig", "flags", "admission"}

// AuditOptions are the options of [AuditPolicy].
type AuditOptions struct {
	Part   string // one of AuditParts; "" for all
	Server string // host or host:port under which API servers reach the exporter
	Dir    string // where the files lie on the API servers' machines
}

// AuditPolicy returns the settings of the API servers that the attribution of the selected resources needs: the smallest
// audit policy, the configuration of the webhook, the flags, and the admission policy that adds identities where bodies must
// not be logged. The cluster is queried only if a rule has a wildcard.
func AuditPolicy(ctx context.Context, cfg *config.Config, version string, o AuditOptions) (string, error) {
	if o.Part != "" && !slices.Contains(AuditParts, o.Part) {
		return "", exit.With(exit.Usage, fmt.Errorf("%q is none of %s", o.Part, strings.Join(AuditParts, ", ")))
	}
	found, err := selectAudited(ctx, cfg, version)
	if err != nil {
		return "", exit.With(exit.Environment, err)
	}
	parts := map[string]string{
		"policy": found.renderPolicy(), "kubeconfig": webhookKubeconfig(cfg, o), "flags": auditFlags(cfg, o), "admission": found.renderAdmissionPolicy(),
	}
	if o.Part != "" {
		return parts[o.Part], nil
	}
	var b strings.Builder
	for _, name := range AuditParts {
		fmt.Fprintf(&b, "# ---- %s (exporter audit-policy %s prints this part alone)\n%s\n", name, name, parts[name])
	}
	return b.String(), nil
}

// StampPolicy returns the admission policy that stamps the selected resources, and its binding. The cluster is queried only
// if a rule has a wildcard.
func StampPolicy(ctx context.Context, cfg *config.Config, version string) (string, error) {
	found, err := selectAudited(ctx, cfg, version)
	if err != nil {
		return "", exit.With(exit.Environment, err)
	}
	policy, err := stamp.RenderPolicy(slices.Concat(found.withBodies, found.metadataOnly))
	return policy, exit.With(exit.Usage, err)
}

// auditedResources are the resources that the audit log has to cover: those with response bodies, and those with metadata
// only.
type auditedResources struct{ withBodies, metadataOnly []event.Resource }

// selectAudited resolves the rules to resources.
func selectAudited(ctx context.Context, cfg *config.Config, version string) (auditedResources, error) {
	rules := config.SelectionRules(cfg.Resources)
	var found *selection.Explanation
	if hasWildcard(rules) {
		client, err := app.NewClient(cfg, version)
		if err == nil {
			found, err = client.Explain(ctx, rules)
		}
		if err != nil {
			return auditedResources{}, fmt.Errorf("the configuration selects by wildcards, and an audit policy needs names: %w", err)
		}
	} else {
		var err error
		if found, err = selection.ResolveWritten(rules); err != nil {
			return auditedResources{}, err
		}
	}
	scopes := found.Scopes()
	for _, u := range found.Unserved {
		scopes = append(scopes, u.Scopes...)
	}
	var a auditedResources
	for _, s := range scopes {
		to := &a.withBodies
		if hidesBodies(cfg, s) {
			to = &a.metadataOnly
		}
		resource := event.Resource{Group: s.Resource.Group, Resource: s.Resource.Resource}
		if !slices.Contains(*to, resource) {
			*to = append(*to, resource)
		}
	}
	if len(a.withBodies)+len(a.metadataOnly) == 0 {
		return auditedResources{}, errors.New("the rules select nothing")
	}
	return a, nil
}

// hidesBodies reports whether the responses to writes of a resource must not be logged, because they contain values that the
// rule redacts.
func hidesBodies(cfg *config.Config, s selection.Scope) bool {
	return s.Resource.Group == "" && s.Resource.Resource == "secrets" || len(cfg.Resources[s.Rule].RedactPaths) > 0
}

// namesWithSubresources returns the names of a resource in an audit policy: itself, and the subresources that change it.
// Other subresources may carry credentials or user input.
func namesWithSubresources(r event.Resource) []string {
	subresources := []string{"status", "scale"}
	if r.Group == "" {
		switch r.Resource {
		case "pods":
			subresources = []string{"status", "binding", "eviction", "ephemeralcontainers", "resize"}
		case "namespaces":
			subresources = []string{"status", "finalize"}
		case "configmaps", "secrets", "serviceaccounts", "endpoints", "events", "limitranges", "podtemplates":
			subresources = nil
		}
	}
	names := []string{r.Resource}
	for _, s := range subresources {
		names = append(names, r.Resource+"/"+s)
	}
	return names
}

const writeVerbs = "[create, update, patch, delete, deletecollection]"

func (a auditedResources) renderPolicy() string {
	var b strings.Builder
	b.WriteString("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nomitManagedFields: true\nrules:\n")
	if len(a.metadataOnly) > 0 {
		b.WriteString("  # Never with bodies, which would contain redacted values in clear text. The admission policy adds the identities.\n")
		writeAuditRule(&b, "Metadata", a.metadataOnly)
	}
	if len(a.withBodies) > 0 {
		writeAuditRule(&b, "RequestResponse", a.withBodies)
	}
	b.WriteString("  - level: None\n")
	return b.String()
}

func writeAuditRule(b *strings.Builder, level string, resources []event.Resource) {
	fmt.Fprintf(b, "  - level: %s\n    verbs: %s\n    resources:\n", level, writeVerbs)
	for _, group := range distinctGroups(resources) {
		var names []string
		for _, r := range resources {
			if r.Group == group {
				names = append(names, quoteAll(namesWithSubresources(r))...)
			}
		}
		fmt.Fprintf(b, "      - group: %q\n        resources: [%s]\n", group, strings.Join(names, ", "))
	}
}

func quoteAll(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%q", name))
	}
	return all
}

// distinctGroups returns the groups of resources in order, without duplicates.
func distinctGroups(resources []event.Resource) []string {
	var groups []string
	for _, r := range resources {
		if !slices.Contains(groups, r.Group) {
			groups = append(groups, r.Group)
		}
	}
	return groups
}

func webhookKubeconfig(cfg *config.Config, o AuditOptions) string {
	if cfg.Audit.Webhook.Listen == "" {
		return "# audit.webhook.listen is empty: no API server sends events.\n"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
  - name: kubecdc
    cluster:
      server: https://%s/
      certificate-authority: %s/exporter-ca.crt  # that signed audit.webhook.certificate
users:
  - name: api-server
    user:  # a certificate with one of the names in audit.webhook.clients: %s
      client-certificate: %s/client.crt
      client-key: %s/client.key
contexts:
  - {name: kubecdc, context: {cluster: kubecdc, user: api-server}}
current-context: kubecdc
`, serverAddress(cfg.Audit.Webhook.Listen, o.Server), o.Dir, strings.Join(cfg.Audit.Webhook.Clients, ", "), o.Dir, o.Dir)
}

// serverAddress adds the port of the listener to a host without a port.
func serverAddress(listen, server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	_, port, err := net.SplitHostPort(listen)
	if err != nil { // not reached: the configuration was checked
		return server
	}
	return net.JoinHostPort(server, port)
}

func auditFlags(cfg *config.Config, o AuditOptions) string {
	lines := []string{"--audit-policy-file=" + o.Dir + "/audit-policy.yaml"}
	if cfg.Audit.Webhook.Listen != "" {
		lines = append(lines,
			"--audit-webhook-config-file="+o.Dir+"/audit-webhook.kubeconfig",
			"# Small batches without delay; with these audit.settle can be 5s. The back-off stays at its ten seconds: with less, an API",
			"# server drops a batch before a restarting exporter is back.",
			"--audit-webhook-batch-max-wait=1s",
			"--audit-webhook-batch-throttle-enable=false")
	}
	return strings.Join(lines, "\n") + "\n"
}

// renderAdmissionPolicy returns the policy that adds the facts to audit events that no level of the audit policy has.
func (a auditedResources) renderAdmissionPolicy() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Adds annotations to audit events: the UID of the object, the version that a write replaces, whether an update changed
# nothing or a delete found the object being deleted, and whether a request is a dry run, which may be known from its body
# only. It allows everything.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
`, audit.PolicyName)
	writeAdmissionRules(&b, "UPDATE, DELETE", a.withBodies)
	writeAdmissionRules(&b, "CREATE, UPDATE, DELETE", a.metadataOnly)
	const has = `%[1]s != null && has(%[1]s.metadata) && has(%[1]s.metadata.%[2]s)`
	old, uid, version := fmt.Sprintf(has, "oldObject", "uid"), fmt.Sprintf(has, "object", "uid"), fmt.Sprintf(has, "oldObject", "resourceVersion")
	const evictsDry = `object != null && has(dyn(object).deleteOptions) && has(dyn(object).deleteOptions.dryRun)`
	fmt.Fprintf(&b, `  validations: [{expression: "true"}]
  auditAnnotations:
    - key: uid
      valueExpression: "%s ? string(oldObject.metadata.uid) : %s ? string(object.metadata.uid) : ''"
    - key: replaces
      valueExpression: "%s ? string(oldObject.metadata.resourceVersion) : ''"
    - key: unchanged  # if a patch is retried after a conflict, only the first attempt sets the keys above
      valueExpression: "%[3]s && (object == oldObject || object == null && has(oldObject.metadata.deletionTimestamp)) ? string(oldObject.metadata.resourceVersion) : ''"
    - key: dryRun  # an eviction has it in the query or in its body
      valueExpression: "request.dryRun || %[5]s ? 'true' : 'false'"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[4]s}
spec: {policyName: %[4]s, validationActions: [Audit]}
`, old, uid, version, audit.PolicyName, evictsDry)
	return b.String()
}

func writeAdmissionRules(b *strings.Builder, operations string, resources []event.Resource) {
	for _, r := range resources {
		fmt.Fprintf(b, "      - {apiGroups: [%q], apiVersions: [\"*\"], operations: [%s], resources: [%s]}\n",
			r.Group, operations, strings.Join(quoteAll(namesWithSubresources(r)), ", "))
	}
}
