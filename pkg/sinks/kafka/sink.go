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

// publishConcurrency is how many lanes are worth publishing at the same time: what they send meanwhile goes together, so that many
// lanes cost few requests.
const publishConcurrency = 256

// messagesPerBatch is how many messages are worth a batch, however small they are.
const messagesPerBatch = 1000

// Sink writes changes to Kafka. See the package's documentation for how, and [sinks.Sink] for the contract.
type Sink struct {
	config            Config
	log               *slog.Logger
	format            format.Format
	template          *sinks.Template
	cluster           *cluster.Cluster
	encoders          encoderPool
	buffers           bufferPool
	retained          byteBudget // bytes of unsettled batches, between calls // I6
	producers         producerStates
	fence             atomic.Pointer[fence] // nil: the sink was not fenced
	producerChangedAt time.Time             // when Fence first got another producer ID than those before
	timestamps        timestampCondition
	repairer          *repairer // nil: topics do not repair themselves
	recoveryWarned    sync.Once // the warning about what the process before left in flight is logged once

	// Of Lane, and of what is never called while Lane is.
	scratch             []byte
	routes              map[string]*route // by topic
	layoutsCheckedAt    time.Time         // when all topics were asked about last
	layoutCheckInterval time.Duration     // how old that may be

	changedTopics   sync.Map    // of *topic: those whose partitions have changed in number since they were routed
	checkingLayouts atomic.Bool // somebody asks about all topics
	runCtx          context.Context
	cancelRun       context.CancelFunc
	background      sync.WaitGroup

	mu                sync.RWMutex
	topics            map[string]*topic
	lanes             map[sinks.Lane]*lane
	waitingPublishers map[string]*waitingPublisher // by topic
	warned            map[string]struct{}          // what is wrong with topics
}

var _ interface {
	sinks.Router
	sinks.MultiDestination
	sinks.Concurrent
	sinks.Batched
	sinks.Pinger
	sinks.SlowdownReporter
	sinks.LaneReleaser
	sinks.Repartitioner
	sinks.SettleObserver
	sinks.Stateful
	sinks.Warner
	sinks.Fenced
	sinks.StateOpener
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
	encoders, err := newEncoderPool(f, cfg.Tombstones, record.Codecs[cfg.Compression], runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	s := &Sink{
		config: cfg, log: log, format: f, template: template, cluster: cluster, encoders: encoders, timestamps: newTimestampCondition(log),
		routes: map[string]*route{}, layoutCheckInterval: layoutMaxAge,
		topics: map[string]*topic{}, lanes: map[sinks.Lane]*lane{}, waitingPublishers: map[string]*waitingPublisher{}, warned: map[string]struct{}{},
	}
	s.runCtx, s.cancelRun = context.WithCancel(context.Background())
	s.retained.releaseBytes(maxRetainedBytes)
	if cfg.Repair {
		s.repairer = newRepairer(s)
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
func (s *Sink) Concurrency() int { return publishConcurrency }

// BatchLimits is how much of a lane the caller should hand over at once: as many messages and bytes of changes as fill twice
// the batches that may be in flight, so that when a call returns as many still are. A little less, so that what stands
// around a change does not begin another one.
func (s *Sink) BatchLimits() (messages int, bytes int64) {
	batches := 2 * maxInFlight
	if !s.config.isIdempotent() {
		batches = 1
	}
	return batches * messagesPerBatch, int64(batches) * int64(s.config.BatchBytes) / 25 * 24
}

// SlowdownReason says that a quota of Kafka makes us wait between requests; "" when none does.
func (s *Sink) SlowdownReason() string { return s.cluster.ThrottleReason() }

// Publish writes a batch to the partition that lane names. See [sinks.Sink].
func (s *Sink) Publish(ctx context.Context, name sinks.Lane, batch []sinks.Message) (int, error) {
	if topic, ok := topicOfWaitingLane(name); ok {
		n, err := s.waitingPublisher(topic).publishBatch(ctx, batch)
		s.repairer.recordAccepted(topic, batch[:n])
		return n, err
	}
	l, err := s.laneByName(name)
	if err != nil {
		return 0, err
	}
	n, err := l.publishBatch(ctx, batch)
	s.repairer.recordAccepted(l.topic.name, batch[:n])
	return n, err
}

// Close ends all connections, within ctx.
func (s *Sink) Close(ctx context.Context) error {
	s.cancelRun()
	s.background.Wait()
	s.timestamps.close()
	if err := s.cluster.Close(ctx); err != nil {
		return fmt.Errorf("closing connections to Kafka: %w", err)
	}
	return nil
}

func (s *Sink) laneByName(name sinks.Lane) (*lane, error) {
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
	t := s.topicByName(topicName)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l = s.lanes[name]; l == nil {
		l = newLane(s, t, name, partition)
		s.lanes[name] = l
	}
	return l, nil
}

// laneForPartition returns the lane that writes to a partition, of which there are so many.
func (s *Sink) laneForPartition(p cluster.Partition, count int) (*lane, error) {
	name := laneName(p.Topic, p.Index, count)
	s.mu.RLock()
	for _, l := range s.lanes { // it may still have the name from when there were fewer
		if s.lanes[name] == nil && l.topicPartition() == p {
			name = l.name
		}
	}
	s.mu.RUnlock()
	return s.laneByName(name)
}

func (s *Sink) waitingPublisher(name string) *waitingPublisher {
	t := s.topicByName(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waitingPublishers[name]
	if w == nil {
		w = &waitingPublisher{sink: s, topic: t, accepted: map[uint64]bool{}}
		s.waitingPublishers[name] = w
	}
	return w
}

func (s *Sink) topicByName(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		t = newTopic(name)
		s.topics[name] = t
	}
	return t
}
