package e2e

import (
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

// snapshotKills is how often the exporter is killed while a requested snapshot is emitted; KUBECDC_E2E_KILLS sets it.
const snapshotKills = 3

// requestSnapshot sends the signal for a snapshot and returns it.
func (s *fixture) requestSnapshot(e *exporter.Exporter, sink string, args ...string) (signal keptSignal) {
	s.t.Helper()
	all := append([]string{"signal", "snapshot", "--sink", sink, "--config", e.Config(), "-o", "json"}, args...)
	if len(args) == 0 {
		all = append(all, "--all")
	}
	s.must(json.Unmarshal([]byte(s.ask(all...)), &signal))
	return signal
}

// awaitSignal waits until a signal has ended, and returns it.
func (s *fixture) awaitSignal(e *exporter.Exporter, id string) keptSignal {
	s.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(s.t, 50*time.Millisecond) {
		code, out := s.command("signal", "list", "--config", e.Config(), "-o", "json")
		for line := range strings.Lines(out) {
			var one keptSignal
			if code == 0 && json.Unmarshal([]byte(line), &one) == nil && one.ID == id && one.State != "active" {
				return one
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("signal %s does not end: %d, %s", id, code, out)
		}
	}
}

// snapshotRecords returns the records of the snapshots that a signal has requested, each once.
func snapshotRecords(records []bus.Record, id string) (begins, objects, ends []bus.Record) {
	seen := map[string]bool{}
	for _, r := range records {
		if r.Snapshot == nil || !strings.HasPrefix(r.Snapshot.ID, id+".") || seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		switch r.Type {
		case "snapshot.begin":
			begins = append(begins, r)
		case "snapshot.end":
			ends = append(ends, r)
		default:
			objects = append(objects, r)
		}
	}
	return begins, objects, ends
}

// checkSnapshot checks that a bus has the whole snapshot of a signal: what existed all the time is in it, and each resource
// has one end.
func (s *fixture) checkSnapshot(b *received, signal keptSignal, existed []oracle.Revision, resources int) {
	s.t.Helper()
	s.must(b.receive(s.t.Context()))
	begins, objects, ends := snapshotRecords(b.records, signal.ID)
	s.t.Logf("%s: the snapshot has %d begins, %d objects, %d ends", b.Name(), len(begins), len(objects), len(ends))
	if len(ends) != resources || len(begins) < resources {
		s.t.Errorf("%s: %d snapshots begin and %d end, of %d resources", b.Name(), len(begins), len(ends), resources)
	}
	has := map[bus.Object]bool{}
	for _, r := range objects {
		has[r.Object] = true
	}
	for _, r := range existed {
		if !has[r.Object] {
			s.t.Errorf("%s: the snapshot lacks %v", b.Name(), r.Object)
		}
	}
}

// removeSnapshot removes the records of a requested snapshot, whose place among the others is checked: the rest is what
// there would be without it.
func (s *fixture) removeSnapshot(b *received, signal keptSignal) {
	b.records = slices.DeleteFunc(b.records, func(r bus.Record) bool {
		return r.Snapshot != nil && strings.HasPrefix(r.Snapshot.ID, signal.ID+".")
	})
}

// TestARequestedSnapshotIsWhole asks for a snapshot under load, kills the exporter and edits its configuration meanwhile.
// The sink has every object that existed, in order with the live changes; the other one nothing of it.
func TestARequestedSnapshotIsWhole(t *testing.T) {
	const sink = "kafka"
	now := &edited{changed: "none", widgets: true, files: map[string]bool{}, lanes: 64}
	s := addSinksTo(newFixture(t, addedKinds, now.configure))
	random := newRandom(t)
	s.must(s.run(workload.Plan{Objects: 2 * sizeOf(t, "KUBECDC_E2E_ADDED", addedObjects), Updates: 1}, addedKinds).Wait())
	s.must(s.exporter.Start(t.Context()))
	s.awaitAll()
	existed, err := s.etcd.State(t.Context(), s.resources)
	s.must(err)
	rate := sizeOf(t, "KUBECDC_E2E_RATE", verifyRate)
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: rate}, addedKinds)
	load.AwaitOperations(rate)
	selected := []string{"configmaps", "deployments.apps", "widgets." + workload.WidgetGroup} // and no services
	signal := s.requestSnapshot(s.exporter, sink, "--select", strings.Join(selected, ","))
	most, kills := sizeOf(t, "KUBECDC_E2E_KILLS", snapshotKills), 0
	for kills < most && s.killDuringSnapshot(time.Duration(random.IntN(30))*time.Millisecond) {
		kills++
		s.must(s.exporter.Launch(t.Context()))
	}
	t.Logf("killed %d times before the snapshots were complete", kills)
	s.awaitMetric("kubecdc_ready", "1")
	now.edit(1, random)
	s.must(s.exporter.Configure(now.configure))
	s.awaitConfiguration()
	ended := s.awaitSignal(s.exporter, signal.ID)
	load.Stop()
	s.awaitAll()
	if ended.State != "done" || !strings.HasSuffix(ended.Result, " objects of 3 resources") {
		t.Errorf("the signal is %+v", ended)
	}
	s.checkSnapshot(s.buses[0], signal, existed, len(s.resources))
	if _, objects, _ := snapshotRecords(s.buses[1].records, signal.ID); len(objects) > 0 {
		t.Errorf("%s has %s", s.buses[1].Name(), objects[0].ID)
	}
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.added = s.buses[:1]
	s.checkTables()
	s.removeSnapshot(s.buses[0], signal)
	s.judge(oracle.Rules{Repetitions: true})
}

// TestARequestedSnapshotSurvivesAFailover asks one replica for a snapshot and takes that away with its volume.
func TestARequestedSnapshotSurvivesAFailover(t *testing.T) {
	require.Long(t)
	p := newPair(t, addedKinds, "kafka")
	p.must(p.run(workload.Plan{Objects: 2 * sizeOf(t, "KUBECDC_E2E_ADDED", addedObjects), Updates: 1}, addedKinds).Wait())
	p.start()
	p.awaitSettled()
	existed, err := p.etcd.State(t.Context(), p.resources)
	p.must(err)
	load := p.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, addedKinds)
	first := p.active()
	signal := p.requestSnapshot(first, "nats")
	await.Pause(t, time.Duration(p.random.IntN(300))*time.Millisecond)
	p.removeReplica(first)
	second := p.active()
	ended := p.awaitSignal(second, signal.ID)
	load.Stop()
	p.awaitAll()
	if ended.State != "done" || ended.Count == 0 {
		t.Errorf("the signal is %+v", ended)
	}
	b := p.buses[1]
	p.must(b.receive(t.Context()))
	_, _, ends := snapshotRecords(b.records, signal.ID)
	p.checkSnapshot(b, signal, existed, len(ends)) // another one may follow if it had ended before the failover
	if len(ends) < len(p.resources) {
		t.Errorf("%d snapshots end, of %d resources", len(ends), len(p.resources))
	}
	s := addSinksTo(p.fixture, p.all...)
	for _, e := range p.all {
		s.must(e.Stop())
	}
	s.receiveAll()
	s.added = []*received{b}
	s.checkTables()
	s.removeSnapshot(b, signal)
	s.judgeEach(oracle.Rules{Repetitions: true})
}

// signalNamed returns the signal with an ID.
func (s *fixture) signalNamed(id string) keptSignal {
	s.t.Helper()
	all := s.listSignals(s.exporter)
	i := slices.IndexFunc(all, func(o keptSignal) bool { return o.ID == id })
	if i < 0 {
		s.t.Fatalf("no signal %s among %+v", id, all)
	}
	return all[i]
}
