package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	stepsPerWalk = 10 // edits of one walk
	writesOfStep = 8  // writes before each edit
)

// TestReloadsEqualRestarts edits the rules and sinks of two exporters at random, in the same way: one applies each edit
// while it runs, the other is stopped and started. Both emit the same records of each object in the same order.
func TestReloadsEqualRestarts(t *testing.T) {
	require.Long(t)
	env := sharedControlPlane(t)
	createFruitNamespaces(t, env)
	seed := randomSeed(t)
	for n := range numberFromEnv(t, "KUBECDC_E2E_WALKS", 1) {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			o := &fruitGroup{group: fmt.Sprintf("walk%d.kubecdc.io", n)}
			o.install(t, env)
			w := &walk{rnd: rand.New(rand.NewPCG(seed, uint64(n)))}
			newHistory := func() *history {
				return &history{fixture: newFixture(t, env, nil), fruitGroup: o, rnd: w.rnd, objects: map[bus.Object]bool{}}
			}
			w.reloads, w.restarts = newHistory(), newHistory()
			defer w.reloads.deleteObjects()
			w.play(numberFromEnv(t, "KUBECDC_E2E_WALK_STEPS", stepsPerWalk))
		})
	}
}

// walk is a random sequence of edits that two exporters apply, each in its own way.
type walk struct {
	rnd      *rand.Rand
	picks    rulePicks
	sink     string   // name of a second sink; "" for none
	reloads  *history // applies an edit while it runs
	restarts *history // applies an edit by a restart
	compared [2]int   // records of both that were compared
}

func (w *walk) play(steps int) {
	for _, plural := range slices.Sorted(maps.Keys(fruits)) {
		w.picks = append(w.picks, drawPick(w.rnd, plural))
	}
	w.reloads.writeRandom(writesOfStep)
	for _, h := range []*history{w.reloads, w.restarts} {
		w.configure(h)
		h.startExporter()
	}
	for step := range steps {
		w.reloads.writeRandom(writesOfStep)
		w.awaitBoth()
		what := w.changeConfiguration()
		w.reloads.t.Logf("step %d: %s", step, what)
		w.configure(w.reloads)
		w.reloads.awaitActive()
		w.restarts.stopExporter()
		w.configure(w.restarts)
		w.restarts.startExporter()
		w.awaitBoth()
		w.reloads.touchObjects()
		w.awaitBoth()
		if w.compare(fmt.Sprintf("step %d, %s", step, what)); w.reloads.t.Failed() {
			text, err := os.ReadFile(w.reloads.exporter.Config())
			w.reloads.t.Logf("the configuration (%v):\n%s", err, text)
			return
		}
	}
}

// changeConfiguration makes random edits until the configuration is another one, which a reload takes for an edit. It
// returns the description of the last.
func (w *walk) changeConfiguration() (what string) {
	before := w.configuration()
	for w.configuration() == before {
		what = w.edit()
	}
	return what
}

// configuration returns what edits change.
func (w *walk) configuration() string { return fmt.Sprint(w.picks.toRules(w.reloads.group), w.sink) }

// edit makes one random change and returns its description.
func (w *walk) edit() string {
	switch w.rnd.IntN(4) {
	case 0:
		w.sink = oneOf(w.rnd, "", "second", "third")
		return fmt.Sprintf("second sink %q", w.sink)
	case 1:
		w.picks = slices.Clone(w.picks)
		for i := range w.picks {
			if p := &w.picks[i]; w.rnd.IntN(2) == 0 {
				if p.shape = drawShape(w.rnd); p.plural != "*" && w.rnd.IntN(2) == 0 {
					p.version = oneOf(w.rnd, "", "v1", "v2")
				}
			}
		}
		return fmt.Sprintf("other shapes and versions %v", w.picks)
	}
	w.picks = w.picks.editRandomly(w.rnd)
	return fmt.Sprintf("rules %v", w.picks)
}

// configure writes the configuration of an exporter.
func (w *walk) configure(h *history) {
	h.t.Helper()
	h.requireNoError(h.exporter.Configure(func(s *exporter.Settings) {
		s.Resources, s.Sinks = w.picks.toRules(h.group), nil
		if s.Sinks = s.WholeSinks(); w.sink != "" {
			path := filepath.Join(s.Dir, w.sink+".jsonl")
			s.Sinks = append(s.Sinks, rule{"name": w.sink, "stdout": rule{"path": path}})
		}
	}))
	h.runs = append(h.runs, exporterRun{picks: w.picks})
}

// awaitActive waits until the file that is there now is the active configuration.
func (s *fixture) awaitActive() {
	s.t.Helper()
	s.awaitCondition(func() string {
		if s.isActive() {
			return ""
		}
		return "the file to be the active configuration"
	})
	s.awaitPage("/readyz", 200)
}

// The series of a configuration that is not active.
const (
	configRefused = `kubecdc_condition{code="ConfigRefused",component="configuration",severity="degraded"}`
	configPending = `kubecdc_condition{code="ConfigPending",component="configuration",severity="degraded"}`
)

// isActive reports whether the file that is there now is the active configuration.
func (s *fixture) isActive() bool {
	s.t.Helper()
	series, err := s.exporter.ConfigSeries()
	s.requireNoError(err)
	if s.metricValue(configRefused) == 1 {
		text, err := os.ReadFile(s.exporter.Config())
		s.t.Fatalf("the file is refused (%v): %s", err, text)
	}
	return s.metricValue(series) == 1 && s.metricValue(configPending) == 0
}

// awaitBoth waits until the tables of both are the selection, so that nothing is on its way.
func (w *walk) awaitBoth() {
	w.reloads.t.Helper()
	w.reloads.awaitAgreement()
	w.restarts.awaitAgreement()
}

// compare compares the records since the last comparison, object by object.
func (w *walk) compare(what string) {
	t := w.reloads.t
	t.Helper()
	var lives [2]map[bus.Object][]string
	for i, h := range []*history{w.reloads, w.restarts} {
		lives[i] = map[bus.Object][]string{}
		for _, r := range h.records[w.compared[i]:] {
			if r.Group == h.group && r.Name != "" {
				line, err := normalizeRecord(r)
				h.requireNoError(err)
				lives[i][r.Object] = append(lives[i][r.Object], line)
			}
		}
		w.compared[i] = len(h.records)
		h.checkForms(h.records)
	}
	for _, o := range slices.SortedFunc(maps.Keys(lives[1]), compareObjects) {
		if _, there := lives[0][o]; !there {
			lives[0][o] = nil
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(lives[0]), compareObjects) {
		if reloaded, restarted := lives[0][o], lives[1][o]; !slices.Equal(reloaded, restarted) {
			t.Errorf("%s: %v: with a reload\n  %s\nwith a restart\n  %s", what, o, strings.Join(reloaded, "\n  "), strings.Join(restarted, "\n  "))
		}
	}
}

func compareObjects(a, b bus.Object) int { return strings.Compare(a.String(), b.String()) }

// normalizeRecord returns a record without what names the process, the list or the moment that it comes from.
func normalizeRecord(r bus.Record) (string, error) {
	var all map[string]any
	err := json.Unmarshal(r.Payload, &all)
	for _, member := range []string{"id", "observedAt", "changedAt", "snapshot", "listVersion"} {
		delete(all, member)
	}
	text, failed := json.Marshal(all)
	return string(text), errors.Join(err, failed)
}
