package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
	broker "github.com/kubecdc/kubecdc/test/parts/kafka"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// startThreeBrokers starts a real cluster of three brokers; topics have three replicas, and two in sync.
func startThreeBrokers(t *testing.T) broker.Brokers {
	t.Helper()
	return startThreeBrokersWith(t, nil)
}

func startThreeBrokersWith(t *testing.T, properties map[string]string) broker.Brokers {
	t.Helper()
	return startKafkaIn(t, t.TempDir(), 3, broker.Options{Properties: properties})
}

// TestThreeBrokersLoseAndRepeatNothing kills brokers in turn, moves leaders back when they return, and kills the sink with
// several batches of each partition in flight, while all lanes publish. FULL_SIZE makes it long.
func TestThreeBrokersLoseAndRepeatNothing(t *testing.T) {
	require.Long(t)
	t.Parallel()
	const partitions = 3
	kills, least, most := 2, 0, 10
	if records := fullSize(t); records > 0 {
		kills, least, most = 6, records/partitions, 50
	}
	cluster := startThreeBrokers(t)
	cfg := Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 5 * time.Second, BatchBytes: minBatchBytes,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}}
	waitForTopic(t, openSink(t, cfg))

	run := &publishRun{t: t, maxMessages: most, done: make([]atomic.Int64, partitions), cursors: make([]int64, partitions)}
	for round := range kills {
		end := run.startSink(cfg, math.MaxInt32)
		run.awaitProgress()
		victim := cluster[round%len(cluster)]
		if err := errors.Join(run.store(t.Context()), victim.Kill()); err != nil {
			t.Fatal(err)
		}
		run.awaitProgress()
		restartBroker(t, victim)
		electLeaders(t, cfg.Brokers, partitions)
		run.awaitProgress()
		end()
		run.resume()
	}
	last := max(int64(run.newest)+100, int64(least))
	run.startSink(cfg, last)
	run.lanes.Wait()
	t.Logf("%d records, %d kills", last*partitions, kills)
	wantStreams(t, readTopics(t, cfg.Brokers, topicA), partitions, int(last))
}

// TestAFrozenBrokerIsAwayForItsPartitionsOnly freezes one of three brokers. It leads partitions without other replicas, and
// the controller does not declare it dead. While a message waits for it, the other partitions make progress.
func TestAFrozenBrokerIsAwayForItsPartitionsOnly(t *testing.T) {
	t.Parallel()
	const partitions = 6
	cluster := startThreeBrokersWith(t, map[string]string{"broker.session.timeout.ms": "600000"})
	s := openSink(t, Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 30 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions, ReplicationFactor: 1,
			Configs: []TopicConfig{{Name: "min.insync.replicas", Value: "1"}}}})
	waitForTopic(t, s)
	lane := func(p int) sinks.Lane { return laneName(topicA, int32(p), partitions) }
	last := make([]int, partitions)
	more := func(p, count int) {
		t.Helper()
		publishUntilAccepted(t, s, lane(p), pods("p"+itoa(p), last[p]+1, last[p]+1+count))
		last[p] += count
	}
	for p := range partitions {
		more(p, 10)
	}
	victim := cluster[1]
	var theirs, ours []int
	for p, lead := range s.topics.topicByName(topicA).layout.Load().Leads {
		if lead.Broker == int32(victim.ID()) {
			theirs = append(theirs, p)
		} else {
			ours = append(ours, p)
		}
	}
	if len(theirs) == 0 || len(ours) == 0 {
		t.Fatalf("broker %d leads %v of %d", victim.ID(), theirs, partitions)
	}
	if err := victim.Process().Freeze(); err != nil {
		t.Fatal(err)
	}
	frozen := theirs[0]
	failed := make(chan error, 1)
	go func() {
		_, err := s.Publish(t.Context(), lane(frozen), pods("p"+itoa(frozen), last[frozen]+1, last[frozen]+11))
		failed <- err
	}()
	others := func() {
		for _, p := range ours {
			mustPublish(t, s, lane(p), pods("p"+itoa(p), last[p]+1, last[p]+11)) // at the first attempt
			last[p] += 10
		}
	}
	for range 3 {
		others()
	}
	select {
	case err := <-failed:
		t.Errorf("the others waited for the frozen broker, which was given up: %v", err)
	default:
		pace := time.NewTicker(100 * time.Millisecond)
		defer pace.Stop()
		for waiting := true; waiting; {
			select {
			case err := <-failed:
				if waiting = false; err == nil {
					t.Error("a frozen broker has answered")
				}
			case <-pace.C:
				others()
			}
		}
	}
	others()
	var away *sinks.ProbedError
	_, err := s.Publish(t.Context(), lane(frozen), pods("p"+itoa(frozen), last[frozen]+1, last[frozen]+11))
	if !errors.As(err, &away) {
		t.Errorf("a broker that is away: %v", err)
	}
	if err := victim.Process().Resume(); err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		more(p, 100-last[p]%100)
	}
	for p := range partitions {
		more(p, slices.Max(last)-last[p])
	}
	wantStreams(t, readTopics(t, cluster.Brokers(), topicA), partitions, slices.Max(last))
}

// fullSize is the number of records in FULL_SIZE; 0 if it is not set.
func fullSize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("FULL_SIZE")
	if text == "" {
		return 0
	}
	records, err := strconv.Atoi(text)
	if err != nil || records < 10_000 {
		t.Fatalf("FULL_SIZE is %q; expected a number of records, 10000 at least", text)
	}
	return records
}

// publishRun is what successive sinks of a test publish, and what is stored of it, as delivery does: the state of the sink
// with earlier cursors.
type publishRun struct {
	t           *testing.T
	maxMessages int // messages published at once
	sink        *Sink
	lanes       sync.WaitGroup

	done []atomic.Int64 // messages acknowledged, by partition

	mu      sync.Mutex
	cursors []int64
	state   []byte
	newest  uint64 // that was given to a sink
}

// startSink starts a sink that continues from the stored cursors up to last. The returned function kills it with messages in
// flight.
func (c *publishRun) startSink(cfg Config, last int64) (end func()) {
	c.t.Helper()
	c.sink = openSink(c.t, cfg)
	if err := c.sink.RestoreState(c.state, c.newest, c.store); err != nil {
		c.t.Fatal(err)
	}
	alive, die := context.WithCancel(c.t.Context())
	c.t.Cleanup(die)
	for p := range c.done {
		c.lanes.Go(func() { c.publish(alive, p, last) })
	}
	return func() { die(); c.lanes.Wait() }
}

// store stores state and cursors as a journal does.
func (c *publishRun) store(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.done {
		c.cursors[p] = c.done[p].Load()
	}
	c.state = c.sink.State(uint64(slices.Min(c.cursors)))
	return nil
}

// resume goes back to the stored cursors.
func (c *publishRun) resume() {
	for p := range c.done {
		c.newest = max(c.newest, uint64(c.done[p].Load())+uint64(c.maxMessages))
		c.done[p].Store(c.cursors[p])
	}
}

// publish publishes to a partition until last or the end of ctx, at a limited rate so that a long outage makes no long test.
func (c *publishRun) publish(ctx context.Context, p int, last int64) {
	lane := laneName(topicA, int32(p), len(c.done))
	pace := time.NewTicker(10 * time.Millisecond)
	defer pace.Stop()
	for ctx.Err() == nil && c.done[p].Load() < last {
		from := c.done[p].Load() + 1
		n, err := c.sink.Publish(ctx, lane, pods("p"+itoa(p), int(from), int(min(from+int64(c.maxMessages), last+1))))
		c.done[p].Add(int64(n))
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) {
			c.t.Errorf("partition %d: %v", p, err)
			return
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
	}
}

// awaitProgress waits until some partition has progressed by a few batches.
func (c *publishRun) awaitProgress() {
	c.t.Helper()
	const few = 5
	goal := make([]int64, len(c.done))
	for p := range goal {
		goal[p] = c.done[p].Load() + int64(few*c.maxMessages)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*testTimeout)
	defer cancel()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		for p := range goal {
			if c.done[p].Load() >= goal[p] {
				return
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			c.t.Fatal("no partition moves on")
		}
	}
}

// waitForTopic waits until the cluster has created the topic.
func waitForTopic(t *testing.T, s *Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		_, err := lookUp(t, s, pod("a", 1))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-pause.C
	}
}

// electLeaders makes the preferred replica of each partition the leader, if it is in sync.
func electLeaders(t *testing.T, brokers []string, partitions int) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		numbers := make([]int, partitions)
		for p := range numbers {
			numbers[p] = p
		}
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for {
			_, err := c.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: topicA, Partitions: numbers, Timeout: testTimeout})
			if err == nil || ctx.Err() != nil {
				return err
			}
			<-again.C
		}
	})
}

// TestAFrozenBrokerAtAFailoverStopsItsOwnLanesOnly freezes one of three brokers, which leads partitions without other
// replicas, and takes over twice. Lanes of the other brokers are fenced, read back and published to meanwhile; those of the
// frozen one follow when it runs again. Nothing is lost, twice or out of order. The log of the coordinator has no replica on
// the frozen broker: a coordinator waits for in-sync replicas until the controller removes them.
func TestAFrozenBrokerAtAFailoverStopsItsOwnLanesOnly(t *testing.T) {
	t.Parallel()
	const partitions = 6
	cluster := startThreeBrokersWith(t, map[string]string{"broker.session.timeout.ms": "600000",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"})
	cfg := Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 5 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions, ReplicationFactor: 1,
			Configs: []TopicConfig{{Name: "min.insync.replicas", Value: "1"}}}}
	lane := func(p int) sinks.Lane { return laneName(topicA, int32(p), partitions) }
	messages := func(p, from, count int) []sinks.Message { return pods("p"+itoa(p), from, from+count) }
	var lanes []sinks.Lane
	for p := range partitions {
		lanes = append(lanes, lane(p))
	}

	older := openSink(t, cfg)
	waitForTopic(t, older)
	mustFence(t, older, lanes...)
	for p := range partitions {
		publishUntilAccepted(t, older, lane(p), messages(p, 1, 10))
	}
	victim := cluster[0]
	if coordinatorOf(t, cfg.Brokers, "test-main") == victim.ID() { // without it nothing can be fenced until another one has its place
		victim = cluster[1]
	}
	var frozen, running []int
	for p, lead := range older.topics.topicByName(topicA).layout.Load().Leads {
		if lead.Broker == int32(victim.ID()) {
			frozen = append(frozen, p)
		} else {
			running = append(running, p)
		}
	}
	if len(frozen) == 0 || len(running) == 0 {
		t.Fatalf("broker %d leads %v of %d", victim.ID(), frozen, partitions)
	}
	if err := victim.Process().Freeze(); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceFunc(func() {
		if err := victim.Process().Resume(); err != nil {
			t.Error(err)
		}
	})
	defer resume()

	from, next := map[sinks.Lane]sinks.LanePosition{}, 11
	var newest *Sink
	for range 2 { // the second one finds nothing of the first one that is not finished
		newest = openSink(t, cfg)
		fenceInPart(t, newest, lanes) // a take-over fences twice if the older process records a lane meanwhile
		waiting := fenceInPart(t, newest, lanes)
		held := map[sinks.Lane]int{}
		clear(from)
		for p := range partitions {
			if from[lane(p)] = 0; (waiting[lane(p)] != nil) != slices.Contains(frozen, p) {
				t.Fatalf("partition %d of %v, which the frozen broker leads: %v", p, frozen, waiting[lane(p)])
			}
			if waiting[lane(p)] != nil {
				delete(from, lane(p))
			}
		}
		if err := tailOf(t, newest, from, func(l sinks.Lane, _ sinks.Emitted) error { held[l]++; return nil }); err != nil {
			t.Fatal(err)
		}
		for _, p := range running {
			if held[lane(p)] != next-1 {
				t.Errorf("the tail of partition %d has %d messages, want %d", p, held[lane(p)], next-1)
			}
			mustPublish(t, newest, lane(p), messages(p, next, 10))
			var deposed *sinks.DeposedError
			if n, err := older.Publish(t.Context(), lane(p), messages(p, next, 10)); n != 0 || !errors.As(err, &deposed) {
				t.Errorf("the older process published %d to partition %d: %v; want a DeposedError", n, p, err)
			}
		}
		for _, p := range frozen {
			if n, err := newest.Publish(t.Context(), lane(p), messages(p, 11, 1)); n != 0 || err == nil {
				t.Errorf("published %d to partition %d, which is not fenced: %v", n, p, err)
			}
		}
		next += 10
		older = newest
	}

	resume()
	clear(from)
	for _, p := range frozen {
		from[lane(p)] = 0
	}
	held := map[sinks.Lane]map[string]bool{}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	for len(from) > 0 && ctx.Err() == nil {
		for l := range from {
			held[l] = map[string]bool{}
		}
		waiting, err := newest.ReadTail(ctx, from, func(l sinks.Lane, e sinks.Emitted) error { held[l][e.ID] = true; return nil })
		if err != nil {
			t.Fatal(err)
		}
		for l := range from {
			if waiting[l] == nil {
				delete(from, l)
			}
		}
	}
	for _, p := range frozen {
		if len(held[lane(p)]) != 10 {
			t.Errorf("the tail of partition %d has %d messages, want 10", p, len(held[lane(p)]))
		}
		publishUntilAccepted(t, newest, lane(p), messages(p, 11, next-11))
	}
	wantStreams(t, readTopics(t, cfg.Brokers, topicA), partitions, next-1)
}

// TestAFrozenCoordinatorDelaysAFailoverUntilItIsReplaced freezes the broker that coordinates the transactional ID. Nothing
// can be fenced until the controller has declared it dead, which takes broker.session.timeout.ms, and another one has its
// place: then the failover goes on by itself, while the broker is still frozen. Nothing is lost, twice or out of order.
func TestAFrozenCoordinatorDelaysAFailoverUntilItIsReplaced(t *testing.T) {
	require.Long(t)
	t.Parallel()
	const partitions = 6
	cluster := startThreeBrokers(t)
	cfg := Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 2 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}}
	lanes, from := topicLanes(topicA, partitions), map[sinks.Lane]sinks.LanePosition{}
	older := openSink(t, cfg)
	waitForTopic(t, older)
	mustFence(t, older, lanes...)
	for p, l := range lanes {
		publishUntilAccepted(t, older, l, pods("p"+itoa(p), 1, 11))
		from[l] = 0
	}
	coordinator := coordinatorOf(t, cfg.Brokers, "test-main")
	victim := cluster[slices.IndexFunc(cluster, func(b *broker.Broker) bool { return b.ID() == coordinator })]
	if err := victim.Process().Freeze(); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceFunc(func() {
		if err := victim.Process().Resume(); err != nil {
			t.Error(err)
		}
	})
	defer resume()

	cfg.RequestTimeout = 10 * testTimeout // only what another broker says ends the wait for the frozen one
	newer := openSink(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	record := func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }
	waiting, err := newer.Fence(ctx, sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: record}, lanes)
	if err != nil {
		t.Fatal(err)
	}
	for len(waiting) > 0 { // lanes that the frozen broker led when they were checked
		if err := ctx.Err(); err != nil {
			t.Fatal(err, waiting)
		}
		waiting = fenceInPart(t, newer, lanes)
	}
	held := map[sinks.Lane]int{}
	if err := tailOf(t, newer, from, func(l sinks.Lane, _ sinks.Emitted) error { held[l]++; return nil }); err != nil {
		t.Fatal(err)
	}
	for p, l := range lanes {
		if held[l] != 10 {
			t.Errorf("the tail of %s has %d messages, want 10", l, held[l])
		}
		publishUntilAccepted(t, newer, l, pods("p"+itoa(p), 11, 21))
	}
	resume()
	for p, l := range lanes { // a broker that wakes up takes itself for a leader for a moment
		if n, err := publishUntilDeposed(t, older, l, pods("p"+itoa(p), 11, 21)); n != 0 {
			t.Errorf("the older process published %d to %s: %v; want a DeposedError", n, l, err)
		}
	}
	awaitSameLeaders(t, cfg.Brokers)
	wantStreams(t, readTopics(t, cfg.Brokers, topicA), partitions, 20)
}

// awaitSameLeaders waits until all brokers name the same leaders: one that has not noticed yet that it leads no more shows
// the records of before.
func awaitSameLeaders(t *testing.T, brokers []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		named := map[string]bool{}
		for _, address := range brokers {
			client, err := kgo.NewClient(kgo.SeedBrokers(address))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.SeedBrokers()[0].Request(ctx, kmsg.NewPtrMetadataRequest())
			client.Close()
			if err != nil {
				t.Fatal(err)
			}
			leaders := map[string]int32{}
			for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
				for _, p := range topic.Partitions {
					leaders[*topic.Topic+"/"+itoa(int(p.Partition))] = p.Leader
				}
			}
			named[fmt.Sprint(leaders)] = true
		}
		if len(named) == 1 {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatal("the brokers do not agree on leaders: ", slices.Collect(maps.Keys(named)))
		}
	}
}

// fenceInPart fences a sink and returns the lanes that wait.
func fenceInPart(t *testing.T, s *Sink, lanes []sinks.Lane) map[sinks.Lane]error {
	t.Helper()
	record := func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }
	waiting, err := s.Fence(t.Context(), sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: record}, lanes)
	if err != nil {
		t.Fatal(err)
	}
	return waiting
}

// coordinatorOf returns the broker that coordinates a transactional ID.
func coordinatorOf(t *testing.T, brokers []string, id string) (broker int) {
	t.Helper()
	withClient(t, brokers, func(ctx context.Context, c *kafka.Client) error {
		found, err := c.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: id, KeyType: kafka.CoordinatorKeyTypeTransaction})
		if err == nil {
			err = found.Error
			broker = found.Coordinator.NodeID
		}
		return err
	})
	return broker
}

// TestAFrozenBrokerAtARestartStopsItsOwnLanesOnly: the others do not wait until it can be fenced and read.
func TestAFrozenBrokerAtARestartStopsItsOwnLanesOnly(t *testing.T) {
	require.Long(t)
	t.Parallel()
	const partitions = 6
	cluster := startThreeBrokersWith(t, map[string]string{"broker.session.timeout.ms": "600000",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"})
	cfg := Config{Brokers: cluster.Brokers(), Topic: topicA, RequestTimeout: 5 * time.Second,
		CreateTopics: CreateTopics{Enabled: true, Partitions: partitions, ReplicationFactor: 1,
			Configs: []TopicConfig{{Name: "min.insync.replicas", Value: "1"}}}}
	older, k := openSink(t, cfg), &storedState{}
	restoreState(t, older, k, 0)
	waitForTopic(t, older)
	publish := func(s *Sink, p, from, to int) {
		publishUntilAccepted(t, s, laneName(topicA, int32(p), partitions), pods("p"+itoa(p), from, to))
	}
	for p := range partitions {
		publish(older, p, 1, 10)
	}
	k.state = older.State(0)
	for p := range partitions {
		publish(older, p, 10, 20) // acknowledged, but not saved
	}
	victim := cluster[0]
	if coordinatorOf(t, cfg.Brokers, older.fence.Load().transactional.ID) == victim.ID() {
		victim = cluster[1]
	}
	leads := older.topics.topicByName(topicA).layout.Load().Leads
	if err := victim.Process().Freeze(); err != nil {
		t.Fatal(err)
	}
	newer := openSink(t, cfg)
	restoreState(t, newer, k, 40)
	var waiting sync.WaitGroup
	running := 0
	for p, lead := range leads {
		if lead.Broker == int32(victim.ID()) {
			waiting.Go(func() { publish(newer, p, 5, 40) })
		} else {
			running++
			publish(newer, p, 5, 40)
		}
	}
	if running == partitions {
		t.Errorf("broker %d leads none of %d partitions", victim.ID(), partitions)
	}
	if err := victim.Process().Resume(); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	wantStreams(t, readTopics(t, cluster.Brokers(), topicA), partitions, 39)
}
