package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// vaultGroup is the group of the custom resources that the tests of redaction paths define.
const vaultGroup = "protection.kubecdc.io"

// defineVaults defines a custom resource with a schema, and one that takes any content.
func defineVaults(s *fixture) {
	s.t.Helper()
	text := map[string]any{"type": "string"}
	s.must(s.cluster.Install(s.t.Context(), workload.Definition{Group: vaultGroup, Plural: "vaults", Kind: "Vault", Schema: map[string]any{
		"type": "object", "properties": map[string]any{
			"spec": map[string]any{"type": "object", "properties": map[string]any{"token": text, "name": text}},
		},
	}}))
	s.must(s.cluster.Install(s.t.Context(), workload.Definition{Group: vaultGroup, Plural: "chests", Kind: "Chest"}))
}

// protect configures one rule for each kind of type: built in, with a schema of its own, with any content.
func protect(file string, strict bool, container, token string) func(*exporter.Settings) {
	return func(settings *exporter.Settings) {
		settings.File = file
		settings.Redaction = map[string]any{"strict": strict}
		settings.Resources = []map[string]any{
			{"select": []string{"pods"}, "redactPaths": []string{"spec." + container + "[*].image", "spec.activeDeadlineSeconds"}},
			{"select": []string{"vaults." + vaultGroup}, "redactPaths": []string{"spec." + token}},
			{"select": []string{"chests." + vaultGroup}, "redactPaths": []string{"spec.whatever"}},
			{"select": []string{"configmaps"}},
		}
	}
}

// TestUnmatchedRedactionPathIsACondition has no path misspelled but one of a built-in and one of a custom resource; fields
// that no object has, and types that take any content, are no reason for it. An edit mends it while the exporter runs.
func TestUnmatchedRedactionPathIsACondition(t *testing.T) {
	kinds := []workload.Kind{workload.Pods, workload.ConfigMaps}
	file := filepath.Join(t.TempDir(), "stream.jsonl")
	s := newFixture(t, kinds, protect(file, false, "container", "tokne"))
	defineVaults(s)
	s.must(s.exporter.Start(t.Context()))
	s.awaitAnswer("/readyz", http.StatusOK, `resources[0].redactPaths[0]: no selected type has "spec.container[*].image", did you mean "spec.containers[*].image"?`)
	s.awaitAnswer("/readyz", http.StatusOK, `resources[1].redactPaths[0]: no selected type has "spec.tokne", did you mean "spec.token"?`)
	_, text, err := s.exporter.Get(t.Context(), "/readyz")
	if err != nil || strings.Contains(text, "resources[0].redactPaths[1]") || strings.Contains(text, "resources[2]") {
		t.Errorf("an optional field, or a type with any content, is reported (%v):\n%s", err, text)
	}
	s.must(s.exporter.Configure(protect(file, false, "containers", "token")))
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(t, lookEvery) {
		_, text, err := s.exporter.Get(t.Context(), "/readyz")
		if err == nil && !strings.Contains(text, "RedactionUnmatched") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the condition outlives its cause (%v):\n%s", err, text)
		}
	}
}

// TestStrictRedactionWaitsUntilItsPathsMatch lets types with an unmatched path wait while others are emitted, and releases
// them when an edit mends the path.
func TestStrictRedactionWaitsUntilItsPathsMatch(t *testing.T) {
	kinds := []workload.Kind{workload.Pods, workload.ConfigMaps}
	file := filepath.Join(t.TempDir(), "stream.jsonl")
	s := newFixture(t, kinds, protect(file, true, "container", "tokne"))
	defineVaults(s)
	s.must(s.cluster.Create(t.Context(), workload.Pods, s.name, "held"))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "free"))
	s.must(s.exporter.Launch(t.Context()))
	for _, resource := range []string{"pods", "vaults." + vaultGroup} {
		s.awaitMetric(`kubecdc_resource_state{resource="`+resource+`",state="waiting"}`, "1")
	}
	for _, resource := range []string{"configmaps", "chests." + vaultGroup} {
		s.awaitMetric(`kubecdc_resource_state{resource="`+resource+`",state="live"}`, "1")
	}
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "RedactionHeld")
	awaitText(s, file, `"name":"free"`)
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), `"kind":"Pod"`) {
		t.Errorf("a held type was emitted (%v)", err)
	}
	s.must(s.exporter.Configure(protect(file, true, "containers", "token")))
	awaitText(s, file, `"name":"held"`)
	s.awaitAnswer("/readyz", http.StatusOK, "ok")
	if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "example.invalid") {
		t.Errorf("a value at a redaction path was emitted (%v)", err)
	}
}

// awaitText waits until a file holds a text.
func awaitText(s *fixture, file, part string) {
	s.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), part) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s lacks %s (%v)", file, part, err)
		}
		await.Pause(s.t, lookEvery)
	}
}

// TestStrictRedactionNamesPlacesOfTheSameType: a path of containers says nothing of init containers and ephemeral ones, nor
// of the templates of workloads. The condition and explain name the paths to add, and the paths end the condition.
func TestStrictRedactionNamesPlacesOfTheSameType(t *testing.T) {
	left := []string{"spec.initContainers[*].env[*].value", "spec.ephemeralContainers[*].env[*].value", "spec.template.spec.containers[*].env[*].value",
		"spec.template.spec.initContainers[*].env[*].value", "spec.template.spec.ephemeralContainers[*].env[*].value"}
	file := filepath.Join(t.TempDir(), "stream.jsonl")
	redacting := func(strict bool, paths ...string) func(*exporter.Settings) {
		return func(settings *exporter.Settings) {
			settings.File, settings.Redaction = file, map[string]any{"strict": strict}
			settings.Resources = []map[string]any{{"select": []string{"pods", "deployments.apps"}, "redactPaths": paths}}
		}
	}
	s := newFixture(t, []workload.Kind{workload.Pods}, redacting(true, "spec.containers[*].env[*].value"))
	s.must(s.exporter.Start(t.Context()))
	for _, path := range left {
		s.awaitAnswer("/readyz", http.StatusOK, path)
	}
	explained, err := exec.CommandContext(t.Context(), s.program, "explain", "--config", s.exporter.Config()).CombinedOutput()
	for _, path := range left {
		if err != nil || !strings.Contains(string(explained), "redactPaths leave out "+path) {
			t.Errorf("explain does not name %s (%v):\n%s", path, err, explained)
		}
	}
	s.must(s.exporter.Configure(redacting(true, append(left, "spec.containers[*].env[*].value")...)))
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(t, lookEvery) {
		_, text, err := s.exporter.Get(t.Context(), "/readyz")
		if err == nil && !strings.Contains(text, "RedactionUnmatched") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the condition outlives its cause (%v):\n%s", err, text)
		}
	}
}
