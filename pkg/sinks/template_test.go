package sinks

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
)

func newDeployment() *event.Change {
	return &event.Change{Type: event.Updated, Cluster: "prod",
		Resource:  event.Resource{Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment"},
		Namespace: "shop", Name: "web.eu"}
}

func TestTemplateFillsEveryPlaceholder(t *testing.T) {
	node := &event.Change{Type: event.Added, Cluster: "prod", Resource: event.Resource{Version: "v1", Resource: "nodes", Kind: "Node"}, Name: "n1"}
	gap := &event.Change{Type: event.Gap, Cluster: "prod", Resource: event.Resource{Resource: "pods"}, Gap: &event.GapInfo{}}
	for _, test := range []struct {
		template string
		change   *event.Change
		want     string
	}{
		{"k8s.{cluster}.{group}.{version}.{resource}.{kind}.{namespace}.{name}.{type}", newDeployment(), "k8s.prod.apps.v1.deployments.Deployment.shop.web.eu.updated"},
		{"{group}/{resource}/{namespace}/{name}", node, "core/nodes/_/n1"},
		{"{group}.{resource}.{namespace}.{name}.{type}", gap, "core.pods._._.gap"},
		{"no placeholder", gap, "no placeholder"},
		{"{name}{name}", node, "n1n1"},
	} {
		template, err := ParseTemplate(test.template)
		if err != nil {
			t.Errorf("%s: %v", test.template, err)
			continue
		}
		if got := string(template.AppendName([]byte("> "), test.change, nil)); got != "> "+test.want {
			t.Errorf("%s: got %q, want %q", test.template, got, "> "+test.want)
		}
	}
}

func TestTemplateEscapesValuesNotLiterals(t *testing.T) {
	template, err := ParseTemplate("a.b.{name}.c")
	if err != nil {
		t.Fatal(err)
	}
	dash := func(dst []byte, token string) []byte { return append(dst, strings.ReplaceAll(token, ".", "-")...) }
	if got := string(template.AppendName(nil, newDeployment(), dash)); got != "a.b.web-eu.c" {
		t.Errorf("got %q", got)
	}
}

func TestTemplateErrorsNameTextPositionAndRemedy(t *testing.T) {
	const allowed = "; allowed are {cluster} {group} {version} {resource} {kind} {namespace} {name} {type}"
	for text, want := range map[string]string{
		"":           `empty template: write a name such as k8s.{group}.{resource}`,
		"k8s.{foo}":  `unknown placeholder "{foo}" at position 5 of "k8s.{foo}"` + allowed,
		"{}":         `unknown placeholder "{}" at position 1 of "{}"` + allowed,
		"{Name}":     `unknown placeholder "{Name}" at position 1 of "{Name}"` + allowed,
		"a{name":     `unbalanced "{" at position 2 of "a{name": no "}" closes it`,
		"{a{name}}":  `unbalanced "{" at position 1 of "{a{name}}": no "}" closes it`,
		"{name}}.b":  `unbalanced "}" at position 7 of "{name}}.b": no "{" opens it`,
		"é}":         `unbalanced "}" at position 3 of "é}": no "{" opens it`,
		"{ name }.b": `unknown placeholder "{ name }" at position 1 of "{ name }.b"` + allowed,
	} {
		if _, err := ParseTemplate(text); err == nil || err.Error() != want {
			t.Errorf("%q: got  %v\nwant %s", text, err, want)
		}
	}
}

func TestTemplateReportsItsPlaceholders(t *testing.T) {
	template, err := ParseTemplate("name.{namespace}")
	if err != nil {
		t.Fatal(err)
	}
	if !template.UsesPlaceholder("namespace") || template.UsesPlaceholder("name") || template.UsesPlaceholder("") {
		t.Errorf("namespace %v, name %v, empty %v", template.UsesPlaceholder("namespace"), template.UsesPlaceholder("name"), template.UsesPlaceholder(""))
	}
	fixed, err := ParseTemplate("name.namespace")
	if err != nil {
		t.Fatal(err)
	}
	if template.IsConstant() || !fixed.IsConstant() {
		t.Errorf("fixed: %v and %v", template.IsConstant(), fixed.IsConstant())
	}
	if template.String() != "name.{namespace}" {
		t.Errorf("String is %q", template)
	}
}

func FuzzTemplateIsItsPartsOrAnError(f *testing.F) {
	f.Add("k8s.{cluster}.{group}")
	f.Add("{a{name}}")
	f.Add("}{")
	f.Fuzz(func(t *testing.T, text string) {
		template, err := ParseTemplate(text)
		if err != nil {
			return
		}
		// Braces around every value must give the text back, apart from what stands between them.
		got := string(template.AppendName(nil, newDeployment(), func(dst []byte, _ string) []byte { return append(dst, "{}"...) }))
		want := text
		for _, name := range placeholders {
			want = strings.ReplaceAll(want, "{"+name+"}", "{}")
		}
		if got != want {
			t.Fatalf("%q: literals became %q, want %q", text, got, want)
		}
	})
}
