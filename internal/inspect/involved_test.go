package inspect

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestRightsForTheObjectsOfEvents: a rule that asks for the objects of Events needs the types that Kubernetes names in
// them, in the namespaces of the rule; any other rule does not.
func TestRightsForTheObjectsOfEvents(t *testing.T) {
	for asked, want := range map[string]bool{"": false, "    involvedObject: {owner: true}\n": true} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		text := "resources:\n  - select: [events]\n    namespaces: {include: [shop]}\n" + asked + "sinks:\n  - {name: lines, stdout: {}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		rights, err := RBAC(context.Background(), cfg, "test", RBACOptions{Config: file, Name: "r", Offline: true, Output: ForKubectl})
		if err != nil {
			t.Fatal(err)
		}
		cluster, namespace, _ := strings.Cut(rights, "kind: Role\n")
		if is := strings.Contains(cluster, `resources: ["nodes"]`) && strings.Contains(namespace, `resources: ["replicasets"]`); is != want {
			t.Errorf("%q: printed is %t:\n%s", asked, is, rights)
		}
	}
}
