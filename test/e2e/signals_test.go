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
	"github.com/kubecdc/kubecdc/test/parts/require"
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
	require.Long(t)
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
	require.Long(t)
	servers(t)
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
