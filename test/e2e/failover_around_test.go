package e2e

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/process"
)

const (
	neighbourCluster = "neighbour"
	// maxGrownPartitions bounds how far a topic grows.
	maxGrownPartitions = 12
	// frozenAtMost is when a frozen server of several is resumed, though nothing was delivered yet.
	frozenAtMost = 30 * time.Second
)

// recordsOf selects the records of a cluster.
func recordsOf(cluster string) func(bus.Record) bool {
	return func(r bus.Record) bool { return r.Cluster == cluster && r.Resource != editedKind.Resource.Resource }
}

// editedKind is a kind without objects, which edited configurations select.
var editedKind = workload.Kind{Resource: schema.GroupVersionResource{Version: "v1", Resource: "limitranges"}}

// appendTime makes brokers stamp records when they store them: so records of an object that changed its partition, because
// the topic grew, can be brought into the order in which they were stored.
var appendTime = map[string]string{"message.timestamp.type": "LogAppendTime"}

// stampTopics lets the exporter create such topics.
func stampTopics(s *exporter.Settings) {
	var configs []map[string]any
	for name, value := range appendTime {
		configs = append(configs, map[string]any{"name": name, "value": value})
	}
	s.Kafka = map[string]any{"createTopics": map[string]any{"enabled": true, "partitions": 4, "configs": configs}}
}

// orderAsStored brings what was received from Kafka into that order. What a topic held that was deleted counts as not
// delivered by an exporter that takes over afterwards: of a record that was in that topic, and is in the one that replaced
// it, the second remains.
func (s *surroundings) orderAsStored() {
	for _, b := range []*received{s.buses[0], s.neighbour.buses[0]} {
		life := func(i int) int { // of the recreated topic, at the record i
			n, _ := slices.BinarySearch(s.recreated[b], i+1)
			return n
		}
		newest := map[string]int{}
		for i, r := range b.records {
			newest[r.ID] = i
		}
		i := -1
		b.records = slices.DeleteFunc(b.records, func(r bus.Record) bool {
			i++
			return r.Resource == s.remade.Resource.Resource && life(newest[r.ID]) > life(i)
		})
		slices.SortStableFunc(b.records, func(a, b bus.Record) int { return a.Appended.Compare(b.Appended) })
	}
}

// deck deals what may happen in random order; all of it before anything comes again.
type deck struct {
	random *rand.Rand
	all    []func()
	left   []func()
}

func (d *deck) deal() {
	if len(d.left) == 0 {
		d.left = slices.Clone(d.all)
		d.random.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	next := d.left[0]
	d.left = d.left[1:]
	next()
}

// surroundings are what happens around failovers: to buses, configurations and topics, and by another deployment.
type surroundings struct {
	*replicas
	replicated *replicatedBuses // nil where each bus is one server
	client     *kgo.Client
	neighbour  *fixture
	steady     []workload.Kind     // are written all the time
	remade     workload.Kind       // its writing pauses while its topic is recreated
	recreated  map[*received][]int // how many records were read when its topic was recreated
	rate       int
	load       *workload.Load // of remade

	faults, edits, topics *deck
	fault                 busFault // that was dealt last
}

// busFault is what a bus has at the moment of a failover.
type busFault struct {
	name string
	end  func() // waits for its end; a fault that lasts may have ended before
}

func newSurroundings(p *replicas, replicated *replicatedBuses, kinds []workload.Kind, settings exporter.Settings) *surroundings {
	p.t.Helper()
	last := len(kinds) - 1
	s := &surroundings{replicas: p, replicated: replicated, steady: kinds[:last], remade: kinds[last],
		recreated: map[*received][]int{}}
	client, err := kgo.NewClient(kgo.SeedBrokers(settings.KafkaBrokers...))
	p.must(err)
	p.t.Cleanup(client.Close)
	s.client = client
	for _, b := range p.buses {
		b.wanted = recordsOf("e2e")
	}
	p.allow(editedKind)
	s.addNeighbour(settings)

	nothing := func() {}
	faults := []func(){nothing, s.freezeBroker, s.freezeServer}
	if replicated != nil {
		faults = append(faults, s.killLeaders)
	}
	s.faults = &deck{random: p.random, all: faults}
	s.edits = &deck{random: p.random, all: []func(){nothing, s.editSelection, s.editSink}}
	s.topics = &deck{random: p.random, all: []func(){nothing, s.growTopic, s.recreateTopic}}
	return s
}

// addNeighbour adds a deployment that delivers two of the kinds, without a state, to the same topics and the same stream.
func (s *surroundings) addNeighbour(settings exporter.Settings) {
	s.t.Helper()
	kinds := []workload.Kind{s.steady[0], s.remade}
	settings.Dir, settings.State, settings.Election, settings.Cluster = s.t.TempDir(), nil, nil, neighbourCluster
	settings.Select = nil
	for _, r := range resources(kinds) {
		settings.Select = append(settings.Select, selection(r))
	}
	e, err := exporter.New(s.program, settings)
	s.must(err)
	s.t.Cleanup(func() {
		if err := e.Kill(); err != nil {
			s.t.Error(err)
		}
		if s.t.Failed() {
			s.t.Logf("the end of the log of the neighbour:\n%s", e.LogTail())
		}
	})
	neighbour := *s.fixture
	neighbour.exporter, neighbour.resources = e, resources(kinds)
	neighbour.openReaders(settings)
	for _, b := range neighbour.buses {
		b.wanted = recordsOf(neighbourCluster)
	}
	s.neighbour = &neighbour
}

// start starts the neighbour.
func (s *surroundings) start() {
	s.t.Helper()
	s.must(s.neighbour.exporter.Start(s.t.Context()))
}

// judge compares what the neighbour delivered with the truth.
func (s *surroundings) judge() {
	s.t.Helper()
	s.neighbour.awaitAll()
	s.must(s.neighbour.exporter.Stop())
	s.neighbour.receiveAll()
	s.orderAsStored()
	s.neighbour.judgeEach(oracle.Rules{})
}

// change edits a configuration and alters a topic, or not.
func (s *surroundings) change() {
	s.t.Helper()
	s.edits.deal()
	s.topics.deal()
}

// startFault lets a bus have a fault, or none.
func (s *surroundings) startFault() busFault {
	none := busFault{end: func() {}}
	if s == nil {
		return none
	}
	s.fault = none
	s.faults.deal()
	return s.fault
}

// setFault records the fault that has begun. Its end is that of the failover, but not later than after atMost.
func (s *surroundings) setFault(name string, atMost time.Duration, end func() error) {
	once := sync.OnceFunc(func() {
		if err := end(); err != nil {
			s.t.Error(err)
		}
	})
	limit := time.AfterFunc(atMost, once)
	s.t.Cleanup(func() {
		limit.Stop()
		once()
	})
	s.fault = busFault{name: name, end: once}
}

// freezeBroker freezes one broker, or the only one for a moment.
func (s *surroundings) freezeBroker() {
	if s.replicated == nil {
		s.freeze("the broker frozen", s.momentOfFreeze(), s.kafka.Process())
		return
	}
	broker := s.replicated.brokers[s.random.IntN(len(s.replicated.brokers))]
	name := "a broker frozen"
	if s.replicated.needs(broker, s.name) {
		name += " that leads the state, coordinates or controls"
	}
	s.freeze(name, frozenAtMost, broker.Process())
}

// freezeServer freezes one NATS server, or the only one for a moment.
func (s *surroundings) freezeServer() {
	if s.replicated == nil {
		s.freeze("the NATS server frozen", s.momentOfFreeze(), s.nats.Process())
		return
	}
	server := s.replicated.servers[s.random.IntN(len(s.replicated.servers))]
	name := "a NATS server frozen"
	if s.replicated.leads(server, s.name) {
		name += " that leads a stream"
	}
	s.freeze(name, frozenAtMost, server.Process())
}

// momentOfFreeze is how long the only server of a bus is frozen.
func (s *surroundings) momentOfFreeze() time.Duration {
	return time.Second + time.Duration(s.random.Int64N(int64(3*time.Second)))
}

func (s *surroundings) freeze(name string, atMost time.Duration, p *process.Process) {
	s.t.Helper()
	s.must(p.Freeze())
	s.setFault(name, atMost, p.Resume)
}

func (s *surroundings) killLeaders() {
	s.replicated.killLeaders(s.name)
	s.setFault("the leaders of the buses killed", arriveWithin, s.replicated.restart)
}

// edit edits the configuration of one that is not active.
func (s *surroundings) edit(change func(*exporter.Settings)) {
	s.t.Helper()
	active := s.active()
	others := slices.DeleteFunc(slices.Clone(s.all), func(e *exporter.Exporter) bool { return e == active })
	s.must(others[s.random.IntN(len(others))].Configure(change))
}

// editSelection lets one select another kind, or no longer.
func (s *surroundings) editSelection() {
	s.edit(func(settings *exporter.Settings) {
		kind := editedKind.Resource.Resource
		if i := slices.Index(settings.Select, kind); i >= 0 {
			settings.Select = slices.Delete(slices.Clone(settings.Select), i, i+1)
		} else {
			settings.Select = append(slices.Clone(settings.Select), kind)
		}
	})
}

// editSink lets one write other batches.
func (s *surroundings) editSink() {
	s.edit(func(settings *exporter.Settings) {
		edited := maps.Clone(settings.Kafka)
		if edited == nil {
			edited = map[string]any{}
		}
		edited["compression"] = []string{"none", "zstd", "lz4"}[s.random.IntN(3)]
		settings.Kafka = edited
	})
}

// writeToRemade begins to write objects of the kind of the recreated topic.
func (s *surroundings) writeToRemade(rate int) {
	s.t.Helper()
	s.rate = rate
	s.load = s.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: rate}, []workload.Kind{s.remade})
}

// stopWriting ends that.
func (s *surroundings) stopWriting() { s.load.Stop() }

// growTopic adds partitions to the topic of a random kind.
func (s *surroundings) growTopic() {
	s.t.Helper()
	kinds := append(slices.Clone(s.steady), s.remade)
	topic := s.name + "." + kinds[s.random.IntN(len(kinds))].Resource.Resource
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	s.must(workload.Persist(ctx, func() error {
		n, err := countPartitions(ctx, s.client, topic)
		if err != nil || n >= maxGrownPartitions {
			return err
		}
		return growTopic(ctx, s.client, topic, int32(n+1+s.random.IntN(3)))
	}))
}

// recreateTopic deletes a topic when both deployments have delivered to it all that there is, since what it held is gone
// for its readers, and creates it with other partitions, or leaves that to the exporters.
func (s *surroundings) recreateTopic() {
	s.t.Helper()
	s.stopWriting()
	topic := s.name + "." + s.remade.Resource.Resource
	for _, deployment := range []*fixture{s.fixture, s.neighbour} {
		one := *deployment
		one.resources = resources([]workload.Kind{s.remade})
		one.awaitHistory(one.buses[0])
		one.buses[0].Reader.(*bus.Kafka).Forget(topic)
		s.recreated[one.buses[0]] = append(s.recreated[one.buses[0]], len(one.buses[0].records))
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), arriveWithin)
	defer cancel()
	s.must(deleteTopic(ctx, s.client, topic))
	if s.random.IntN(2) == 0 {
		partitions := int32(1 + s.random.IntN(3))
		s.must(workload.Persist(ctx, func() error {
			err := createTopic(ctx, s.client, topic, partitions, appendTime)
			if errors.Is(err, kerr.TopicAlreadyExists) { // an exporter was faster
				return nil
			}
			return err
		}))
	}
	s.writeToRemade(s.rate)
}

// countPartitions asks how many partitions a topic has.
func countPartitions(ctx context.Context, client *kgo.Client, topic string) (int, error) {
	request := kmsg.NewPtrMetadataRequest()
	one := kmsg.NewMetadataRequestTopic()
	one.Topic = &topic
	request.Topics = append(request.Topics, one)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	return len(answer.Topics[0].Partitions), kerr.ErrorForCode(answer.Topics[0].ErrorCode)
}
