package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// edits is how often the configuration is edited; "make fullsize" sets more.
const edits = 8

// sorts are the sorts of edits.
const sorts = 4

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
		{"select": []string{"configmaps", "services"}},
		{"select": []string{"deployments.apps"}, "changed": e.changed},
	}
	if e.widgets {
		all = slices.Insert(all, 1, map[string]any{"select": []string{"widgets." + workload.WidgetGroup}})
	}
	return all
}

// edit makes one change of a sort, and says which.
func (e *edited) edit(sort int, r *rand.Rand) string {
	switch sort {
	case 0:
		e.widgets = !e.widgets
		return fmt.Sprintf("widgets selected: %v", e.widgets)
	case 1:
		e.changed = map[string]string{"none": "paths", "paths": "mergePatch", "mergePatch": "none"}[e.changed]
		return "changed: " + e.changed
	case 2:
		e.lanes = 64 + 128 - e.lanes
		return fmt.Sprintf("nats.lanes: %d", e.lanes)
	}
	name := fmt.Sprintf("file-%d", r.IntN(3))
	e.files[name] = !e.files[name]
	return fmt.Sprintf("sink %s: %v", name, e.files[name])
}

// TestEditsWhileItRunsLoseAndRepeatNothing edits the configuration of a running exporter again and again while objects are written:
// rules and sinks come, go and change. What is selected throughout arrives on both buses completely, in order and once, and neither
// the watches nor the lanes that no edit concerns are begun anew.
func TestEditsWhileItRunsLoseAndRepeatNothing(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services, workload.Deployments}
	now := &edited{changed: "none", files: map[string]bool{}, lanes: 64}
	var dir string
	configure := func(settings *exporter.Settings) {
		dir, settings.Resources = settings.Dir, now.rules()
		settings.Sinks = nil
		sinks := settings.WholeSinks()
		sinks[1]["nats"].(map[string]any)["lanes"] = now.lanes
		for _, name := range []string{"file-0", "file-1", "file-2"} {
			if now.files[name] {
				sinks = append(sinks, map[string]any{"name": name, "stdout": map[string]any{"path": filepath.Join(dir, name+".jsonl")}})
			}
		}
		settings.Sinks = sinks
	}
	s := newScene(t, kinds, configure)
	s.must(s.exporter.Start(t.Context()))
	started := s.value(`kubecdc_resource_list_requests_total{resource="configmaps"}`)
	random, times := dice(t), sizeOf(t, "KUBECDC_E2E_RELOADS", edits)
	var order []int
	for i := range times {
		if i%sorts == 0 { // each sort comes as often as the others
			order = random.Perm(sorts)
		}
		load := s.run(workload.Plan{Objects: 60, Updates: 4}, append(kinds, workload.Widgets))
		load.AwaitOperations(random.IntN(load.Operations() + 100))
		what := now.edit(order[i%sorts], random)
		s.must(s.exporter.Configure(configure))
		s.awaitConfiguration(s.exporter.Config())
		t.Logf("edit %d: %s", i, what)
		s.must(load.Wait())
	}
	s.awaitAll()
	for _, resource := range []string{"configmaps", "services"} {
		s.awaitMetric(fmt.Sprintf("kubecdc_resource_watch_restarts_total{resource=%q}", resource), "0")
		s.awaitMetric(fmt.Sprintf("kubecdc_resource_relists_total{resource=%q}", resource), "0")
		s.awaitMetric(fmt.Sprintf("kubecdc_resource_list_requests_total{resource=%q}", resource), started)
	}
	s.awaitMetric(`kubecdc_config_reloads_total{result="taken"}`, fmt.Sprint(times))
	s.awaitMetric(`kubecdc_config_reloads_total{result="refused"}`, "0")
	log, err := os.ReadFile(s.exporter.Log())
	s.must(err)
	if strings.Contains(string(log), `msg="sink started" sink=kafka`) {
		t.Error("Kafka was begun anew, though no edit concerns it")
	}
	s.must(s.exporter.Stop())
	s.listenAll()
	for _, b := range s.buses { // of what came and went there is nothing to compare
		b.records = slices.DeleteFunc(b.records, func(r bus.Record) bool { return r.Resource == "widgets" })
	}
	s.judge(oracle.Rules{})
}

// value is the value of a series of the exporter's metrics.
func (s *scene) value(series string) string {
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

// awaitConfiguration waits until the file that is there now works.
func (s *scene) awaitConfiguration(file string) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	s.must(err)
	sum := sha256.Sum256(text)
	s.awaitMetric(fmt.Sprintf("kubecdc_config_info{hash=%q}", hex.EncodeToString(sum[:])[:12]), "1")
}

// TestAnotherRedactionIsTakenUpWhileItRuns journals Secrets in plain, also as dead letters, and gives the running exporter rules that
// redact them. When it says that these work, no file and no command shows anything of them, and what comes then is redacted.
func TestAnotherRedactionIsTakenUpWhileItRuns(t *testing.T) {
	var settings exporter.Settings
	s := newScene(t, nil, func(given *exporter.Settings) {
		given.Resources = []map[string]any{{"select": []string{"secrets"}, "redact": "none", "before": "full"}, {"select": []string{"configmaps"}}}
		settings = *given
	})
	s.refuseHeavy()
	s.must(s.exporter.Start(t.Context()))
	var p plants
	secrets := heavy(p.secretKind())
	for i := range plainSecrets {
		s.must(s.cluster.Create(t.Context(), secrets, s.name, fmt.Sprintf("secret-%d", i)))
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-last"))
	s.awaitNamed("the-last")
	before := len(s.buses[0].records)
	s.must(s.exporter.Configure(func(given *exporter.Settings) {
		given.Resources = []map[string]any{{"select": []string{"secrets"}, "redact": "hmac", "before": "full"}, {"select": []string{"configmaps"}}}
		given.Redaction = map[string]any{"key": "0123456789abcdef0123456789abcdef"}
	}))
	s.awaitConfiguration(s.exporter.Config())
	for i := range plainSecrets {
		s.must(s.cluster.Change(t.Context(), secrets, s.name, fmt.Sprintf("secret-%d", i), 1))
	}
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "the-next"))
	s.awaitNamed("the-next")
	s.must(s.exporter.Stop())
	s.listenAll()
	for _, r := range s.buses[0].records[before:] {
		s.nothingOf(&p, "kafka", string(r.Payload))
	}
	s.must(filepath.WalkDir(settings.JournalDir(), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		s.nothingOf(&p, path, string(content))
		return err
	}))
	s.nothingOf(&p, "deadletter list", s.ask("deadletter", "list", "--sink", "nats", "--config", s.exporter.Config(), "-o", "json"))
}
