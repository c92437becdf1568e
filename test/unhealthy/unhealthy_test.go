package unhealthy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/parts/await"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/leaks"
	"github.com/kubecdc/kubecdc/test/parts/logs"
	"github.com/kubecdc/kubecdc/test/parts/require"
	"github.com/kubecdc/kubecdc/test/parts/wire"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const (
	topicCount  = 10
	waitTimeout = 5 * time.Minute
	// maxRejections is how many changes a topic that rejects everything turns into dead letters.
	maxRejections = 20
)

// runSize returns how long the failure lasts, and the rate of changes per second. Rates are compared only if UNHEALTHY_FOR
// is set, on an otherwise idle machine.
func runSize(t *testing.T) (lasts time.Duration, rate int, full bool) {
	t.Helper()
	text := os.Getenv("UNHEALTHY_FOR")
	if text == "" {
		return 2 * time.Second, 300, false
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("UNHEALTHY_FOR: %v", err)
	}
	return d, 3000, true
}

// countingSink counts the changes that each topic accepted, and checks their order.
type countingSink struct {
	*kafka.Sink
	t        *testing.T
	accepted [topicCount]atomic.Int64

	mu   sync.Mutex
	last map[string]uint64 // by object: a topic may get more partitions
}

func (c *countingSink) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	n, err := c.Sink.Publish(ctx, lane, batch)
	topic, _, _ := strings.Cut(string(lane), "/")
	c.accepted[topic[len(topic)-1]-'0'].Add(int64(n))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range batch[:n] {
		object := m.Change.Key()
		if m.Offset <= c.last[object] {
			c.t.Errorf("topic %s: %s: %d after %d", topic, object, m.Offset, c.last[object])
		}
		c.last[object] = m.Offset
	}
	return n, err
}

// acceptedByTopic returns how many changes each topic has accepted so far.
func (c *countingSink) acceptedByTopic() (all [topicCount]int64) {
	for i := range all {
		all[i] = c.accepted[i].Load()
	}
	return all
}

// sinkJournal is the journal of one pipeline.
type sinkJournal struct{ *journal.Journal }

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.Journal.Settle(ctx, "kafka", c, dead)
}

// cluster is one or more brokers with ten topics of a scenario, and a journal and a pipeline that deliver to them.
type cluster struct {
	t             *testing.T
	topic         string // how the names of the topics begin
	client        *kafkago.Client
	brokers       broker.Brokers
	proxies       []*wire.Wire // to each broker
	failingTopics int          // topics that the last broker leads; the others share the rest
	body          func(topic int) []byte
	journal       *journal.Journal
	sink          *countingSink
	pipeline      *delivery.Pipeline
	appended      atomic.Int64 // changes appended
}

var smallBody = []byte(`{"kind":"Pod","spec":"` + strings.Repeat("kubecdc", 150) + `"}`)

// of returns the same brokers with other topics, so many of which fail.
func (w *cluster) of(t *testing.T, topic string, failing int) *cluster {
	return &cluster{t: t, topic: topic, client: w.client, brokers: w.brokers, proxies: w.proxies, failingTopics: failing,
		body: func(int) []byte { return smallBody }}
}

// newCluster starts so many brokers, each behind a proxy of its own. The last one leads the failing topics.
func newCluster(t *testing.T, brokers int) *cluster {
	t.Helper()
	require.Integration(t)
	require.Program(t, "java", "install Java 17 or later")
	w := &cluster{t: t}
	for range brokers {
		road, err := wire.New(0)
		w.mustSucceed(err)
		w.proxies = append(w.proxies, road)
	}
	var err error
	w.brokers, err = broker.StartDiffering(t.Context(), t.TempDir(), brokers, func(id int) map[string]string {
		properties := map[string]string{"advertised.listeners": "PLAINTEXT://" + w.proxies[id-1].Address()}
		if brokers == 1 { // with several brokers, their controllers would need ACLs as well
			properties["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
			properties["allow.everyone.if.no.acl.found"] = "true"
		}
		return properties
	})
	w.mustSucceed(err)
	t.Cleanup(func() { w.mustSucceed(w.brokers.Kill()) })
	var traffic sync.WaitGroup
	for i, b := range w.brokers {
		traffic.Go(func() {
			if err := w.proxies[i].Serve(b.Address()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		for _, road := range w.proxies {
			road.Close()
		}
		traffic.Wait()
	})
	transport := &kafkago.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &kafkago.Client{Addr: kafkago.TCP(w.brokers[0].Address()), Transport: transport}
	return w
}

func (w *cluster) mustSucceed(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// topicName names one of the topics.
func (w *cluster) topicName(i int) string { return fmt.Sprint(w.topic, ".t", i) }

// failingTopic names the last of the topics.
func (w *cluster) failingTopic() string { return w.topicName(topicCount - 1) }

// createTopic creates a topic of one partition on the broker that will lead it.
func (w *cluster) createTopic(i int) {
	w.t.Helper()
	leader := len(w.brokers)
	if i < topicCount-w.failingTopics {
		leader = 1 + i%max(1, leader-1)
	}
	request := kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: w.topicName(i), NumPartitions: -1, ReplicationFactor: -1,
		ReplicaAssignments: []kafkago.ReplicaAssignment{{Partition: 0, Replicas: []int{leader}}},
		ConfigEntries:      []kafkago.ConfigEntry{{ConfigName: "min.insync.replicas", ConfigValue: "1"}}}}}
	w.awaitCondition("the topic is created", func() bool { // an overloaded broker may be unreachable for a moment
		r, err := w.client.CreateTopics(w.t.Context(), &request)
		return err == nil && (r.Errors[w.topicName(i)] == nil || errors.Is(r.Errors[w.topicName(i)], kafkago.TopicAlreadyExists))
	})
}

// growFailingTopic gives the last topic two more partitions, which other brokers lead.
func (w *cluster) growFailingTopic() {
	w.t.Helper()
	w.awaitCondition("the topic has grown", func() bool { // the client may ask the stopped broker first
		r, err := w.client.CreatePartitions(w.t.Context(), &kafkago.CreatePartitionsRequest{Topics: []kafkago.TopicPartitionsConfig{{
			Name: w.failingTopic(), Count: 3, TopicPartitionAssignments: []kafkago.TopicPartitionAssignment{{BrokerIDs: []int32{1}}, {BrokerIDs: []int32{2}}},
		}}})
		return err == nil && (r.Errors[w.failingTopic()] == nil || errors.Is(r.Errors[w.failingTopic()], kafkago.InvalidPartitionNumber)) // it has three
	})
}

// setMaxMessageBytes sets max.message.bytes of the failing topic.
func (w *cluster) setMaxMessageBytes(bytes string) {
	w.t.Helper()
	w.awaitCondition("the topic is altered", func() bool {
		r, err := w.client.IncrementalAlterConfigs(w.t.Context(), &kafkago.IncrementalAlterConfigsRequest{Resources: []kafkago.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafkago.ResourceTypeTopic, ResourceName: w.failingTopic(),
			Configs: []kafkago.IncrementalAlterConfigsRequestConfig{{Name: "max.message.bytes", Value: bytes, ConfigOperation: kafkago.ConfigOperationSet}},
		}}})
		return err == nil && r.Resources[0].Error == nil
	})
}

// denyOperation denies an operation on the failing topic.
func (w *cluster) denyOperation(operation kafkago.ACLOperationType) {
	w.t.Helper()
	w.awaitCondition("the right is taken away", func() bool {
		r, err := w.client.CreateACLs(w.t.Context(), &kafkago.CreateACLsRequest{ACLs: []kafkago.ACLEntry{{
			ResourceType: kafkago.ResourceTypeTopic, ResourceName: w.failingTopic(), ResourcePatternType: kafkago.PatternTypeLiteral,
			Principal: "User:ANONYMOUS", Host: "*", Operation: operation, PermissionType: kafkago.ACLPermissionTypeDeny,
		}}})
		return err == nil && errors.Join(r.Errors...) == nil
	})
}

// hideTopic denies DESCRIBE on the failing topic and waits until the broker applies that, which is later than its response:
// a client that has seen the topic continues to write to it.
func (w *cluster) hideTopic() {
	w.t.Helper()
	w.denyOperation(kafkago.ACLOperationTypeDescribe)
	w.awaitCondition("the topic is hidden", func() bool {
		_, err := w.readPartitions(w.failingTopic())
		return errors.Is(err, kafkago.TopicAuthorizationFailed)
	})
}

// readPartitions asks the first broker for the partitions of a topic. The shared client would answer from its cache.
func (w *cluster) readPartitions(of string) ([]kafkago.Partition, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	c, err := kafkago.DialContext(ctx, "tcp", w.brokers[0].Address())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.ReadPartitions(of)
}

// removeACLs removes all denials on the failing topic.
func (w *cluster) removeACLs() {
	w.t.Helper()
	w.awaitCondition("the rights are back", func() bool {
		r, err := w.client.DeleteACLs(w.t.Context(), &kafkago.DeleteACLsRequest{Filters: []kafkago.DeleteACLsFilter{{
			ResourceTypeFilter: kafkago.ResourceTypeTopic, ResourceNameFilter: w.failingTopic(), ResourcePatternTypeFilter: kafkago.PatternTypeLiteral,
			PrincipalFilter: "User:ANONYMOUS", HostFilter: "*", Operation: kafkago.ACLOperationTypeAny, PermissionType: kafkago.ACLPermissionTypeAny,
		}}})
		return err == nil && r.Results[0].Error == nil
	})
}

// startPipeline runs a journal and a pipeline, as the exporter does.
func (w *cluster) startPipeline(log *slog.Logger) {
	w.t.Helper()
	j, err := journal.Open(journal.Options{Dir: w.t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"kafka"}}, Logger: slog.New(slog.DiscardHandler)})
	w.mustSucceed(err)
	w.journal = j
	s, err := kafka.New(kafka.Config{Brokers: []string{w.client.Addr.String()}, Topic: w.topic + ".{namespace}"}, format.JSON, log)
	w.mustSucceed(err)
	w.sink = &countingSink{Sink: s, t: w.t, last: map[string]uint64{}}
	messages, bytes := s.BatchLimits()
	w.pipeline = delivery.New("kafka", w.sink, "", sinkJournal{j}, event.Cursor{}, delivery.Config{
		Retry:   delivery.RetryConfig{Min: 100 * time.Millisecond, Max: 5 * time.Second},
		Workers: s.Concurrency(), BatchMessages: messages, BatchBytes: bytes, Truncate: shape.TruncateOnce,
	}, log)
	ctx, stop := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := j.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	parts.Go(func() {
		if err := w.pipeline.Run(ctx); err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() {
		stop()
		parts.Wait()
		if err := errors.Join(s.Close(context.Background()), j.Close()); err != nil {
			w.t.Error(err)
		}
	})
}

// appendChanges appends changes at a rate, one of each topic in turn, until ctx ends.
func (w *cluster) appendChanges(ctx context.Context, rate int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for began, n := time.Now(), 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for ; n < int(time.Since(began).Seconds()*float64(rate)); n++ {
			c := &event.Change{
				Type: event.Updated, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
				Namespace: fmt.Sprint("t", n%topicCount), Name: fmt.Sprint("o", n/topicCount%20), UID: fmt.Sprint("u", n%topicCount, n/topicCount%20),
				ResourceVersion: fmt.Sprint(n + 1), ObservedAt: time.Now().UTC(), After: w.body(n % topicCount),
			}
			if err := w.journal.Append(ctx, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
				if ctx.Err() == nil {
					w.t.Error(err)
				}
				return
			}
			w.appended.Add(1)
		}
	}
}

// awaitCondition waits for a condition.
func (w *cluster) awaitCondition(what string, is func() bool) {
	w.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !is(); <-tick.C {
		if time.Since(begun) > waitTimeout {
			if w.pipeline != nil {
				w.t.Logf("%+v", w.pipeline.Stats())
			}
			w.t.Fatalf("timed out waiting: %s", what)
		}
	}
}

// awaitWhileReady waits while the failure lasts, which may be longer than waitTimeout, and checks that the sink is ready all
// the time.
func (w *cluster) awaitWhileReady(lasts time.Duration) {
	w.t.Helper()
	over, tick := time.After(lasts), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			if c := w.pipeline.Stats().Condition; c.Severity == condition.NotReady {
				w.t.Fatalf("not ready, although most topics are healthy: %+v", c)
			}
		}
	}
}

// liveHeapMiB returns the live heap in MiB: the least of several samples, because caches and batches in flight vary.
func liveHeapMiB(t *testing.T) float64 {
	least := math.Inf(1)
	for range 20 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, float64(m.HeapAlloc)/(1<<20))
		await.Pause(t, 20*time.Millisecond)
	}
	return least
}

// scenario is one failure of some topics, or of the broker that leads them.
type scenario struct {
	name           string
	topics         int              // that fail, the last ones
	prepare        func(w *cluster) // before anything is published
	start          func(w *cluster) // when everything is published; nil: nothing does
	reasons        []string         // one of these is part of the reported reason
	slow           bool             // the failing topics still take changes, and no lane fails
	end            func(w *cluster)
	maxDeadLetters int64         // at most so many changes become dead letters
	recoveryTime   time.Duration // bound from the end of the failure to the first change that each topic accepts; 0: the back-off bounds it
}

func TestOneFailingTopicOfTenCostsTheOthersNothing(t *testing.T) {
	require.Long(t)
	w, rights := newCluster(t, 1), []string{"grant WRITE and DESCRIBE"}
	for _, s := range []scenario{
		{name: "missing", reasons: []string{"does not exist"}, prepare: func(*cluster) {}, end: func(w *cluster) { w.createTopic(topicCount - 1) }},
		{
			name: "without WRITE", reasons: rights,
			prepare: func(w *cluster) { w.createTopic(topicCount - 1); w.denyOperation(kafkago.ACLOperationTypeWrite) }, end: (*cluster).removeACLs,
		},
		{
			name: "without DESCRIBE", reasons: rights,
			prepare: func(w *cluster) { w.createTopic(topicCount - 1); w.hideTopic() }, end: (*cluster).removeACLs,
		},
		{
			name: "too small", reasons: []string{"every change is rejected and none accepted"}, maxDeadLetters: maxRejections,
			prepare: func(w *cluster) { w.createTopic(topicCount - 1); w.setMaxMessageBytes("10") }, end: func(w *cluster) { w.setMaxMessageBytes("1048588") },
		},
	} {
		s.topics = 1
		t.Run(s.name, func(t *testing.T) { runScenario(t, w, s) })
	}
}

func TestOneFailingBrokerOfThreeCostsTheOthersNothing(t *testing.T) {
	require.Long(t)
	const soon = 2 * time.Second
	w, away := newCluster(t, 3), []string{"does not answer", "Leader Not Available"}
	for _, s := range []scenario{
		{name: "frozen", topics: 3, reasons: away, start: func(w *cluster) { w.mustSucceed(w.failingBroker().Process().Freeze()) }, end: func(w *cluster) { w.mustSucceed(w.failingBroker().Process().Resume()) }, recoveryTime: soon},
		{name: "killed", topics: 3, reasons: away, start: func(w *cluster) { w.mustSucceed(w.failingBroker().Kill()) }, end: func(w *cluster) { w.mustSucceed(w.failingBroker().Restart(w.t.Context())) }, recoveryTime: soon},
		{
			name: "killed while its topic grows", topics: 1, reasons: away, start: func(w *cluster) { w.mustSucceed(w.failingBroker().Kill()); w.growFailingTopic() },
			end: func(w *cluster) { w.mustSucceed(w.failingBroker().Restart(w.t.Context())) }, recoveryTime: soon,
		},
		{name: "slow by 2 s", topics: 3, slow: true, start: func(w *cluster) { w.proxies[2].Delay(time.Second) }, end: func(w *cluster) { w.proxies[2].Delay(0) }, recoveryTime: 2 * soon},
		{name: "throttled", topics: 1, slow: true, prepare: (*cluster).enlargeAndLimit, end: func(w *cluster) { w.setQuota(0, true) }},
	} {
		t.Run(s.name, func(t *testing.T) { runScenario(t, w, s) })
	}
}

// failingBroker is the broker that fails.
func (w *cluster) failingBroker() *broker.Broker { return w.brokers[len(w.brokers)-1] }

// enlargeAndLimit makes the changes of the last topic so large that they exceed a quota, which each broker applies
// separately.
func (w *cluster) enlargeAndLimit() {
	w.createTopic(topicCount - 1)
	w.body = func(topic int) []byte {
		if topic < topicCount-1 {
			return smallBody
		}
		body := append(make([]byte, 0, 6<<10), `{"kind":"Pod","spec":"`...)
		for len(body) < 6<<10-2 {
			body = strconv.AppendUint(body, rand.Uint64(), 36)
		}
		return append(body, `"}`...)
	}
	_, rate, _ := runSize(w.t)
	w.setQuota(float64(300*rate), false)
}

// setQuota sets or removes the quota of bytes per second that each broker applies to the exporter.
func (w *cluster) setQuota(bytes float64, remove bool) {
	w.t.Helper()
	w.awaitCondition("the quota is set", func() bool {
		r, err := w.client.AlterClientQuotas(w.t.Context(), &kafkago.AlterClientQuotasRequest{Entries: []kafkago.AlterClientQuotaEntry{{
			Entities: []kafkago.AlterClientQuotaEntity{{EntityType: "client-id", EntityName: "kubecdc"}},
			Ops:      []kafkago.AlterClientQuotaOps{{Key: "producer_byte_rate", Value: bytes, Remove: remove}},
		}}})
		return err == nil && r.Entries[0].Error == nil
	})
}

// sumCounts returns the sum of counts.
func sumCounts(counts []int64) (all int64) {
	for _, n := range counts {
		all += n
	}
	return all
}

// runScenario plays a failure on the brokers, with topics of its own.
func runScenario(t *testing.T, on *cluster, s scenario) {
	w := on.of(t, strings.ReplaceAll(s.name, " ", "-"), s.topics)
	duration, rate, full := runSize(t)
	well := topicCount - s.topics
	for i := range well {
		w.createTopic(i)
	}
	if s.prepare != nil {
		s.prepare(w)
	}
	log := &logs.Buffer{}
	ctx, stop := context.WithCancel(t.Context())
	var loader sync.WaitGroup
	if s.start != nil {
		for i := well; i < topicCount; i++ {
			w.createTopic(i)
		}
	}
	w.startPipeline(slog.New(slog.NewTextHandler(log, nil)))
	loader.Go(func() { w.appendChanges(ctx, rate) })
	defer loader.Wait()
	defer stop()
	if s.start != nil {
		w.awaitCondition("all topics take changes", func() bool { c := w.sink.acceptedByTopic(); return slices.Min(c[:]) > 0 })
		s.start(w)
	}

	w.awaitCondition("the failure is reported", func() bool {
		stats := w.pipeline.Stats()
		reported := s.slow || slices.ContainsFunc(s.reasons, func(text string) bool {
			return slices.ContainsFunc(stats.Conditions(), func(c condition.Status) bool { return strings.Contains(c.Text(time.Now()), text) })
		})
		return stats.Condition.Severity != condition.NotReady && reported && w.sink.acceptedByTopic()[0] > 0
	})
	early := liveHeapMiB(t)
	before, began := w.sink.acceptedByTopic(), time.Now()
	w.awaitWhileReady(duration)
	after, lasted := w.sink.acceptedByTopic(), time.Since(began).Seconds()
	late := liveHeapMiB(t)
	least := 1.0
	for i := range well {
		least = min(least, float64(after[i]-before[i])/(float64(rate)/topicCount*lasted))
	}
	t.Logf("failing for %.0f s: each healthy topic kept at least %.2f of its rate; heap %.0f MiB, then %.0f MiB", lasted, least, early, late)
	if got := sumCounts(after[well:]) - sumCounts(before[well:]); got != 0 && !s.slow {
		t.Errorf("the failing topics accepted %d changes", got)
	}
	if full && least < 0.95 {
		t.Errorf("the healthy topics kept %.2f of their rate", least)
	}
	if full && late > early+32 {
		t.Errorf("the heap grew from %.0f to %.0f MiB", early, late)
	}

	s.end(w)
	began = time.Now()
	start := w.sink.acceptedByTopic()
	w.awaitCondition("the recovered topics take changes", func() bool {
		now := w.sink.acceptedByTopic()
		for i := well; i < topicCount; i++ {
			if now[i] == start[i] {
				return false
			}
		}
		return true
	})
	recovered := time.Since(began)
	if full && s.recoveryTime > 0 && recovered > s.recoveryTime {
		t.Errorf("the recovered topics accepted changes after %v, want %v", recovered, s.recoveryTime)
	}
	began = time.Now()
	backlog := w.appended.Load() / topicCount * int64(s.topics)
	missing := backlog - sumCounts(start[well:])
	w.awaitCondition("it has caught up", func() bool { now := w.sink.acceptedByTopic(); return sumCounts(now[well:])+s.maxDeadLetters >= backlog })
	took := time.Since(began).Seconds()
	live, end := float64(rate)/topicCount*float64(s.topics), w.sink.acceptedByTopic()
	pace := float64(sumCounts(end[well:])-sumCounts(start[well:])) / took
	t.Logf("recovered: changes after %v; then %.0f a second for %.1f s, %.1f times the live rate; the others %.2f of theirs", recovered.Round(time.Millisecond),
		pace, took, pace/live, float64(sumCounts(end[:well])-sumCounts(start[:well]))/(took+recovered.Seconds())/(float64(rate)-live))
	if full && float64(missing) > 30*live && pace < 10*live { // a small backlog is gone while a broker still throttles
		t.Errorf("it caught up at %.0f changes a second, want %.0f", pace, 10*live)
	}
	stop()
	loader.Wait()
	made := w.appended.Load()
	w.awaitCondition("all is delivered", func() bool {
		c := w.pipeline.Stats()
		return c.Low >= uint64(made) && c.Pending == 0 && c.LanesLagging == 0 && c.Condition.OK()
	})
	all := w.sink.acceptedByTopic()
	if dead := int64(w.pipeline.Stats().DeadLetters); sumCounts(all[:])+dead != made || dead > s.maxDeadLetters {
		t.Errorf("%d delivered and %d dead of %d", sumCounts(all[:]), dead, made)
	}
}
