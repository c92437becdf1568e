package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/build"
	"github.com/kubecdc/kubecdc/test/parts/ports"
	"github.com/kubecdc/kubecdc/test/parts/process"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// telemetryEnv includes the test of OTLP, whose collector takes two minutes of both cores to build.
const telemetryEnv = "KUBECDC_E2E_TELEMETRY"

// otlp is a line of the collector's file: metrics or spans, with the service that they are from.
type otlp struct {
	ResourceMetrics []struct {
		Resource     otlpResource
		ScopeMetrics []struct{ Metrics []struct{ Name string } }
	}
	ResourceSpans []struct {
		Resource   otlpResource
		ScopeSpans []struct {
			Spans []struct {
				Name   string
				Status struct{ Code int }
			}
		}
	}
}

type otlpResource struct {
	Attributes []struct {
		Key   string
		Value struct{ StringValue string }
	}
}

// service returns the name of the service.
func (r otlpResource) service() string {
	for _, a := range r.Attributes {
		if a.Key == "service.name" {
			return a.Value.StringValue
		}
	}
	return ""
}

// TestACollectorReceivesMetricsAndSpans starts an exporter before its OpenTelemetry collector: it is ready, and degraded
// until the collector is there. Then the file that the collector writes has the metrics, and a span of the start, of each
// list, and of an edit that is applied and one that is refused.
func TestACollectorReceivesMetricsAndSpans(t *testing.T) {
	require.Long(t)
	if os.Getenv(telemetryEnv) == "" {
		t.Skip("builds an OpenTelemetry collector, which takes minutes: set " + telemetryEnv + "=1")
	}
	free, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	address := ports.Address(free[0])
	s := newFixture(t, []workload.Kind{workload.ConfigMaps}, func(settings *exporter.Settings) {
		settings.Env = append(settings.Env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+address, "OTEL_SERVICE_NAME=cdc",
			"OTEL_METRIC_EXPORT_INTERVAL=500", "OTEL_BSP_SCHEDULE_DELAY=500")
	})
	s.must(s.exporter.Start(t.Context()))
	s.awaitAnswer("/readyz", 200, "[!]telemetry/metrics TelemetryUnsent")

	dir := t.TempDir()
	received, config := filepath.Join(dir, "received.json"), filepath.Join(dir, "collector.yaml")
	s.must(os.WriteFile(config, fmt.Appendf(nil, `
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {file: {path: %q, flush_interval: 100ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {receivers: [otlp], exporters: [file]}, traces: {receivers: [otlp], exporters: [file]}}
`, address, received), 0o600))
	program, err := build.OTelCollector(t.Context())
	s.must(err)
	collector, err := process.Start(t.Context(), process.Options{
		Name: "otelcol", Path: program, Args: []string{"--config", config}, Dir: dir, Log: filepath.Join(dir, "log"),
	})
	s.must(err)
	t.Cleanup(func() {
		if err := collector.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.awaitAnswer("/readyz?verbose", 200, "[+]telemetry/metrics ok")
	await := func(wanted ...string) {
		t.Helper()
		for deadline := time.Now().Add(arriveWithin); ; await.Pause(t, lookEvery) {
			missing := ""
			found := s.readCollected(received)
			for _, name := range wanted {
				if !found[name] {
					missing += " " + name
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("missing:%s; there are %v", missing, found)
			}
		}
	}
	await("cdc metric kubecdc_ready", "cdc metric kubecdc_resource_events_total", "cdc metric kubecdc_sink_publish_seconds", "cdc metric go_goroutines")
	s.must(s.exporter.Configure(func(settings *exporter.Settings) { settings.Select = append(settings.Select, "services") }))
	await("cdc span reload 0", "cdc span list 0")
	text, err := os.ReadFile(s.exporter.Config())
	s.must(err)
	s.must(os.WriteFile(s.exporter.Config(), append(text, "\nnonsense: 1\n"...), 0o600))
	await("cdc span reload 2")
	s.must(os.WriteFile(s.exporter.Config(), text, 0o600))
	s.must(s.exporter.Stop())
	s.must(s.exporter.Start(t.Context()))
	await("cdc span start 0")
}

// readCollected returns what a collector has written, each with its service.
func (s *fixture) readCollected(file string) map[string]bool {
	s.t.Helper()
	found := map[string]bool{}
	text, err := os.ReadFile(file)
	if err != nil {
		return found // not made yet
	}
	for line := range strings.Lines(string(text)) {
		var o otlp
		if !strings.HasSuffix(line, "\n") {
			continue // being written
		}
		s.must(json.Unmarshal([]byte(line), &o))
		for _, r := range o.ResourceMetrics {
			for _, scope := range r.ScopeMetrics {
				for _, m := range scope.Metrics {
					found[r.Resource.service()+" metric "+m.Name] = true
				}
			}
		}
		for _, r := range o.ResourceSpans {
			for _, scope := range r.ScopeSpans {
				for _, span := range scope.Spans {
					found[fmt.Sprintf("%s span %s %d", r.Resource.service(), span.Name, span.Status.Code)] = true
				}
			}
		}
	}
	return found
}
