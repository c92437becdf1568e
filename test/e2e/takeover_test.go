package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// takeOvers is how often the one that works is taken away in each of the ways; KUBECDC_E2E_TAKEOVERS sets it for long proofs.
const takeOvers = 2

// pair are two exporters without volumes, which share a state in one of the buses, and of which one works.
type pair struct {
	*scene
	all    [2]*exporter.Exporter
	random *rand.Rand
}

func newPair(t *testing.T, kinds []workload.Kind, stateIn string, changes ...func(*exporter.Settings)) *pair {
	t.Helper()
	var settings exporter.Settings
	shared := func(s *exporter.Settings) {
		s.State = map[string]any{"sink": stateIn, "name": s.Stream + "-state"}
		s.Election = map[string]any{"lease": s.Stream + "/exporter", "duration": "2s", "identity": "first"}
		for _, change := range changes {
			change(s)
		}
		settings = *s
	}
	p := &pair{scene: newLeastScene(t, kinds, shared), random: dice(t)}
	settings.Dir = t.TempDir()
	settings.Election = map[string]any{"lease": settings.Stream + "/exporter", "duration": "2s", "identity": "second"}
	second, err := exporter.New(p.program, settings)
	p.must(err)
	p.all = [2]*exporter.Exporter{p.exporter, second}
	t.Cleanup(func() {
		if err := second.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the second's log:\n%s", second.LogTail())
		}
	})
	return p
}

// active waits until one of the running exporters works, and returns it and the other one. except is left out; it may be nil.
func (p *pair) active(except *exporter.Exporter) (works, other *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery/4) {
		for i, e := range p.all {
			if e == except {
				continue
			}
			if _, text, err := e.Get(p.t.Context(), "/metrics"); err == nil && strings.Contains(text, "\nkubecdc_active 1\n") {
				return e, p.all[1-i]
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("nobody works after %v", arriveWithin)
		}
	}
}

// succeeds waits until the other one works in the place of this one, and says how long that took. Nothing depends on it.
func (p *pair) succeeds(e *exporter.Exporter, was string) {
	p.t.Helper()
	began := time.Now()
	p.active(e)
	p.t.Logf("%s: another one works after %v", was, time.Since(began).Round(time.Millisecond))
}

// wipe takes the volume of a stopped exporter away.
func (p *pair) wipe(e *exporter.Exporter) {
	p.t.Helper()
	p.must(os.RemoveAll(filepath.Join(filepath.Dir(e.Config()), "journal")))
}

// killed ends the one that works with SIGKILL and takes its volume; it comes back when the other one works.
func (p *pair) killed() {
	works, _ := p.active(nil)
	p.must(works.Kill())
	p.wipe(works)
	p.succeeds(works, "killed")
	p.must(works.Launch(p.t.Context()))
}

// frozen lets the one that works stand still until the other one works, and a while longer, and then go on where it was.
func (p *pair) frozen() {
	works, _ := p.active(nil)
	before := fenced(p.t, works)
	p.must(works.Pause())
	p.succeeds(works, "frozen")
	pause(p.t, time.Duration(p.random.IntN(1000))*time.Millisecond) // how long it stands still is what is varied
	p.must(works.Resume())
	for deadline := time.Now().Add(arriveWithin); fenced(p.t, works) <= before; pause(p.t, lookEvery) {
		if time.Now().After(deadline) {
			p.t.Fatal("it has woken up, and nobody has told it that another one works")
		}
	}
}

// fenced is how often an exporter was told that another one works in its place; -1 while it does not say.
func fenced(t *testing.T, e *exporter.Exporter) int {
	ctx, cancel := context.WithTimeout(t.Context(), lookEvery)
	defer cancel()
	_, text, err := e.Get(ctx, "/metrics")
	if err != nil {
		return -1
	}
	for _, n := range series(text, "kubecdc_fenced_total") {
		return n
	}
	return -1
}

// replaced ends the one that works in order.
func (p *pair) replaced() {
	works, _ := p.active(nil)
	p.must(works.Stop())
	p.wipe(works)
	p.succeeds(works, "stopped")
	p.must(works.Launch(p.t.Context()))
}

// awaitOf waits until the admin server of an exporter answers with a text that holds part.
func (p *pair) awaitOf(e *exporter.Exporter, path, part string) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery) {
		_, text, err := e.Get(p.t.Context(), path)
		if err == nil && strings.Contains(text, part) {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s has no %q after %v: %v\n%s", path, part, arriveWithin, err, text)
		}
	}
}

// judge ends both, and compares each bus with the truth. The buses may differ in what is no part of a change's identity: one may
// have it from the exporter before, which observed it at another time, and the other one from the next.
func (p *pair) judge(rules oracle.Rules) {
	p.t.Helper()
	p.must(errors.Join(p.all[0].Stop(), p.all[1].Stop()))
	p.judgeEach(rules)
}

// TestTakeOversLoseRepeatAndReorderNothing takes the one that works away while objects are written: by SIGKILL with its volume, by
// standing still for longer than the Lease lasts and waking up, and in order. The other one goes on each time.
func TestTakeOversLoseRepeatAndReorderNothing(t *testing.T) {
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			kinds := workload.AllKinds()
			p := newPair(t, kinds, stateIn)
			p.must(p.all[0].Start(t.Context()))
			p.must(p.all[1].Start(t.Context()))
			p.active(nil)
			p.must(p.load(100, kinds).Wait())
			p.awaitAll()
			began := time.Now()

			ways := []func(){p.killed, p.frozen, p.replaced}
			turns := sizeOf(t, "KUBECDC_E2E_TAKEOVERS", takeOvers) * len(ways)
			plan := workload.Plan{Objects: manyObjects / 2 / len(ways) / takeOvers * turns, Updates: 3}
			load := p.run(plan, kinds)
			for i := range turns {
				load.AwaitOperations(plan.Operations() * (i + 1) / (turns + 2))
				ways[i%len(ways)]()
			}
			p.must(load.Wait())
			p.awaitAll()
			p.judge(oracle.Rules{})
			p.checkNothingWasListedSince(began)
		})
	}
}

// TestHistoryThatNobodyFollowedIsComparedWithTheStateAlone kills the one that works, takes its volume, and lets the other one start
// when the API server has forgotten what happened meanwhile: the gap, the differences and the deletes come from the state.
func TestHistoryThatNobodyFollowedIsComparedWithTheStateAlone(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			p := newPair(t, kinds, stateIn)
			p.must(p.all[0].Start(t.Context()))
			p.active(nil)
			p.checkAbsence(kinds,
				func() {
					p.awaitMetric("kubecdc_state_lag_seconds", "0") // what the state lacks would be told as added
					p.must(p.all[0].Kill())
					p.wipe(p.all[0])
				},
				func() { p.must(p.all[1].Start(t.Context())) },
				func() { p.must(p.all[1].Stop()) })
		})
	}
}

// TestAStateBelongsToOneDeployment gives two exporters one state and a Lease each, by mistake.
func TestAStateBelongsToOneDeployment(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "kafka")
	p.must(p.all[0].Start(t.Context()))
	p.active(nil)
	p.must(p.all[1].Configure(func(s *exporter.Settings) {
		s.Kubeconfig = p.controlPlane.Kubeconfig()
		s.Election = map[string]any{"lease": p.name + "/another", "duration": "2s", "identity": "stranger"}
	}))
	p.must(p.all[1].Launch(t.Context()))
	p.awaitOf(p.all[1], "/readyz", "[-]replica the replicated state belongs to the exporters of the Lease "+p.name+"/exporter")
	p.must(p.load(50, kinds).Wait())
	p.awaitAll()
	if n := fenced(t, p.all[0]); n != 0 {
		t.Errorf("the first was turned away %d times", n)
	}
	p.judge(oracle.Rules{})
}

// TestWhoWorksGoesOnWhileTheAPIServerIsAway and hands what it has to the buses; nobody takes its place, and nothing is lost.
func TestWhoWorksGoesOnWhileTheAPIServerIsAway(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats")
	p.must(p.all[0].Start(t.Context()))
	p.must(p.all[1].Start(t.Context()))
	works, other := p.active(nil)
	p.must(p.load(100, kinds).Wait())
	p.must(p.controlPlane.KillAPIServer())
	p.awaitAll() // etcd tells what was written
	p.awaitOf(other, "/readyz", "[!]replica read the Lease")
	p.must(p.controlPlane.StartAPIServer(t.Context()))
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	if n := fenced(t, works); n != 0 {
		t.Errorf("who worked was turned away %d times while nobody could be elected", n)
	}
	p.judge(oracle.Rules{Gaps: true}) // the only API server knows no history from before its start
}

// TestAPairIsReconfiguredWhileItRuns edits the files of both: a rule, which is taken up live, and a sink, for which all begins again
// where it is. The one that stood by works under the new files.
func TestAPairIsReconfiguredWhileItRuns(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "kafka")
	for _, e := range p.all {
		p.must(e.Configure(func(s *exporter.Settings) { s.Select = s.Select[:1] }))
	}
	p.must(p.all[0].Start(t.Context()))
	p.must(p.all[1].Start(t.Context()))
	works, other := p.active(nil)
	load := p.load(300, kinds)
	for n, edit := range []func(*exporter.Settings){
		func(s *exporter.Settings) { s.Select = []string{selection(p.resources[0]), selection(p.resources[1])} },
		func(s *exporter.Settings) { s.Kafka = map[string]any{"compression": "none"} },
	} {
		for _, e := range p.all {
			p.must(e.Configure(edit))
		}
		for _, e := range p.all {
			p.awaitOf(e, "/metrics", fmt.Sprintf("\nkubecdc_config_reloads_total{result=\"taken\"} %d\n", n+1))
		}
	}
	p.must(load.Wait())
	p.active(nil)
	p.must(works.Kill())
	p.wipe(works)
	p.active(works)
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	if n := fenced(t, other); n != 0 {
		t.Errorf("who stood by was turned away %d times", n)
	}
	p.judge(oracle.Rules{Gaps: true})
}
