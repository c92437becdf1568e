package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

func TestMetricsAndHealthAreServed(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(40, kinds).Wait())
	s.awaitAll()
	for _, b := range s.buses {
		s.awaitMetric(fmt.Sprintf(`kubecdc_sink_backlog_changes{sink=%q}`, b.Name()), "0")
	}
	s.receiveAll() // control records go their own ways, and may come last
	for _, b := range s.buses {
		sink := b.Name()
		s.awaitMetric(fmt.Sprintf(`kubecdc_sink_gate_closed{sink=%q}`, sink), "0")
		s.awaitMetric(fmt.Sprintf(`kubecdc_sink_delivered_total{sink=%q}`, sink), fmt.Sprint(len(b.records)))
		s.awaitMetric(fmt.Sprintf(`kubecdc_sink_dead_letters_total{sink=%q}`, sink), "0")
		s.awaitMetric(fmt.Sprintf(`kubecdc_sink_contract_breaches_total{sink=%q}`, sink), "0")
	}
	s.awaitMetric(`kubecdc_resource_state{resource="widgets.demo.kubecdc.io",state="live"}`, "1")
	s.awaitMetric(`kubecdc_resource_relists_total{resource="configmaps"}`, "0")

	s.must(s.nats.Kill())
	s.must(s.load(40, []workload.Kind{workload.Widgets}).Wait())
	s.awaitAnswer("/readyz", 503, "sink/nats")
	s.awaitAnswer("/livez", 200, "ok") // a restart would not bring the broker back
	s.awaitMetric(`kubecdc_sink_gate_closed{sink="nats"}`, "1")
	s.awaitHistory(s.buses[0])
	s.must(s.nats.Restart(t.Context()))
	s.awaitAnswer("/readyz", 200, "ok")
	s.awaitAll()

	s.must(s.controlPlane.KillAPIServer())
	s.awaitAnswer("/readyz", 503, "configmaps")
	s.must(s.controlPlane.StartAPIServer(t.Context()))
	s.awaitAnswer("/readyz", 200, "ok")
	s.judge(oracle.Rules{Gaps: true})
}

// awaitMetric waits until a series has a value.
func (s *fixture) awaitMetric(series, value string) {
	s.t.Helper()
	s.awaitAnswer("/metrics", 200, "\n"+series+" "+value+"\n")
}

// series are the values in a text of metrics by the names and labels of their series, of those with the prefix. A line that
// is no number counts as 0.
func series(text, prefix string) map[string]int {
	values := map[string]int{}
	for line := range strings.Lines(text) {
		if end := strings.LastIndexByte(line, ' '); end >= 0 && strings.HasPrefix(line, prefix) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
			values[line[:end]] = int(value)
		}
	}
	return values
}

// awaitAnswer waits until the admin server answers with a code and a text that holds part.
func (s *fixture) awaitAnswer(path string, code int, part string) {
	s.t.Helper()
	await.Condition(s.t, "GET "+path, arriveWithin, lookEvery, func() string {
		gotCode, text, err := s.exporter.Get(s.t.Context(), path)
		if err == nil && gotCode == code && strings.Contains(text, part) {
			return ""
		}
		return fmt.Sprintf("%d, want %d with %q (%v)\n%s", gotCode, code, part, err, related(text, part))
	})
}

// related returns the lines of a long answer that begin as what is looked for.
func related(text, part string) string {
	name, _, _ := strings.Cut(strings.TrimSpace(part), "{")
	var lines []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, name) && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return text[:min(len(text), 2000)]
	}
	return strings.Join(lines, "")
}
