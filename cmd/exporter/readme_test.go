package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
)

// TestTheConfigurationsForNewcomersDeliver loads every YAML block of the README and every configuration of a recipe. A
// newcomer's broker has no topics and no streams, so they have to be made.
func TestTheConfigurationsForNewcomersDeliver(t *testing.T) {
	blocks := strings.Split(textOf(t, filepath.Join("..", "..", "README.md")), "```yaml\n")[1:]
	recipes, err := filepath.Glob(filepath.Join("..", "..", "configs", "recipes", "*.yaml"))
	must(t, err)
	if len(blocks) == 0 || len(recipes) == 0 {
		t.Fatalf("%d configurations in the README, and %d of recipes", len(blocks), len(recipes))
	}
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		makesItsDestinations(t, write(t, "README.yaml", text))
	}
	for _, path := range recipes {
		makesItsDestinations(t, path)
	}
}

// makesItsDestinations makes a configuration create its own topics and streams.
func makesItsDestinations(t *testing.T, path string) {
	t.Helper()
	cfg, err := config.Load(path)
	must(t, err)
	for _, s := range cfg.Sinks {
		if s.Kafka != nil && !s.Kafka.CreateTopics.Enabled || s.NATS != nil && !s.NATS.Create.Enabled {
			t.Errorf("%s: sink %s waits for somebody to make its topics or stream", path, s.Name)
		}
	}
}

// TestTheAuditTrailHasWhatAuditorsAsk: all of RBAC, the values that were there before, both sources of authors,
// and the author in the change where an alert needs it.
func TestTheAuditTrailHasWhatAuditorsAsk(t *testing.T) {
	text := textOf(t, filepath.Join("..", "..", "configs", "audit-trail.yaml"))
	wanted := []string{"before: full", "changed: values", "stamps: {enabled: true}", "topics: [kube-audit]", "awaitAuthor: 5s"}
	for _, kind := range []string{"roles", "clusterroles", "rolebindings", "clusterrolebindings"} {
		wanted = append(wanted, `"`+kind+`.rbac.authorization.k8s.io"`)
	}
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			t.Errorf("the audit trail lacks %s", want)
		}
	}
}
