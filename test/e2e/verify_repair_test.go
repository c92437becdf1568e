package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// repairKills is how often the exporter is killed during a repair.
	repairKills = 3
	// repairedObjects is how many objects that repair emits: more than one signal names.
	repairedObjects = 450
)

// compacted are the settings of a topic that is compacted all the time.
var compacted = map[string]string{
	"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000",
}

// TestVerifyRepairsWhatDiffers writes all destinations anew with one record each deleted, altered, repeated, swapped and
// invented. A repair under load names every one of these objects, emits them again, and finds nothing that differs
// afterwards; and so does the next verification.
func TestVerifyRepairsWhatDiffers(t *testing.T) {
	servers(t)
	for form, replaces := range map[string]bool{"json": false, "upsert": true} { // internal/verify has all forms
		t.Run(fmt.Sprintf("%s, compacted %t", form, replaces), func(t *testing.T) {
			if replaces {
				require.Long(t)
			}
			checkRepair(t, form, replaces)
		})
	}
}

func checkRepair(t *testing.T, form string, replaces bool) {
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds, verifiedSettings, func(given *exporter.Settings) { given.Format = form })
	published := s.recordBucket(s.name)
	s.must(s.run(workload.Plan{Objects: 20}, kinds).Wait())
	s.must(s.exporter.Start(t.Context()))
	s.must(s.run(workload.Plan{Objects: 60, Updates: 3}, kinds).Wait())
	s.awaitTopics(kinds)
	s.awaitVerified(workload.ConfigMaps)
	s.must(s.exporter.Stop())
	topic, stream, bucket := s.readTopic(s.name+".configmaps"), s.readStream(s.name), published()
	changed := map[string][]string{"kafka": manipulateAll(topic), "nats": manipulateAll(stream), "kv": manipulateAll(bucket)}
	var configs map[string]string
	if replaces {
		configs = compacted
	}
	s.rewriteTopic(s.name+".configmaps", topic, configs)
	if s.rewriteStream(stream[0]); replaces {
		s.keepNewest()
	}
	s.rewriteBucket(bucket[0])
	s.must(s.exporter.Start(t.Context()))
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, kinds)
	for _, sink := range verifiedSinks {
		load.AwaitOperations(load.Operations() + verifyRate)
		code, v, stderr := s.verify(s.exporter.Config(), sink, "--bodies", "--repair")
		s.checkRepaired(sink, code, v, stderr, changed[sink])
		s.mustVerify(s.exporter.Config(), sink, "--bodies")
	}
	load.Stop()
}

// manipulateAll changes the records of one object after the other, each in another way, and returns the objects.
func manipulateAll(lanes rawLanes) (objects []string) {
	for _, manipulate := range manipulations {
		object := manipulate(lanes)
		objects = append(objects, object)
		for _, lane := range lanes {
			for i := range lane {
				if lane[i].stored.Key == object { // no other manipulation finds it
					lane[i].stored.Key = ""
				}
			}
		}
	}
	slices.Sort(objects)
	return objects
}

// checkRepaired checks that a repair has emitted exactly these objects again, and that nothing differs afterwards.
func (s *fixture) checkRepaired(sink string, code int, v verified, stderr string, want []string) {
	s.t.Helper()
	if code != 0 || v.Outcome != "different" || v.Repair == nil || v.Repair.After == nil || v.Repair.After.Outcome != "equal" {
		s.t.Errorf("%s: exit code %d, %s\n%s\n%s%+v\n%s", sink, code, v.Outcome, v.reasons(), first(v.differences()), v.Repair, stderr)
		if v.Repair != nil && v.Repair.After != nil {
			s.t.Errorf("after the repair: %s\n%s", v.Repair.After.reasons(), first(v.Repair.After.differences()))
		}
		return
	}
	var found []string
	for _, d := range v.differences() {
		if object := d.Namespace + "/" + d.Name; !slices.Contains(found, object) {
			found = append(found, object)
		}
	}
	if slices.Sort(found); !slices.Equal(found, want) {
		s.t.Errorf("%s: objects that differ are %q, want %q", sink, found, want)
	}
	r := v.Repair.Resources[0]
	if r.Existing+r.Absent != len(want) || r.Absent < 2 || len(r.Signals) == 0 {
		s.t.Errorf("%s: repaired are %+v, want %d objects", sink, r, len(want))
	}
	for _, id := range r.Signals {
		if signal := s.signalNamed(id); signal.State != "done" || signal.Sink != sink {
			s.t.Errorf("%s: %+v", sink, signal)
		}
	}
}

// keepNewest lets the stream keep one message of each subject.
func (s *fixture) keepNewest() {
	s.t.Helper()
	js, stream, hangUp := s.openStream(s.name)
	defer hangUp()
	config := stream.CachedInfo().Config
	config.MaxMsgsPerSubject = 1
	_, err := js.UpdateStream(s.t.Context(), config)
	s.must(err)
}

// rewriteTopic deletes a topic that nobody writes to, and creates it with other records.
func (s *fixture) rewriteTopic(topic string, lanes rawLanes, configs map[string]string) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	defer client.Close()
	s.must(deleteTopic(s.t.Context(), client, topic))
	s.must(workload.Persist(s.t.Context(), func() error { return createTopic(s.t.Context(), client, topic, int32(len(lanes)), configs) }))
	s.produce(topic, lanes)
}

// rewriteStream replaces the messages of the stream, whose first one stays: without it the beginning would count as lost.
func (s *fixture) rewriteStream(lane []rawRecord) {
	s.t.Helper()
	js, stream, hangUp := s.openStream(s.name)
	defer hangUp()
	state := stream.CachedInfo().State
	for seq := state.FirstSeq + 1; seq <= state.LastSeq; seq++ {
		s.deleteMessage(stream, seq)
	}
	s.publish(js, s.name, s.name, lane[1:])
}

// rewriteBucket replaces the values of the bucket.
func (s *fixture) rewriteBucket(lane []rawRecord) {
	s.t.Helper()
	js, stream, hangUp := s.openStream("KV_" + s.name)
	defer hangUp()
	s.must(stream.Purge(s.t.Context()))
	s.publish(js, "$KV."+s.name, "$KV."+s.name, lane)
}

// deleteMessage deletes a message unless it is gone.
func (s *fixture) deleteMessage(stream jetstream.Stream, seq uint64) {
	s.t.Helper()
	if err := stream.DeleteMsg(s.t.Context(), seq); err != nil && !strings.Contains(err.Error(), "no message found") {
		s.t.Fatal(err)
	}
}

// TestARepairSurvivesKills kills the exporter while it emits again what more than one signal names. The command goes on
// with it, without a signal that is sent twice, and everything is equal in the end. Without an exporter it names what
// differs, and that nothing was repaired.
func TestARepairSurvivesKills(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds, verifiedSettings)
	s.must(s.run(workload.Plan{Objects: 2 * repairedObjects}, kinds).Wait()) // every second is deleted
	s.must(s.exporter.Start(t.Context()))
	s.awaitTopics(kinds)
	s.awaitVerified(workload.ConfigMaps)
	s.must(s.exporter.Stop())
	topic := s.readTopic(s.name + ".configmaps")
	for i := range topic {
		topic[i] = slices.DeleteFunc(topic[i], func(r rawRecord) bool { return strings.HasPrefix(r.stored.Key, s.name+"/load-1") })
	}
	s.rewriteTopic(s.name+".configmaps", topic, nil)
	s.purgeMessagesOf(s.name, "load-1")
	s.purgeMessagesOf("KV_"+s.name, "load-1")
	s.must(s.exporter.Start(t.Context()))
	load := s.run(workload.Plan{Objects: math.MaxInt32, Updates: 3, Rate: verifyRate}, kinds)
	for _, sink := range verifiedSinks {
		running := s.beginVerify(s.exporter.Config(), sink, "--repair")
		kills := s.killDuringSignals(running)
		code, v, stderr := running.result(s)
		if code != 0 || v.Repair == nil || v.Repair.After == nil || kills == 0 {
			t.Fatalf("%s: after %d kills: exit code %d, %s, %+v\n%s\n%s", sink, kills, code, v.Outcome, v.Repair, v.reasons(), stderr)
		}
		if r := v.Repair.Resources[0]; r.Existing != repairedObjects || len(r.Signals) != (repairedObjects+199)/200 {
			t.Errorf("%s: repaired are %+v", sink, r)
		}
		snapshots := 0
		for _, signal := range s.listSignals(s.exporter) {
			if signal.Sink == sink && signal.Signal == "snapshot" {
				snapshots++
			}
		}
		if snapshots != len(v.Repair.Resources[0].Signals) {
			t.Errorf("%s: %d signals were stored, and %v are reported", sink, snapshots, v.Repair.Resources[0].Signals)
		}
		s.mustVerify(s.exporter.Config(), sink, "--bodies")
	}
	load.Stop()
	s.must(s.exporter.Stop())
	s.purgeMessagesOf(s.name, "the-last")
	code, v, stderr := s.verify(s.exporter.Config(), "nats", "--repair", "--wait", "1s")
	if code != 3 || v.Outcome != "different" || v.Repair == nil || !strings.Contains(v.Repair.Reason, "no exporter answers at") {
		t.Errorf("without an exporter: exit code %d, %s, %+v\n%s\n%s", code, v.Outcome, v.Repair, v.reasons(), stderr)
	}
}

// killDuringSignals kills the exporter during each of the first signals of a repair, until that ends.
func (s *fixture) killDuringSignals(running *verifyRun) (kills int) {
	s.t.Helper()
	killed := map[string]bool{}
	for {
		select {
		case <-running.ended:
			return kills
		default:
		}
		code, out := s.command("signal", "list", "--config", s.exporter.Config(), "-o", "json")
		for line := range strings.Lines(out) {
			var one keptSignal
			if code != 0 || json.Unmarshal([]byte(line), &one) != nil || one.State != "active" || killed[one.ID] || kills == repairKills {
				continue
			}
			killed[one.ID] = true
			kills++
			s.must(s.exporter.Kill())
			s.must(s.exporter.Launch(s.t.Context()))
		}
		await.Pause(s.t, lookEvery)
	}
}

// purgeMessagesOf purges the messages of a stream about objects whose names begin in this way.
func (s *fixture) purgeMessagesOf(name, prefix string) {
	s.t.Helper()
	_, stream, hangUp := s.openStream(name)
	defer hangUp()
	info, err := stream.Info(s.t.Context(), jetstream.WithSubjectFilter(">"))
	s.must(err)
	for subject := range info.State.Subjects {
		if strings.Contains(subject, "."+prefix) {
			s.must(stream.Purge(s.t.Context(), jetstream.WithPurgeSubject(subject)))
		}
	}
}
