package selection

import (
	"strings"
	"testing"
)

func TestRuleReportsWhatItTakesFromLaterRules(t *testing.T) {
	for _, c := range []struct {
		selected, excluded []string
		name               string
		takes              bool
	}{
		{selected: []string{"*"}, name: "secrets", takes: true},
		{selected: []string{"*"}, name: "*.apps", takes: true},
		{selected: []string{"*"}, excluded: []string{"secrets"}, name: "secrets"},
		{selected: []string{"*"}, excluded: []string{"secrets"}, name: "*.core"}, // secrets are excluded
		{selected: []string{"*"}, excluded: []string{"secrets"}, name: "*.apps", takes: true},
		{selected: []string{"*.apps"}, name: "deployments.apps", takes: true},
		{selected: []string{"*.apps"}, name: "*"},
		{selected: []string{"*.core"}, name: "pods", takes: true},
		{selected: []string{"pods"}, name: "pods.core", takes: true},
		{selected: []string{"pods"}, name: "pods.metrics.k8s.io"},
		{selected: []string{"deployments.apps"}, name: "deployments.v1.apps", takes: true},
		{selected: []string{"deployments.v1beta1.apps"}, name: "deployments.apps"}, // v1beta1 may not be served
	} {
		if _, got := (Rule{Select: c.selected, Exclude: c.excluded}).SelectsAll(c.name); got != c.takes {
			t.Errorf("%v without %v takes all of %s: %v", c.selected, c.excluded, c.name, got)
		}
	}
}

func TestDisjointRulesDoNotOverlap(t *testing.T) {
	rule := func(selected, excluded string) Rule {
		return Rule{Select: strings.Fields(selected), Exclude: strings.Fields(excluded)}
	}
	for _, c := range []struct {
		a, b Rule
		meet bool
	}{
		{rule("pods", ""), rule("*", ""), true}, {rule("pods", ""), rule("*", "pods"), false}, {rule("*.apps", ""), rule("deployments.apps", ""), true},
		{rule("*.apps", ""), rule("pods", ""), false}, {rule("*", "*.apps"), rule("*.apps", ""), false}, {rule("*.core", ""), rule("*", ""), true},
	} {
		if c.a.Overlaps(c.b) != c.meet || c.b.Overlaps(c.a) != c.meet {
			t.Errorf("%v and %v overlap: want %v", c.a, c.b, c.meet)
		}
	}
}

func TestEmptySelectionIsRejected(t *testing.T) {
	pods := []string{"pods"}
	for name, r := range map[string]Rule{
		"excluded":              {Select: pods, Exclude: pods},
		"excluded by all":       {Select: []string{"deployments.apps"}, Exclude: []string{"*"}},
		"namespaces":            {Select: pods, Namespaces: Namespaces{Include: []string{"a", "b"}, Exclude: []string{"a", "b"}}},
		"namespaces by pattern": {Select: pods, Namespaces: Namespaces{Include: []string{"team-*"}, Exclude: []string{"*"}}},
		"the same pattern":      {Select: pods, Namespaces: Namespaces{Include: []string{"team-*"}, Exclude: []string{"team-*"}}},
		"no name":               {Select: pods, FieldSelector: "metadata.name="},
		"a path as a name":      {Select: pods, FieldSelector: "metadata.name=a/b"},
		"another namespace":     {Select: pods, FieldSelector: "metadata.namespace=b", Namespaces: Namespaces{Include: []string{"a"}}},
	} {
		if err := r.Validate("resources[0]"); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, r := range map[string]Rule{
		"all but some":       {Select: []string{"*"}, Exclude: pods},
		"a pattern":          {Select: pods, Namespaces: Namespaces{Include: []string{"team-*"}, Exclude: []string{"team-a"}}},
		"labels":             {Select: pods, LabelSelector: "app in (a,b),app notin (b,c),tier,!old,app!=c"},
		"numbers":            {Select: pods, LabelSelector: "n>1,n<5"},
		"not one namespace":  {Select: pods, FieldSelector: "metadata.namespace!=a", Namespaces: Namespaces{Include: []string{"a", "b"}}},
		"nodes have none":    {Select: []string{"nodes", "pods"}, FieldSelector: "metadata.namespace!=a", Namespaces: Namespaces{Include: []string{"a"}}},
		"fields":             {Select: pods, FieldSelector: "metadata.name=a,status.phase!=Failed,metadata.name=a"},
		"the same namespace": {Select: pods, FieldSelector: "metadata.namespace=a", Namespaces: Namespaces{Include: []string{"a"}}},
	} {
		if err := r.Validate("resources[0]"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
