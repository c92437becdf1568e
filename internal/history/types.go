package history

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/pkg/nearest"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
)

// builtIn has the types of Kubernetes that people name, whether rows have them or not: group, plural, kind, and short names,
// which no row has. The first ones are in namespaces.
var builtIn = append(parseBuiltIn(`
- configmaps ConfigMap cm
- endpoints Endpoints ep
- events Event ev
- limitranges LimitRange limits
- persistentvolumeclaims PersistentVolumeClaim pvc
- pods Pod po
- podtemplates PodTemplate
- replicationcontrollers ReplicationController rc
- resourcequotas ResourceQuota quota
- secrets Secret
- serviceaccounts ServiceAccount sa
- services Service svc
apps controllerrevisions ControllerRevision
apps daemonsets DaemonSet ds
apps deployments Deployment deploy
apps replicasets ReplicaSet rs
apps statefulsets StatefulSet sts
autoscaling horizontalpodautoscalers HorizontalPodAutoscaler hpa
batch cronjobs CronJob cj
batch jobs Job
coordination.k8s.io leases Lease
discovery.k8s.io endpointslices EndpointSlice
networking.k8s.io ingresses Ingress ing
networking.k8s.io networkpolicies NetworkPolicy netpol
policy poddisruptionbudgets PodDisruptionBudget pdb
rbac.authorization.k8s.io rolebindings RoleBinding
rbac.authorization.k8s.io roles Role
`, false), parseBuiltIn(`
- namespaces Namespace ns
- nodes Node no
- persistentvolumes PersistentVolume pv
admissionregistration.k8s.io mutatingwebhookconfigurations MutatingWebhookConfiguration
admissionregistration.k8s.io validatingadmissionpolicies ValidatingAdmissionPolicy
admissionregistration.k8s.io validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding
admissionregistration.k8s.io validatingwebhookconfigurations ValidatingWebhookConfiguration
apiextensions.k8s.io customresourcedefinitions CustomResourceDefinition crd crds
apiregistration.k8s.io apiservices APIService
certificates.k8s.io certificatesigningrequests CertificateSigningRequest csr
networking.k8s.io ingressclasses IngressClass
rbac.authorization.k8s.io clusterrolebindings ClusterRoleBinding
rbac.authorization.k8s.io clusterroles ClusterRole
scheduling.k8s.io priorityclasses PriorityClass pc
storage.k8s.io csidrivers CSIDriver
storage.k8s.io csinodes CSINode
storage.k8s.io storageclasses StorageClass sc
storage.k8s.io volumeattachments VolumeAttachment
`, true)...)

// Type is a type with the names that kubectl takes for it, in lower case.
type Type struct {
	event.Resource
	Singular      string
	ShortNames    []string
	ClusterScoped bool // as far as is known
}

func parseBuiltIn(table string, clusterScoped bool) (all []Type) {
	for line := range strings.Lines(strings.TrimSpace(table)) {
		words := strings.Fields(line)
		r := event.Resource{Group: strings.TrimPrefix(words[0], "-"), Resource: words[1], Kind: words[2]}
		all = append(all, Type{r, strings.ToLower(r.Kind), words[3:], clusterScoped})
	}
	return all
}

// names returns all names of the type.
func (t Type) names() []string {
	return append([]string{t.Resource.Resource, strings.ToLower(t.Kind), t.Singular}, t.ShortNames...)
}

// matches reports whether a name means the type: one of its names, alone or with the group, or with version and group.
func (t Type) matches(name string) bool {
	name, rest, qualified := strings.Cut(strings.ToLower(name), ".")
	if !slices.Contains(t.names(), name) || name == "" {
		return false
	}
	_, group, _ := strings.Cut(rest, ".")
	return !qualified || rest == t.Group || group == t.Group && strings.HasPrefix(rest, "v") || rest == "core" && t.Group == ""
}

// ParseScope reads arguments as kubectl takes them: TYPE, TYPE/NAME, TYPE NAME, or several types with commas.
func ParseScope(ctx context.Context, h *History, args []string, namespace string) (Scope, error) {
	s := Scope{Namespace: namespace}
	if len(args) == 0 {
		return s, nil
	}
	types, name, named := strings.Cut(args[0], "/")
	if s.Name = name; len(args) == 2 {
		s.Name = args[1]
	}
	if named && (len(args) == 2 || name == "") || strings.Contains(s.Name, "/") {
		return s, exit.With(exit.Usage, fmt.Errorf("%q: expected TYPE/NAME or TYPE NAME", strings.Join(args, " ")))
	}
	for one := range strings.SplitSeq(types, ",") {
		t, err := ResolveType(ctx, h, one)
		if err != nil {
			return s, err
		}
		s.Types = append(s.Types, t)
	}
	return s, nil
}

// ResolveType returns the type that a name means, as kubectl takes it: plural, singular, short name or kind. Types that are
// not built in are those of the rows, with the short names of their definitions, where the history has these.
func ResolveType(ctx context.Context, h *History, name string) (event.Resource, error) {
	for _, t := range builtIn {
		if t.matches(name) {
			return t.Resource, nil
		}
	}
	recorded, err := Types(ctx, h)
	if err != nil {
		return event.Resource{}, err
	}
	var names []string
	for _, t := range slices.Concat(recorded, builtIn) {
		if t.matches(name) {
			return t.Resource, nil
		}
		names = append(names, t.names()...)
	}
	hint := ""
	if meant := nearest.Name(strings.ToLower(name), names); meant != "" {
		hint = "; did you mean " + meant + "?"
	}
	return event.Resource{}, exit.With(exit.Usage, fmt.Errorf("the history has no type %q%s", name, hint))
}

// Types returns the types of all rows, with the version of the newest one of each that was looked at, by name.
func Types(ctx context.Context, h *History) ([]Type, error) {
	types, newest := map[string]Type{}, map[string]int64{}
	q := history.Query{Types: controlTypes, WithoutObjects: true}
	if h.startsLate() { // there may be no control record of a resource any more
		q.Types = nil
	}
	for row, err := range h.snapshot.Rows(ctx, q) {
		if err != nil {
			return nil, err
		}
		r := event.Resource{Group: row.Group, Version: row.Version, Resource: row.Resource, Kind: row.Kind}
		if name := r.String(); r.Kind != "" && row.Sequence >= newest[name] {
			types[name], newest[name] = named(r), row.Sequence
		}
	}
	definitions := history.Match{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	for row, err := range h.snapshot.StateAt(ctx, endOfTime, definitions) {
		if err != nil {
			return nil, err
		}
		var d struct {
			Spec struct {
				Group, Scope string
				Names        struct {
					Plural, Singular, Kind string
					ShortNames             []string
				}
			}
		}
		if json.Unmarshal([]byte(row.Object), &d) == nil {
			n := d.Spec.Names
			r := event.Resource{Group: d.Spec.Group, Resource: n.Plural, Kind: n.Kind}
			r.Version = types[r.String()].Version
			types[r.String()] = Type{r, n.Singular, n.ShortNames, d.Spec.Scope == "Cluster"}
		}
	}
	all := slices.Collect(maps.Values(types))
	slices.SortFunc(all, func(a, b Type) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// named returns a type with the names that are built in.
func named(r event.Resource) Type {
	for _, t := range builtIn {
		if t.Group == r.Group && t.Resource.Resource == r.Resource {
			t.Resource = r
			return t
		}
	}
	return Type{Resource: r, Singular: strings.ToLower(r.Kind)}
}

// Moment is a point in the past: a time, or behind the change with a resourceVersion. The zero value is none.
type Moment struct {
	Time    time.Time
	Version string
}

// IsZero reports whether there is no moment.
func (m Moment) IsZero() bool { return m.Time.IsZero() && m.Version == "" }

// IsBefore reports whether the moment is before another one, as far as both are times, or both versions.
func (m Moment) IsBefore(o Moment) bool {
	return m.Version != "" && o.Version != "" && isHigher(o.Version, m.Version) || m.Version+o.Version == "" && !m.IsZero() && m.Time.Before(o.Time)
}

// String returns the moment as [ParseMoment] reads it.
func (m Moment) String() string {
	if m.Version != "" {
		return "rv:" + m.Version
	}
	return formatTime(m.Time)
}

// formatTime writes a time for people; it can be passed back.
func formatTime(t time.Time) string { return t.Local().Format("2006-01-02T15:04:05.000Z07:00") }

// layouts are how a time may be written. Those without a zone are of the local one, and those without a date of the last day
// that had it.
var layouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly}

var clockLayouts = []string{"15:04:05", "15:04"}

// ParseMoment reads a moment: a time (RFC 3339, a date, 15:04), how long ago (30m, 2h, 3d), or a resourceVersion (rv:4711,
// or digits alone).
func ParseMoment(text string, now time.Time) (Moment, error) {
	version := strings.TrimPrefix(text, "rv:")
	if resourceversion.IsOrdered(version) {
		return Moment{Version: version}, nil
	}
	if text == "now" {
		return Moment{Time: now}, nil
	}
	if ago, ok := parseAgo(text); ok {
		return Moment{Time: now.Add(-ago)}, nil
	}
	for _, layout := range layouts {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return Moment{Time: t}, nil
		}
	}
	for _, layout := range clockLayouts {
		if c, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			t := time.Date(now.Year(), now.Month(), now.Day(), c.Hour(), c.Minute(), c.Second(), 0, now.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
			return Moment{Time: t}, nil
		}
	}
	return Moment{}, fmt.Errorf("%q is no moment: expected a time (2026-01-02T15:04:05Z, 2026-01-02, 15:04), how long ago (30m, 2h, 3d), "+
		"or a resourceVersion (rv:4711)", text)
}

// parseAgo reads a duration, which may be in days.
func parseAgo(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	ago, err := time.ParseDuration(text)
	return ago, err == nil && ago >= 0
}
