package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

const (
	// arriveWithin bounds every wait for changes to arrive. It is far above what it takes, and no measurement.
	arriveWithin = 5 * time.Minute
	lookEvery    = 100 * time.Millisecond
	clients      = 32
)

// fixture is one test's own: a namespace, an exporter with a journal, topics, a stream, and readers of both buses.
type fixture struct {
	*environment
	t         *testing.T
	name      string // namespace, prefix of the topics, name of the stream
	resources []oracle.Resource
	exporter  *exporter.Exporter
	buses     []*received // Kafka and NATS
	beginning int64       // etcd's revision before the exporter first started
	past      oracle.Past // what was read of etcd's history since then
	loads     int
}

// received is a bus and everything read from it so far.
type received struct {
	bus.Reader
	records   []bus.Record
	compacted bool                  // what is there is less than what was
	wanted    func(bus.Record) bool // nil: all records
}

// fixtures counts the fixtures of all tests: no two have the same name.
var fixtures atomic.Int64

// newFixture makes a fixture; its exporter selects the resources of some kinds. Nothing runs yet.
func newFixture(t *testing.T, kinds []workload.Kind, changes ...func(*exporter.Settings)) *fixture {
	t.Helper()
	return newFixtureIn(t, servers(t), kinds, changes...)
}

// newFixtureIn makes a fixture in an environment that may have a control plane of its own.
func newFixtureIn(t *testing.T, env *environment, kinds []workload.Kind, changes ...func(*exporter.Settings)) *fixture {
	t.Helper()
	s := &fixture{environment: env, t: t, name: fmt.Sprintf("e2e-%d", fixtures.Add(1)), resources: resources(kinds),
		past: oracle.Past{}}
	settings := exporter.Settings{
		Dir: t.TempDir(), Kubeconfig: env.controlPlane.Kubeconfig(),
		KafkaBrokers: env.kafka.Brokers(), TopicPrefix: s.name, NATSURL: env.nats.URL(), Stream: s.name,
	}
	for _, r := range s.resources {
		settings.Select = append(settings.Select, selection(r))
	}
	for _, change := range changes {
		change(&settings)
	}
	var err error
	if s.exporter, err = exporter.New(env.program, settings); err != nil {
		t.Fatal(err)
	}
	s.openReaders(settings)
	env.undoAtEnd(t)
	s.must(env.cluster.CreateNamespace(t.Context(), s.name))
	s.touch(kinds)
	if s.beginning, err = env.etcd.Revision(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// touch has something happen to each kind. After more than 75 seconds without an event, a full watch cache grows no more
// until all events in it are newer than that: it drops the last one before a burst of a hundred, and with it every position
// between that event and the first one of the burst. The API server answers to such a position that it is too old, although
// nothing happened since.
func (s *fixture) touch(kinds []workload.Kind) {
	s.t.Helper()
	for _, kind := range kinds {
		served, err := s.cluster.Serves(s.t.Context(), kind)
		if s.must(err); !served { // yet
			continue
		}
		s.must(s.cluster.Create(s.t.Context(), kind, s.name, "touched"))
		s.must(s.cluster.Delete(s.t.Context(), kind, s.name, "touched"))
	}
}

// openReaders opens the readers.
func (s *fixture) openReaders(settings exporter.Settings) {
	s.t.Helper()
	k, err := bus.NewKafka(settings.KafkaBrokers, settings.TopicPrefix+".")
	s.must(err)
	s.t.Cleanup(k.Close)
	n, err := bus.NewNATS(settings.NATSURL, settings.Stream)
	s.must(err)
	s.t.Cleanup(n.Close)
	s.buses = []*received{{Reader: k}, {Reader: n}}
}

// read returns how the records of both buses are to be read.
func (s *fixture) read(as format.Format, fromKafka, fromNATS bus.Unwrap) {
	s.buses[0].Reader.(*bus.Kafka).Form = bus.Form{Format: as, Unwrap: fromKafka}
	s.buses[1].Reader.(*bus.NATS).Form = bus.Form{Format: as, Unwrap: fromNATS}
}

// end stops what the test has left running, and shows the log if the test failed.
func (s *fixture) end() {
	if err := s.exporter.Kill(); err != nil {
		s.t.Error(err)
	}
	if s.t.Failed() {
		s.t.Logf("the end of the exporter's log:\n%s", s.exporter.LogTail())
	}
}

func resources(kinds []workload.Kind) []oracle.Resource {
	var all []oracle.Resource
	for _, k := range kinds {
		r := oracle.Resource{Group: k.Resource.Group, Resource: k.Resource.Resource, Prefix: "/registry/" + k.Resource.Resource + "/"}
		switch {
		case r.Group == workload.WidgetGroup: // custom resources are below their group
			r.Prefix = "/registry/" + r.Group + "/" + r.Resource + "/"
		case r.Group == "" && r.Resource == "services":
			r.Prefix = "/registry/services/specs/"
		}
		all = append(all, r)
	}
	return all
}

// selection writes a resource as the configuration does.
func selection(r oracle.Resource) string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// must ends the test on an error.
func (s *fixture) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// load begins to write objects at full speed, under names of their own.
func (s *fixture) load(objects int, kinds []workload.Kind) *workload.Load {
	s.t.Helper()
	return s.run(workload.Plan{Objects: objects, Updates: 3}, kinds)
}

// run begins to write the objects and updates of a plan.
func (s *fixture) run(plan workload.Plan, kinds []workload.Kind) *workload.Load {
	s.t.Helper()
	s.loads++
	plan.Namespace, plan.Prefix, plan.Kinds, plan.Clients = s.name, fmt.Sprintf("load-%d", s.loads), kinds, clients
	load := s.cluster.Start(s.t.Context(), plan)
	s.t.Cleanup(load.Stop)
	return load
}

// history reads what happened since the fixture began.
func (s *fixture) history() *oracle.History {
	s.t.Helper()
	end, err := s.etcd.Revision(s.t.Context())
	s.must(err)
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	h, err := s.past.Extend(ctx, s.etcd, s.resources, s.beginning, end)
	s.must(err)
	return h
}

// receiveAll reads both buses to their ends, as soon as they can be: a server that came back a moment ago may not answer
// yet.
func (s *fixture) receiveAll() {
	s.t.Helper()
	for _, b := range s.buses {
		for deadline := time.Now().Add(arriveWithin); ; await.Pause(s.t, lookEvery) {
			err := b.receive(s.t.Context())
			if err == nil {
				break
			}
			var wrong *bus.WrongError
			if errors.As(err, &wrong) || time.Now().After(deadline) {
				s.t.Fatalf("%s: %v", b.Name(), err)
			}
		}
	}
}

func (b *received) receive(ctx context.Context) error {
	records, err := b.Read(ctx)
	for _, r := range records {
		if b.wanted == nil || b.wanted(r) {
			b.records = append(b.records, r)
		}
	}
	return err
}

// await reads a bus until its records satisfy a condition. The condition explains what it still waits for; "" is nothing.
func (s *fixture) await(b *received, waitingFor func([]bus.Record) string) {
	s.t.Helper()
	deadline := time.Now().Add(arriveWithin)
	for {
		err := b.receive(s.t.Context())
		waits := waitingFor(b.records)
		if waits == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: after %v still waiting for %s (last read: %v)", b.Name(), arriveWithin, waits, err)
		}
		await.Pause(s.t, lookEvery)
	}
}

// fewer returns how many records of a type are missing.
func fewer(records []bus.Record, kind string, want int) string {
	got := 0
	for _, r := range records {
		if r.Type == kind {
			got++
		}
	}
	if got < want {
		return fmt.Sprintf("%d records of type %s, there are %d", want, kind, got)
	}
	return ""
}

// awaitHistory waits until a bus holds everything that has happened up to now.
func (s *fixture) awaitHistory(b *received) {
	s.t.Helper()
	h := s.history()
	s.await(b, func(records []bus.Record) string {
		missing := h.Missing(records)
		if len(missing) == 0 {
			return ""
		}
		return fmt.Sprintf("%d of %d revisions, the first ones:\n%s", len(missing), len(h.Revisions), first(missing))
	})
}

// awaitAll waits until both buses hold everything that has happened up to now.
func (s *fixture) awaitAll() {
	s.t.Helper()
	for _, b := range s.buses {
		s.awaitHistory(b)
	}
}

// judge stops the exporter, reads what is left and compares both buses with the truth and with each other.
func (s *fixture) judge(rules oracle.Rules) {
	s.t.Helper()
	s.must(s.exporter.Stop())
	s.judgeEach(rules)
	if wrong := oracle.Differ(s.buses[0].Name(), s.buses[0].records, s.buses[1].Name(), s.buses[1].records); len(wrong) > 0 {
		s.t.Errorf("the buses differ in %d points, the first ones:\n%s", len(wrong), first(wrong))
	}
}

// judgeEach reads what is left and compares each bus with the truth. Nothing runs any more.
func (s *fixture) judgeEach(rules oracle.Rules) {
	s.t.Helper()
	s.receiveAll()
	h := s.history()
	s.t.Logf("%d revisions after %d existing objects", len(h.Revisions), len(h.Existing))
	for _, b := range s.buses {
		if wrong := h.Judge(b.records, rules); len(wrong) > 0 {
			s.t.Errorf("%s: %d points, the first ones:\n%s", b.Name(), len(wrong), first(wrong))
		}
		s.t.Log(b.count())
	}
}

// count summarizes the received records in one line.
func (b *received) count() string {
	ids := make(map[string]bool)
	types := make(map[string]int)
	for _, r := range b.records {
		if !ids[r.ID] {
			types[r.Type]++
		}
		ids[r.ID] = true
	}
	return fmt.Sprintf("%s: %d records, %d repeated, %v", b.Name(), len(b.records), len(b.records)-len(ids), types)
}

// first shows the first few of many, one a line.
func first[T any](all []T) string {
	const most = 10
	var b strings.Builder
	for _, one := range all[:min(most, len(all))] {
		fmt.Fprintf(&b, "  %v\n", one)
	}
	return b.String()
}

// newRandom returns a source of random numbers, and prints what repeats it.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if given := os.Getenv("KUBECDC_E2E_SEED"); given != "" {
		var err error
		if seed, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("KUBECDC_E2E_SEED: %v", err)
		}
	}
	t.Logf("KUBECDC_E2E_SEED=%d repeats the random moments", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
