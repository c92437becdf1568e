package e2e

import (
	"net/http"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestAnExporterThatCanWatchNothingIsNotReady has a rule with a typing error beside a type that may not be read: a rollout
// that waits for readiness must not succeed with an empty stream. It is ready as soon as one of both can be watched.
func TestAnExporterThatCanWatchNothingIsNotReady(t *testing.T) {
	env := servers(t)
	kubeconfig, err := env.controlPlane.KubeconfigFor(account)
	if err != nil {
		t.Fatal(err)
	}
	s := newFixtureIn(t, env, []workload.Kind{workload.ConfigMaps}, func(settings *exporter.Settings) {
		settings.Kubeconfig = kubeconfig
		settings.Select = append(settings.Select, "configmapz")
	})
	s.must(s.exporter.Launch(t.Context()))
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]discovery NothingWatched: of 2 selected resources 1 are forbidden and 1 not served")
	s.allow(workload.ConfigMaps)
	s.awaitAnswer("/readyz", http.StatusOK, "[!]resource/configmapz ResourceNotServed")
}
