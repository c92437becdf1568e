package apiserver

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// TestWhatIsAssumedOfBuiltinResourcesIsSo compares what a configuration is refused for with the resources of a real API
// server: whether they have namespaces, and which names it accepts.
func TestWhatIsAssumedOfBuiltinResourcesIsSo(t *testing.T) {
	client := newRealClient(t)
	found, _, err := client.Discover(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, served := range found {
		for _, s := range served {
			name := s.Resource.String()
			if s.Unwatchable {
				continue
			}
			if s.Namespaced && selection.IsClusterScoped(name) || !s.Namespaced && selection.IsNamespaced(name) {
				t.Errorf("%s has namespaces: %t", name, s.Namespaced)
			}
			if selection.MayBeNamed(name, "Web") {
				continue
			}
			refused++
			if answer := createNamed(t, client, s, "Web"); !strings.Contains(answer, `metadata.name: Invalid value: "Web"`) {
				t.Errorf("%s may have the name Web: %s", name, answer)
			}
		}
	}
	if refused < 20 {
		t.Errorf("%d resources have no capitals in names", refused)
	}
}

// createNamed tries to create an object that has nothing but a name, and returns the reason why that is refused.
func createNamed(t *testing.T, client *Client, s selection.Served, name string) string {
	t.Helper()
	gv := schema.GroupVersion{Group: s.Resource.Group, Version: s.Resource.Version}
	textual := rest.CopyConfig(client.config) // a client of the exporter leaves out why objects are refused
	textual.WrapTransport = nil
	connections, err := rest.HTTPClientFor(textual)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.restClient(connections, gv, "application/json")
	if err != nil {
		t.Fatal(err)
	}
	request := c.Post().Resource(s.Resource.Resource).Param("dryRun", "All")
	if s.Namespaced {
		request.Namespace("default")
	}
	body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, gv.String(), s.Resource.Kind, name)
	if err := request.Body([]byte(body)).Do(t.Context()).Error(); err != nil {
		return err.Error()
	}
	return "accepted"
}
