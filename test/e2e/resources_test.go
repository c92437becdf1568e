package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// gadgets is a custom resource that is not defined when the test begins.
var gadgets = workload.Kind{
	Resource: schema.GroupVersionResource{Group: "late.kubecdc.io", Version: "v1", Resource: "gadgets"},
	Object: func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "late.kubecdc.io/v1", "kind": "Gadget"}}
	},
	Change: workload.Widgets.Change,
}

// TestLateCRDIsWatched defines a selected custom resource, makes objects of it, and takes the definition away again, while
// the exporter runs.
func TestLateCRDIsWatched(t *testing.T) {
	s := newRestrictedFixture(t, []workload.Kind{workload.ConfigMaps, gadgets})
	s.resources[1].Prefix = "/registry/late.kubecdc.io/gadgets/"
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(20, []workload.Kind{workload.ConfigMaps}).Wait())
	s.awaitAll()

	s.must(s.cluster.Define(t.Context(), gadgets.Resource.Group, gadgets.Resource.Resource, "Gadget"))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), arriveWithin)
		defer cancel()
		if err := s.cluster.Undefine(ctx, gadgets.Resource.Group, gadgets.Resource.Resource); err != nil {
			t.Error(err)
		}
	})
	for i := range 5 {
		s.must(s.cluster.Create(t.Context(), gadgets, s.name, fmt.Sprintf("early-%d", i)))
	}
	s.awaitMetric(`kubecdc_resource_state{resource="gadgets.late.kubecdc.io",state="live"}`, "1")
	s.must(s.load(20, []workload.Kind{gadgets}).Wait())
	s.awaitAll()

	s.must(s.cluster.Undefine(t.Context(), gadgets.Resource.Group, gadgets.Resource.Resource))
	s.awaitAllDeleted(gadgets)
	s.must(s.load(20, []workload.Kind{workload.ConfigMaps}).Wait())
	s.awaitAll()
	s.judge(oracle.Rules{})
}

// awaitAllDeleted waits until the newest record of every object of a kind is that it was deleted.
func (s *fixture) awaitAllDeleted(kind workload.Kind) {
	s.t.Helper()
	for _, b := range s.buses {
		s.await(b, func(records []bus.Record) string {
			exists := make(map[bus.Object]bool)
			for _, r := range records {
				if r.Group == kind.Resource.Group && r.Resource == kind.Resource.Resource && r.Name != "" {
					exists[r.Object] = r.Type != "deleted"
				}
			}
			for object, yes := range exists {
				if yes {
					return fmt.Sprintf("the delete of %v and others", object)
				}
			}
			return ""
		})
	}
}

// TestForbiddenTypeDegradesAlone gives the exporter a user that may read one of two selected resources.
func TestForbiddenTypeDegradesAlone(t *testing.T) {
	allowed, forbidden := workload.ConfigMaps, workload.Services
	env := servers(t)
	kubeconfig, err := env.controlPlane.KubeconfigFor(reader)
	if err != nil {
		t.Fatal(err)
	}
	s := newFixture(t, []workload.Kind{allowed, forbidden}, func(settings *exporter.Settings) { settings.Kubeconfig = kubeconfig })
	s.resources = resources([]workload.Kind{allowed}) // what must arrive
	s.must(s.cluster.Allow(t.Context(), s.name+"-first", reader, allowed))
	s.must(s.exporter.Start(t.Context()))
	s.awaitMetric(`kubecdc_resource_state{resource="services",state="forbidden"}`, "1")
	s.must(s.load(40, []workload.Kind{allowed, forbidden}).Wait())
	s.awaitAll()
	for _, b := range s.buses {
		for _, r := range b.records {
			if r.Resource == "services" {
				t.Errorf("%s holds what may not be read: %s", b.Name(), r.ID)
			}
		}
	}

	// Once it is allowed it is watched, without a restart, and its stream begins.
	revision, err := s.etcd.Revision(t.Context())
	s.must(err)
	s.beginning, s.resources = revision, resources([]workload.Kind{allowed, forbidden})
	s.must(s.cluster.Allow(t.Context(), s.name+"-second", reader, forbidden))
	s.awaitMetric(`kubecdc_resource_state{resource="services",state="live"}`, "1")
	s.awaitAll()
	s.judge(oracle.Rules{})
}

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

// TestNotReadyBeforeDiscovery starts the exporter while the API server is away.
func TestNotReadyBeforeDiscovery(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newRestrictedFixture(t, kinds)
	s.must(s.controlPlane.KillAPIServer())
	s.must(s.exporter.Launch(t.Context()))
	s.awaitAnswer("/readyz", 503, "discovery")
	s.must(s.controlPlane.StartAPIServer(t.Context()))
	s.awaitAnswer("/readyz", 200, "ok")
	s.must(s.load(10, kinds).Wait())
	s.awaitAll()
	s.judge(oracle.Rules{})
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
	deadline := time.Now().Add(arriveWithin)
	for {
		gotCode, text, err := s.exporter.Get(s.t.Context(), path)
		if err == nil && gotCode == code && strings.Contains(text, part) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("GET %s: %d, want %d with %q (%v)\n%s", path, gotCode, code, part, err, related(text, part))
		}
		await.Pause(s.t, lookEvery)
	}
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
