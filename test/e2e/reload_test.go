package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// edits is how often the configuration is edited; "make fullsize" sets more.
const edits = 8

// sorts are the sorts of edits.
const sorts = 4

// writesBetween is how many objects are written at most between one edit and the next.
const writesBetween = 500

// spoils is after how many edits the file is corrupted once.
const spoils = 5

// edited is what a test edits of a configuration.
type edited struct {
	widgets bool            // are selected
	changed string          // of the rule for Deployments
	files   map[string]bool // further sinks, by name
	lanes   int             // of NATS: another number is another sink
}

// rules are those of the edited configuration. ConfigMaps and Services are in a rule that is never touched.
func (e *edited) rules() []map[string]any {
	all := []map[string]any{
		{"name": "core", "select": []string{"configmaps", "services"}},
		{"name": "apps", "select": []string{"deployments.apps"}, "changed": e.changed},
	}
	if e.widgets {
		all = slices.Insert(all, 1, map[string]any{"select": []string{"widgets." + workload.WidgetGroup}})
	}
	return all
}

// edit makes one change of a sort, and returns which.
func (e *edited) edit(sort int, r *rand.Rand) string {
	switch sort {
	case 0:
		e.widgets = !e.widgets
		return fmt.Sprintf("widgets selected: %v", e.widgets)
	case 1:
		e.changed = map[string]string{"none": "paths", "paths": "values", "values": "none"}[e.changed]
		return "changed: " + e.changed
	case 2:
		e.lanes = 64 + 128 - e.lanes
		return fmt.Sprintf("nats.lanes: %d", e.lanes)
	}
	name := fmt.Sprintf("file-%d", r.IntN(3))
	e.files[name] = !e.files[name]
	return fmt.Sprintf("sink %s: %v", name, e.files[name])
}

// configure writes what is edited into the settings.
func (e *edited) configure(settings *exporter.Settings) {
	settings.Resources, settings.Sinks = e.rules(), nil
	sinks := settings.WholeSinks()
	sinks[1]["nats"].(map[string]any)["lanes"] = e.lanes
	for _, name := range []string{"file-0", "file-1", "file-2"} {
		if e.files[name] {
			sinks = append(sinks, map[string]any{"name": name, "start": "now", "stdout": map[string]any{"path": filepath.Join(settings.Dir, name+".jsonl")}})
		}
	}
	settings.Sinks = sinks
}

// corruptedConfigurations are bad files made of a good one.
func corruptedConfigurations(good string) []string {
	return []string{
		good[:len(good)/2],
		"resources: [",
		"",
		strings.Replace(good, `"select"`, `"selects"`, 1),
		strings.Replace(good, `"resources"`, `"resource"`, 1),
		strings.Replace(good, `"configmaps"`, `"config maps"`, 1),
		strings.Replace(good, `"name": "nats"`, `"name": "kafka"`, 1),
		strings.Replace(good, `"kafka": {`, `"rabbit": {`, 1),
		strings.Replace(good, `"min": "50ms"`, `"min": "soon"`, 1),
		strings.Replace(good, `"lanes": `, `"lanes": -`, 1),
	}
}

// awaitRejected puts a bad file in the place of the configuration and waits until it is refused, and counted as so many.
func (s *fixture) awaitRejected(bad string, count int) {
	s.t.Helper()
	path := s.exporter.Config()
	s.must(os.WriteFile(path+".bad", []byte(bad), 0o600))
	s.must(os.Rename(path+".bad", path))
	s.awaitMetric(`kubecdc_condition{code="ConfigRefused",component="configuration",severity="degraded"}`, "1")
	s.awaitMetric(`kubecdc_config_reloads_total{result="refused"}`, fmt.Sprint(count))
}

// dropUnselected leaves out what came and went: there is nothing to compare it with.
func (s *fixture) dropUnselected() {
	s.receiveAll()
	for _, b := range s.buses {
		b.records = slices.DeleteFunc(b.records, func(r bus.Record) bool { return r.Resource == "widgets" })
	}
}

// TestReloadsLoseAndRepeatNothing edits the configuration of a running exporter again and again while objects are
// written: rules and sinks come, go and change, and now and then the file is a bad one. Objects selected throughout arrive
// on both buses completely, in order and once, and no reload lists them.
func TestReloadsLoseAndRepeatNothing(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services, workload.Deployments}
	now := &edited{changed: "none", files: map[string]bool{}, lanes: 64}
	s := newFixture(t, kinds, now.configure)
	s.must(s.exporter.Start(t.Context()))
	random, times, rate := newRandom(t), sizeOf(t, "KUBECDC_E2E_RELOADS", edits), sizeOf(t, "KUBECDC_E2E_RATE", pipelineRate)
	var order []int
	began, refused := time.Now(), 0
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 4, Rate: rate}, append(kinds, workload.Widgets))
	for i := range times {
		if i%sorts == 0 { // each sort comes as often as the others
			order = random.Perm(sorts)
		}
		load.AwaitOperations(load.Operations() + random.IntN(writesBetween))
		if i > 0 {
			s.checkNotListed("configmaps", "services")
		}
		if i%spoils == spoils-1 {
			good, err := os.ReadFile(s.exporter.Config())
			s.must(err)
			all := corruptedConfigurations(string(good))
			s.awaitRejected(all[refused%len(all)], refused+1)
			refused++
		}
		what := now.edit(order[i%sorts], random)
		s.must(s.exporter.Configure(now.configure))
		s.awaitConfiguration()
		t.Logf("edit %d: %s", i, what)
	}
	load.AwaitOperations(load.Operations() + writesBetween)
	load.Stop()
	t.Logf("%d writes, %.0f a second of %d that were asked for", load.Operations(), float64(load.Operations())/time.Since(began).Seconds(), rate)
	s.awaitAll()
	s.checkNotListed("configmaps", "services")
	s.awaitMetric(`kubecdc_config_reloads_total{result="taken"}`, fmt.Sprint(times))
	s.awaitMetric(`kubecdc_config_reloads_total{result="refused"}`, fmt.Sprint(refused))
	if _, text, err := s.exporter.Get(t.Context(), "/metrics"); err != nil || strings.Contains(text, `code="ConfigRefused"`) {
		t.Errorf("the last file is refused (%v):\n%s", err, text)
	}
	s.must(s.exporter.Stop())
	s.dropUnselected()
	s.judge(oracle.Rules{})
}

// checkNotListed checks that the last reload has resumed the watches of resources without a list. The counters of a resource
// begin with the configuration.
func (s *fixture) checkNotListed(resources ...string) {
	s.t.Helper()
	for _, resource := range resources {
		for _, counter := range []string{"relists", "list_requests"} {
			if got := s.value(fmt.Sprintf("kubecdc_resource_%s_total{resource=%q}", counter, resource)); got != "0" {
				s.t.Errorf("%s: %s is %s after a reload", resource, counter, got)
			}
		}
	}
}

// TestDeadSinkIsRemovedByReload takes a sink out of the configuration that has taken nothing for as long as there
// is something to deliver. That neither waits for the sink, which would take the ten minutes of delivery.drainTimeout, nor
// disturbs the others.
func TestDeadSinkIsRemovedByReload(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	dead := true
	s := newFixture(t, kinds)
	configure := func(settings *exporter.Settings) {
		settings.Sinks, settings.DrainTimeout = nil, "10m"
		sinks := settings.WholeSinks()
		if dead {
			sinks = append(sinks, map[string]any{"name": "dead", "format": "cloudevents", "webhook": map[string]any{"url": "http://127.0.0.1:1"}})
		}
		settings.Sinks = sinks
	}
	s.must(s.exporter.Configure(configure))
	s.must(s.exporter.Launch(t.Context()))
	s.must(s.load(40, kinds).Wait())
	s.awaitAll()
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]sink/dead ")
	s.awaitMetric(`kubecdc_sink_backlog_changes{sink="kafka"}`, "0")
	load := s.load(40, kinds)
	dead = false
	s.must(s.exporter.Configure(configure))
	s.awaitConfiguration()
	s.must(load.Wait())
	s.awaitAnswer("/readyz", http.StatusOK, "ok")
	s.awaitAll()
	s.checkNotListed("configmaps")
	s.judge(oracle.Rules{})
}

// value is the value of a series of the exporter's metrics.
func (s *fixture) value(series string) string {
	s.t.Helper()
	_, text, err := s.exporter.Get(s.t.Context(), "/metrics")
	s.must(err)
	_, rest, found := strings.Cut(text, "\n"+series+" ")
	if !found {
		s.t.Fatalf("there is no %s", series)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// awaitConfiguration waits until the file that is there now is active.
func (s *fixture) awaitConfiguration() {
	s.t.Helper()
	series, err := s.exporter.ConfigSeries()
	s.must(err)
	s.awaitMetric(series, "1")
}
