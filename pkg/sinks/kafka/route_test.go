package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// objects are versions from to (exclusive) of each of n pods, interleaved, with ascending offsets.
func objects(n, from, to int) []sinks.Message {
	var ms []sinks.Message
	for v := from; v < to; v++ {
		for o := range n {
			ms = append(ms, sinks.Message{Offset: uint64(v*n + o + 1), Change: pod("o"+itoa(o), v)})
		}
	}
	return ms
}

// wantHistories fails the test unless versions 1 to last of every pod are there once and in order.
func wantHistories(t *testing.T, records []*kgo.Record, n, last int) {
	t.Helper()
	next := map[string]int{}
	for _, r := range records {
		name := string(r.Key)
		v := podVersion(t, r)
		if next[name]++; next[name] != v {
			t.Fatalf("%s: version %d, want %d", name, v, next[name])
		}
	}
	if len(records) != n*last {
		t.Errorf("%d records, want %d", len(records), n*last)
	}
}

// awaitRepartition waits until the sink notices that the topic has changed, and replaces its lanes.
func awaitRepartition(t *testing.T, s *Sink) sinks.Repartition {
	t.Helper()
	s.router.layoutsCheckedAt = time.Time{}
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for begun := time.Now(); ; <-pause.C {
		if due := s.PendingRepartitions(); len(due) > 0 {
			s.ApplyRepartition(due[0])
			if again := s.PendingRepartitions(); len(again) > 0 {
				t.Errorf("still due: %+v", again)
			}
			return due[0]
		}
		if time.Since(begun) > testTimeout {
			t.Fatal("the sink has not noticed that the topic has changed")
		}
	}
}

func TestChangesOfAnUnknownTopicWaitAndOthersGoOn(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: "k8s.{group}.{resource}"})
	node := pod("n", 1)
	node.Resource.Resource = "nodes"
	nodes := laneOf(t, s, node)
	n, err := s.Publish(t.Context(), nodes, []sinks.Message{{Offset: 1, Change: node}})
	var unavailable *sinks.UnavailableError
	if n != 0 || err == nil || errors.As(err, &unavailable) || condition.ProblemOf(err, "").Code != condition.SinkTargetMissing ||
		!strings.Contains(err.Error(), `topic "k8s.core.nodes" does not exist`) {
		t.Errorf("published %d: %v", n, err)
	}
	mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 1, 5))
}

func TestChangesOfAWaitingLaneGoToTheirPartitionsInOrder(t *testing.T) {
	t.Parallel()
	const n, last = 12, 30
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	waits := laneOf(t, s, pod("o0", 1))
	createTopicWhenDeleted(t, brokers, topicA, 4)
	c.Fault(produceFault(kerr.RequestTimedOut)) // of the first partition that is tried; applied
	publishUntilAccepted(t, s, waits, objects(n, 1, 10))

	if lane := laneOf(t, s, pod("o0", 10)); lane != waits {
		t.Errorf("lane %s before the one of the waiting is replaced", lane)
	}
	if r := awaitRepartition(t, s); !slices.Equal(r.From, []sinks.Lane{waits}) || len(r.To) != 4 || r.Lost || r.Reason != "" {
		t.Errorf("replaced %+v", r)
	}
	route := func(ms []sinks.Message) {
		lanes := map[sinks.Lane][]sinks.Message{}
		for _, m := range ms {
			lane := laneOf(t, s, m.Change)
			lanes[lane] = append(lanes[lane], m)
		}
		if len(lanes) != 4 {
			t.Errorf("%d lanes, want 4", len(lanes))
		}
		for lane, batch := range lanes {
			mustPublish(t, s, lane, batch)
		}
	}
	route(objects(n, 10, last+1))
	wantHistories(t, readTopics(t, brokers, topicA), n, last)
}

// TestAWatermarkOfAWaitingLaneGoesToEveryPartition: behind everything of its partition that was queued before it, however
// often the broker has to be asked.
func TestAWatermarkOfAWaitingLaneGoesToEveryPartition(t *testing.T) {
	t.Parallel()
	const partitions, before = 4, 24
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	mark := &event.Change{Type: event.Watermark, Cluster: "c", Resource: pod("o", 1).Resource, ResourceVersion: "9",
		Watermark: &event.WatermarkInfo{Epoch: "e", Sequence: 1, Sinks: []string{"main"}}}
	lanes, err := s.AllLanes(mark, nil)
	if err != nil || len(lanes) != 1 || !s.StandsForSeveral(lanes[0]) {
		t.Fatalf("before the partitions are known the lanes are %v: %v", lanes, err)
	}
	createTopicWhenDeleted(t, brokers, topicA, partitions)
	c.Fault(produceFault(kerr.RequestTimedOut)) // of the first partition that is tried; applied
	messages := objects(before, 1, 2)
	messages = append(messages, sinks.Message{Offset: messages[len(messages)-1].Offset + 1, Change: mark})
	publishUntilAccepted(t, s, lanes[0], messages)

	found := map[int32]int{}
	for _, r := range readTopics(t, brokers, topicA) {
		if !strings.Contains(string(r.Value), `"type":"watermark"`) {
			if found[r.Partition] > 0 {
				t.Errorf("partition %d has a change behind the watermark", r.Partition)
			}
			continue
		}
		found[r.Partition]++
		if want := fmt.Sprintf(`"lane":%d,"lanes":%d}`, r.Partition, partitions); !strings.Contains(string(r.Value), want) {
			t.Errorf("partition %d has %s, want %s", r.Partition, r.Value, want)
		}
	}
	for p := range int32(partitions) {
		if found[p] != 1 {
			t.Errorf("partition %d has %d copies of the watermark", p, found[p])
		}
	}
	awaitRepartition(t, s)
	if lanes, err := s.AllLanes(mark, nil); err != nil || len(lanes) != partitions {
		t.Errorf("the lanes are %v: %v", lanes, err)
	}
}

func TestARejectionInAWaitingLaneNamesItsMessage(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	waits := laneOf(t, s, pod("o0", 1))
	createTopicWhenDeleted(t, brokers, topicA, 3)
	messages := objects(9, 1, 2)
	c.Fault(produceFault(kerr.InvalidRecord))
	var dead []uint64
	for len(messages) > 0 {
		n, err := s.Publish(t.Context(), waits, messages)
		var rejected *sinks.RejectedError
		switch {
		case errors.As(err, &rejected):
			dead = append(dead, messages[n].Offset)
			messages = messages[n+1:]
		case err != nil:
			t.Fatal(err)
		default:
			messages = messages[n:]
		}
	}
	if records := readTopics(t, brokers, topicA); len(records)+len(dead) != 9 {
		t.Errorf("%d records and %d rejections of 9 messages", len(records), len(dead))
	}
}

// TestANameTooLongForATopicIsRejectedAndTheOthersArrive: a broker would refuse the topic for ever.
func TestANameTooLongForATopicIsRejectedAndTheOthersArrive(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("n", maxTopicNameLength-len("k8s."))
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "k8s."+longest, "k8s.short"))
	s := openSink(t, Config{Brokers: brokers, Topic: "k8s.{name}"})
	for _, name := range []string{longest + "n", strings.Repeat("n", 5000), strings.Repeat("é", maxTopicNameLength/6)} {
		_, err := s.Lane(pod(name, 1))
		var rejected *sinks.RejectedError
		if !errors.As(err, &rejected) || rejected.TooLarge || !strings.Contains(err.Error(), "longer than Kafka's limit of 249") {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	for _, name := range []string{longest, "short"} {
		mustPublish(t, s, laneOf(t, s, pod(name, 1)), pods(name, 1, 2))
	}
}
