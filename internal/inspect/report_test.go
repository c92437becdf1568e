package inspect

import (
	"testing"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestAccessTextNamesDifferences(t *testing.T) {
	scope := func(namespace string, list, watch permission) *scopeReport {
		return &scopeReport{Namespace: namespace, List: list, Watch: watch}
	}
	for want, scopes := range map[string][]*scopeReport{
		"allowed":                      {scope("a", allowed, allowed)},
		"forbidden":                    {scope("a", denied, denied), scope("b", denied, denied)},
		"forbidden (watch)":            {scope("", allowed, denied)},
		"unknown":                      {scope("", unknown, unknown)},
		"forbidden in b":               {scope("a", allowed, allowed), scope("b", denied, allowed)},
		"forbidden in a; unknown in b": {scope("a", denied, allowed), scope("b", unknown, allowed)},
	} {
		if got := (resourceReport{Scopes: scopes}).accessText(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAClusterNameThatKafkaEscapesStaysAPlaceholder(t *testing.T) {
	if got := string(appendTopicValue(nil, "prod eu")); got != "{cluster}" {
		t.Errorf("got %q", got)
	}
	if got := string(appendTopicValue([]byte("k8s."), "cert-manager.io")); got != "k8s.cert-manager.io" {
		t.Errorf("got %q", got)
	}
}
