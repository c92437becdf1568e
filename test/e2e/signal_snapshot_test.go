package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
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
	for i, sink := range []string{"kafka", "nats"} {
		t.Run(sink, func(t *testing.T) {
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
			t.Logf("before: %s", s.describeDelivery())
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
			t.Logf("until the end of the snapshot: %s", s.describeDelivery())
			load.Stop()
			s.awaitAll()
			if ended.State != "done" || !strings.HasSuffix(ended.Result, " objects of 3 resources") {
				t.Errorf("the signal is %+v", ended)
			}
			s.checkSnapshot(s.buses[i], signal, existed, len(s.resources))
			if _, objects, _ := snapshotRecords(s.buses[1-i].records, signal.ID); len(objects) > 0 {
				t.Errorf("%s has %s", s.buses[1-i].Name(), objects[0].ID)
			}
			s.must(s.exporter.Stop())
			s.receiveAll()
			s.added = s.buses[i : i+1]
			s.checkTables()
			s.removeSnapshot(s.buses[i], signal)
			s.judge(oracle.Rules{Repetitions: true})
		})
	}
}

// describeDelivery returns how long deliveries took since the start of the exporter, for reading, and its peak memory.
func (s *fixture) describeDelivery() string {
	s.t.Helper()
	metrics := metricsOf(s.t, s.exporter)
	text := fmt.Sprintf("peak RSS %d MB", s.exporter.Process().Usage().PeakRSS/1e6)
	for _, sink := range []string{"kafka", "nats"} {
		text += fmt.Sprintf("; %s half within %s s, 99 %% within %s s", sink, deliveredWithin(metrics, sink, 0.5), deliveredWithin(metrics, sink, 0.99))
	}
	return text
}

// deliveredWithin returns the bound of the bucket in which a share of the deliveries to a sink ends.
func deliveredWithin(metrics, sink string, share float64) string {
	var bounds []string
	var counts []float64
	for line := range strings.Lines(metrics) {
		rest, is := strings.CutPrefix(line, `kubecdc_sink_delivery_seconds_bucket{sink="`+sink+`",le="`)
		bound, value, found := strings.Cut(strings.TrimSpace(rest), `"} `)
		count, err := strconv.ParseFloat(value, 64)
		if is && found && err == nil {
			bounds, counts = append(bounds, bound), append(counts, count)
		}
	}
	for i, count := range counts {
		if count >= share*counts[len(counts)-1] {
			return bounds[i]
		}
	}
	return "?"
}

// TestARequestedSnapshotSurvivesAFailover asks one replica for a snapshot and takes that away with its volume.
func TestARequestedSnapshotSurvivesAFailover(t *testing.T) {
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

// TestARequestedSnapshotHasWhatIsChosen asks each sink for a namespace, and for single objects: one that exists, one that is
// deleted, one that the exporter has never seen, and one that is created afterwards. The sink has those between live
// changes, in frames of their own, and the other one nothing of it.
func TestARequestedSnapshotHasWhatIsChosen(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Services}
	s := newFixture(t, kinds)
	other := s.name + "-other"
	s.must(s.cluster.CreateNamespace(t.Context(), other))
	s.must(s.exporter.Start(t.Context()))
	for _, namespace := range []string{s.name, other} {
		for _, name := range []string{"kept", "gone"} {
			s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, namespace, name))
		}
		s.must(s.cluster.Delete(t.Context(), workload.ConfigMaps, namespace, "gone"))
	}
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, kinds)
	load.AwaitOperations(verifyRate)
	for i, sink := range []string{"kafka", "nats"} {
		ofNamespace := s.requestSnapshot(s.exporter, sink, "--select", "configmaps", "-n", other)
		if ended := s.awaitSignal(s.exporter, ofNamespace.ID); ended.State != "done" || ended.Result != fmt.Sprintf("%d objects of 1 resources", i+1) {
			t.Errorf("of a namespace: %+v", ended)
		}
		later := "later-" + sink
		args := []string{"--select", "configmaps"}
		for _, name := range []string{"kept", "gone", "never", later} {
			args = append(args, "--object", other+"/"+name)
		}
		ofObjects := s.requestSnapshot(s.exporter, sink, args...)
		if ended := s.awaitSignal(s.exporter, ofObjects.ID); ended.State != "done" || ended.Count != 4 ||
			ended.Result != "1 objects of 1 resources; 3 do not exist, and their deletes were emitted" {
			t.Errorf("of objects: %+v", ended)
		}
		s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, other, later))
		if i == 1 {
			load.Stop()
		}
		s.awaitAll()
		s.checkChosen(s.buses[i], ofNamespace, ofObjects, other, later)
		if _, objects, _ := snapshotRecords(s.buses[1-i].records, ofObjects.ID); len(objects) > 0 {
			t.Errorf("%s has %s", s.buses[1-i].Name(), objects[0].ID)
		}
		s.removeSnapshot(s.buses[i], ofNamespace)
		s.removeSnapshot(s.buses[i], ofObjects)
	}
	s.must(s.exporter.Stop())
	s.receiveAll()
	s.judge(oracle.Rules{})
}

// checkChosen checks the records of two snapshots: of a namespace, and of single objects in it, of which "later" was created
// after the snapshot.
func (s *fixture) checkChosen(b *received, ofNamespace, ofObjects keptSignal, namespace, later string) {
	s.t.Helper()
	s.must(b.receive(s.t.Context()))
	begins, objects, ends := snapshotRecords(b.records, ofNamespace.ID)
	if len(begins) != 1 || len(ends) != 1 || begins[0].Namespace != namespace || ends[0].Namespace != namespace || ends[0].Snapshot.Count != len(objects) {
		s.t.Errorf("%s: the frame of a namespace is %+v, %+v with %d objects", b.Name(), begins, ends, len(objects))
	}
	var got []string
	created := false
	for _, r := range b.records {
		switch {
		case r.Name == later && r.Type == "added":
			created = true
		case r.Snapshot == nil || !strings.HasPrefix(r.Snapshot.ID, ofObjects.ID+"."):
		case r.Type == "deleted":
			if got = append(got, "deleted "+r.Name); created && r.Name == later || !r.Coalesced || !r.FinalStateUnknown || r.ListVersion == "" || r.Namespace != namespace {
				s.t.Errorf("%s: behind the creation: %v: %+v", b.Name(), created && r.Name == later, r.ID)
			}
		default:
			got = append(got, strings.TrimSpace(r.Type+" "+r.Name))
		}
	}
	slices.Sort(got)
	want := []string{"deleted gone", "deleted " + later, "deleted never", "partial.begin", "partial.end", "snapshot kept"}
	if !slices.Equal(got, want) || !created {
		s.t.Errorf("%s: the snapshot of single objects has %q, want %q", b.Name(), got, want)
	}
}

// TestACanceledSnapshotLetsOthersFollow asks for a snapshot of two resources, one of which may not be read any more: it
// waits and blocks others of its sink. Once it is canceled it has one end, others follow, and nothing of it comes when the
// resource may be read again. All that holds over each way to begin again, before the cancel and after it.
func TestACanceledSnapshotLetsOthersFollow(t *testing.T) {
	for _, way := range []string{"kill", "stop", "reload", "failover"} {
		t.Run(way, func(t *testing.T) {
			kinds := []workload.Kind{workload.ConfigMaps, workload.Services}
			if way == "failover" {
				p := newPair(t, kinds, "kafka")
				p.start()
				p.exporter = p.active()
				p.checkCancel(kinds, p.failOver, p.failOver)
				return
			}
			s := newRestrictedFixture(t, kinds)
			s.must(s.exporter.Start(t.Context()))
			s.checkCancel(kinds, func() { s.beginAgain("kill") }, func() { s.beginAgain(way) })
		})
	}
}

// beginAgain ends the exporter and starts it again, or has it take up an edited configuration.
func (s *fixture) beginAgain(way string) {
	s.t.Helper()
	switch way {
	case "kill":
		s.must(s.exporter.Kill())
		s.must(s.exporter.Launch(s.t.Context()))
	case "stop":
		s.must(s.exporter.Stop())
		s.must(s.exporter.Launch(s.t.Context()))
	case "reload":
		s.must(s.exporter.Configure(func(c *exporter.Settings) {
			c.DrainTimeout = map[string]string{"": "31s", "31s": ""}[c.DrainTimeout]
		}))
		s.awaitConfiguration()
	}
}

// failOver takes the active exporter away with its volume, and makes it the standby of the next one.
func (p *replicas) failOver() {
	p.t.Helper()
	before := p.active()
	p.removeReplica(before)
	p.exporter = p.active()
	p.must(before.Launch(p.t.Context()))
	p.down[before] = false
}

// checkCancel is the body of TestACanceledSnapshotLetsOthersFollow, for an exporter that runs. restart has another process
// begin, and again is the way that is tried.
func (s *fixture) checkCancel(kinds []workload.Kind, restart, again func()) {
	s.t.Helper()
	const forbidden = `kubecdc_resource_state{resource="services",state="forbidden"}`
	s.must(s.run(workload.Plan{Objects: 40, Updates: 1}, kinds).Wait())
	s.awaitAll()
	giveBack := s.withdraw(workload.Services)
	restart() // its watch was allowed
	s.awaitMetric(forbidden, "1")
	all := s.requestSnapshot(s.exporter, "nats")
	code, out := s.command("signal", "snapshot", "--sink", "nats", "--all", "--config", s.exporter.Config())
	if code != 2 || !strings.Contains(out, all.ID) {
		s.t.Errorf("a second one is not refused: %d, %s", code, out)
	}
	again()
	s.awaitMetric(forbidden, "1")
	if got := s.signalNamed(all.ID); got.State != "active" {
		s.t.Errorf("having begun again it is %+v", got)
	}
	canceled := s.ask("signal", "cancel", all.ID, "--config", s.exporter.Config())
	again()
	s.awaitMetric(forbidden, "1")
	next := s.requestSnapshot(s.exporter, "nats", "--select", "configmaps")
	if ended := s.awaitSignal(s.exporter, next.ID); ended.State != "done" {
		s.t.Errorf("the next one is %+v", ended)
	}
	giveBack()
	readable := s.requestSnapshot(s.exporter, "nats", "--select", "services")
	if ended := s.awaitSignal(s.exporter, readable.ID); ended.State != "done" || ended.Count == 0 {
		s.t.Errorf("the one of the resource that may be read again is %+v", ended)
	}
	if got := s.signalNamed(all.ID); got.State != "aborted" || !strings.HasPrefix(got.Result, "canceled by signal ") {
		s.t.Errorf("the canceled one is %+v after %q", got, canceled)
	}
	s.must(s.buses[1].receive(s.t.Context()))
	for _, r := range s.buses[1].records {
		if r.Snapshot != nil && strings.HasPrefix(r.Snapshot.ID, all.ID+".") && r.Resource == "services" {
			s.t.Errorf("the canceled snapshot has %s", r.ID)
		}
	}
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
