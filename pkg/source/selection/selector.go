package selection

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// checkFields validates the field selector of a rule. One that names an object or a namespace that cannot exist, or that
// namespaces leaves out, is an error: the API server accepts it and sends nothing.
func (r Rule) checkFields() error {
	s, err := fields.ParseSelector(r.FieldSelector)
	if err != nil {
		return err
	}
	if name, given := s.RequiresExactMatch(metav1.ObjectNameField); given && (name == "" || len(content.IsPathSegmentName(name)) > 0) {
		return fmt.Errorf("no object can match: found %q, expected the name of an object", name)
	}
	namespace, _ := s.RequiresExactMatch(namespaceField)
	selects := r.Namespaces.Filter()
	switch {
	case namespace == "":
	case len(validation.IsDNS1123Label(namespace)) > 0:
		return fmt.Errorf("no object can match: found %q, expected the name of a namespace", namespace)
	case selects != nil && !selects(namespace):
		return fmt.Errorf("no object can match: found namespace %q, expected one that namespaces selects", namespace)
	}
	return nil
}

// Rule selects resources, and objects of them. If several rules select a resource, the first one owns it.
type Rule struct {
	// Select names resources: "pods", "deployments.apps", "deployments.v1.apps", "*.cert-manager.io" for a group, "*.core"
	// for the core group, "*" for everything. Names that are not served yet are waited for.
	Select []string `mapstructure:"select"`
	// Exclude names resources that this rule does not select.
	Exclude []string `mapstructure:"exclude"`
	// Namespaces of the selected objects. Cluster-scoped objects are not affected.
	Namespaces Namespaces `mapstructure:"namespaces"`
	// Only objects with these labels, as kubectl writes it.
	LabelSelector string `mapstructure:"labelSelector"`
	// Only objects with these values of fields, as kubectl writes it.
	FieldSelector string `mapstructure:"fieldSelector"`
	// The part of each object that is read: full, or metadata, which costs far fewer bytes.
	Capture string `mapstructure:"capture"`
	// What happens while a resource is forbidden: degrade leaves it out until it is allowed; fail ends the exporter.
	OnForbidden string `mapstructure:"onForbidden"`
	// The period over which every known object is read and emitted again, as sync; 0s: never.
	Resync time.Duration `mapstructure:"resync"`
	// Metadata of the object that an Event is about, added to its involvedObject (or regarding). See docs/events-reference.md.
	InvolvedObject InvolvedObject `mapstructure:"involvedObject"`

	filter string
}

// InvolvedObject chooses what Events have of the object that they are about.
type InvolvedObject struct {
	// Its labels.
	Labels bool `mapstructure:"labels"`
	// Its annotations, redacted as in the object itself.
	Annotations bool `mapstructure:"annotations"`
	// Its controller: apiVersion, kind, name and uid of the owner reference.
	Owner bool `mapstructure:"owner"`
}

// IsEvents reports whether r is one of the two resources of Events.
func IsEvents(r event.Resource) bool {
	return withoutVersion(r) == coreEvents || withoutVersion(r) == newEvents
}

// checkInvolvedObject reports a rule that asks for the objects of Events, and reads no Events.
func (r Rule) checkInvolvedObject() error {
	_, core := Owners([]Rule{r})(coreEvents)
	_, newer := Owners([]Rule{r})(newEvents)
	switch {
	case r.InvolvedObject == InvolvedObject{}:
	case !core && !newer:
		return errors.New(`the rule selects no Events: select "events" or "events.events.k8s.io"`)
	case r.Capture == CaptureMetadata:
		return errors.New("an Event names its object outside of its metadata: it needs capture: full")
	}
	return nil
}

// WithFilter returns the rule with an expression that decides which changes of its objects are emitted. It is evaluated
// elsewhere, and is a part of what is selected.
func (r Rule) WithFilter(expression string) Rule {
	r.filter = expression
	return r
}

// The values of Rule.Capture. Empty means CaptureFull.
const (
	CaptureFull     = "full"
	CaptureMetadata = "metadata"
)

// The values of Rule.OnForbidden. Empty means Degrade.
const (
	Degrade = "degrade"
	Fail    = "fail"
)

// minResync is the minimum of Rule.Resync other than 0.
const minResync = 10 * time.Second

// Namespaces chooses namespaces by name or glob ("team-*"). If include has only names, each is watched separately, so that a
// Role in each is sufficient; otherwise the whole cluster is watched and other namespaces are dropped here.
type Namespaces struct {
	Include []string `mapstructure:"include"` // those that are selected; empty means all
	Exclude []string `mapstructure:"exclude"` // those that are left out, even if include matches them
}

// Validate reports every problem of the rule, each with its path, which begins with path.
func (r Rule) Validate(path string) error {
	var all []error
	if len(r.Select) == 0 {
		all = append(all, fmt.Errorf(`%s.select: names no resource, for example ["pods", "deployments.apps"]`, path))
	}
	for key, names := range map[string][]string{"select": r.Select, "exclude": r.Exclude} {
		for i, name := range names {
			if _, err := parsePattern(name); err != nil {
				all = append(all, fmt.Errorf("%s.%s[%d]: %w", path, key, i, err))
			}
		}
	}
	for key, globs := range map[string][]string{"include": r.Namespaces.Include, "exclude": r.Namespaces.Exclude} {
		for i, glob := range globs {
			if err := checkGlob(glob); err != nil {
				all = append(all, fmt.Errorf("%s.namespaces.%s[%d]: %w", path, key, i, err))
			}
		}
	}
	for i, name := range r.Select {
		if p, err := parsePattern(name); err == nil && r.excludesAll(p) {
			all = append(all, fmt.Errorf("%s.select[%d]: %q selects nothing: exclude leaves all of it out; remove it from one of them", path, i, name))
		}
	}
	if r.Namespaces.excludesIncluded() {
		all = append(all, fmt.Errorf("%s.namespaces: exclude leaves out every namespace that include names", path))
	}
	if _, err := labels.Parse(r.LabelSelector); err != nil {
		all = append(all, fmt.Errorf("%s.labelSelector: %w", path, err))
	}
	if err := r.checkFields(); err != nil {
		all = append(all, fmt.Errorf("%s.fieldSelector: %w", path, err))
	}
	if r.Capture != "" && r.Capture != CaptureFull && r.Capture != CaptureMetadata {
		all = append(all, fmt.Errorf("%s.capture: %q is neither %q nor %q", path, r.Capture, CaptureFull, CaptureMetadata))
	}
	if r.OnForbidden != "" && r.OnForbidden != Degrade && r.OnForbidden != Fail {
		all = append(all, fmt.Errorf("%s.onForbidden: %q is neither %q nor %q", path, r.OnForbidden, Degrade, Fail))
	}
	if err := r.checkInvolvedObject(); err != nil {
		all = append(all, fmt.Errorf("%s.involvedObject: %w", path, err))
	}
	if r.Resync != 0 && r.Resync < minResync {
		all = append(all, fmt.Errorf("%s.resync: %s is too often: every object is read each time; at least %s, or 0s for never", path, r.Resync, minResync))
	}
	slices.SortFunc(all, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(all...)
}

// Validate validates all rules, with the path "resources". It stops at the first invalid rule.
func Validate(rules []Rule) error {
	for i, rule := range rules {
		if err := rule.Validate(fmt.Sprintf("resources[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func checkGlob(glob string) error {
	if glob == "" {
		return errors.New(`is empty; leave it out, or write "*" for all namespaces`)
	}
	if _, err := path.Match(glob, ""); err != nil {
		return fmt.Errorf(`%q is not a valid pattern: use "*", "?" and "[a-z]"`, glob)
	}
	if fixed := strings.ReplaceAll(glob, "*", ""); !strings.ContainsAny(glob, `[\\`) && len(fixed) > maxNamespaceLength {
		return fmt.Errorf("%q cannot match any namespace: found %d characters, expected at most %d", glob, len(fixed), maxNamespaceLength)
	}
	if strings.HasPrefix(glob, "-") || strings.HasSuffix(glob, "-") {
		return fmt.Errorf("%q cannot match any namespace: names begin and end with a letter or a digit", glob)
	}
	if !namespaceGlob.MatchString(glob) {
		return fmt.Errorf("%q cannot match any namespace: names hold lower-case letters, digits and \"-\"", glob)
	}
	return nil
}

// SelectedNamespaces returns Namespaces, or the one of them that the field selector requires.
func (r Rule) SelectedNamespaces() Namespaces {
	if only, _ := splitNamespace(r.FieldSelector); only != "" {
		return Namespaces{Include: []string{only}}
	}
	return r.Namespaces
}

// namespacedBuiltins are resources of Kubernetes whose objects are in namespaces.
var namespacedBuiltins = []pattern{
	{resource: "pods"}, {resource: "services"}, {resource: "configmaps"}, {resource: "secrets"}, {resource: "endpoints"},
	{resource: "events"}, {resource: "serviceaccounts"}, {resource: "persistentvolumeclaims"}, {resource: "resourcequotas"},
	{resource: "limitranges"}, {resource: "replicationcontrollers"}, {resource: "podtemplates"}, {resource: "*", group: "apps"},
	{resource: "*", group: "batch"}, {resource: "*", group: "autoscaling"}, {resource: "*", group: "policy"},
}

// IsNamespaced reports whether everything that a name, written as in Select, can mean is known to be in namespaces. Custom
// resources are not known.
func IsNamespaced(name string) bool {
	p, err := parsePattern(name)
	return err == nil && slices.ContainsFunc(namespacedBuiltins, func(b pattern) bool { return b.coversPattern(p) })
}

// LiteralName returns the group and the resource that a name, written as in Select, stands for; false for a wildcard.
func LiteralName(name string) (group, resource string, ok bool) {
	p, err := parsePattern(name)
	return p.group, p.resource, err == nil && !p.isWildcard()
}

// IsClusterScoped reports whether a name, written as in Select, is a cluster-scoped resource of Kubernetes.
func IsClusterScoped(name string) bool {
	p, err := parsePattern(name)
	return err == nil && !p.anyGroup && slices.Contains(clusterScoped[p.group], p.resource)
}

var namespaceGlob = regexp.MustCompile(`^[-a-z0-9*?\[\]^\\]+$`)

// Filter returns a function that reports whether a namespace is chosen; nil chooses all. The empty namespace is chosen only
// by globs that match everything.
func (n Namespaces) Filter() func(namespace string) bool {
	if len(n.Include)+len(n.Exclude) == 0 {
		return nil
	}
	return func(namespace string) bool {
		return (len(n.Include) == 0 || matchesAny(n.Include, namespace)) && !matchesAny(n.Exclude, namespace)
	}
}

// Names returns the selected namespaces, which are watched separately, if Include has only names. Otherwise it is nil, and
// there is one watch of the cluster, with Filter.
func (n Namespaces) Names() []string {
	if len(n.Include) == 0 || slices.ContainsFunc(n.Include, isGlob) {
		return nil
	}
	names := n.literalNames()
	slices.Sort(names)
	return slices.Compact(names)
}

// literalNames returns the names in Include, without globs, that Exclude does not match.
func (n Namespaces) literalNames() []string {
	return slices.DeleteFunc(slices.Clone(n.Include), func(name string) bool { return isGlob(name) || matchesAny(n.Exclude, name) })
}

func isGlob(s string) bool { return strings.ContainsAny(s, `*?[\`) }

func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return ok && err == nil
	})
}
