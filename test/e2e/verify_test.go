package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// verifiedObjects is how many objects there are; KUBECDC_E2E_VERIFIED sets it for long proofs.
	verifiedObjects = 1500
	// verifyRuns is how often each bus is verified under load; KUBECDC_E2E_VERIFY_RUNS sets it.
	verifyRuns = 2
	// verifiedFailovers is how often the active exporter is taken away; KUBECDC_E2E_FAILOVERS sets it.
	verifiedFailovers = 3
	// verifyRate is how many writes a second there are meanwhile; KUBECDC_E2E_RATE sets it.
	verifyRate = 100
)

// verified is what the command writes as JSON, as far as tests use it.
type verified struct {
	Outcome   string
	Records   int64
	Resources []struct {
		Outcome, Resource, Reason, Note, ListedAt string

		Objects, Equal, Newer, Repetitions int
		Watermark                          *struct{ Position string }
		Differences                        []verifiedDifference
	}
	Repair *struct {
		Reason    string
		Resources []struct {
			Resource, Reason string
			Existing, Absent int
			Whole            bool
			Signals          []string
		}
		After *verified
	}
}

type verifiedDifference struct{ Kind, Namespace, Name, Path, Stream, Cluster, Record string }

// differences returns all differences.
func (v *verified) differences() (all []verifiedDifference) {
	for _, r := range v.Resources {
		all = append(all, r.Differences...)
	}
	return all
}

// reasons returns why resources were not verified.
func (v *verified) reasons() string {
	var all []string
	for _, r := range v.Resources {
		all = append(all, r.Resource+": "+r.Reason)
	}
	return strings.Join(all, "\n")
}

// verify runs the command and returns its exit code and its result. stderr is shown if a test fails.
func (s *fixture) verify(config, sink string, flags ...string) (code int, v verified, stderr string) {
	s.t.Helper()
	running := s.beginVerify(config, sink, flags...)
	<-running.ended
	return running.result(s)
}

// verifyRun is the command in progress.
type verifyRun struct {
	cmd           *exec.Cmd
	out, problems bytes.Buffer
	ended         chan struct{}
}

// beginVerify starts the command. It ends with the test at the latest.
func (s *fixture) beginVerify(config, sink string, flags ...string) *verifyRun {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	r := &verifyRun{ended: make(chan struct{})}
	r.cmd = exec.CommandContext(ctx, s.program, append([]string{"verify", "--config", config, "--sink", sink, "-o", "json"}, flags...)...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.problems
	s.must(r.cmd.Start())
	go func() {
		defer close(r.ended)
		defer cancel()
		_ = r.cmd.Wait() // the exit code says it
	}()
	s.t.Cleanup(func() { <-r.ended })
	return r
}

// result returns the exit code and the result of the command, which has ended.
func (r *verifyRun) result(s *fixture) (code int, v verified, stderr string) {
	s.t.Helper()
	if code = r.cmd.ProcessState.ExitCode(); code < 0 {
		s.t.Fatalf("exporter %v: %v\n%s", r.cmd.Args, r.cmd.ProcessState, &r.problems)
	}
	if r.out.Len() > 0 {
		if err := json.Unmarshal(r.out.Bytes(), &v); err != nil {
			s.t.Fatalf("exporter %v: %v\n%s", r.cmd.Args, err, &r.out)
		}
	}
	return code, v, r.problems.String()
}

// mustVerify verifies a sink that has no difference, and returns how many objects were compared.
func (s *fixture) mustVerify(config, sink string, flags ...string) (objects int) {
	s.t.Helper()
	began := time.Now()
	code, v, stderr := s.verify(config, sink, flags...)
	if code != 0 {
		s.t.Fatalf("%s %v: exit code %d, %s\n%s\n%s%s", sink, flags, code, v.Outcome, v.reasons(), first(v.differences()), stderr)
	}
	for _, r := range v.Resources {
		if objects += r.Equal; r.Equal+r.Newer < r.Objects {
			s.t.Errorf("%s: %s has %d objects, and %d were compared", sink, r.Resource, r.Objects, r.Equal)
		}
	}
	s.t.Logf("%s %v: %d records and %d objects in %v", sink, flags, v.Records, objects, time.Since(began).Round(time.Millisecond))
	return objects
}

var verifiedSinks = []string{"kafka", "nats", "kv"}

// verifiedSettings add a bucket to both buses, and watermarks to all three.
func verifiedSettings(s *exporter.Settings) {
	watermarkSettings(s)
	s.Bucket = s.Stream
}

// fillCluster creates objects that stay.
func (s *fixture) fillCluster(kinds []workload.Kind) (objects int) {
	s.t.Helper()
	objects = sizeOf(s.t, "KUBECDC_E2E_VERIFIED", verifiedObjects)
	s.must(s.run(workload.Plan{Objects: 2 * objects}, kinds).Wait()) // every second is deleted
	return objects
}

// TestVerifyFindsNoFalseDifference verifies all sinks under load: several times, right after a kill, while rules are
// edited, and with contents.
func TestVerifyFindsNoFalseDifference(t *testing.T) {
	require.Long(t)
	runs := sizeOf(t, "KUBECDC_E2E_VERIFY_RUNS", verifyRuns)
	w := newWatermarkRun(t, newFixture(t, watermarkKinds, verifiedSettings))
	objects := w.fillCluster(watermarkKinds)
	w.must(w.exporter.Start(t.Context()))
	w.awaitTopics(watermarkKinds)
	load := w.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: sizeOf(t, "KUBECDC_E2E_RATE", verifyRate)}, watermarkKinds)
	for range runs {
		for _, sink := range verifiedSinks {
			if n := w.mustVerify(w.exporter.Config(), sink); n < objects {
				t.Errorf("%s: %d objects were compared, and there are %d and more", sink, n, objects)
			}
		}
		w.must(w.exporter.Kill())
		w.must(w.exporter.Launch(t.Context()))
		for _, sink := range verifiedSinks {
			w.mustVerify(w.exporter.Config(), sink, "--bodies")
		}
		for _, namespaces := range []map[string]any{
			{"exclude": []string{w.other}}, {"include": []string{w.name, w.other}}, nil,
		} {
			w.must(w.exporter.Configure(func(s *exporter.Settings) {
				if s.Rule = nil; namespaces != nil {
					s.Rule = map[string]any{"namespaces": namespaces}
				}
			}))
			for _, sink := range verifiedSinks {
				w.mustVerify(w.exporter.Config(), sink)
			}
		}
	}
	for _, sink := range verifiedSinks {
		if code, v, stderr := w.verify(w.exporter.Config(), sink, "--stream-only"); code == 4 || v.Records == 0 {
			t.Errorf("%s: the stream alone: exit code %d, %s\n%s\n%s%s", sink, code, v.Outcome, v.reasons(), first(v.differences()), stderr)
		}
	}
	load.Stop()
}

// TestVerifyFindsNoFalseDifferenceInATopicThatHasGrown adds partitions to a topic with a snapshot, and changes or deletes
// the objects in it: those that have moved have their last records in another partition, which may be read first.
func TestVerifyFindsNoFalseDifferenceInATopicThatHasGrown(t *testing.T) {
	require.Long(t)
	const objects = 40
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds, watermarkSettings)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	t.Cleanup(client.Close)
	for i := range objects {
		s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, fmt.Sprintf("moves-%d", i)))
	}
	s.must(s.exporter.Start(t.Context()))
	load := s.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: verifyRate}, kinds)
	s.awaitTopics(kinds)
	load.AwaitOperations(verifyRate)
	s.must(growTopic(t.Context(), client, s.name+".configmaps", 6)) // of 4, so that some move to lower ones
	s.must(s.exporter.Kill())
	s.must(s.exporter.Start(t.Context()))
	for i := range objects {
		name := fmt.Sprintf("moves-%d", i)
		if i%2 == 0 {
			s.must(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, name, 1))
		} else {
			s.must(s.cluster.Delete(t.Context(), workload.ConfigMaps, s.name, name))
		}
	}
	for range sizeOf(t, "KUBECDC_E2E_VERIFY_RUNS", verifyRuns) {
		load.AwaitOperations(load.Operations() + verifyRate)
		s.mustVerify(s.exporter.Config(), "kafka", "--bodies")
	}
	load.Stop()
}

// TestVerifyFindsNoFalseDifferenceAfterFailover takes the active exporter away, with its journal, while it delivers: what
// the lanes hold beyond the state is newer than the positions that the next one begins at.
func TestVerifyFindsNoFalseDifferenceAfterFailover(t *testing.T) {
	require.Long(t)
	p := newPair(t, watermarkKinds, "kafka", verifiedSettings)
	p.start()
	p.awaitTopics(watermarkKinds)
	load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: verifyRate}, watermarkKinds)
	for range sizeOf(t, "KUBECDC_E2E_FAILOVERS", verifiedFailovers) {
		load.AwaitOperations(load.Operations() + verifyRate)
		active := p.active()
		p.kill(active)
		for _, sink := range verifiedSinks {
			p.mustVerify(active.Config(), sink)
		}
		p.must(active.Start(t.Context()))
		p.down[active] = false
	}
	load.Stop()
	for _, e := range p.all {
		p.must(e.Stop())
	}
}

// findObject returns the records of an object in their lane: the first object whose last record is of a type, with so many
// records at least.
func findObject(lanes rawLanes, last string, records int) (lane int, at []int) {
	for i, all := range lanes {
		byKey := map[string][]int{}
		for j, r := range all {
			if r.stored.Key != "" {
				byKey[r.stored.Key] = append(byKey[r.stored.Key], j)
			}
		}
		for j := range all {
			at := byKey[all[j].stored.Key]
			if len(at) >= records && string(all[at[len(at)-1]].stored.Type) == last {
				return i, at
			}
		}
	}
	panic("no object has such records")
}

// laneOf returns the lane of a record's key. In another one it would be in no order with what the exporter writes of the
// object later, as its delete: consumers may read either first, and apply whatever follows a coalesced `deleted`.
func laneOf(r rawRecord, lanes int) int {
	return kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: r.key}, lanes)
}

// beforeLastMark returns where the last watermark of a lane is.
func beforeLastMark(lane []rawRecord) int {
	for i := len(lane) - 1; ; i-- {
		if lane[i].stored.Type == "watermark" {
			return i
		}
	}
}

// manipulations change one thing each in the records of a topic, a stream or a bucket, and return the object.
var manipulations = []func(rawLanes) (object string){
	func(l rawLanes) string { // the only record of an object is deleted
		lane, at := findObject(l, "snapshot", 1)
		object := l[lane][at[0]].stored.Key
		for _, i := range slices.Backward(at) {
			l[lane] = slices.Delete(l[lane], i, i+1)
		}
		return object
	},
	func(l rawLanes) string { // the last update is deleted
		lane, at := findObject(l, "updated", 3)
		object := l[lane][at[0]].stored.Key
		l[lane] = slices.Delete(l[lane], at[len(at)-1], at[len(at)-1]+1)
		return object
	},
	func(l rawLanes) string { // a delete is deleted
		lane, at := findObject(l, "deleted", 3)
		object := l[lane][at[0]].stored.Key
		l[lane] = slices.Delete(l[lane], at[len(at)-1], at[len(at)-1]+1)
		return object
	},
	func(l rawLanes) string { // content is altered
		lane, at := findObject(l, "updated", 3)
		r := &l[lane][at[len(at)-1]]
		i := strings.LastIndex(string(r.value), `"step":"`) + len(`"step":"`) // of after, or of the row
		r.value = slices.Clone(r.value)
		r.value[i] = '9'
		return r.stored.Key
	},
	func(l rawLanes) string { // an older record is repeated
		lane, at := findObject(l, "updated", 3)
		r := l[lane][at[len(at)-2]]
		l[lane] = slices.Insert(l[lane], beforeLastMark(l[lane]), r)
		return r.stored.Key
	},
	func(l rawLanes) string { // two records are swapped
		lane, at := findObject(l, "updated", 3)
		a, b := at[len(at)-2], at[len(at)-1]
		l[lane][a], l[lane][b] = l[lane][b], l[lane][a]
		return l[lane][a].stored.Key
	},
	func(l rawLanes) string { // a record is invented
		lane, at := findObject(l, "updated", 3)
		r := l[lane][at[len(at)-1]]
		name := r.stored.Key[strings.LastIndex(r.stored.Key, "/")+1:]
		invented := strings.Repeat("x", len(name))
		replace := func(b []byte) []byte { return []byte(strings.ReplaceAll(string(b), name, invented)) }
		r.key, r.value, r.subject = replace(r.key), replace(r.value), strings.ReplaceAll(r.subject, name, invented)
		r.headers = slices.Clone(r.headers)
		for i := range r.headers {
			r.headers[i].Value = replace(r.headers[i].Value)
		}
		r = r.identify()
		lane = laneOf(r, len(l))
		l[lane] = slices.Insert(l[lane], beforeLastMark(l[lane]), r)
		return r.stored.Key
	},
	func(l rawLanes) string { // a version far ahead is invented
		lane, at := findObject(l, "updated", 3)
		r := l[lane][at[len(at)-1]]
		ahead := strings.NewReplacer(`"`+r.stored.ResourceVersion+`"`, `"900000000000"`, "/"+r.stored.ResourceVersion+"/", "/900000000000/")
		r.value, r.headers = []byte(ahead.Replace(string(r.value))), slices.Clone(r.headers)
		for i := range r.headers {
			if r.headers[i].Value = []byte(ahead.Replace(string(r.headers[i].Value))); string(r.headers[i].Value) == r.stored.ResourceVersion {
				r.headers[i].Value = []byte("900000000000")
			}
		}
		l[lane] = slices.Insert(l[lane], beforeLastMark(l[lane]), r)
		return r.stored.Key
	},
	func(l rawLanes) string { // the version of a record is altered
		lane, at := findObject(l, "updated", 3)
		r := &l[lane][at[len(at)-1]]
		replace := func(b []byte) []byte {
			return []byte(strings.ReplaceAll(string(b), r.stored.ResourceVersion+"/updated", "1/updated"))
		}
		r.value, r.headers = replace(r.value), slices.Clone(r.headers)
		for i := range r.headers {
			if r.headers[i].Key == "id" || r.headers[i].Key == "Kubecdc-Id" {
				r.headers[i].Value = replace(r.headers[i].Value)
			}
		}
		return r.stored.Key
	},
}

// awaitTopics waits until the exporter has created the topics of some kinds.
func (s *fixture) awaitTopics(kinds []workload.Kind) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	defer client.Close()
	for _, kind := range kinds {
		for found := false; !found; await.Pause(s.t, lookEvery) {
			answer, err := kmsg.NewPtrMetadataRequest().RequestWith(s.t.Context(), client)
			s.must(err)
			found = slices.ContainsFunc(answer.Topics, func(t kmsg.MetadataResponseTopic) bool {
				return t.ErrorCode == 0 && *t.Topic == s.name+"."+kind.Resource.Resource
			})
		}
	}
}

// awaitVerified creates a last object, and waits until the watermark that is verified covers it, and so everything before.
func (s *fixture) awaitVerified(kind workload.Kind) {
	s.t.Helper()
	s.must(s.cluster.Create(s.t.Context(), kind, s.name, "the-last"))
	all, err := s.cluster.List(s.t.Context(), kind)
	s.must(err)
	newest := ""
	for _, o := range all {
		if o.GetName() == "the-last" && o.GetNamespace() == s.name {
			newest = o.GetResourceVersion()
		}
	}
	for _, sink := range verifiedSinks {
		for covered := false; !covered; await.Pause(s.t, lookEvery) {
			code, v, stderr := s.verify(s.exporter.Config(), sink, "--bodies")
			if code != 0 {
				s.t.Fatalf("%s: exit code %d\n%s\n%s%s", sink, code, v.reasons(), first(v.differences()), stderr)
			}
			order, ordered := resourceversion.Compare(v.Resources[0].Watermark.Position, newest)
			covered = ordered && order >= 0
		}
	}
}

// TestVerifyComparesWhatTheRulesShape compares contents that are redacted by a key and in part, objects of which only the
// metadata are read, and resources that routes send elsewhere.
func TestVerifyComparesWhatTheRulesShape(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Services, workload.Widgets}
	s := newFixture(t, kinds, verifiedSettings, func(given *exporter.Settings) {
		given.Redaction = map[string]any{"key": "q8Zt1vLw0cXe7RmYb3NdUk5G"}
		given.Resources = []map[string]any{
			{"select": []string{"configmaps"}, "redact": "hmac", "redactPaths": []string{"data.step"}, "before": "full", "changed": "paths"},
			{"select": []string{"deployments.apps"}, "capture": "metadata"},
			{"select": []string{"services"}, "fields": map[string]any{"drop": []string{"spec.ports", "status"}}},
			{"select": []string{"widgets." + workload.WidgetGroup}},
		}
		given.Routes = []map[string]any{
			{"select": []string{"services"}, "to": []map[string]any{
				{"sink": "kafka", "topic": given.TopicPrefix + ".elsewhere"}, {"sink": "kv"},
				{"sink": "nats", "topic": given.Stream + ".elsewhere.{namespace}.{name}.x"}}},
			{"select": []string{"widgets." + workload.WidgetGroup}, "to": []map[string]any{{"sink": "nats"}}},
		}
	})
	s.must(s.run(workload.Plan{Objects: 40}, kinds).Wait())
	s.must(s.exporter.Start(t.Context()))
	s.must(s.run(workload.Plan{Objects: 80, Updates: 2}, kinds).Wait())
	s.awaitTopics(kinds[:2])
	s.awaitVerified(workload.ConfigMaps)
	for sink, want := range map[string]int{"kafka": 3, "nats": 4, "kv": 3} {
		code, v, stderr := s.verify(s.exporter.Config(), sink, "--bodies")
		if code != 0 || len(v.Resources) != want {
			t.Errorf("%s: exit code %d, %d resources\n%s\n%s%s", sink, code, len(v.Resources), v.reasons(), first(v.differences()), stderr)
		}
		for _, r := range v.Resources {
			if r.Equal != r.Objects || r.Objects < 10 {
				t.Errorf("%s: %d of %d objects of %s are equal", sink, r.Equal, r.Objects, r.Resource)
			}
		}
	}
}

// TestVerifyNamesWhatItCannotVerify takes away what a verification needs: rights, the beginning of a partition, the position
// of the newest watermark, the exporter. Nothing of it is called equal.
func TestVerifyNamesWhatItCannotVerify(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	var settings exporter.Settings
	s := newFixture(t, kinds, verifiedSettings, func(given *exporter.Settings) {
		given.Rule = map[string]any{"name": "paused"}
		settings = *given
	})
	published := s.recordBucket(s.name)
	s.must(s.exporter.Start(t.Context()))
	s.must(s.run(workload.Plan{Objects: 40, Updates: 3}, kinds).Wait())
	s.awaitTopics(kinds)
	s.awaitVerified(workload.ConfigMaps)

	configure := func(edit func(*exporter.Settings)) string {
		other := settings
		other.Dir = t.TempDir()
		edit(&other)
		e, err := exporter.New(s.program, other)
		s.must(err)
		return e.Config()
	}
	notVerified := func(what, config, reason string, flags ...string) {
		t.Helper()
		for _, sink := range verifiedSinks {
			code, v, stderr := s.verify(config, sink, flags...)
			if text := v.reasons() + stderr; code != 3 || !strings.Contains(text, reason) {
				t.Errorf("%s, %s: exit code %d without %q\n%s\n%s", what, sink, code, reason, text, first(v.differences()))
			}
		}
	}
	notVerified("without watermarks", configure(func(o *exporter.Settings) { o.Watermarks = "" }), "set `watermarks: 10s` in it")
	kubeconfig, err := s.controlPlane.KubeconfigFor(stranger)
	s.must(err)
	notVerified("without the right to list", configure(func(o *exporter.Settings) { o.Kubeconfig = kubeconfig }),
		"list is forbidden")
	notVerified("without a bus", configure(func(o *exporter.Settings) {
		o.KafkaBrokers, o.NATSURL = []string{"127.0.0.1:1"}, "nats://127.0.0.1:1"
	}), "127.0.0.1:1")
	notVerified("of another selection", configure(func(o *exporter.Settings) { o.Rule = map[string]any{"labelSelector": "app=none"} }),
		"is of another selection of the resource", "--wait", "1s")

	lanes, stream, bucket := s.readTopic(s.name+".configmaps"), s.readStream(s.name), published()
	name := s.name + "-cut"
	cut := configure(func(o *exporter.Settings) { o.TopicPrefix, o.Stream, o.Bucket = name, name, name })
	s.writeTopic(name+".configmaps", lanes)
	s.deleteFirstRecords(name+".configmaps", len(lanes))
	s.writeStream(name, s.name, stream, jetstream.StreamConfig{MaxMsgs: int64(len(stream[0]) - 5)})
	s.writeBucket(name, s.name, bucket, jetstream.StreamConfig{MaxMsgs: 10})
	notVerified("without the beginning", cut, "are gone, and no whole snapshot of the resource is behind them")

	paused := pausable{kind: "rule", name: "paused"}
	s.pause(paused, s.exporter)
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "during-the-pause"))
	for _, sink := range verifiedSinks { // at the last watermark
		if code, v, stderr := s.verify(s.exporter.Config(), sink); code != 0 {
			t.Errorf("of a paused rule, %s: exit code %d\n%s\n%s%s", sink, code, v.reasons(), first(v.differences()), stderr)
		}
	}
	s.must(s.etcd.Compact(t.Context()))
	s.must(s.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
	s.must(s.controlPlane.StartAPIServer(t.Context()))
	notVerified("of a paused rule after a compaction", s.exporter.Config(), "no longer lists at", "--wait", "1s")
	s.must(s.exporter.Stop())
	notVerified("after a compaction", s.exporter.Config(), "no longer lists at", "--wait", "1s")
	notVerified("before the first watermark", configure(func(o *exporter.Settings) { o.Cluster = "another" }),
		"no watermark of the resource within 1s", "--wait", "1s")
}

// deleteFirstRecords deletes the first record of each partition of a topic.
func (s *fixture) deleteFirstRecords(topic string, partitions int) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Brokers()...))
	s.must(err)
	defer client.Close()
	request := kmsg.NewPtrDeleteRecordsRequest()
	of := kmsg.NewDeleteRecordsRequestTopic()
	of.Topic = topic
	for i := range partitions {
		p := kmsg.NewDeleteRecordsRequestTopicPartition()
		p.Partition, p.Offset = int32(i), 1
		of.Partitions = append(of.Partitions, p)
	}
	request.Topics, request.TimeoutMillis = append(request.Topics, of), 60_000
	answer, err := request.RequestWith(s.t.Context(), client)
	s.must(err)
	for _, p := range answer.Topics[0].Partitions {
		s.must(kerr.ErrorForCode(p.ErrorCode))
	}
}
