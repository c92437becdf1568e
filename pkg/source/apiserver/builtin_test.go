package apiserver

import (
	"testing"

	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// TestWhatIsAssumedOfBuiltinResourcesIsSo compares what a configuration is refused for with the resources of a real API
// server: whether they have namespaces.
func TestWhatIsAssumedOfBuiltinResourcesIsSo(t *testing.T) {
	client := newRealClient(t)
	found, _, err := client.Discover(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, served := range found {
		for _, s := range served {
			name := s.Resource.String()
			if s.Unwatchable {
				continue
			}
			if s.Namespaced && selection.IsClusterScoped(name) || !s.Namespaced && selection.IsNamespaced(name) {
				t.Errorf("%s has namespaces: %t", name, s.Namespaced)
			}
		}
	}
}
