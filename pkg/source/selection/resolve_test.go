package selection

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// discoveryDocuments describes what is served: "group/version: resource resource…", with a trailing "!" for cluster-scoped
// ones and "-" for those that cannot be watched. The first version of a group is the preferred one; the core group is "/v1".
func discoveryDocuments(lines ...string) ([]*metav1.APIGroup, []*metav1.APIResourceList) {
	var groups []*metav1.APIGroup
	var lists []*metav1.APIResourceList
	for _, line := range lines {
		gv, resources, _ := strings.Cut(line, ": ")
		group, version, _ := strings.Cut(gv, "/")
		i := slices.IndexFunc(groups, func(g *metav1.APIGroup) bool { return g.Name == group })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &metav1.APIGroup{Name: group, PreferredVersion: metav1.GroupVersionForDiscovery{Version: version}})
		}
		groups[i].Versions = append(groups[i].Versions, metav1.GroupVersionForDiscovery{Version: version})
		l := &metav1.APIResourceList{GroupVersion: strings.TrimPrefix(gv, "/")}
		for _, r := range strings.Fields(resources) {
			verbs := metav1.Verbs{"get", "list", "watch"}
			if strings.HasSuffix(r, "-") {
				verbs = metav1.Verbs{"create"}
			}
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: strings.TrimRight(r, "!-"), Kind: "K", Namespaced: !strings.HasSuffix(r, "!"), Verbs: verbs})
		}
		lists = append(lists, l)
	}
	return groups, lists
}

func catalogOf(lines ...string) Catalog {
	groups, lists := discoveryDocuments(lines...)
	return ReadCatalog(groups, lists, nil, nil)
}

var cluster = catalogOf(
	"/v1: pods pods/status nodes! namespaces! events bindings-",
	"apps/v1: deployments statefulsets",
	"apps/v1beta1: deployments controllerrevisions",
	"events.k8s.io/v1: events",
	"cert-manager.io/v1: certificates issuers clusterissuers!",
)

func resolvedText(rules ...Rule) string {
	e := Resolve(rules, cluster)
	var all []string
	for _, s := range e.Scopes() {
		all = append(all, s.ID+"@"+s.Resource.Version)
	}
	for _, u := range e.Unserved {
		if text := "waiting:" + u.Name; !IsWildcard(u.Name) && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, " ")
}

func TestRulesSelectScopes(t *testing.T) {
	sel := func(names ...string) Rule { return Rule{Select: names} }
	for name, c := range map[string]struct {
		rules []Rule
		want  string
	}{
		"by name":                     {[]Rule{sel("pods", "deployments.apps")}, "pods@v1 deployments.apps@v1"},
		"in a version":                {[]Rule{sel("deployments.v1beta1.apps", "pods.v1")}, "deployments.apps@v1beta1 pods@v1"},
		"only in an older version":    {[]Rule{sel("controllerrevisions.apps")}, "controllerrevisions.apps@v1beta1"},
		"a group":                     {[]Rule{sel("*.cert-manager.io")}, "certificates.cert-manager.io@v1 clusterissuers.cert-manager.io@v1 issuers.cert-manager.io@v1"},
		"the core group":              {[]Rule{sel("*.core")}, "events@v1 namespaces@v1 nodes@v1 pods@v1"},
		"everything, events once":     {[]Rule{sel("*")}, "events@v1 namespaces@v1 nodes@v1 pods@v1 controllerrevisions.apps@v1beta1 deployments.apps@v1 statefulsets.apps@v1 certificates.cert-manager.io@v1 clusterissuers.cert-manager.io@v1 issuers.cert-manager.io@v1"},
		"everything but":              {[]Rule{{Select: []string{"*"}, Exclude: []string{"events", "*.cert-manager.io", "*.apps", "nodes"}}}, "namespaces@v1 pods@v1"},
		"the newer events by name":    {[]Rule{sel("events", "events.events.k8s.io")}, "events.events.k8s.io@v1"},
		"the newer events by group":   {[]Rule{sel("*.core"), sel("*.events.k8s.io")}, "namespaces@v1 nodes@v1 pods@v1 events.events.k8s.io@v1"},
		"the first rule wins":         {[]Rule{{Select: []string{"pods"}, LabelSelector: "a=b"}, sel("pods", "nodes")}, "pods;l=a=b@v1 nodes@v1"},
		"an exclude is the rule's":    {[]Rule{{Select: []string{"*.core"}, Exclude: []string{"pods"}}, sel("pods")}, "events@v1 namespaces@v1 nodes@v1 pods@v1"},
		"selectors":                   {[]Rule{{Select: []string{"pods"}, LabelSelector: "a=b", FieldSelector: "status.phase=Running"}}, "pods;l=a=b;f=status.phase=Running@v1"},
		"not served":                  {[]Rule{sel("widgets.example.com", "pods", "*.example.com"), sel("widgets.example.com")}, "pods@v1 waiting:widgets.example.com"},
		"not watchable":               {[]Rule{sel("bindings")}, "waiting:bindings"},
		"namespaces one by one":       {[]Rule{{Select: []string{"pods", "nodes"}, Namespaces: Namespaces{Include: []string{"b", "a", "b"}}}}, "pods;ns=a@v1 pods;ns=b@v1 nodes@v1"},
		"namespaces but one":          {[]Rule{{Select: []string{"pods"}, Namespaces: Namespaces{Include: []string{"a", "b"}, Exclude: []string{"b*"}}}}, "pods;ns=a@v1"},
		"namespaces by pattern":       {[]Rule{{Select: []string{"pods", "nodes"}, Namespaces: Namespaces{Include: []string{"team-*", "a"}, Exclude: []string{"team-x"}}}}, "pods;in=a,team-*;ex=team-x@v1 nodes@v1"},
		"namespaces left out":         {[]Rule{{Select: []string{"pods"}, Namespaces: Namespaces{Exclude: []string{"kube-system"}}, LabelSelector: "a"}}, "pods;ex=kube-system;l=a@v1"},
		"the same under another name": {[]Rule{sel("pods", "pods", "pods.v1")}, "pods@v1"},
	} {
		if got := resolvedText(c.rules...); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestScopeHasItsRule(t *testing.T) {
	scopes := Resolve([]Rule{{Select: []string{"*.apps"}}, {Select: []string{"nodes"}}, {Select: []string{"*.core"}}}, cluster).Scopes()
	for _, s := range scopes {
		want := 2
		switch {
		case s.Resource.Group == "apps":
			want = 0
		case s.Resource.Resource == "nodes":
			want = 1
		}
		if s.Rule != want {
			t.Errorf("%s has rule %d, want %d", s.ID, s.Rule, want)
		}
	}
}

func TestNamespaceFilterFollowsTheRule(t *testing.T) {
	rules := []Rule{{Select: []string{"pods", "nodes"}, Namespaces: Namespaces{Include: []string{"team-*", "a"}, Exclude: []string{"team-x"}}}}
	scopes := Resolve(rules, cluster).Scopes()
	keep := scopes[0].Filter
	for namespace, want := range map[string]bool{"team-a": true, "a": true, "team-x": false, "b": false, "": false} {
		if keep(namespace) != want {
			t.Errorf("%q: %v", namespace, !want)
		}
	}
	if scopes[1].Filter != nil {
		t.Error("cluster-scoped objects are filtered by namespace")
	}
}

func TestNamedNamespacesAreOfNamespacedResources(t *testing.T) {
	in := func(names ...string) Namespaces { return Namespaces{Include: names, Exclude: []string{"*-x"}} }
	rules := []Rule{
		{Select: []string{"pods"}, Namespaces: in("b", "team-*", "a", "b", "a-x")},
		{Select: []string{"nodes"}, Namespaces: in("only-nodes")},
		{Select: []string{"widgets.example.com"}, Namespaces: in("later")},
		{Select: []string{"pods", "deployments.apps"}, Exclude: []string{"deployments.apps"}, Namespaces: in("left")},
	}
	if got := Resolve(rules, cluster).NamedNamespaces(rules); !slices.Equal(got, []string{"a", "b", "later"}) {
		t.Errorf("%q", got)
	}
}

func TestGlobsOfNamespacesAreOfNamespacedResources(t *testing.T) {
	in := func(exclude string, names ...string) Namespaces {
		return Namespaces{Include: names, Exclude: []string{exclude}}
	}
	rules := []Rule{
		{Select: []string{"pods"}, Namespaces: in("*-x", "b", "team-*", "*")},
		{Select: []string{"nodes"}, Namespaces: in("x", "only-nodes-*")},
		{Select: []string{"widgets.example.com"}, Namespaces: in("team-a", "later-?", "team-*")},
	}
	globs := Resolve(rules, cluster).NamespaceGlobs(rules)
	if len(globs) != 2 || globs[0].Glob != "later-?" || globs[1].Glob != "team-*" {
		t.Fatalf("%v", globs)
	}
	for names, want := range map[string]bool{
		"team-a team-b": true, "team-b": true, "team-a": false, "team-x": false, "team-x team-a": true, "teams": false, "": false,
	} {
		if globs[1].HasMatch(strings.Fields(names)) != want {
			t.Errorf("each rule selects one of %q by team-*: %v, want %v", names, !want, want)
		}
	}
}

func TestWrongGroupGetsASuggestion(t *testing.T) {
	waiting := Resolve([]Rule{{Select: []string{"deployments"}}}, cluster).Unserved
	if len(waiting) != 1 || waiting[0].Reason != "the API server does not serve this; did you mean deployments.apps?" {
		t.Errorf("%+v", waiting)
	}
}

func TestSingularShortNameOrKindGetsASuggestion(t *testing.T) {
	groups, lists := discoveryDocuments("/v1: pods", "apps/v1: deployments")
	lists[0].APIResources[0].SingularName, lists[0].APIResources[0].ShortNames = "pod", []string{"po"}
	lists[1].APIResources[0].Kind, lists[1].APIResources[0].ShortNames = "Deployment", []string{"dp", "deploy"}
	c := ReadCatalog(groups, lists, nil, nil)
	for name, meant := range map[string]string{
		"pod": "pods", "po": "pods", "deploy": "deployments.apps", "deployment": "deployments.apps", "deploy.apps": "deployments.apps",
		"pod.apps": "", "pods.v9": "", "deployment.app": "deployments.apps", "depl": "", "widgets.example.com": "",
	} {
		waiting := Resolve([]Rule{{Select: []string{name}}}, c).Unserved
		if len(waiting) != 1 || strings.Contains(waiting[0].Reason, "did you mean "+meant+"?") != (meant != "") {
			t.Errorf("%s: %+v", name, waiting)
		}
	}
}

// TestEachResourceOfANameIsSuggested: nothing shows which of two gateways is meant.
func TestEachResourceOfANameIsSuggested(t *testing.T) {
	c := catalogOf("gateway.networking.k8s.io/v1: gateways", "networking.istio.io/v1: gateways", "networking.istio.io/v1beta1: gateways")
	waiting := Resolve([]Rule{{Select: []string{"gateways"}}}, c).Unserved
	const want = "the API server does not serve this; did you mean gateways.gateway.networking.k8s.io or gateways.networking.istio.io?"
	if len(waiting) != 1 || waiting[0].Reason != want {
		t.Errorf("%+v", waiting)
	}
}

func TestFailedGroupKeepsItsResources(t *testing.T) {
	groups, lists := discoveryDocuments("/v1: pods", "metrics.example/v1: nothing")
	groups = append(groups, &metav1.APIGroup{Name: "new.example"})
	old := catalogOf("/v1: pods secrets", "metrics.example/v1: widgets", "gone.example/v1: gadgets")
	c := ReadCatalog(groups, lists, []string{"metrics.example", "new.example"}, old)
	if got := fmt.Sprintf("%d %d %s %d %d", len(c[""]), len(c["metrics.example"]), c["metrics.example"][0].Resource.Resource, len(c["gone.example"]), len(c["new.example"])); got != "1 1 widgets 0 0" {
		t.Errorf("catalog %v", got)
	}
}

func TestPatternsFollowKubectl(t *testing.T) {
	const golden = "testdata/patterns.golden"
	inputs := []string{
		"pods", "pods.v1", "pods.core", "deployments.apps", "deployments.v1.apps", "deployments.v1beta2.apps", "certificates.cert-manager.io",
		"certificates.v1alpha2.cert-manager.io", "*", "*.apps", "*.core", "*.v1.apps", "v1.v1", "events.events.k8s.io",
		"", " pods", "Pods", "Deployment", "pods/log", "apps/v1/deployments", "pods.", ".apps", "pod*", "*pods.apps", "pods.*", "pods..io", "pods.cert_manager.io", "-pods",
	}
	var got strings.Builder
	for _, in := range inputs {
		p, err := parsePattern(in)
		if err != nil {
			fmt.Fprintf(&got, "%q\n\terror: %v\n", in, err)
		} else {
			fmt.Fprintf(&got, "%q\n\tresource=%s group=%q any=%v version=%q\n", in, p.resource, p.group, p.anyGroup, p.version)
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("differs from %s; UPDATE_GOLDEN=1 accepts\n%s", golden, got.String())
	}
}

func TestValidationReportsEveryProblem(t *testing.T) {
	err := Rule{
		Select: []string{"pods", "Pods"}, Exclude: []string{"pods/log"},
		Namespaces:    Namespaces{Include: []string{"a", "", "A"}, Exclude: []string{"[a"}},
		LabelSelector: "a in b", FieldSelector: "x",
	}.Validate("resources[0]")
	want := []string{
		"resources[0].exclude[0]: ", "resources[0].fieldSelector: ", "resources[0].labelSelector: ", "resources[0].namespaces.exclude[0]: ",
		"resources[0].namespaces.include[1]: ", "resources[0].namespaces.include[2]: ", `resources[0].select[1]: "Pods" is not a resource: use the plural`,
	}
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d problems, want %d:\n%v", len(lines), len(want), err)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, want[i]) {
			t.Errorf("%s\nwant %s", line, want[i])
		}
	}
	if err := (Rule{}).Validate("r"); err == nil {
		t.Error("a rule that selects nothing is valid")
	}
	if err := (Rule{Select: []string{"*"}, Namespaces: Namespaces{Include: []string{"a"}, Exclude: []string{"*"}}}).Validate("r"); err == nil {
		t.Error("a rule that selects no namespace is valid")
	}
	if err := (Rule{Select: []string{"*", "*.apps"}, Namespaces: Namespaces{Include: []string{"team-*", "x?"}}, LabelSelector: "a in (b),!c", FieldSelector: "metadata.name!=x"}).Validate("r"); err != nil {
		t.Error(err)
	}
}
