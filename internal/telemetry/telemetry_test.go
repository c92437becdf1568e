package telemetry

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// arrivesWithin bounds every wait.
const arrivesWithin = time.Minute

// collector receives OTLP as a collector does, and answers with a status.
type collector struct {
	*httptest.Server
	status  atomic.Int32
	arrived chan struct{} // one for each request, never full

	mu      sync.Mutex
	metrics []*metricsv1.ExportMetricsServiceRequest
	traces  []*tracev1.ExportTraceServiceRequest
	headers []http.Header
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{arrived: make(chan struct{}, 1000)}
	c.status.Store(http.StatusOK)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = append(c.headers, r.Header)
		switch r.URL.Path {
		case "/v1/metrics":
			m := &metricsv1.ExportMetricsServiceRequest{}
			err = proto.Unmarshal(body, m)
			c.metrics = append(c.metrics, m)
		case "/v1/traces":
			m := &tracev1.ExportTraceServiceRequest{}
			err = proto.Unmarshal(body, m)
			c.traces = append(c.traces, m)
		default:
			err = errors.New(r.URL.Path)
		}
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.WriteHeader(int(c.status.Load()))
		c.arrived <- struct{}{}
	}))
	t.Cleanup(c.Close)
	return c
}

// registry has one counter at 3.
func registry() prometheus.Gatherer {
	r, n := prometheus.NewRegistry(), prometheus.NewCounter(prometheus.CounterOpts{Name: "kubecdc_things_total", Help: "Things."})
	n.Add(3)
	r.MustRegister(n)
	return r
}

// begin starts a Telemetry and stops it with the test.
func begin(t *testing.T, to io.Writer, env map[string]string) *Telemetry {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	sent := Start(t.Context(), Options{
		Version: "v1.2.3", Metrics: registry(), Log: slog.New(slog.NewTextHandler(to, nil)),
		Mask: func(text string) string { return strings.ReplaceAll(text, "hunter2", "***") },
	})
	t.Cleanup(sent.Stop)
	return sent
}

func attributes(all []*commonv1.KeyValue) map[string]string {
	found := map[string]string{}
	for _, a := range all {
		found[a.Key] = a.Value.GetStringValue()
	}
	return found
}

func TestMetricsAndSpansArriveWithTheirService(t *testing.T) {
	c := startCollector(t)
	sent := begin(t, io.Discard, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20hunter2",
		"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
	})
	began := time.Now().Add(-time.Minute)
	sent.RecordSpan("list", began, nil, slog.String("scope", "pods"), slog.Int("objects", 7))
	sent.RecordSpan("reload", began, errors.New("bad password hunter2"))
	sent.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.headers {
		if got := h.Get("Authorization"); got != "Bearer hunter2" {
			t.Errorf("Authorization is %q", got)
		}
	}
	if len(c.metrics) == 0 || len(c.traces) == 0 {
		t.Fatalf("%d requests with metrics, %d with traces", len(c.metrics), len(c.traces))
	}
	m := c.metrics[0].ResourceMetrics[0]
	about := attributes(m.Resource.Attributes)
	if about["service.name"] != "kubecdc" || about["service.version"] != "v1.2.3" || about["deployment.environment.name"] != "test" {
		t.Errorf("the service is %v", about)
	}
	first := m.ScopeMetrics[0].Metrics[0]
	if first.Name != "kubecdc_things_total" || first.GetSum() == nil || first.GetSum().DataPoints[0].GetAsDouble() != 3 {
		t.Errorf("the metric is %v", first)
	}
	spans := c.traces[0].ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 || spans[0].Name != "list" || attributes(spans[0].Attributes)["kubecdc.scope"] != "pods" {
		t.Fatalf("the spans are %v", spans)
	}
	if took := time.Duration(spans[0].EndTimeUnixNano - spans[0].StartTimeUnixNano); took < time.Minute {
		t.Errorf("the list took %v", took)
	}
	if spans[1].Status.Message != "bad password ***" {
		t.Errorf("the status is %v", spans[1].Status)
	}
}

func TestNothingIsStartedUnlessTheEnvironmentAsksForIt(t *testing.T) {
	const endpoint, address = "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"
	for name, env := range map[string]map[string]string{
		"no variable":           {},
		"an empty endpoint":     {endpoint: ""},
		"disabled":              {endpoint: address, "OTEL_SDK_DISABLED": "TRUE"},
		"no exporter":           {endpoint: address, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
		"other variables alone": {"OTEL_SERVICE_NAME": "cdc", "OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
	} {
		t.Run(name, func(t *testing.T) {
			if begin(t, io.Discard, env) != nil {
				t.Error("it was started")
			}
		})
	}
	t.Run("a service name", func(t *testing.T) {
		c := startCollector(t)
		begin(t, io.Discard, map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": c.URL + "/v1/metrics", "OTEL_SERVICE_NAME": "cdc"}).Stop()
		if len(c.traces) != 0 || attributes(c.metrics[0].ResourceMetrics[0].Resource.Attributes)["service.name"] != "cdc" {
			t.Errorf("received %v, %v", c.metrics, c.traces)
		}
	})
}

// TestAnUnusableVariableIsACondition and neither the SDK's default nor the end of the exporter.
func TestAnUnusableVariableIsACondition(t *testing.T) {
	for variable, c := range map[string]struct{ value, expected string }{
		"OTEL_EXPORTER_OTLP_PROTOCOL":        {"grpc", "expected http/protobuf"},
		"OTEL_EXPORTER_OTLP_ENDPOINT":        {"user:hunter2@collector:4317", "expected a URL such as http://collector:4318"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": {"collector", "expected a URL such as http://collector:4318"},
		"OTEL_METRICS_EXPORTER":              {"prometheus", "expected otlp or none"},
	} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			sent := begin(t, io.Discard, map[string]string{variable: c.value})
			if !slices.ContainsFunc(sent.Conditions(), func(s condition.Status) bool {
				return s.Code == condition.TelemetryUnsent && strings.HasPrefix(s.Cause, variable+": ") && strings.Contains(s.Cause, c.expected)
			}) {
				t.Errorf("the conditions are %v", sent.Conditions())
			}
			for _, s := range sent.Conditions() {
				if strings.Contains(s.Cause, "hunter2") {
					t.Error(s.Cause)
				}
			}
		})
	}
}

// TestACollectorThatRefusesIsOneConditionUntilItAccepts and one line of the log for each.
func TestACollectorThatRefusesIsOneConditionUntilItAccepts(t *testing.T) {
	c := startCollector(t)
	c.status.Store(http.StatusForbidden)
	var log logs.Buffer
	sent := begin(t, &log, map[string]string{
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": c.URL + "/v1/metrics", "OTEL_METRIC_EXPORT_INTERVAL": "20",
	})
	awaitCode(t, sent, condition.TelemetryUnsent)
	for range 5 { // refusals
		<-c.arrived
	}
	c.status.Store(http.StatusOK)
	awaitCode(t, sent, "")
	if n := strings.Count(log.String(), "403 Forbidden"); n != 1 { // the address may have a port such as 40365
		t.Errorf("%d lines of the log have the refusal:\n%s", n, log.String())
	}
}

// awaitCode waits until the first signal has a condition.
func awaitCode(t *testing.T, of *Telemetry, code condition.Code) {
	t.Helper()
	for deadline := time.Now().Add(arrivesWithin); of.Conditions()[0].Code != code; time.Sleep(5 * time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatalf("the condition is %v, not %q", of.Conditions()[0], code)
		}
	}
}

// TestAHangingCollectorDoesNotHoldTheStop: it ends by its own bound, although the collector never answers.
func TestAHangingCollectorDoesNotHoldTheStop(t *testing.T) {
	released := make(chan struct{})
	c := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-released }))
	t.Cleanup(c.Close)
	t.Cleanup(func() { close(released) })
	sent := begin(t, io.Discard, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL})
	sent.RecordSpan("start", time.Now(), nil)
	stopped := make(chan struct{})
	go func() {
		sent.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(arrivesWithin):
		t.Fatal("it waits for the collector")
	}
}
