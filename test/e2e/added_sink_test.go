package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// addedObjects is how many objects exist when sinks are added; KUBECDC_E2E_ADDED sets it for long proofs.
	addedObjects = 1200
	// addedKills is how often the exporter is killed before the snapshots of the added sinks are complete.
	addedKills = 3
)

var addedKinds = []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}

// addedSinks is a fixture that gets two sinks more, with readers of their own.
type addedSinks struct {
	*fixture
	exporters []*exporter.Exporter
	added     []*received // Kafka and NATS

	watermarks string // of the added sinks; "" for none
}

func newAddedSinks(t *testing.T, changes ...func(*exporter.Settings)) *addedSinks {
	t.Helper()
	f := newFixture(t, addedKinds, changes...)
	return addSinksTo(f, f.exporter)
}

// addSinksTo prepares a fixture with these exporters for two sinks more.
func addSinksTo(f *fixture, all ...*exporter.Exporter) *addedSinks {
	f.t.Helper()
	s := &addedSinks{fixture: f, exporters: all}
	k, err := bus.NewKafka(s.kafka.Brokers(), s.name+"-added.")
	s.must(err)
	f.t.Cleanup(k.Close)
	n, err := bus.NewNATS(s.nats.URL(), s.name+"-added")
	s.must(err)
	f.t.Cleanup(n.Close)
	s.added = []*received{{Reader: k}, {Reader: n}}
	return s
}

// configure writes a configuration that has the added sinks, with a start, or not.
func (s *addedSinks) configure(start string, has bool) {
	s.t.Helper()
	for _, e := range s.exporters {
		s.must(e.Configure(func(settings *exporter.Settings) {
			settings.Sinks = nil
			all := settings.WholeSinks()
			if has {
				all = append(all, s.sinksLike(*settings, start)...)
			}
			settings.Sinks = all
		}))
	}
}

// sinksLike are the added sinks.
func (s *addedSinks) sinksLike(settings exporter.Settings, start string) []map[string]any {
	settings.TopicPrefix, settings.Stream = s.name+"-added", s.name+"-added"
	all := settings.WholeSinks()
	for _, sink := range all {
		if sink["name"] = "added-" + sink["name"].(string); start != "" {
			sink["start"] = start
		}
		if s.watermarks != "" {
			sink["watermarks"] = s.watermarks
		}
	}
	return all
}

// add adds the sinks to the running exporter, or by a restart.
func (s *addedSinks) add(start string, byReload bool) {
	s.t.Helper()
	if !byReload {
		s.must(s.exporter.Stop())
	}
	s.configure(start, true)
	if byReload {
		s.awaitConfiguration()
		return
	}
	s.must(s.exporter.Start(s.t.Context()))
}

// snapshotPending is the condition of a resource of which a sink has not got everything.
const snapshotPending = `code="SnapshotPending"`

// killDuringSnapshot kills the exporter a moment after a snapshot for one sink has begun, and returns false if all are
// complete.
func (s *addedSinks) killDuringSnapshot(after time.Duration) bool {
	s.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(s.t, time.Millisecond) {
		_, metrics, err := s.exporter.Get(s.t.Context(), "/metrics")
		switch {
		case err != nil: // it starts
		case strings.Contains(metrics, snapshotPending):
			await.Pause(s.t, after)
			s.must(s.exporter.Kill())
			return true
		case strings.Contains(metrics, "\nkubecdc_ready 1\n"):
			return false
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the exporter is not ready (%v)", err)
		}
	}
}

// awaitNoneMissing waits until both added buses have everything since they were added, and what existed then.
func (s *addedSinks) awaitNoneMissing() {
	s.t.Helper()
	for _, b := range s.added {
		s.awaitHistory(b)
		s.await(b, func(records []bus.Record) string { return fewer(ends(records), "snapshot.end", len(s.resources)) })
	}
}

// ends returns the different ends of snapshots.
func ends(records []bus.Record) (all []bus.Record) {
	for _, r := range records {
		if r.Type == "snapshot.end" && !slices.ContainsFunc(all, func(o bus.Record) bool { return o.ID == r.ID }) {
			all = append(all, r)
		}
	}
	return all
}

// checkWhole checks the tables of the added buses, and that one snapshot of each resource has ended.
func (s *addedSinks) checkWhole() {
	s.t.Helper()
	s.checkTables()
	for _, b := range s.added {
		if all := ends(b.records); len(all) != len(s.resources) {
			s.t.Errorf("%s: %d snapshots end, and there are %d resources", b.Name(), len(all), len(s.resources))
		}
	}
}

// checkTables compares the table of each added bus with etcd, which nothing is written to any more.
func (s *addedSinks) checkTables() {
	s.t.Helper()
	state, err := s.etcd.State(s.t.Context(), s.resources)
	s.must(err)
	for _, b := range s.added {
		var table consumer.Table
		newest, seen := map[bus.Object]int64{}, map[string]bool{}
		for _, r := range b.records {
			record, err := consumer.Parse(r.Payload)
			s.must(err)
			s.must(table.Apply(record))
			if r.Name == "" || seen[r.ID] || r.Replay != nil {
				continue
			}
			seen[r.ID] = true
			if r.Revision < newest[r.Object] {
				s.t.Errorf("%s: %s follows %d", b.Name(), r.ID, newest[r.Object])
			}
			newest[r.Object] = max(newest[r.Object], r.Revision)
		}
		count := 0
		for _, resource := range s.resources {
			count += table.Len(consumer.Resource{Cluster: "e2e", Group: resource.Group, Resource: resource.Resource})
		}
		for _, r := range state {
			o, exists := table.Get(consumer.Resource{Cluster: "e2e", Group: r.Object.Group, Resource: r.Object.Resource},
				consumer.Key{Namespace: r.Object.Namespace, Name: r.Object.Name})
			if !exists || o.ResourceVersion != fmt.Sprint(r.Revision) {
				s.t.Errorf("%s: the table has %v at %q, etcd at %d", b.Name(), r.Object, o.ResourceVersion, r.Revision)
			}
		}
		if count != len(state) {
			s.t.Errorf("%s: the table has %d objects, etcd %d", b.Name(), count, len(state))
		}
		for _, f := range table.Snapshots() {
			if f.Ended && !f.Verified {
				s.t.Errorf("%s: the consumer finds a difference in the snapshot %+v", b.Name(), f)
			}
		}
		s.t.Log("added ", b.count())
	}
}

// checkOthers judges the sinks that were there before.
func (s *addedSinks) checkOthers() {
	s.t.Helper()
	s.checkOthersLack()
	s.judge(oracle.Rules{Repetitions: true})
}

// checkOthersLack checks that no record of the snapshots and replays of the added sinks is in the others.
func (s *addedSinks) checkOthersLack() {
	s.t.Helper()
	for _, b := range s.buses {
		for _, r := range b.records {
			if r.Snapshot != nil && strings.Contains(r.Snapshot.ID, ".") || r.Replay != nil {
				s.t.Errorf("%s has %s, which is for another sink", b.Name(), r.ID)
			}
		}
	}
}

// TestAddedSinkIsWhole adds a sink of each bus under load, by a reload and by a restart, and kills the exporter before their
// snapshots are complete. Then both are paused, and get once more what the journal keeps. The tables of their consumers are
// the cluster, as verify confirms, and the other sinks get nothing of it.
func TestAddedSinkIsWhole(t *testing.T) {
	require.Long(t)
	servers(t)
	for name, byReload := range map[string]bool{"by reload": true, "by restart": false} {
		t.Run(name, func(t *testing.T) {
			s := newAddedSinks(t)
			s.watermarks = "1s"
			random := newRandom(t)
			s.must(s.run(workload.Plan{Objects: 2 * sizeOf(t, "KUBECDC_E2E_ADDED", addedObjects), Updates: 1}, addedKinds).Wait())
			s.must(s.exporter.Start(t.Context()))
			load := s.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: sizeOf(t, "KUBECDC_E2E_RATE", verifyRate)}, addedKinds)
			load.AwaitOperations(verifyRate)
			s.add("", byReload)
			kills := 0
			for kills < addedKills && s.killDuringSnapshot(time.Duration(random.IntN(30))*time.Millisecond) {
				kills++
				s.must(s.exporter.Launch(t.Context()))
			}
			t.Logf("killed %d times before the snapshots were complete", kills)
			if kills == 0 {
				t.Error("the exporter was never killed in time: too few objects to be meaningful")
			}
			load.AwaitOperations(load.Operations() + 2*verifyRate)
			for _, b := range s.added {
				s.await(b, func(records []bus.Record) string { return fewer(ends(records), "snapshot.end", len(s.resources)) })
			}
			for _, sink := range []string{"kafka", "nats"} {
				s.mustVerify(s.exporter.Config(), "added-"+sink, "--bodies")
			}
			s.pauseAndReplay(load)
			load.Stop()
			s.awaitAll()
			s.awaitNoneMissing()
			if metrics := metricsOf(t, s.exporter); strings.Contains(metrics, snapshotPending) {
				t.Errorf("a snapshot is still pending:\n%s", metrics)
			}
			s.checkWhole()
			s.checkOthers()
		})
	}
}

// pauseAndReplay pauses the added sinks while the load writes, as much as KUBECDC_E2E_PAUSED says, resumes them, and waits
// until they have got what was written since the pause once more.
func (s *addedSinks) pauseAndReplay(load *workload.Load) {
	s.t.Helper()
	sinks := []string{"added-kafka", "added-nats"}
	for _, sink := range sinks {
		s.ask("signal", "pause", "--sink", sink, "--config", s.exporter.Config())
	}
	since := time.Now().UTC().Format(time.RFC3339Nano)
	load.AwaitOperations(load.Operations() + sizeOf(s.t, "KUBECDC_E2E_PAUSED", 2*verifyRate))
	for _, sink := range sinks {
		signal := s.requestReplay(s.exporter, sink, since)
		s.ask("signal", "resume", "--sink", sink, "--config", s.exporter.Config())
		ended := s.awaitSignal(s.exporter, signal.ID)
		if s.t.Logf("%s: %s", sink, ended.Result); ended.State != "done" || ended.Count == 0 {
			s.t.Errorf("the replay for %s is %+v", sink, ended)
		}
	}
}

// TestSinkAddedWithJournalGetsWhatIsKept adds sinks that begin with the oldest change of the journal, which still has all.
func TestSinkAddedWithJournalGetsWhatIsKept(t *testing.T) {
	s := newAddedSinks(t)
	s.must(s.load(200, addedKinds).Wait())
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(100, addedKinds).Wait())
	s.awaitAll()
	s.add("journal", true)
	s.must(s.load(50, addedKinds).Wait())
	s.awaitAll()
	s.awaitNoneMissing()
	s.checkWhole()
	for i, b := range s.added {
		if wrong := oracle.Differ("before", s.buses[i].records, "added", b.records); len(wrong) > 0 {
			t.Errorf("%s: the sinks differ in %d points, the first ones:\n%s", b.Name(), len(wrong), first(wrong))
		}
	}
	s.checkOthers()
}

// TestRenamedSinkContinues renames both sinks under load, by a reload and by a restart after a kill: each continues in its
// place, without a snapshot of its own. One that is paused stays so, under the new name.
func TestRenamedSinkContinues(t *testing.T) {
	s := newFixture(t, addedKinds)
	s.must(s.load(100, addedKinds).Wait())
	s.must(s.exporter.Start(t.Context()))
	load := s.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: verifyRate}, addedKinds)
	rename := func(suffix string) {
		s.must(s.exporter.Configure(func(settings *exporter.Settings) {
			settings.Sinks = nil
			all := settings.WholeSinks()
			for _, sink := range all {
				sink["name"] = sink["name"].(string) + suffix
			}
			settings.Sinks = all
		}))
	}
	load.AwaitOperations(2 * verifyRate)
	s.ask("signal", "pause", "--sink", "kafka", "--config", s.exporter.Config())
	rename("-two")
	s.awaitConfiguration()
	s.checkNothingArrives(s.buses[0], load)
	s.ask("signal", "resume", "--sink", "kafka-two", "--config", s.exporter.Config())
	load.AwaitOperations(load.Operations() + 2*verifyRate)
	s.must(s.exporter.Kill())
	rename("-three")
	s.must(s.exporter.Start(t.Context()))
	load.AwaitOperations(load.Operations() + 2*verifyRate)
	load.Stop()
	s.awaitAll()
	for _, b := range s.buses {
		if all := ends(b.records); len(all) != len(s.resources) {
			t.Errorf("%s: %d snapshots end, and there are %d resources", b.Name(), len(all), len(s.resources))
		}
	}
	s.judge(oracle.Rules{Repetitions: true})
}
