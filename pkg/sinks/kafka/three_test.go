package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
