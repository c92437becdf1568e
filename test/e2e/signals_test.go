package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
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

// pauses is how often a sink or a rule is paused; KUBECDC_E2E_PAUSES sets it for long proofs.
const pauses = 8

// writesDuringPause is how many objects are written during a pause, before the test looks at the buses.
const writesDuringPause = 150

// pausable is what a test pauses: a sink, or a rule.
type pausable struct {
	kind, name string   // as in the flag: sink, rule
	bus        int      // of a sink
	resources  []string // of a rule
}

// pausables are the sinks, and the rules that configure names.
var pausables = []pausable{
	{kind: "sink", name: "kafka", bus: 0}, {kind: "rule", name: "core", resources: []string{"configmaps", "services"}},
	{kind: "sink", name: "nats", bus: 1}, {kind: "rule", name: "apps", resources: []string{"deployments"}},
}

// command is one of the signals of a pausable, to an exporter.
func (p pausable) command(signal string, e *exporter.Exporter) []string {
	return []string{"signal", signal, "--" + p.kind, p.name, "--config", e.Config()}
}

// line is the beginning of its line on /readyz.
func (p pausable) line() string {
	return "[!]" + p.kind + "/" + p.name + " " + map[string]string{"sink": "Sink", "rule": "Rule"}[p.kind] + "Paused: paused by signal "
}

// metric is the series that shows whether it is paused.
func (p pausable) metric() string {
	return fmt.Sprintf("kubecdc_%s_paused{%s=%q}", p.kind, p.kind, p.name)
}

// keptSignal is a signal as exporter signal list shows it.
type keptSignal struct {
	ID, Signal, Sink, Rule, State, Result string
	Count                                 int
}

// listSignals lists the signals of an exporter.
func (s *fixture) listSignals(e *exporter.Exporter) (all []keptSignal) {
	s.t.Helper()
	for line := range strings.Lines(s.ask("signal", "list", "--config", e.Config(), "-o", "json")) {
		var one keptSignal
		s.must(json.Unmarshal([]byte(line), &one))
		all = append(all, one)
	}
	return all
}

// checkNothingArrives checks that a bus gets nothing while a load writes.
func (s *fixture) checkNothingArrives(b *received, load *workload.Load) {
	s.t.Helper()
	s.must(b.receive(s.t.Context()))
	before := len(b.records)
	load.AwaitOperations(load.Operations() + writesDuringPause)
	s.must(b.receive(s.t.Context()))
	if after := len(b.records); after != before {
		s.t.Errorf("%s got %d records while it was paused", b.Name(), after-before)
	}
}

// checkPaused checks, while a load writes, that nothing of what was paused at a revision arrives, and everything else does.
func (s *fixture) checkPaused(p pausable, at int64, load *workload.Load) {
	s.t.Helper()
	if p.kind == "sink" {
		s.checkNothingArrives(s.buses[p.bus], load)
		return
	}
	now, err := s.etcd.Revision(s.t.Context())
	s.must(err)
	load.AwaitOperations(load.Operations() + writesDuringPause)
	for _, b := range s.buses {
		s.await(b, func(records []bus.Record) string {
			if slices.ContainsFunc(records, func(r bus.Record) bool { return !slices.Contains(p.resources, r.Resource) && r.Revision > now }) {
				return ""
			}
			return fmt.Sprintf("a record of another rule after %d", now)
		})
		for _, r := range b.records {
			if slices.Contains(p.resources, r.Resource) && r.Revision > at {
				s.t.Fatalf("%s has got %s %v at %d, after the rule was paused at %d", b.Name(), r.Type, r.Object, r.Revision, at)
			}
		}
	}
}

// pause pauses something, and returns etcd's revision after that.
func (s *fixture) pause(p pausable, e *exporter.Exporter) (at int64) {
	s.t.Helper()
	s.ask(p.command("pause", e)...)
	at, err := s.etcd.Revision(s.t.Context())
	s.must(err)
	return at
}

// TestPausedStreamsEqualUnpausedOnes pauses sinks and rules in turns while objects are written, and kills the exporter,
// changes its configuration or stops it in order meanwhile. A paused sink gets nothing, and nothing of a paused rule arrives
// anywhere, however the exporter starts again. In the end both buses have everything that happened, in order and once.
func TestPausedStreamsEqualUnpausedOnes(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services, workload.Deployments}
	now := &edited{changed: "none", files: map[string]bool{}, lanes: 64}
	s := newFixture(t, kinds, now.configure)
	for _, b := range s.buses {
		b.wanted = func(r bus.Record) bool { return r.Resource != "widgets" } // which edits select now and then
	}
	s.must(s.exporter.Start(t.Context()))
	random := newRandom(t)
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 4, Rate: sizeOf(t, "KUBECDC_E2E_RATE", pipelineRate)}, kinds)
	for i := range sizeOf(t, "KUBECDC_E2E_PAUSES", pauses) {
		p := pausables[i%len(pausables)]
		load.AwaitOperations(load.Operations() + random.IntN(writesBetween))
		at := s.pause(p, s.exporter)
		s.checkPaused(p, at, load)
		what := random.IntN(4)
		switch what {
		case 0:
			s.must(s.exporter.Kill())
			s.must(s.exporter.Start(t.Context()))
		case 1:
			s.must(s.exporter.Stop())
			s.must(s.exporter.Start(t.Context()))
		case 2:
			now.edit(random.IntN(3), random)
			s.must(s.exporter.Configure(now.configure))
			s.awaitConfiguration()
		default: // nothing
		}
		t.Logf("pause %d of %s %s, meanwhile %s", i, p.kind, p.name, []string{"a kill", "a stop", "an edit", "nothing"}[what])
		s.awaitAnswer("/readyz", http.StatusOK, p.line())
		s.awaitMetric(p.metric(), "1")
		s.checkPaused(p, at, load)
		s.ask(p.command("resume", s.exporter)...)
		s.awaitMetric(p.metric(), "0")
	}
	load.Stop()
	s.awaitAll()
	for _, one := range s.listSignals(s.exporter) {
		if one.State != "done" {
			t.Errorf("an ended signal is %+v", one)
		}
	}
	s.judge(oracle.Rules{})
}

// TestAPauseSurvivesAFailover pauses a bus or a rule at the active exporter, takes that away with its volume, and resumes at
// the next one.
func TestAPauseSurvivesAFailover(t *testing.T) {
	for i, paused := range pausables[:3] {
		t.Run(paused.kind+" "+paused.name, func(t *testing.T) {
			kinds := []workload.Kind{workload.ConfigMaps, workload.Services, workload.Deployments}
			now := &edited{changed: "none", lanes: 64}
			p := newPair(t, kinds, []string{"nats", "kafka"}[i%2], keepLease, now.configure)
			p.start()
			load := p.run(workload.Plan{Objects: math.MaxInt32, Updates: 4, Rate: pipelineRate}, kinds)
			first := p.active()
			for _, ask := range [][]string{paused.command("pause", p.other(first)), {"signal", "list", "--config", p.other(first).Config()}} {
				code, out := p.command(ask...)
				if code != 3 || !strings.Contains(out, "standby") {
					t.Errorf("the standby answers %q with %d, %s", ask, code, out)
				}
			}
			at := p.pause(paused, first)
			p.checkPaused(paused, at, load)
			p.removeReplica(first)
			second := p.active()
			p.awaitAnswerOf(second, "/readyz", paused.line())
			p.checkPaused(paused, at, load)
			if all := p.listSignals(second); len(all) != 1 || all[0].State != "active" || all[0].Sink+all[0].Rule != paused.name {
				t.Errorf("after the failover the signals are %+v", all)
			}
			load.Stop()
			p.ask(paused.command("resume", second)...)
			p.awaitAll()
			if all := p.listSignals(second); len(all) != 2 || all[0].State != "done" || all[1].State != "done" ||
				(all[1].Count == 0) != (paused.kind == "rule") {
				t.Errorf("in the end the signals are %+v", all)
			}
			p.judge(oracle.Rules{})
		})
	}
}

// TestAPausedRuleIsComparedAfterACompaction pauses the only rule, and resumes it when etcd and the API server have forgotten
// what happened meanwhile: one gap for each resource, and the differences. The exporter stays ready.
func TestAPausedRuleIsComparedAfterACompaction(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}
	s := newRestrictedFixture(t, kinds, func(settings *exporter.Settings) { settings.Rule = map[string]any{"name": "all"} })
	s.must(s.exporter.Start(t.Context()))
	all := pausable{kind: "rule", name: "all"}
	s.checkAbsence(kinds,
		func() {
			s.pause(all, s.exporter)
			s.awaitAnswer("/readyz", http.StatusOK, all.line())
			s.awaitMetric(`kubecdc_resource_state{resource="configmaps",state="paused"}`, "1")
		},
		func() {
			s.must(s.exporter.Kill())
			if out := s.ask("journal", "stat", "--config", s.exporter.Config()); !strings.Contains(out, all.line()[3:]) {
				s.t.Errorf("journal stat does not show the pause:\n%s", out)
			}
			s.must(s.exporter.Start(t.Context()))
			s.awaitAnswer("/readyz", http.StatusOK, all.line())
			s.ask(all.command("resume", s.exporter)...)
		},
		func() { s.must(s.exporter.Stop()) })
}

// TestTheSocketOfSignals follows the socket through kills, a second exporter and commands without an exporter.
func TestTheSocketOfSignals(t *testing.T) {
	var settings exporter.Settings
	s := newFixture(t, []workload.Kind{workload.ConfigMaps}, func(given *exporter.Settings) { settings = *given })
	socket := filepath.Join(settings.JournalDir(), "signal.sock")
	list := []string{"signal", "list", "--config", s.exporter.Config()}
	if code, out := s.command(list...); code != 3 || !strings.Contains(out, "no exporter answers at "+socket) {
		t.Errorf("before the start: %d, %s", code, out)
	}
	s.must(s.exporter.Start(t.Context()))
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", socket, info, err)
	}
	if code, out := s.command("signal", "pause", "--sink", "kafak", "--config", s.exporter.Config()); code != 2 || !strings.Contains(out, "there are: kafka, nats") {
		t.Errorf("an unknown sink: %d, %s", code, out)
	}
	code, _, err := s.exporter.RunSecond(t.Context())
	s.must(err)
	if code != 3 {
		t.Errorf("a second exporter on the journal ended with %d", code)
	}
	if all := s.listSignals(s.exporter); len(all) != 1 || all[0].State != "refused" {
		t.Errorf("beside a second exporter the signals are %+v", all)
	}
	s.must(s.exporter.Kill())
	if code, out := s.command(list...); code != 3 || !strings.Contains(out, "connection refused") {
		t.Errorf("after a kill: %d, %s", code, out)
	}
	s.must(s.exporter.Start(t.Context()))
	if all := s.listSignals(s.exporter); len(all) != 1 {
		t.Errorf("after a kill the signals are %+v", all)
	}
	s.ask("signal", "pause", "--sink", "nats", "--config", s.exporter.Config())
	s.must(s.exporter.Stop())
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("an exporter that has stopped leaves its socket: %v", err)
	}
	if out := s.ask("journal", "stat", "--config", s.exporter.Config()); !strings.Contains(out, "sink/nats SinkPaused: paused by signal ") {
		t.Errorf("journal stat does not show the pause:\n%s", out)
	}
}

// TestDeadLettersAreRetriedAndDiscardedWhileTheExporterRuns lets a stream refuse large messages, and then nothing any more.
// What it refused is delivered in its turn to it alone, over a kill, unless the object has a newer change.
func TestDeadLettersAreRetriedAndDiscardedWhileTheExporterRuns(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds)
	s.refuseHeavy()
	s.must(s.exporter.Start(t.Context()))
	names := []string{"first", "second", "third", "changed"}
	for _, name := range names {
		s.must(s.cluster.Create(t.Context(), heavy(workload.ConfigMaps), s.name, name))
	}
	s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "changed", 1))
	s.awaitMetric(`kubecdc_sink_dead_letters_kept{sink="nats"}`, "5")
	at := []string{"--sink", "nats", "--config", s.exporter.Config()}
	if code, out := s.command(append([]string{"deadletters", "retry", "1000000"}, at...)...); code != 2 || !strings.Contains(out, "no dead letter at offset 1000000") {
		t.Errorf("an offset without a dead letter: %d, %s", code, out)
	}
	// While the cause lasts they become dead letters again, once.
	s.ask(append([]string{"deadletters", "retry", "--all"}, at...)...)
	s.awaitMetric(`kubecdc_sink_dead_letters_total{sink="nats"}`, "9")
	s.awaitMetric(`kubecdc_sink_dead_letters_kept{sink="nats"}`, "5")
	s.acceptEverything()
	out := s.ask(append([]string{"deadletters", "retry", "--all"}, at...)...)
	if !strings.Contains(out, "done: 4 are delivered in their turn; 1 stay: a newer change") {
		t.Errorf("retry answers %s", out)
	}
	s.must(s.exporter.Kill())
	s.must(s.exporter.Start(t.Context()))
	s.await(s.buses[1], func(records []bus.Record) string {
		for _, name := range names {
			if !slices.ContainsFunc(records, func(r bus.Record) bool { return r.Name == name }) {
				return name
			}
		}
		return ""
	})
	if out := s.ask(append([]string{"deadletters", "discard", "--all"}, at...)...); !strings.Contains(out, "done: 1 discarded") {
		t.Errorf("discard answers %s", out)
	}
	if out := s.ask(append([]string{"deadletters", "discard", "--all"}, at...)...); !strings.Contains(out, "nothing: the sink has no dead letters") {
		t.Errorf("discard answers %s", out)
	}
	s.awaitMetric(`kubecdc_sink_dead_letters_kept{sink="nats"}`, "0")
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "last"))
	s.awaitHistory(s.buses[0])
	s.must(s.exporter.Stop())
	s.receiveAll()
	if wrong := s.history().Judge(s.buses[0].records, oracle.Rules{}); len(wrong) > 0 {
		t.Errorf("the other sink has %d points:\n%s", len(wrong), first(wrong))
	}
	var got []string
	for _, r := range s.buses[1].records {
		if r.Namespace == s.name && (slices.Contains(names, r.Name) || r.Name == "last") {
			got = append(got, r.Name+" "+r.Type)
		}
	}
	if want := "first added, second added, third added, changed updated, last added"; strings.Join(got, ", ") != want {
		t.Errorf("the stream holds %v", got)
	}
}
