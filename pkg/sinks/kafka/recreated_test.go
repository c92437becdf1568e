package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

// TestARecreatedTopicHoldsNothingTwiceOrOutOfOrder deletes a topic and creates it again while a lane has many batches under
// way, with a fence, with that of the journal, and without one. The first topic has some of them, or none; the second one
// refuses the first batch.
func TestARecreatedTopicHoldsNothingTwiceOrOutOfOrder(t *testing.T) {
	t.Parallel()
	for way, prepare := range map[string]func(c *kfake.Cluster, s *Sink){
		"fenced": func(_ *kfake.Cluster, s *Sink) { mustFence(t, s) }, "of the journal": func(*kfake.Cluster, *Sink) {},
		"numbered": func(c *kfake.Cluster, _ *Sink) { refuseTransactionalIDs(c) },
	} {
		for _, failure := range []*kerr.Error{kerr.RequestTimedOut, kerr.NotEnoughReplicas} { // the first one is applied by kfake
			c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
			s, lane := openSink(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes, CheckTopics: checkOff}), laneName(topicA, 0, 1)
			prepare(c, s)
			mustPublish(t, s, lane, pods("a", 1, 2))
			c.Fault(faultAt(t, failure, 5))
			n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40))
			if err == nil || len(s.lanes.byName[lane].window.batches) < 2 {
				t.Fatalf("%s: published %d: %v", way, n, err)
			}
			deleteTopic(t, brokers, topicA)
			createTopicWhenDeleted(t, brokers, topicA, 1)
			c.Fault(faultAt(t, kerr.NotEnoughReplicas, 2+n))
			publishUntilAccepted(t, s, lane, pods("a", 2+n, 60))
			wantVersions(t, readTopics(t, brokers, topicA), 2+n, 60)
			if t.Failed() {
				t.Fatalf("%s, after %s", way, failure.Message)
			}
		}
	}
}

// replicatedLanes is what the replicated state has of the lanes of a sink.
type replicatedLanes map[sinks.Lane]sinks.LanePosition

func (m replicatedLanes) record(_ context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
	for lane, position := range lanes {
		if _, recorded := m[lane]; !recorded {
			m[lane] = position
		}
	}
	return nil
}

// takeOver lets a sink take over, and returns what it finds in the lanes.
func (m replicatedLanes) takeOver(t *testing.T, s *Sink) (held map[string]bool) {
	t.Helper()
	held = map[string]bool{}
	waiting, err := s.Fence(t.Context(), sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: m.record}, slices.Collect(maps.Keys(m)))
	if err != nil || len(waiting) > 0 {
		t.Fatal(err, waiting)
	}
	waiting, err = s.ReadTail(t.Context(), tailsFrom(m), func(_ sinks.Lane, e sinks.Emitted) error { held[e.ID] = true; return nil })
	if err != nil || len(waiting) > 0 {
		t.Fatal(err, waiting)
	}
	for _, lane := range s.GoneLanes(t.Context(), slices.Collect(maps.Keys(m))) {
		delete(m, lane)
	}
	return held
}

// brokersOfAges are a broker of today, and one of Kafka 4.0, which takes batches for a topic by its name only.
func brokersOfAges(t *testing.T) map[string][]string {
	t.Helper()
	_, older := startFakeCluster(t, kfake.NumBrokers(1), kfake.MaxVersions(kversion.V4_0_0()))
	_, newer := startFakeCluster(t, kfake.NumBrokers(1))
	return map[string][]string{"today": newer, "4.0": older}
}

// TestPositionsInADeletedTopicAreNotThoseOfTheNextOne lets a process write to a topic that is recreated, and another one
// take over when the first topic is all that the state has: everything in the second one is found, and goes on from there.
func TestPositionsInADeletedTopicAreNotThoseOfTheNextOne(t *testing.T) {
	t.Parallel()
	for age, brokers := range brokersOfAges(t) {
		for _, partitions := range []int{1, 2} {
			topic := "k8s.recreated." + itoa(partitions)
			cfg := Config{Brokers: brokers, Topic: topic, CheckTopics: checkOff}
			createTopicWhenDeleted(t, brokers, topic, 1)
			older, newer, state := openSink(t, cfg), openSink(t, cfg), replicatedLanes{}
			state.takeOver(t, older)
			lane := laneName(topic, 0, 1)
			publishUntilAccepted(t, older, lane, pods("a", 1, 11))
			maps.Copy(state, older.LaneProgress())
			deleteTopic(t, brokers, topic)
			createTopicWhenDeleted(t, brokers, topic, partitions)
			publishUntilAccepted(t, older, lane, pods("a", 11, 41)) // the state lags
			held := state.takeOver(t, newer)
			for _, m := range pods("a", 11, 41) {
				if !held[m.Change.ID()] {
					t.Errorf("%s, %d partitions: %s is not found in the recreated topic", age, partitions, m.Change.ID())
				}
			}
			if len(held) != 30 {
				t.Errorf("%s, %d partitions: %d are found, want 30", age, partitions, len(held))
			}
			publishUntilAccepted(t, newer, lane, pods("a", 41, 51))
			maps.Copy(state, newer.LaneProgress())
			if held := state.takeOver(t, openSink(t, cfg)); len(held) != 0 {
				t.Errorf("%s, %d partitions: %d are found behind the progress", age, partitions, len(held))
			}
			wantVersions(t, readTopics(t, brokers, topic), 11, 51)
		}
	}
}

// TestWhatADeletedTopicAcceptedIsStoredBeforeTheNextOneGetsAnything: a process that crashes after that must not send it to
// the next topic, behind what it finds there.
func TestWhatADeletedTopicAcceptedIsStoredBeforeTheNextOneGetsAnything(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff})
	name := laneName(topicA, 0, 1)
	publishUntilAccepted(t, s, name, pods("a", 1, 11))
	l, err := s.lanes.laneByName(name)
	if err != nil {
		t.Fatal(err)
	}
	batch := pods("a", 11, 31)
	for _, m := range batch[:5] { // answers that the next call counts
		l.uncounted = append(l.uncounted, m.Offset)
	}
	deleteTopic(t, brokers, topicA)
	createTopicWhenDeleted(t, brokers, topicA, 1)
	s.topics.checkLayouts(t.Context(), []*topic{s.topics.topicByName(topicA)})
	if n, err := s.Publish(t.Context(), name, batch); n != 5 || err != nil || len(readTopics(t, brokers, topicA)) > 0 {
		t.Fatalf("accepted %d, %v, and the recreated topic has %d records", n, err, len(readTopics(t, brokers, topicA)))
	}
	publishUntilAccepted(t, s, name, batch[5:])
	wantVersions(t, readTopics(t, brokers, topicA), 16, 31)
}

// TestAReplacedProcessWritesNothingToARecreatedTopic, though nothing was written there that could fence it, and whether it
// finds the topic or creates it.
func TestAReplacedProcessWritesNothingToARecreatedTopic(t *testing.T) {
	t.Parallel()
	brokers := startKafka(t).Brokers()
	for _, create := range []bool{true, false} {
		topic := "k8s.replaced." + strconv.FormatBool(create)
		cfg := Config{Brokers: brokers, Topic: topic, CheckTopics: checkOff, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}}
		createTopicWhenDeleted(t, brokers, topic, 1)
		older, newer, state := openSink(t, cfg), openSink(t, cfg), replicatedLanes{}
		state.takeOver(t, older)
		lane := laneName(topic, 0, 1)
		publishUntilAccepted(t, older, lane, pods("a", 1, 11))
		maps.Copy(state, older.LaneProgress())
		state.takeOver(t, newer)
		publishUntilAccepted(t, newer, lane, pods("a", 11, 21))
		deleteTopic(t, brokers, topic)
		if create {
			createTopicWhenDeleted(t, brokers, topic, 1)
		}
		if n, err := publishUntilDeposed(t, older, lane, pods("a", 11, 31)); n != 0 {
			t.Errorf("the older process published %d to the recreated topic: %v", n, err)
		}
		publishUntilAccepted(t, newer, lane, pods("a", 21, 41))
		wantVersions(t, readTopics(t, brokers, topic), 21, 41)
	}
}

// TestWhatAReplacedProcessWroteToARecreatedTopicIsNotRepeated: a broker before Kafka 4.1 takes a batch that was under way
// for the topic of this name, until the active process fences the topic, before its first message.
func TestWhatAReplacedProcessWroteToARecreatedTopicIsNotRepeated(t *testing.T) {
	t.Parallel()
	brokers := startKafka(t).Brokers()
	cfg := Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff}
	createTopicWhenDeleted(t, brokers, topicA, 1)
	older, newer, state := openSink(t, cfg), openSink(t, cfg), replicatedLanes{}
	state.takeOver(t, older)
	lane := laneName(topicA, 0, 1)
	publishUntilAccepted(t, older, lane, pods("a", 1, 11))
	l := older.lanes.byName[lane]
	underWay := func(from, to int) *inFlightBatch {
		at := l.numbers.nextSequence()
		at.Sequence += int32(from - 11)
		f, err := l.encoder.encodeBatch(t.Context(), pods("a", from, to), at)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first, second := underWay(11, 16), underWay(16, 21)
	maps.Copy(state, older.LaneProgress())
	state.takeOver(t, newer)
	deleteTopic(t, brokers, topicA)
	createTopicWhenDeleted(t, brokers, topicA, 1)
	broker := l.partition.topic.layout.Load().Leads[0].Broker
	if err := produceAlone(t, older, broker, first); err != nil {
		t.Fatalf("the older process has no batch in the recreated topic: %v", err)
	}
	publishUntilAccepted(t, newer, lane, pods("a", 11, 21))
	if err := produceAlone(t, older, broker, second); !errors.Is(err, kafka.InvalidProducerEpoch) {
		t.Errorf("the second batch of the older process: %v; want it refused", err)
	}
	wantVersions(t, readTopics(t, brokers, topicA), 11, 21)
}

// TestALaneOfADeletedTopicWritesNothingToOneWithFewerPartitions: what it has under way is sent again through other lanes.
func TestALaneOfADeletedTopicWritesNothingToOneWithFewerPartitions(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	for topic, fenced := range map[string]bool{"k8s.fenced": true, "k8s.journaled": false} {
		cfg := Config{Brokers: brokers, Topic: topic, CheckTopics: checkOff}
		createTopicWhenDeleted(t, brokers, topic, 4)
		s, lane := openSink(t, cfg), laneName(topic, 0, 4)
		if fenced {
			mustFence(t, s)
		}
		publishUntilAccepted(t, s, lane, pods("a", 1, 11))
		deleteTopic(t, brokers, topic)
		createTopicWhenDeleted(t, brokers, topic, 2)
		for range 3 {
			if n, err := s.Publish(t.Context(), lane, pods("a", 11, 21)); n != 0 || err == nil {
				t.Errorf("%s: published %d to a topic with fewer partitions: %v", topic, n, err)
			}
		}
		publishUntilAccepted(t, s, laneName(topic, 0, 2), pods("a", 11, 21))
		wantVersions(t, readTopics(t, brokers, topic), 11, 21)
	}
}

// TestTheWaitingLaneOfATopicGoesOnInOneWithFewerPartitions: it had found the partitions of the first topic, and could not
// write to them.
func TestTheWaitingLaneOfATopicGoesOnInOneWithFewerPartitions(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(6, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff})
	lane, err := s.Lane(pod("a", 1))
	if err != nil || lane != waitingLane(topicA) {
		t.Fatalf("the lane is %s: %v", lane, err)
	}
	var all []sinks.Message
	for v := 1; v < 50; v++ {
		all = append(all, sinks.Message{Offset: uint64(v), Change: pod("p"+itoa(v%10), v)})
	}
	failing := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	if n, err := s.Publish(t.Context(), lane, all); n != 0 || err == nil {
		t.Fatalf("published %d: %v", n, err)
	}
	failing.Remove()
	deleteTopic(t, brokers, topicA)
	createTopicWhenDeleted(t, brokers, topicA, 2)
	publishUntilAccepted(t, s, lane, all)
	last := map[string]uint64{}
	records := readTopics(t, brokers, topicA)
	for _, r := range records {
		v, err := strconv.ParseUint(strings.Split(recordHeader(r, "id"), "/")[2], 10, 64)
		if err != nil || v <= last[string(r.Key)] {
			t.Errorf("%s follows %d: %v", recordHeader(r, "id"), last[string(r.Key)], err)
		}
		last[string(r.Key)] = v
	}
	if len(records) != len(all) {
		t.Errorf("%d records, want %d", len(records), len(all))
	}
}

// TestABrokerThatLagsBehindTheGrowthOfATopicReplacesNoLanes: those of a recreated topic are replaced.
func TestABrokerThatLagsBehindTheGrowthOfATopicReplacesNoLanes(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(4, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff})
	lane := laneOf(t, s, pod("a", 1))
	mustPublish(t, s, lane, pods("a", 1, 3))
	used := s.topics.topicByName(topicA)
	grown := used.layout.Load()
	s.topics.setLayout(t.Context(), used, &cluster.Layout{ID: grown.ID, Leads: grown.Leads[:3], Replicas: grown.Replicas})
	if due := s.PendingRepartitions(); len(due) > 0 {
		t.Errorf("lanes are replaced: %v", due)
	}
	mustPublish(t, s, lane, pods("a", 3, 5))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 5)
	s.topics.setLayout(t.Context(), used, &cluster.Layout{ID: protocol.TopicID{1}, Leads: grown.Leads[:3], Replicas: grown.Replicas})
	if due := s.PendingRepartitions(); len(due) != 1 || !due[0].Lost {
		t.Errorf("the lanes of a deleted topic are replaced by %v", due)
	}
}

// publishUntilDeposed publishes until another process is found, or everything is accepted.
func publishUntilDeposed(t *testing.T, s *Sink, lane sinks.Lane, batch []sinks.Message) (accepted int, err error) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		n, err := publishOnward(t.Context(), s, lane, batch[accepted:])
		accepted += n
		var deposed *sinks.DeposedError
		if errors.As(err, &deposed) || err == nil {
			return accepted, err
		}
		if err := ratelimit.Sleep(t.Context(), 10*time.Millisecond); err != nil {
			return accepted, err
		}
	}
	return accepted, errors.New("it is not deposed in time")
}
