package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubecdc/kubecdc/pkg/consumer"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// watermarkEvery is short, so that many positions are checked.
	watermarkEvery = "1s"
	// leastWatermarks is how many different watermarks each bus must have for the test to mean something.
	leastWatermarks = 60
	// watermarkTurns is how often each fault happens; KUBECDC_E2E_WATERMARKS sets it for long proofs.
	watermarkTurns = 1
	// watermarkRate is how many writes a second there are meanwhile.
	watermarkRate = 60
)

var watermarkKinds = []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}

// watermarkRun checks the watermarks of a fixture.
type watermarkRun struct {
	*fixture
	recorder *oracle.Recorder
	other    string // another namespace, which the rules may leave out
}

func watermarkSettings(s *exporter.Settings) { s.Watermarks = watermarkEvery }

func newWatermarkRun(t *testing.T, s *fixture) *watermarkRun {
	t.Helper()
	w := &watermarkRun{fixture: s, other: s.name + "-other"}
	s.must(s.cluster.CreateNamespace(t.Context(), w.other))
	for i, kind := range watermarkKinds {
		s.must(s.cluster.Create(t.Context(), kind, w.other, fmt.Sprint("stays-", i)))
	}
	var err error
	w.recorder, err = s.etcd.Record(t.Context(), s.resources)
	s.must(err)
	t.Cleanup(w.recorder.Stop)
	return w
}

// TestWatermarksAreTheStateOfTheCluster writes objects while the exporter is killed, comes back after its history is
// compacted, and gets edited rules: the count and the digest of each watermark are those of etcd at its position, on both
// buses, every change up to the position stands before it in its lane, and a consumer finds no difference.
func TestWatermarksAreTheStateOfTheCluster(t *testing.T) {
	require.Long(t)
	turns := sizeOf(t, "KUBECDC_E2E_WATERMARKS", watermarkTurns)
	w := newWatermarkRun(t, newFixture(t, watermarkKinds, watermarkSettings))
	w.must(w.exporter.Start(t.Context()))
	load := w.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: watermarkRate}, watermarkKinds)
	for turn := range turns {
		w.awaitMoreWatermarks(moreWatermarks)
		w.must(w.exporter.Kill())
		w.must(w.exporter.Start(t.Context()))
		w.awaitMoreWatermarks(moreWatermarks)
		w.editRules(turn%2 == 0)
		w.awaitMoreWatermarks(moreWatermarks)
		w.must(w.exporter.Kill())
		load.AwaitOperations(load.Operations() + watermarkRate)
		w.must(w.recorder.AwaitRecorded(t.Context()))
		w.must(w.etcd.Compact(t.Context()))
		w.must(w.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
		w.must(w.controlPlane.StartAPIServer(t.Context()))
		w.must(w.exporter.Start(t.Context()))
	}
	w.awaitMoreWatermarks(moreWatermarks)
	load.Stop()
	w.awaitMoreWatermarks(1) // which takes a bookmark
	w.checkExactLists()
	w.must(w.exporter.Stop())
	w.checkWatermarks(turns)
}

// editRules leaves the other namespace out, or takes it in again.
func (w *watermarkRun) editRules(without bool) {
	w.t.Helper()
	w.must(w.exporter.Configure(func(s *exporter.Settings) {
		if s.Rule = nil; without {
			s.Rule = map[string]any{"namespaces": map[string]any{"exclude": []string{w.other}}}
		}
	}))
	series, err := w.exporter.ConfigSeries()
	w.must(err)
	for !strings.Contains(metricsOf(w.t, w.exporter), "\n"+series+" 1\n") {
		await.Pause(w.t, lookEvery)
	}
}

// moreWatermarks is how many watermarks of each resource come between one fault and the next.
const moreWatermarks = 4

// awaitMoreWatermarks waits until each bus has so many more watermarks of each resource.
func (w *watermarkRun) awaitMoreWatermarks(more int) {
	w.t.Helper()
	for _, b := range w.buses {
		w.must(b.receive(w.t.Context()))
		before := watermarksOf(b.records)
		w.await(b, func(records []bus.Record) string {
			now := watermarksOf(records)
			for _, r := range w.resources {
				o := bus.Object{Group: r.Group, Resource: r.Resource}
				if n := now[o] - before[o]; n < more {
					return fmt.Sprintf("%d more watermarks of %v", more-n, o)
				}
			}
			return ""
		})
	}
}

// watermarksOf counts the different watermarks by resource.
func watermarksOf(records []bus.Record) map[bus.Object]int {
	seen, count := map[string]bool{}, map[bus.Object]int{}
	for _, r := range records {
		if r.Watermark == nil {
			continue
		}
		if name := fmt.Sprint(r.Object, r.Watermark.Epoch, r.Watermark.Sequence); !seen[name] {
			seen[name] = true
			count[r.Object]++
		}
	}
	return count
}

// checkExactLists compares the newest watermark of each resource with a list of the API server at exactly its position.
func (w *watermarkRun) checkExactLists() {
	w.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.controlPlane.Kubeconfig())
	w.must(err)
	client, err := dynamic.NewForConfig(config)
	w.must(err)
	for i, kind := range watermarkKinds {
		resource := w.resources[i]
		var newest *bus.Record
		for _, r := range w.buses[0].records {
			if r.Watermark != nil && r.Object == (bus.Object{Group: resource.Group, Resource: resource.Resource}) {
				newest = &r
			}
		}
		list, err := client.Resource(kind.Resource).List(w.t.Context(),
			metav1.ListOptions{ResourceVersion: newest.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		w.must(err)
		excluded := strings.Contains(fmt.Sprint(w.exporter.Rule()), w.other)
		list.Items = slices.DeleteFunc(list.Items, func(o unstructured.Unstructured) bool { return excluded && o.GetNamespace() == w.other })
		if len(list.Items) != newest.Watermark.Count {
			w.t.Errorf("the watermark of %v at %s has %d objects, the API server %d", newest.Object, newest.ResourceVersion,
				newest.Watermark.Count, len(list.Items))
		}
	}
}

// checkWatermarks compares all watermarks of both buses with etcd. edits is how often the rules were edited.
func (w *watermarkRun) checkWatermarks(edits int) {
	w.t.Helper()
	w.must(w.recorder.AwaitRecorded(w.t.Context()))
	w.receiveAll()
	for i, b := range w.buses {
		checked := 0
		for _, resource := range w.resources {
			checked += w.checkSums(b, resource, edits)
		}
		w.t.Logf("%s: %d different watermarks, none is wrong", b.Name(), checked)
		if checked < leastWatermarks {
			w.t.Errorf("%s: only %d watermarks: too few to be meaningful", b.Name(), checked)
		}
		w.checkOrder(b, i == 0)
		w.checkConsumer(b)
	}
}

// checkSums compares the watermarks of a resource with etcd, and returns how many different ones there are. Edited rules
// select everything, or all but one namespace.
func (w *watermarkRun) checkSums(b *received, resource oracle.Resource, edits int) int {
	var positions []int64
	of := bus.Object{Group: resource.Group, Resource: resource.Resource}
	for _, r := range b.records {
		if r.Watermark != nil && r.Object == of {
			positions = append(positions, r.Revision)
		}
	}
	all := w.recorder.SumsAt(resource, positions, func(bus.Object) bool { return true })
	without := w.recorder.SumsAt(resource, positions, func(o bus.Object) bool { return o.Namespace != w.other })
	seen, selections := map[string]bool{}, []bool{}
	for _, r := range b.records {
		if r.Watermark == nil || r.Object != of {
			continue
		}
		got := oracle.Sum{Count: r.Watermark.Count, Digest: r.Watermark.Digest}
		whole := got == all[r.Revision]
		if !whole && (edits == 0 || got != without[r.Revision]) {
			w.t.Errorf("%s: the watermark %s has %+v, and etcd %+v, or %+v", b.Name(), r.ID, got, all[r.Revision], without[r.Revision])
			continue
		}
		if name := r.Watermark.Epoch + strconv.FormatUint(r.Watermark.Sequence, 10); !seen[name] {
			seen[name] = true
			selections = append(selections, whole)
		}
	}
	if changes := len(slices.Compact(selections)) - 1; b.Name() != "kafka" && changes != edits {
		w.t.Errorf("%s: the selection of %v changed %d times in its watermarks, and was edited %d times", b.Name(), of, changes, edits)
	}
	return len(seen)
}

// checkOrder checks that no change up to the position of a watermark comes after it in its lane for the first time. A lane
// is a partition of Kafka, and the stream of NATS.
func (w *watermarkRun) checkOrder(b *received, partitioned bool) {
	newest, seen := map[string]int64{}, map[string]bool{}
	lane := func(r bus.Record) string {
		if partitioned {
			return r.Place
		}
		return r.Group + "/" + r.Resource
	}
	for _, r := range b.records {
		at := lane(r)
		switch {
		case r.Watermark != nil:
			newest[at] = max(newest[at], r.Revision)
		case r.Name != "" && !seen[r.ID]:
			seen[r.ID] = true
			read := r.Revision
			if version, err := strconv.ParseInt(r.ListVersion, 10, 64); err == nil {
				read = max(read, version)
			}
			if !r.Left && read < newest[at] {
				w.t.Errorf("%s: %s is in %s behind a watermark at %d", b.Name(), r.ID, at, newest[at])
			}
		}
	}
}

// checkConsumer rebuilds the state with a consumer, which must find no difference.
func (w *watermarkRun) checkConsumer(b *received) {
	var table consumer.Table
	checks := map[consumer.Check]int{}
	for _, r := range b.records {
		record, err := consumer.Parse(r.Payload)
		w.must(err)
		w.must(table.Apply(record))
		if r.Watermark == nil {
			continue
		}
		for _, newest := range table.Watermarks() {
			if newest.Epoch == r.Watermark.Epoch && newest.Sequence == r.Watermark.Sequence {
				checks[newest.Check]++
			}
		}
	}
	w.t.Logf("%s: checks of the consumer: %v", b.Name(), checks)
	if checks[consumer.CheckDifferent] > 0 || checks[consumer.CheckEqual] < leastWatermarks/2 {
		w.t.Errorf("%s: checks of the consumer: %v", b.Name(), checks)
	}
	if len(table.Watermarks()) != len(w.resources) {
		w.t.Errorf("%s: the consumer is complete up to %+v", b.Name(), table.Watermarks())
	}
}
