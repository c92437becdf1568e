package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/state"
)

// concurrency is how many lanes are worth publishing at the same time: what they send meanwhile goes together, so that many
// lanes cost few requests.
const concurrency = 256

// batchMessages is how many messages are worth a batch, however small they are.
const batchMessages = 1000

// Sink writes changes to Kafka. See the package's documentation for how, and [sinks.Sink] for the contract.
type Sink struct {
	config         Config
	log            *slog.Logger
	format         format.Format
	template       *sinks.Template
	cluster        *cluster.Cluster
	encoders       encoders
	buffers        buffers
	held           byteBudget // bytes of unsettled batches, between calls // I6
	producers      producerStates
	fence          atomic.Pointer[fence] // nil: the sink was not fenced
	expired        time.Time             // when Fence first got another producer ID than those before
	clock          clock
	repairs        *repairs  // nil: topics do not repair themselves
	recoveryWarned sync.Once // the warning about what the process before left in flight is logged once

	// Of Lane, and of what is never called while Lane is.
	scratch   []byte
	routes    map[string]*route // by topic
	looked    time.Time         // when all topics were asked about last
	lookEvery time.Duration     // how old that may be

	moved      sync.Map    // of *topic: those whose partitions have changed in number since they were routed
	looking    atomic.Bool // somebody asks about all topics
	open       context.Context
	close      context.CancelFunc
	background sync.WaitGroup

	mu     sync.RWMutex
	topics map[string]*topic
	lanes  map[sinks.Lane]*lane
	waits  map[string]*waiting // by topic
	told   map[string]struct{} // what is wrong with topics
}

var _ interface {
	sinks.Router
	sinks.Divided
	sinks.Concurrent
	sinks.Batched
	sinks.Pinger
	sinks.Slowed
	sinks.Forgetter
	sinks.Repartitioner
	sinks.Settler
	sinks.Stateful
	sinks.Cautious
	sinks.Fenced
	sinks.StateKeeper
} = (*Sink)(nil)

// New returns a sink for cfg that writes changes in the format f. It checks cfg and reads the files it names; it opens no
// connection, so a cluster that is away shows at the first call, as an [sinks.UnavailableError]. The caller closes the sink.
func New(cfg Config, f format.Format, log *slog.Logger) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	template, err := sinks.ParseTemplate(cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("kafka.topic: %w", err)
	}
	cluster, err := cluster.New(cluster.Options{Brokers: cfg.Brokers, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL, Timeout: cfg.RequestTimeout}, log)
	if err != nil {
		return nil, err
	}
	if cfg.Tombstones && f != format.Debezium {
		return nil, fmt.Errorf("kafka.tombstones: true, with the format %v; only debezium has readers who expect them", f)
	}
	if cfg.Repair && f != format.Upsert && !cfg.Tombstones {
		return nil, fmt.Errorf("kafka.repair: true, with the format %v; it needs upsert, or debezium with kafka.tombstones", f)
	}
	encoders, err := newEncoders(f, cfg.Tombstones, record.Codecs[cfg.Compression], runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	s := &Sink{
		config: cfg, log: log, format: f, template: template, cluster: cluster, encoders: encoders, clock: newClock(log),
		routes: map[string]*route{}, lookEvery: layoutAge,
		topics: map[string]*topic{}, lanes: map[sinks.Lane]*lane{}, waits: map[string]*waiting{}, told: map[string]struct{}{},
	}
	s.open, s.close = context.WithCancel(context.Background())
	s.held.give(maxHeld)
	if cfg.Repair {
		s.repairs = newRepairs(s)
	}
	return s, nil
}

// OpenState is [sinks.StateKeeper.OpenState]: name is that of a topic. Kafka compacts it, so nothing is written again.
func (s *Sink) OpenState(name string, _ func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
	if err := checkTopicName([]byte(name)); err != nil {
		return nil, fmt.Errorf("state.name: %w", err)
	}
	return state.New(s.cluster, name, s.config.CreateTopics.ReplicationFactor, s.log)
}

// Concurrency is how many lanes the caller should publish at the same time.
func (s *Sink) Concurrency() int { return concurrency }

// BatchLimits is how much of a lane the caller should hand over at once: as many messages and bytes of changes as fill twice
// the batches that may be in flight, so that when a call returns as many still are. A little less, so that what stands
// around a change does not begin another one.
func (s *Sink) BatchLimits() (messages int, bytes int64) {
	batches := 2 * maxInFlight
	if !s.config.idempotent() {
		batches = 1
	}
	return batches * batchMessages, int64(batches) * int64(s.config.BatchBytes) / 25 * 24
}

// Slowed says that a quota of Kafka makes us wait between requests; "" when none does.
func (s *Sink) Slowed() string { return s.cluster.Slowed() }

// Publish writes a batch to the partition that lane names. See [sinks.Sink].
func (s *Sink) Publish(ctx context.Context, name sinks.Lane, batch []sinks.Message) (int, error) {
	if topic, ok := waitingTopic(name); ok {
		n, err := s.waiting(topic).publish(ctx, batch)
		s.repairs.accepted(topic, batch[:n])
		return n, err
	}
	l, err := s.lane(name)
	if err != nil {
		return 0, err
	}
	n, err := l.publish(ctx, batch)
	s.repairs.accepted(l.topic.name, batch[:n])
	return n, err
}

// Close ends all connections, within ctx.
func (s *Sink) Close(ctx context.Context) error {
	s.close()
	s.background.Wait()
	s.clock.close()
	if err := s.cluster.Close(ctx); err != nil {
		return fmt.Errorf("closing connections to Kafka: %w", err)
	}
	return nil
}

func (s *Sink) lane(name sinks.Lane) (*lane, error) {
	s.mu.RLock()
	l := s.lanes[name]
	s.mu.RUnlock()
	if l != nil {
		return l, nil
	}
	topicName, partition, _, err := parseLane(name)
	if err != nil {
		return nil, err
	}
	t := s.topic(topicName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.lanes[name]; l == nil {
		l = newLane(s, t, name, partition)
		s.lanes[name] = l
	}
	return l, nil
}

// laneTo returns the lane that writes to a partition, of which there are so many.
func (s *Sink) laneTo(p cluster.Partition, count int) (*lane, error) {
	name := laneName(p.Topic, p.Index, count)
	s.mu.RLock()
	for _, l := range s.lanes { // it may still have the name from when there were fewer
		if s.lanes[name] == nil && l.place() == p {
			name = l.name
		}
	}
	s.mu.RUnlock()
	return s.lane(name)
}

func (s *Sink) waiting(name string) *waiting {
	t := s.topic(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waits[name]
	if w == nil {
		w = &waiting{sink: s, topic: t, accepted: map[uint64]bool{}}
		s.waits[name] = w
	}
	return w
}

func (s *Sink) topic(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		t = newTopic(name)
		s.topics[name] = t
	}
	return t
}
