package stamp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// PolicyName is the name of the MutatingAdmissionPolicy and of its binding.
const PolicyName = "kubecdc-stamp"

type namedExpression struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

// stampOf returns the expression for the stamp of an object variable; "" if it has none.
func stampOf(object string) string {
	return fmt.Sprintf(`(%[1]s != null && has(%[1]s.metadata) && has(%[1]s.metadata.annotations) && %[1]s.metadata.annotations != null
 && '%[2]s' in %[1]s.metadata.annotations ? string(%[1]s.metadata.annotations['%[2]s']) : '')`, object, event.StampAnnotation)
}

// annotationsOf returns the expression for the annotations of an object variable.
func annotationsOf(object string) string {
	return fmt.Sprintf(`%[1]s != null && has(%[1]s.metadata) && has(%[1]s.metadata.annotations) && %[1]s.metadata.annotations != null
 ? %[1]s.metadata.annotations : {}`, object)
}

// collectionOf is the expression for how a stamp names the collection of the object, with the punctuation around it.
const collectionOf = `':' + request.resource.group + '/' + request.resource.resource + '/'
 + (has(object.metadata.namespace) ? object.metadata.namespace : '') + '/'`

// nameOf is the expression for how a stamp names the object in its collection.
const nameOf = `has(object.metadata.name) && object.metadata.name != '' ? object.metadata.name
 : has(object.metadata.generateName) ? object.metadata.generateName + '/' : ''`

// isStampable is true for writes of an object itself by others than the components of the control plane. Those copy
// annotations, as from a Deployment to its ReplicaSets, and make most writes of a cluster.
const isStampable = `(!has(request.subResource) || request.subResource == '')
 && has(request.userInfo.username)
 && !request.userInfo.username.startsWith('system:serviceaccount:kube-system:')
 && !(request.userInfo.username in ['system:apiserver', 'system:kube-controller-manager', 'system:kube-scheduler'])
 && !(has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)`

// matchConditions leave out what neither gets a stamp nor has another one than before.
var matchConditions = []namedExpression{
	{"stamped-or-touched", isStampable + "\n || " + stampOf("object") + "\n != " + stampOf("oldObject")},
}

// variables are evaluated in this order. "changed" leaves out what the API server sets itself, the status, which a write of
// the object does not change, and the stamp: a write that would change nothing without the stamp must change nothing with
// it. Otherwise two components that undo each other's annotations would never end.
//
// "copied" is a stamp that names another object, and so means nothing here. It stays as the client sent it: a component that
// copies annotations, such as the controller of Deployments, does nothing else as long as its copy is not there.
var variables = []namedExpression{
	{"before", stampOf("oldObject")},
	{"after", stampOf("object")},
	{"annotations", annotationsOf("object")},
	{"oldAnnotations", annotationsOf("oldObject")},
	{"changed", `oldObject == null
 || object.exists(k, !(k in ['apiVersion', 'kind', 'metadata', 'status']) && (!(k in oldObject) || object[k] != oldObject[k]))
 || oldObject.exists(k, !(k in ['apiVersion', 'kind', 'metadata', 'status']) && !(k in object))
 || ['labels', 'finalizers', 'ownerReferences'].exists(k, (k in object.metadata) != (k in oldObject.metadata)
 || k in object.metadata && object.metadata[k] != oldObject.metadata[k])
 || variables.annotations.exists(k, k != '` + event.StampAnnotation + `'
 && (!(k in variables.oldAnnotations) || variables.annotations[k] != variables.oldAnnotations[k]))
 || variables.oldAnnotations.exists(k, k != '` + event.StampAnnotation + `' && !(k in variables.annotations))`},
	{"collection", collectionOf},
	{"name", nameOf},
	{"copied", `variables.after != ''
 && !variables.after.contains(variables.collection + (oldObject == null ? '' : variables.name + ' '))`},
	{"stamp", "(" + isStampable + ")\n && variables.changed" + `
 ? (oldObject == null ? '` + event.StampCreated + `' : string(oldObject.metadata.resourceVersion))
 + variables.collection + variables.name + ' ' + request.userInfo.username
 : variables.copied ? variables.after : variables.before`},
}

// mutation sets the stamp, or removes the one that a client sent.
var mutation = func() string {
	path := "/metadata/annotations/" + strings.ReplaceAll(event.StampAnnotation, "/", "~1")
	return `variables.stamp == variables.after ? [] :
 variables.stamp == '' ? [JSONPatch{op: 'remove', path: '` + path + `'}] :
 has(object.metadata.annotations) && object.metadata.annotations != null ? [JSONPatch{op: 'add', path: '` + path + `', value: variables.stamp}] :
 [JSONPatch{op: 'add', path: '/metadata/annotations', value: {'` + event.StampAnnotation + `': variables.stamp}}]`
}()

// RenderPolicy returns the policy for resources, whose versions do not matter, and its binding, as YAML. It leaves out those
// with a reason of [WhyUnstamped]; an error means that these are all.
func RenderPolicy(resources []event.Resource) (string, error) {
	var b, rules, left strings.Builder
	for _, r := range sortedResources(resources) {
		if why := WhyUnstamped(r); why != "" {
			fmt.Fprintf(&left, "# Not stamped: %s: %s.\n", r, why)
			continue
		}
		fmt.Fprintf(&rules, "      - {apiGroups: [%q], apiVersions: [\"%s\"], operations: [CREATE, UPDATE], resources: [%q, %q]}\n",
			r.Group, strings.Join(stampedVersions(r.Group), `", "`), r.Resource, r.Resource+"/*")
	}
	if rules.Len() == 0 {
		return "", fmt.Errorf("the rules select nothing that can be stamped:\n%s", strings.TrimSpace(left.String()))
	}
	fmt.Fprintf(&b, `# Writes the author of each write, and the version that it replaces, into the annotation %s of the object.
# Writes of the control plane's own components, of subresources, and those that change nothing get no stamp; they keep the one
# that the object has. kubecdc removes it from everything that it emits. Needs Kubernetes 1.36.
%sapiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: %s}
spec:
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    matchPolicy: Exact  # the API server cannot convert to a version that is not the one of the request
    resourceRules:
%s`, event.StampAnnotation, left.String(), PolicyName, rules.String())
	writeExpressions(&b, "matchConditions", matchConditions)
	writeExpressions(&b, "variables", variables)
	fmt.Fprintf(&b, "  mutations:\n    - patchType: JSONPatch\n      jsonPatch:\n        expression: |-\n%s", indent(mutation, 10))
	fmt.Fprintf(&b, `---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s}
`, PolicyName)
	return b.String(), nil
}

func writeExpressions(b *strings.Builder, member string, all []namedExpression) {
	fmt.Fprintf(b, "  %s:\n", member)
	for _, e := range all {
		fmt.Fprintf(b, "    - name: %s\n      expression: |-\n%s", e.Name, indent(e.Expression, 8))
	}
}

func indent(text string, by int) string {
	var b strings.Builder
	for line := range strings.Lines(text + "\n") {
		b.WriteString(strings.Repeat(" ", by) + line)
	}
	return b.String()
}

// sortedResources returns the resources by group and name, each once and without its version.
func sortedResources(resources []event.Resource) []event.Resource {
	var all []event.Resource
	for _, r := range resources {
		all = append(all, event.Resource{Group: r.Group, Resource: r.Resource})
	}
	slices.SortFunc(all, func(a, b event.Resource) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}

// Verdict is what is known of the policy at the time of a write.
type Verdict uint8

// The verdicts.
const (
	NotKnown   Verdict = iota // not checked up to that version yet
	NotInForce                // no proof that the policy was in force at every API server
	InForce
)

// interval is a period in which the policy was in force, as versions: after since, up to until.
type interval struct {
	since, until string
	rules        []resourceRule
}

// Proof is what a [Guard] has found out so far. It is immutable.
type Proof struct {
	intervals []interval
	unproven  map[string]string // groups, see unprovenGroups
	checked   string            // newest version that is known about
}

// Judge returns whether the policy was in force for a write of an object that made this version.
func (p *Proof) Judge(resource event.Resource, version string) Verdict {
	if p.checked == "" {
		return NotKnown
	}
	if _, unproven := p.unproven[resource.Group]; unproven || !resourceversion.IsOrdered(version) {
		return NotInForce
	}
	if isNewer(version, p.checked) {
		return NotKnown
	}
	for _, i := range p.intervals {
		if isNewer(version, i.since) && !isNewer(version, i.until) && covers(i.rules, resource) {
			return InForce
		}
	}
	return NotInForce
}

func covers(rules []resourceRule, resource event.Resource) bool {
	return WhyUnstamped(resource) == "" && slices.ContainsFunc(rules, func(r resourceRule) bool { return r.coversAll(resource) })
}

// isNewer reports whether a is newer than b. Versions of the lists that a proof consists of are ordered.
func isNewer(a, b string) bool { return resourceversion.Order(a, b) > 0 }
