package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// RBACOptions are the options of [RBAC].
type RBACOptions struct {
	Config    string // path of the configuration, for the comment
	Name      string // of the roles and bindings
	Namespace string // of the service account
	Account   string // name of the service account
	Offline   bool   // query no cluster
	Output    string // ForKubectl or ForHelm
}

// The values of RBACOptions.Output. Values for Helm contain no account, because the chart has it.
const (
	ForKubectl = "yaml"
	ForHelm    = "helm"
)

// Validate refuses names that are invalid in Kubernetes.
func (o RBACOptions) Validate() error {
	var all []error
	for flag, problems := range map[string][]string{
		"--name":            content.IsPathSegmentName(o.Name),
		"--namespace":       validation.IsDNS1123Label(o.Namespace),
		"--service-account": validation.IsDNS1123Subdomain(o.Account),
	} {
		if len(problems) > 0 {
			all = append(all, fmt.Errorf("%s: %s", flag, strings.Join(problems, "; ")))
		}
	}
	if o.Output != ForKubectl && o.Output != ForHelm {
		all = append(all, fmt.Errorf("--output %q is neither %s nor %s", o.Output, ForKubectl, ForHelm))
	}
	if o.Name == "" {
		all = append(all, errors.New("--name: is empty"))
	}
	return errors.Join(all...)
}

// RBAC returns the least rights that a configuration needs, as YAML for kubectl apply or as values of the chart. version is
// that of the program. The cluster is queried only if a rule has a wildcard and o.Offline is not set.
func RBAC(ctx context.Context, cfg *config.Config, version string, o RBACOptions) (string, error) {
	found, offline, err := resolveSelection(ctx, cfg, version, o.Offline)
	if err != nil {
		return "", exit.With(exit.Environment, err)
	}
	o.Offline = offline
	return writeRBAC(o, cfg, found), nil
}

// resolveSelection resolves the rules to resources, and returns whether it did so without the cluster, which is queried only
// if a rule has a wildcard and offline is not set.
func resolveSelection(ctx context.Context, cfg *config.Config, version string, offline bool) (*selection.Explanation, bool, error) {
	rules := config.SelectionRules(cfg.Resources)
	if offline || !hasWildcard(rules) {
		found, err := selection.ResolveWritten(rules)
		return found, true, err
	}
	client, err := app.NewClient(cfg, version)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	found, err := client.Explain(ctx, rules)
	if err != nil {
		return nil, false, offlineHint(err)
	}
	if len(found.Unanswered) > 0 {
		return nil, false, offlineHint(fmt.Errorf("%s: discovery failed", strings.Join(found.Unanswered, ", ")))
	}
	return found, false, nil
}

func offlineHint(err error) error {
	return fmt.Errorf("the configuration has wildcards, which need the cluster: %w; --offline prints them as wildcards", err)
}

func hasWildcard(rules []selection.Rule) bool {
	for _, rule := range rules {
		for _, name := range rule.Select {
			if selection.IsWildcard(name) {
				return true
			}
		}
	}
	return false
}

// roleRule is one rule of a role.
type roleRule struct {
	group, resource string
	object          string // name of the only object; "" for all
	url             string // non-resource URL, in place of a resource
	verbs           string // as YAML
	comment         string // path in the configuration that requires it
}

const (
	readVerbs = `["list", "watch"]`
	listVerbs = `["list"]`
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
		(r.verbs == other.verbs || r.verbs == listVerbs && other.verbs == readVerbs) && (r.object == other.object || other.object == "")
}

func requiredRules(cfg *config.Config, found *selection.Explanation) roleRules {
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

// writeRBAC returns the rights in the format of o.Output. The YAML is not marshalled, because it has comments.
func writeRBAC(o RBACOptions, cfg *config.Config, found *selection.Explanation) string {
	all := requiredRules(cfg, found)
	var b strings.Builder
	for _, line := range headerComments(o, cfg, found) {
		fmt.Fprintln(&b, "# "+line)
	}
	if o.Output == ForHelm {
		writeHelmValues(&b, all)
		return b.String()
	}
	var documents []string
	for _, namespace := range slices.Sorted(maps.Keys(all)) { // first the whole cluster, which has no name
		documents = append(documents, roleDocument(o, namespace, all[namespace]), bindingDocument(o, namespace))
	}
	b.WriteString(strings.Join(documents, "---\n"))
	return b.String()
}

// writeHelmValues writes the rights as values of the chart.
func writeHelmValues(b *strings.Builder, all roleRules) {
	fmt.Fprintln(b, "rbac:\n  clusterRules:")
	writeRules(b, "    ", all[""])
	namespaces := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return name == "" })
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

// headerComments returns the remarks for a reviewer.
func headerComments(o RBACOptions, cfg *config.Config, found *selection.Explanation) []string {
	lines := []string{
		fmt.Sprintf("The least rights for %s, printed by \"exporter rbac\".", o.Config),
		"Discovery is not included: every account has it through the role system:discovery of the API server.",
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

// permission is the result of an access review.
type permission string

const (
	allowed permission = "allowed"
	denied  permission = "forbidden"
	unknown permission = "unknown" // the API server did not answer the review
)

// access is the permission of the current credentials to read a scope; both verbs are needed to watch it.
type access struct {
	list, watch permission
	reason      string // why one of them is not allowed; empty if the API server gives no reason
}

// queryAccess queries the permissions of the current credentials: two SelfSubjectAccessReviews per scope, which every
// account may create by default. The results are in the order of the scopes. Without an answer the permission is unknown,
// with the reason. It returns when all results are there or ctx ends.
func queryAccess(ctx context.Context, client *apiserver.Client, scopes []selection.Scope) ([]access, error) {
	all := make([]access, len(scopes))
	inParallel(len(scopes), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
		defer cancel()
		all[i].list = reviewVerb(ctx, client, "list", scopes[i], &all[i].reason)
		all[i].watch = reviewVerb(ctx, client, "watch", scopes[i], &all[i].reason)
	})
	return all, ctx.Err()
}

// reviewVerb returns the permission to use a verb on a scope, and sets reason if it is not allowed.
func reviewVerb(ctx context.Context, client *apiserver.Client, verb string, s selection.Scope, reason *string) permission {
	answer, err := createAccessReview(ctx, client, &authorization.ResourceAttributes{
		Verb: verb, Group: s.Resource.Group, Version: s.Resource.Version, Resource: s.Resource.Resource,
		Namespace: s.Namespace, Name: s.ObjectName(),
	})
	switch {
	case apierrors.IsForbidden(err):
		*reason = "these credentials may not create SelfSubjectAccessReviews"
		return unknown
	case err != nil:
		*reason = apiserver.Reason(err)
		return unknown
	case !answer.Allowed:
		*reason = answer.Reason
		return denied
	}
	return allowed
}

// createAccessReview creates an access review. It uses a plain REST client, because the generated client would add modules
// for one request.
func createAccessReview(
	ctx context.Context, client *apiserver.Client, what *authorization.ResourceAttributes,
) (s authorization.SubjectAccessReviewStatus, err error) {
	reviews, err := client.REST(schema.GroupVersion{Group: authorization.GroupName, Version: "v1"})
	if err != nil {
		return s, err
	}
	question, err := json.Marshal(authorization.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec:     authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	})
	if err != nil {
		return s, err
	}
	body, err := reviews.Post().Resource("selfsubjectaccessreviews").SetHeader("Content-Type", "application/json").
		Body(question).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return s, err
	}
	var answer authorization.SelfSubjectAccessReview
	if err := json.Unmarshal(body, &answer); err != nil {
		return s, fmt.Errorf("access review: %w", err)
	}
	return answer.Status, nil
}

// maxParallel bounds the number of concurrent requests.
const maxParallel = 8

// inParallel calls do with 0 to n-1, at most maxParallel at once, and waits for all.
func inParallel(n int, do func(int)) {
	var all errgroup.Group
	all.SetLimit(maxParallel)
	for i := range n {
		all.Go(func() error { do(i); return nil })
	}
	_ = all.Wait() // none fails
}
