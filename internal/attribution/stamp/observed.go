package stamp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// The parts of the API server that a [Guard] reads.
const (
	admissionGroup, admissionVersion = "admissionregistration.k8s.io", "v1"
	policies, bindings               = "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"
	aggregationGroup, apiServices    = "apiregistration.k8s.io", "apiservices"
)

// resourceRule is a rule of the policy that selects resources.
type resourceRule struct {
	ResourceNames []string `json:"resourceNames"`
	Operations    []string `json:"operations"`
	APIGroups     []string `json:"apiGroups"`
	APIVersions   []string `json:"apiVersions"`
	Resources     []string `json:"resources"`
	Scope         string   `json:"scope"`
}

// coversAll reports whether the rule selects each write of a resource and of its subresources.
func (r resourceRule) coversAll(resource event.Resource) bool {
	has := slices.Contains[[]string]
	lacks := func(version string) bool { return !has(r.APIVersions, version) }
	return len(r.ResourceNames) == 0 && (r.Scope == "" || r.Scope == "*") &&
		(has(r.APIVersions, "*") || !slices.ContainsFunc(stampedVersions(resource.Group), lacks)) &&
		(has(r.Operations, "*") || has(r.Operations, "CREATE") && has(r.Operations, "UPDATE")) &&
		(has(r.APIGroups, "*") || has(r.APIGroups, resource.Group)) &&
		(has(r.Resources, "*/*") || (has(r.Resources, resource.Resource) || has(r.Resources, "*")) && has(r.Resources, resource.Resource+"/*"))
}

// policySpec is the spec of a MutatingAdmissionPolicy. Members that it lacks make a spec unreadable.
type policySpec struct {
	ParamKind        json.RawMessage `json:"paramKind"`
	MatchConstraints struct {
		NamespaceSelector    map[string]any `json:"namespaceSelector"`
		ObjectSelector       map[string]any `json:"objectSelector"`
		ResourceRules        []resourceRule `json:"resourceRules"`
		ExcludeResourceRules []resourceRule `json:"excludeResourceRules"`
		MatchPolicy          string         `json:"matchPolicy"`
	} `json:"matchConstraints"`
	Variables []namedExpression `json:"variables"`
	Mutations []struct {
		PatchType string `json:"patchType"`
		JSONPatch struct {
			Expression string `json:"expression"`
		} `json:"jsonPatch"`
		ApplyConfiguration json.RawMessage `json:"applyConfiguration"`
	} `json:"mutations"`
	FailurePolicy      string            `json:"failurePolicy"`
	MatchConditions    []namedExpression `json:"matchConditions"`
	ReinvocationPolicy string            `json:"reinvocationPolicy"`
}

// weakness returns what a policy lacks of the printed one, apart from the resources that it selects; "" for nothing.
func (p *policySpec) weakness() string {
	c := &p.MatchConstraints
	switch {
	case p.FailurePolicy != "Fail":
		return "failurePolicy is " + p.FailurePolicy + ", want Fail: a write that cannot be stamped keeps the stamp of the client"
	case p.ReinvocationPolicy != "IfNeeded":
		return "reinvocationPolicy is " + p.ReinvocationPolicy + ", want IfNeeded"
	case len(c.NamespaceSelector)+len(c.ObjectSelector)+len(c.ExcludeResourceRules) > 0:
		return "matchConstraints leave out namespaces, objects or resources"
	case c.MatchPolicy != "Exact":
		return "matchPolicy is " + c.MatchPolicy + ", want Exact: with another one, the API server refuses writes"
	case isPresent(p.ParamKind):
		return "it has a paramKind"
	case !slices.Equal(p.MatchConditions, matchConditions):
		return "its matchConditions are not those that this version prints"
	case !slices.Equal(p.Variables, variables):
		return "its variables are not those that this version prints"
	case len(p.Mutations) != 1 || p.Mutations[0].PatchType != "JSONPatch" || p.Mutations[0].JSONPatch.Expression != mutation ||
		isPresent(p.Mutations[0].ApplyConfiguration):
		return "its mutation is not the one that this version prints"
	}
	return ""
}

func isPresent(member json.RawMessage) bool { return len(member) > 0 && string(member) != "null" }

// bindingSpec is the spec of a MutatingAdmissionPolicyBinding.
type bindingSpec struct {
	PolicyName     string          `json:"policyName"`
	ParamRef       json.RawMessage `json:"paramRef"`
	MatchResources json.RawMessage `json:"matchResources"`
}

func (b *bindingSpec) weakness() string {
	switch {
	case b.PolicyName != PolicyName:
		return "it is for the policy " + b.PolicyName
	case isPresent(b.ParamRef):
		return "it has a paramRef"
	case isPresent(b.MatchResources) && string(b.MatchResources) != "{}":
		return "its matchResources leave out resources"
	}
	return ""
}

// metadata is of an object that the proof depends on.
type metadata struct {
	UID               string
	Generation        int64
	CreationTimestamp time.Time
	DeletionTimestamp *time.Time
	ManagedFields     []struct{ Time time.Time }
}

// writtenAt returns when the object was last written, by the clock of an API server; false if that is not known.
func (m *metadata) writtenAt() (at time.Time, known bool) {
	at, known = m.CreationTimestamp, m.Generation == 1 || len(m.ManagedFields) > 0
	for _, f := range m.ManagedFields {
		if f.Time.After(at) {
			at = f.Time
		}
	}
	return at, known && !at.IsZero()
}

// observation is the state of policy and binding at a version.
type observation struct {
	version string // up to which it is known, of the older of two lists
	problem string // why the policy proves nothing; "" if it does
	// notServed is set if the API server that answered has no such policies, so that its writes are not stamped.
	notServed bool
	// identity changes with each change of a spec: UIDs and generations.
	identity  string
	rules     []resourceRule
	writtenAt time.Time // when the newer one was last written, by the clock of an API server; zero: unknown
}

type listed struct {
	Metadata struct{ ResourceVersion string }
	Items    []struct {
		Metadata metadata
		Spec     json.RawMessage
	}
}

// parseList reads a list. The absence of the object is no error.
func parseList(text []byte) (l listed, err error) {
	if err = json.Unmarshal(text, &l); err == nil && !resourceversion.IsOrdered(l.Metadata.ResourceVersion) {
		err = fmt.Errorf("the list has the version %q, which is no number", l.Metadata.ResourceVersion)
	}
	return l, err
}

// observe returns what lists of the policy and of the binding show. They must have been requested one after the other.
func observe(policyList, bindingList []byte) (observation, error) {
	p, err := parseList(policyList)
	if err != nil {
		return observation{}, fmt.Errorf("list %s: %w", policies, err)
	}
	b, err := parseList(bindingList)
	if err != nil {
		return observation{}, fmt.Errorf("list %s: %w", bindings, err)
	}
	o := observation{version: p.Metadata.ResourceVersion}
	if isNewer(o.version, b.Metadata.ResourceVersion) {
		o.version = b.Metadata.ResourceVersion
	}
	switch {
	case len(p.Items) == 0:
		o.problem = "the MutatingAdmissionPolicy " + PolicyName + " does not exist"
		return o, nil
	case len(b.Items) == 0:
		o.problem = "the MutatingAdmissionPolicyBinding " + PolicyName + " does not exist"
		return o, nil
	}
	policy, binding := &p.Items[0], &b.Items[0]
	var spec policySpec
	if err := strictUnmarshal(policy.Spec, &spec); err != nil {
		o.problem = "the policy has what this version does not know: " + err.Error()
	} else if weak := spec.weakness(); weak != "" {
		o.problem = "the policy is not the printed one: " + weak
	}
	var bound bindingSpec
	if err := strictUnmarshal(binding.Spec, &bound); err != nil && o.problem == "" {
		o.problem = "the binding has what this version does not know: " + err.Error()
	} else if weak := bound.weakness(); weak != "" && o.problem == "" {
		o.problem = "the binding is not the printed one: " + weak
	}
	if policy.Metadata.DeletionTimestamp != nil || binding.Metadata.DeletionTimestamp != nil {
		o.problem = "the policy or its binding is being deleted"
	}
	o.identity = fmt.Sprintf("%s/%d %s/%d", policy.Metadata.UID, policy.Metadata.Generation, binding.Metadata.UID, binding.Metadata.Generation)
	o.rules = spec.MatchConstraints.ResourceRules
	first, known := policy.Metadata.writtenAt()
	second, both := binding.Metadata.writtenAt()
	if known && both {
		if o.writtenAt = first; second.After(first) {
			o.writtenAt = second
		}
	}
	return o, nil
}

func strictUnmarshal(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// unprovenGroups returns the groups that a list of APIServices shows to be served by other servers, which the policy does
// not concern, with "", and those that are served in a version that it does not select, with the version.
func unprovenGroups(text []byte) (map[string]string, error) {
	var l struct {
		Items []struct {
			Spec struct {
				Group, Version string
				Service        json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("list %s: %w", apiServices, err)
	}
	groups := map[string]string{}
	for _, i := range l.Items {
		stamped := stampedVersions(i.Spec.Group)
		switch version, known := groups[i.Spec.Group]; {
		case isPresent(i.Spec.Service):
			groups[i.Spec.Group] = ""
		case stamped[0] != "*" && !slices.Contains(stamped, i.Spec.Version) && (!known || version != ""):
			groups[i.Spec.Group] = i.Spec.Version
		}
	}
	return groups, nil
}
