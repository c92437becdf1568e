package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/state"
)

const (
	// publishConcurrency is how many lanes should be published at the same time. Batches of many lanes share a request, so a
	// high number costs few requests.
	publishConcurrency = 256
	// messagesPerBatch is the number of messages from which on a batch is worth its cost, however small they are.
	messagesPerBatch = 1000
	// pingTries is how often in a row a ping fails before Kafka counts as unreachable: a connection may be stale, or one of
	// several brokers down.
	pingTries = 3
)

// Sink writes changes to Kafka. See the documentation of the package, and [sinks.Sink] for the contract.
type Sink struct {
	*router

	config   Config
	log      *slog.Logger
	cluster  *cluster.Cluster
	reader   *cluster.Reader
	topics   *topicCatalog
	schemas  *schemaRegistry // nil in a format without
	lanes    *laneSet
	former   formerLayouts
	acks     *ackLog
	restored bool // RestoreState was called: what this process knows is newer than what is stored

	fence   atomic.Pointer[fence] // the right to publish; nil without idempotence
	journal journalFence          // that of a sink that was not fenced

	producerChangedAt time.Time // when Fence first got another producer ID than earlier processes; zero: it did not

	timestamps *timestampCondition
	codecs     *compressionChoice
	runCtx     context.Context
	cancelRun  context.CancelFunc
	background sync.WaitGroup
}

var _ interface {
	sinks.Router
	sinks.MultiDestination
	sinks.Concurrent
	sinks.Batched
	sinks.Pinger
	sinks.ConditionReporter
	sinks.LaneReleaser
	sinks.Repartitioner
	sinks.SettleObserver
	sinks.SizeAnnouncer
	sinks.Stateful
	sinks.Fenced
	sinks.StateOpener
} = (*Sink)(nil)

// New returns a sink for cfg that writes changes in the format f. It validates cfg and reads the files that it names. It
// opens no connection: an unreachable cluster is an [sinks.UnavailableError] of the first call. The caller closes the sink.
func New(cfg Config, f format.Format, log *slog.Logger) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	codecs := newCompressionChoice(cfg.Compression, log)
	cfg = cfg.withDefaults()
	if err := cfg.validateFormat(f); err != nil {
		return nil, err
	}
	template, err := sinks.ParseTemplate(cfg.Topic)
	if err != nil {
		return nil, fmt.Errorf("kafka.topic: %w", err)
	}
	encoders, err := newEncoderPool(f, cfg.Tombstones, record.Codecs[cfg.Compression], runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	c, err := cluster.New(cfg.clusterOptions(), log)
	if err != nil {
		return nil, err
	}
	s := &Sink{config: cfg, log: log, cluster: c, reader: cluster.NewReader(c), codecs: codecs,
		timestamps: &timestampCondition{condition: condition.New(log, "", condition.Problem{})}}
	s.journal.sink = s
	s.runCtx, s.cancelRun = context.WithCancel(context.Background())
	s.acks = newAckLog(s.runCtx, s.background.Go, c, s.reader, log)
	if s.schemas, err = newSchemaRegistry(cfg, f, log); err != nil {
		return nil, errors.Join(err, c.Close(context.Background()))
	}
	checker := &topicChecker{config: cfg, format: f, cluster: c, log: log, warned: map[string]struct{}{}, faults: map[string]string{}}
	s.topics = &topicCatalog{cluster: c, create: cfg.CreateTopics, checker: checker, schemas: s.schemas, topics: map[string]*topic{}}
	s.router = &router{
		template: template, topics: s.topics, runCtx: s.runCtx, background: s.background.Go, former: s.former.partitionsOf,
		confirmAcks: s.acks.confirmAll, routes: map[string]*route{}, layoutCheckInterval: layoutMaxAge,
	}
	s.lanes = &laneSet{
		config: cfg, log: log, cluster: c, reader: s.reader, topics: s.topics, encoders: encoders, codecs: codecs, fence: &s.fence,
		acks: s.acks, former: s.former.partitionsOf, timestamps: s.timestamps, byName: map[sinks.Lane]*lane{}, waiting: map[string]*waitingPublisher{},
	}
	s.lanes.retained.releaseBytes(maxRetainedBytes)
	if cfg.isIdempotent() { // its transactional ID counts until one was restored
		s.journal.current.Store(s.journal.newFence())
		s.fence.Store(s.journal.current.Load())
	}
	return s, nil
}

// Close closes all connections within ctx.
func (s *Sink) Close(ctx context.Context) error {
	s.cancelRun()
	s.background.Wait()
	s.timestamps.condition.Close()
	s.codecs.condition.Close()
	if err := s.cluster.Close(ctx); err != nil {
		return fmt.Errorf("closing connections to Kafka: %w", err)
	}
	return nil
}

// Publish writes a batch to the partition of a lane. See [sinks.Sink].
func (s *Sink) Publish(ctx context.Context, name sinks.Lane, batch []sinks.Message) (int, error) {
	if topic, ok := topicOfWaitingLane(name); ok {
		return s.lanes.waitingPublisher(topic).publishBatch(ctx, batch)
	}
	l, err := s.lanes.laneByName(name)
	if err != nil {
		return 0, err
	}
	return l.publishBatch(ctx, batch)
}

// Concurrency implements [sinks.Concurrent].
func (s *Sink) Concurrency() int { return publishConcurrency }

// BatchLimits implements [sinks.Batched]. A call gets twice the messages that may be in flight, so that as many still are
// when it returns. The bytes leave 4 % for what a record has in addition to the change, so that the last change does not
// begin another batch.
func (s *Sink) BatchLimits() (messages int, bytes int64) {
	batches := 2 * maxInFlight
	if !s.config.isIdempotent() {
		batches = 1
	}
	return batches * messagesPerBatch, int64(batches) * int64(s.config.BatchBytes) / 25 * 24
}

// Conditions implements [sinks.ConditionReporter]: a quota, refused timestamps or compression, and settings of topics with
// which changes may be lost.
func (s *Sink) Conditions() []condition.Status {
	all := []condition.Status{s.cluster.Throttling(), s.timestamps.status(), s.codecs.condition.Status()}
	rights := ""
	if f := s.fence.Load(); f != nil {
		rights = f.rights.warning()
	}
	for _, reason := range []string{rights, s.topics.checker.warning()} {
		if reason != "" {
			all = append(all, condition.NewStatus("", condition.Problem{Code: condition.SinkMayLose, Cause: reason}))
		}
	}
	return all
}

// Ping implements [sinks.Pinger]. With a fixed topic it first looks that up, until it is found, and creates or checks it as
// configured.
func (s *Sink) Ping(ctx context.Context) error {
	if err := s.acks.lostError(); err != nil {
		return err
	}
	if s.router.template.IsConstant() {
		if t := s.topics.topicByName(s.router.template.String()); t.layout.Load() == nil {
			if _, err := s.topics.refreshLayout(ctx, t, nil); err != nil {
				return err
			}
		}
	}
	var err error
	for range pingTries {
		if err = s.cluster.Ping(ctx); err == nil {
			if f := s.fence.Load(); f != nil {
				f.checkGranted(ctx)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.cluster.SinkError(ctx, "", err)
}

// CheckServers implements [sinks.ServerChecker].
func (s *Sink) CheckServers(ctx context.Context) error {
	return errors.Join(s.cluster.CheckBrokers(ctx), s.schemas.checkServer(ctx))
}

// StandsForSeveral implements [sinks.LaneLister]: the waiting lane stands for all partitions of its topic.
func (*Sink) StandsForSeveral(lane sinks.Lane) bool {
	_, waiting := topicOfWaitingLane(lane)
	return waiting
}

// DestinationOf implements [sinks.MultiDestination]: a destination is a topic.
func (*Sink) DestinationOf(lane sinks.Lane) string { return topicOfLane(lane) }

// SharesObjects implements [sinks.Fenced]. Keys are assigned to partitions by a hash modulo their number.
func (*Sink) SharesObjects(a, b sinks.Lane) bool {
	if topicOfLane(a) != topicOfLane(b) {
		return false
	}
	one, ok := parseRecordedLane(a)
	other, known := parseRecordedLane(b)
	return !ok || !known ||
		sinks.SharesHashes(uint64(one.Index), uint64(one.of.Partitions), uint64(other.Index), uint64(other.of.Partitions))
}

// ApplyRepartition implements [sinks.Repartitioner].
func (s *Sink) ApplyRepartition(r sinks.Repartition) {
	if s.router.applyRepartition(r) {
		s.lanes.releaseLanes(r.From)
	}
}

// ReleaseLanes implements [sinks.LaneReleaser]. A topic without used lanes is dropped too.
func (s *Sink) ReleaseLanes(lanes []sinks.Lane) {
	s.lanes.releaseLanes(lanes)
	s.router.releaseLanes(lanes)
}

// RestoreState implements [sinks.Stateful]. A restart is a take-over from oneself: under the stored transactional ID, each
// lane turns away what the previous process had in flight to its partition, and reads there what of that has arrived.
func (s *Sink) RestoreState(stored []byte, newest uint64, save func(ctx context.Context) error) error {
	if cuts := s.acks.acceptLoss(); cuts != nil {
		if f := s.fence.Load(); f != nil {
			f.recordLost(cuts)
		}
		s.lanes.recordLost(cuts)
	}
	restored := s.restored
	if s.restored = true; restored {
		return nil
	}
	s.journal.save.Store(&save)
	if len(stored) == 0 {
		return nil
	}
	previous := storedParts{schemas: s.schemas.stored()}
	if err := form.DecodeValue("state of a Kafka sink", stored, codeState, &previous); err != nil {
		return err
	}
	if f := s.journal.current.Load(); f != nil {
		f.resume(previous)
	}
	s.schemas.restore(previous.schemas)
	trusted := newest > 0 && !s.fence.Load().isReplicated() // otherwise it was something else, or the tails hold what was in flight
	if s.acks.restore(previous.acks, newest, trusted); trusted {
		s.former.restore(previous.acks, newest)
	}
	return nil
}

// State implements [sinks.Stateful].
func (s *Sink) State(uint64) []byte {
	parts := s.journal.current.Load().storedParts()
	parts.schemas = s.schemas.stored()
	return s.acks.encodeState(parts)
}

// ObserveSettled implements [sinks.SettleObserver].
func (s *Sink) ObserveSettled(low uint64) { s.former.recordSettled(low) }

// OpenState implements [sinks.StateOpener]: name is a topic.
func (s *Sink) OpenState(name string) (sinks.StateStore, error) {
	if err := checkTopicName([]byte(name)); err != nil {
		return nil, fmt.Errorf("state.name: %w", err)
	}
	return state.New(s.cluster, name, s.config.CreateTopics.ReplicationFactor, s.log)
}
