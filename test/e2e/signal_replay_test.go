package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// requestReplay sends the signal for a replay and returns it.
func (s *fixture) requestReplay(e *exporter.Exporter, sink, since string) (signal keptSignal) {
	s.t.Helper()
	s.must(json.Unmarshal([]byte(s.ask("signal", "replay", "--sink", sink, "--since", since, "--config", e.Config(), "-o", "json")), &signal))
	return signal
}

// replayedBy returns the records of a replay, each once.
func replayedBy(records []bus.Record, id string) (again, ends []bus.Record) {
	seen := map[string]bool{}
	for _, r := range records {
		switch {
		case r.Replay == nil || r.Replay.ID != id || seen[r.ID]:
			continue
		case r.Type == "replay.end":
			ends = append(ends, r)
		default:
			again = append(again, r)
		}
		seen[r.ID] = true
	}
	return again, ends
}

// checkReplay checks that a bus has what it had before once more, or a part of it if the replay was aborted, in the order of
// each object, and one end of each resource.
func (s *fixture) checkReplay(b *received, signal keptSignal, before []bus.Record) {
	s.t.Helper()
	s.must(b.receive(s.t.Context()))
	byID := map[string]bus.Record{}
	for _, r := range b.records {
		if r.Replay == nil {
			byID[r.ID] = r
		}
	}
	again, ends := replayedBy(b.records, signal.ID)
	s.t.Logf("%s: %d of %d records are replayed, with %d ends: %s", b.Name(), len(again), len(before), len(ends), signal.Result)
	newest, of := map[bus.Object]int64{}, map[string]bool{}
	for _, r := range again {
		original, there := byID[r.Replay.Of]
		if of[r.Replay.Of] = true; !there || original.Type != r.Replay.Type || original.Revision != r.Revision ||
			!bytes.Equal(original.After, r.After) || !bytes.Equal(original.Before, r.Before) {
			s.t.Errorf("%s: %s repeats %s, which is %+v", b.Name(), r.ID, r.Replay.Of, original)
		}
		if r.Revision < newest[r.Object] {
			s.t.Errorf("%s: %s is replayed behind %d", b.Name(), r.ID, newest[r.Object])
		}
		newest[r.Object] = r.Revision
	}
	total := 0
	for _, r := range ends {
		if total += r.Replay.Count; r.Replay.State != signal.State {
			s.t.Errorf("%s: the end of %s is %+v, and the signal is %s", b.Name(), r.Resource, r.Replay, signal.State)
		}
	}
	ended := map[string]bool{}
	for _, r := range ends {
		ended[r.Resource] = true
	}
	if len(ended) != len(ends) || len(ends) < len(s.resources) {
		s.t.Errorf("%s: %d resources have %d ends, and %d are watched", b.Name(), len(ended), len(ends), len(s.resources))
	}
	if signal.State != "done" {
		return
	}
	if total > 0 && total != len(again) || signal.Count != len(again) { // after a failover the ends have no number
		s.t.Errorf("%s: %d records are replayed, the ends say %d, the signal %d", b.Name(), len(again), total, signal.Count)
	}
	for _, r := range before {
		if r.Name != "" && !of[r.ID] {
			s.t.Errorf("%s: the replay lacks %s", b.Name(), r.ID)
		}
	}
}

// removeReplays removes replayed records and their ends, and watermarks, of which buses have different numbers: the rest is
// what there would be without them.
func (s *fixture) removeReplays() {
	for _, b := range s.buses {
		b.records = slices.DeleteFunc(b.records, func(r bus.Record) bool { return r.Replay != nil || r.Watermark != nil })
	}
}

// killDuringSignal kills the exporter at a random moment while a signal is active, and starts it again. It returns false if
// the signal has ended.
func (s *fixture) killDuringSignal(id string, after time.Duration) bool {
	s.t.Helper()
	s.awaitMetric("kubecdc_ready", "1")
	if s.signalNamed(id).State != "active" {
		return false
	}
	await.Pause(s.t, after)
	s.must(s.exporter.Kill())
	s.must(s.exporter.Launch(s.t.Context()))
	return true
}

// TestAReplayHasWhatTheJournalKeeps asks for a replay under load, for a sink that is paused first, kills the exporter,
// freezes the server of the sink and edits the configuration meanwhile. The sink has everything from before again, and the
// live changes as without; a table of it equals the cluster. The other sink has nothing of it.
func TestAReplayHasWhatTheJournalKeeps(t *testing.T) {
	require.Long(t)
	const sink = "nats"
	now := &edited{changed: "none", widgets: true, files: map[string]bool{}, lanes: 64}
	watermarks := func(c *exporter.Settings) { c.Watermarks = "1s" }
	s := addSinksTo(newFixture(t, addedKinds, now.configure, watermarks))
	random := newRandom(t)
	s.must(s.exporter.Start(t.Context()))
	s.must(s.run(workload.Plan{Objects: 2 * sizeOf(t, "KUBECDC_E2E_ADDED", addedObjects), Updates: 2}, addedKinds).Wait())
	s.awaitAll()
	before := slices.Clone(s.buses[1].records)
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, addedKinds)
	load.AwaitOperations(verifyRate)
	s.ask("signal", "pause", "--sink", sink, "--config", s.exporter.Config())
	signal := s.requestReplay(s.exporter, sink, "1h")
	kills := 0
	for kills < snapshotKills && s.killDuringSignal(signal.ID, time.Duration(random.IntN(50))*time.Millisecond) {
		if kills++; kills == 1 {
			s.awaitMetric("kubecdc_ready", "1")
			s.ask("signal", "resume", "--sink", sink, "--config", s.exporter.Config())
			s.must(s.nats.Process().Freeze())
			load.AwaitOperations(load.Operations() + 2*verifyRate)
			s.must(s.nats.Process().Resume())
		}
	}
	t.Logf("killed %d times before the replay was complete", kills)
	s.awaitMetric("kubecdc_ready", "1")
	now.edit(1, random)
	s.must(s.exporter.Configure(now.configure))
	s.awaitConfiguration()
	ended := s.awaitSignal(s.exporter, signal.ID)
	load.Stop()
	s.awaitAll()
	if ended.State != "done" {
		t.Errorf("the signal is %+v", ended)
	}
	s.checkReplay(s.buses[1], ended, before)
	if code, v, stderr := s.verify(s.exporter.Config(), sink); code != 0 {
		t.Errorf("verify ends with %d: %+v, %s", code, v.differences(), stderr)
	}
	if again, ends := replayedBy(s.buses[0].records, signal.ID); len(again)+len(ends) > 0 {
		t.Errorf("%s has %d records of it", s.buses[0].Name(), len(again)+len(ends))
	}
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.added = s.buses[1:]
	s.checkTables()
	s.removeReplays()
	s.judge(oracle.Rules{Repetitions: true})
}

// awaitReplayed waits for the first record of a replay on a bus. It looks without a pause, so that the replay is under way.
func (s *fixture) awaitReplayed(b *received, id string) {
	s.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; {
		s.must(b.receive(s.t.Context()))
		if again, _ := replayedBy(b.records, id); len(again) > 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: nothing is replayed after %v", b.Name(), arriveWithin)
		}
	}
}

// TestAReplayIsAbortedByAFailover takes the journal away that a replay reads: it ends with that reason, in the stream as
// well, and nothing else is different. Of a paused sink nothing is replayed, of another one a part. There the active
// exporter is frozen, wakes when the next one is active, and has no signals any more.
func TestAReplayIsAbortedByAFailover(t *testing.T) {
	require.Long(t)
	servers(t)
	for i, sink := range []string{"kafka", "nats"} {
		t.Run(sink, func(t *testing.T) {
			kinds := []workload.Kind{workload.ConfigMaps, workload.Services}
			p := newPair(t, kinds, []string{"nats", "kafka"}[i])
			p.start()
			p.must(p.run(workload.Plan{Objects: 2 * sizeOf(t, "KUBECDC_E2E_ADDED", addedObjects), Updates: 2}, kinds).Wait())
			p.awaitSettled()
			before := slices.Clone(p.buses[i].records)
			load := p.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, kinds)
			first := p.active()
			if i == 1 {
				p.ask("signal", "pause", "--sink", sink, "--config", first.Config())
			}
			signal := p.requestReplay(first, sink, "1h")
			if i == 0 {
				p.awaitReplayed(p.buses[i], signal.ID)
			}
			var second *exporter.Exporter
			if i == 0 {
				second = p.freezeWhileAnotherTakesOver(first)
				p.awaitNoSignals(first)
			} else {
				p.removeReplica(first)
				second = p.active()
				p.ask("signal", "resume", "--sink", sink, "--config", second.Config())
			}
			ended := p.awaitSignal(second, signal.ID)
			load.Stop()
			p.awaitAll()
			if ended.State != "aborted" && (i == 1 || ended.State != "done") { // it may have been fast
				t.Errorf("the signal is %+v", ended)
			}
			p.checkReplay(p.buses[i], ended, before)
			s := addSinksTo(p.fixture, p.all...)
			for _, e := range p.all {
				s.must(e.Stop())
			}
			s.receiveAll()
			s.added = p.buses[i : i+1]
			s.checkTables()
			s.removeReplays()
			s.judgeEach(oracle.Rules{Repetitions: true})
		})
	}
}

// freezeWhileAnotherTakesOver freezes an exporter until another one is active, and returns that.
func (p *replicas) freezeWhileAnotherTakesOver(e *exporter.Exporter) *exporter.Exporter {
	p.t.Helper()
	p.must(e.Pause())
	p.down[e] = true
	next := p.active()
	p.must(e.Resume())
	p.down[e] = false
	return next
}

// awaitNoSignals waits until an exporter that was active finds that it has no signals any more.
func (p *replicas) awaitNoSignals(e *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery) {
		code, out := p.command("signal", "list", "--config", e.Config())
		if code == 3 && strings.Contains(out, "standby") {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("it lists, after %v: %d, %s", arriveWithin, code, out)
		}
	}
}
