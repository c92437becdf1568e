package kafka

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// mustFence fences a sink that takes over lanes, again while lanes wait for a broker or a coordinator that is slow.
func mustFence(t testing.TB, s *Sink, lanes ...sinks.Lane) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; {
		err := fenceAsTest(t, s, lanes...)
		if err == nil {
			return
		}
		isSlow := errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(*sinks.UnavailableError))
		if !isSlow || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func fenceAsTest(t testing.TB, s *Sink, lanes ...sinks.Lane) error {
	note := func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }
	waiting, err := s.Fence(t.Context(), sinks.Claim{Group: "test", Sink: "main", Owner: "a test", RecordLanes: note}, lanes)
	return errors.Join(err, errors.Join(slices.Collect(maps.Values(waiting))...))
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

// tailOf reads the tails of lanes, all of which can be read.
func tailOf(t testing.TB, s *Sink, from map[sinks.Lane]sinks.LanePosition, emitted func(sinks.Lane, sinks.Emitted) error) error {
	waiting, err := s.ReadTail(t.Context(), tailsFrom(from), emitted)
	return errors.Join(err, errors.Join(slices.Collect(maps.Values(waiting))...))
}

func tailsFrom(positions map[sinks.Lane]sinks.LanePosition) map[sinks.Lane]sinks.Tail {
	tails := map[sinks.Lane]sinks.Tail{}
	for lane, position := range positions {
		tails[lane] = sinks.Tail{From: position, Reached: position}
	}
	return tails
}

// progressOf returns the progress of lanes by their names, without the IDs of topics.
func progressOf(s *Sink) map[sinks.Lane]sinks.LanePosition {
	all := map[sinks.Lane]sinks.LanePosition{}
	for recorded, position := range s.LaneProgress() {
		lane, _ := sinks.SplitRecordedLane(recorded)
		all[lane] = position
	}
	return all
}

// TestAFencedLaneLosesAndRepeatsNothingWhereverAWindowFails covers failures that a sink without a fence answers with an
// epoch of its own. Here each new epoch must come from the coordinator.
func TestAFencedLaneLosesAndRepeatsNothingWhereverAWindowFails(t *testing.T) {
	t.Parallel()
	for _, failure := range []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, // applied by kfake
		kerr.NotLeaderForPartition, kerr.CorruptMessage, kerr.MessageTooLarge, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID,
	} {
		for _, version := range []int{2, 8, 39} {
			c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
			s := openSink(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes})
			lane := laneOf(t, s, pod("a", 1))
			mustFence(t, s, lane)
			mustPublish(t, s, lane, pods("a", 1, 2))
			c.Fault(faultAt(t, failure, version))
			publishUntilAccepted(t, s, lane, pods("a", 2, 40))
			wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
			if place := progressOf(s)[lane]; int64(place) != endOffsets(t, brokers, topicA)[0] {
				t.Errorf("the position is %d, the end %v", place, endOffsets(t, brokers, topicA))
			}
			if t.Failed() {
				t.Fatalf("after %s at version %d", failure.Message, version)
			}
		}
	}
}

func TestARefusedEpochDeposesTheSinkPermanently(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	mustFence(t, s, laneName(topicA, 0, 2), laneName(topicA, 1, 2))
	publishUntilAccepted(t, s, laneName(topicA, 0, 2), pods("a", 1, 2))
	c.Fault(faultAt(t, kerr.InvalidProducerEpoch, 2))
	for _, partition := range []int32{0, 1, 0} { // the answer to one lane holds for all
		n, err := s.Publish(t.Context(), laneName(topicA, partition, 2), pods("a", 2, 3))
		var deposed *sinks.DeposedError
		if n != 0 || !errors.As(err, &deposed) {
			t.Errorf("partition %d: published %d: %v; want a DeposedError", partition, n, err)
		}
	}
}

// TestAFencedLaneWithAnotherNameGoesOnWithItsNumbers covers a topic that grew: the lanes of its old partitions have other
// names.
func TestAFencedLaneWithAnotherNameGoesOnWithItsNumbers(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(2, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	mustFence(t, s, laneName(topicA, 0, 1))
	mustPublish(t, s, laneName(topicA, 0, 1), pods("a", 1, 4))
	mustPublish(t, s, laneName(topicA, 0, 2), pods("a", 4, 7))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 7)
	places := progressOf(s)
	if end := endOffsets(t, brokers, topicA)[0]; int64(places[laneName(topicA, 0, 1)]) != end || int64(places[laneName(topicA, 0, 2)]) != end {
		t.Errorf("the positions are %v, the end %d", places, end)
	}
	counts := map[sinks.Lane]int{}
	from := map[sinks.Lane]sinks.LanePosition{laneName(topicA, 0, 1): places[laneName(topicA, 0, 1)] - 2, laneName(topicA, 0, 2): 0}
	err := tailOf(t, s, from, func(lane sinks.Lane, _ sinks.Emitted) error { counts[lane]++; return nil })
	if want := map[sinks.Lane]int{laneName(topicA, 0, 1): 2, laneName(topicA, 0, 2): 6}; err != nil || !maps.Equal(counts, want) {
		t.Errorf("the tails have %v, %v; want %v", counts, err, want)
	}
}

// TestATopicThatTakesNoMarkerStopsItsOwnLanesOnly: a transaction over it would not end.
func TestATopicThatTakesNoMarkerStopsItsOwnLanesOnly(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA, "k8s.tiny"))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff})
	lane, tiny := laneName(topicA, 0, 1), laneName("k8s.tiny", 0, 1)
	alterTopic(t, brokers, "k8s.tiny", "max.message.bytes", "77")
	waiting := fenceInPart(t, s, []sinks.Lane{lane, tiny})
	if len(waiting) != 1 || waiting[tiny] == nil || !strings.Contains(waiting[tiny].Error(), "max.message.bytes") {
		t.Fatalf("waiting: %v", waiting)
	}
	mustPublish(t, s, lane, pods("a", 1, 3))
	alterTopic(t, brokers, "k8s.tiny", "max.message.bytes", "2097152")
	if err := tailOf(t, s, map[sinks.Lane]sinks.LanePosition{tiny: 0}, func(sinks.Lane, sinks.Emitted) error { return nil }); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, s, tiny, pods("a", 1, 3))
}

// TestALaneOfATopicCreatedAfterTheFenceIsReadWhenInDoubt: a missing partition has no tail of an older process, but one of
// this.
func TestALaneOfATopicCreatedAfterTheFenceIsReadWhenInDoubt(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1}, CheckTopics: checkOff})
	lane := laneName(topicA, 0, 1)
	mustFence(t, s, lane)
	publishUntilAccepted(t, s, lane, pods("a", 1, 2))
	c.Fault(faultAt(t, kerr.RequestTimedOut, 2)) // applied by kfake
	if n, err := s.Publish(t.Context(), lane, pods("a", 2, 5)); n != 0 || err == nil {
		t.Fatalf("published %d: %v", n, err)
	}
	c.Fault(faultAt(t, kerr.OutOfOrderSequenceNumber, 2))
	publishUntilAccepted(t, s, lane, pods("a", 2, 9))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 9)
}

// TestOffsetsReadDuringFailoverAreNotQueriedAgain covers the first batch after a failover, which should be fast.
func TestOffsetsReadDuringFailoverAreNotQueriedAgain(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(6, topicA))
	before := openSink(t, Config{Brokers: brokers, Topic: topicA})
	from := map[sinks.Lane]sinks.LanePosition{laneName(topicA, 0, 2): 0, laneName("k8s.deleted", 0, 1): 0} // from before the topic grew
	for partition := range int32(6) {
		lane := laneName(topicA, partition, 6)
		publishUntilAccepted(t, before, lane, pods("a", 1, 4))
		from[lane] = 1
	}
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	mustFence(t, s, slices.Collect(maps.Keys(from))...)
	if lane := laneOf(t, s, pod("a", 1)); !strings.HasSuffix(string(lane), "of6") {
		t.Errorf("a change goes to the lane %s, and the topic has 6 partitions", lane)
	}
	if err := tailOf(t, s, from, func(sinks.Lane, sinks.Emitted) error { return nil }); err != nil {
		t.Fatal(err)
	}
	asked := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Observe: true, Count: -1, TopLevel: true})
	for partition := range int32(6) {
		mustPublish(t, s, laneName(topicA, partition, 6), pods("a", 4, 6))
	}
	if n := asked.Hits(); n > 0 {
		t.Errorf("%d requests for ends that were known", n)
	}
	now := endOffsets(t, brokers, topicA)
	for lane, place := range s.LaneProgress() {
		if l, ok := parseRecordedLane(lane); ok && int64(place) != now[int(l.Index)] {
			t.Errorf("the position of %s is %d, the ends %v", lane, place, now)
		}
	}
}

// TestTailsOfThousandsOfLanesCostAFewRequests reads what 4,000 lanes of three brokers hold.
func TestTailsOfThousandsOfLanesCostAFewRequests(t *testing.T) {
	t.Parallel()
	const topics, partitions, inUse = 4, 1000, 8
	names := []string{"k8s.0", "k8s.1", "k8s.2", "k8s.3"}
	c, brokers := startFakeCluster(t, kfake.NumBrokers(3), kfake.SeedTopics(partitions, names...))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	from, want := map[sinks.Lane]sinks.LanePosition{}, map[sinks.Lane][]string{}
	for i := range topics * partitions {
		lane := laneName(names[i%topics], int32(i/topics), partitions)
		if from[lane] = 0; i%(topics*partitions/inUse) != 0 {
			continue
		}
		messages := pods("a", i+1, i+4)
		publishUntilAccepted(t, s, lane, messages)
		for _, m := range messages[1:] {
			want[lane] = append(want[lane], m.Change.ID())
		}
		from[lane] = 1
	}
	asked := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata, kmsg.ListOffsets, kmsg.Fetch}, Observe: true, Count: -1, TopLevel: true})
	got := map[sinks.Lane][]string{}
	if err := tailOf(t, s, from, func(lane sinks.Lane, e sinks.Emitted) error { got[lane] = append(got[lane], e.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("the tails have %v\nwant %v", got, want)
	}
	if n := asked.Hits(); n > 25 {
		t.Errorf("%d lanes cost %d requests", len(from), n)
	}
}

// TestBrokersWithoutFencingAreNamed: before Kafka 2.5, a process that was fenced would claim the ID again.
func TestBrokersWithoutFencingAreNamed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), kfake.MaxVersions(kversion.V2_4_0()))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	err := fenceAsTest(t, s, laneName(topicA, 0, 1))
	var unavailable *sinks.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(unavailable.Remedy, "Kafka 2.8") {
		t.Errorf("fence: %v; want an UnavailableError that names the version", err)
	}
}

// fenceRequests are the requests of one Fence.
var fenceRequests = []kmsg.Key{kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.AddPartitionsToTxn, kmsg.EndTxn}

// TestAMovingCoordinatorIsFollowedDuringAFence covers each temporary answer at each step.
func TestAMovingCoordinatorIsFollowedDuringAFence(t *testing.T) {
	t.Parallel()
	for _, failure := range []*kerr.Error{
		kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.ConcurrentTransactions, kerr.RequestTimedOut,
	} {
		for _, key := range fenceRequests {
			c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
			s := openSink(t, Config{Brokers: brokers, Topic: topicA})
			lane := laneName(topicA, 0, 1)
			hit := c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: failure, Count: 2})
			if err := fenceAsTest(t, s, lane); err != nil || hit.Hits() != 2 {
				t.Fatalf("%s at %s, %d times: %v", failure.Message, key.Name(), hit.Hits(), err)
			}
			mustPublish(t, s, lane, pods("a", 1, 3))
			wantVersions(t, readTopics(t, brokers, topicA), 1, 3)
		}
	}
}

// TestAFrozenCoordinatorIsNamed: the other broker still names the frozen one as the coordinator.
func TestAFrozenCoordinatorIsNamed(t *testing.T) {
	c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	c.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		cancel() // the time for the fence is over while it waits for the answer
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	note := func(context.Context, map[sinks.Lane]sinks.LanePosition) error { return nil }
	_, err := s.Fence(expiring{ctx}, sinks.Claim{Group: "test", Sink: "main", RecordLanes: note}, []sinks.Lane{laneName(topicA, 0, 1)})
	coordinates := regexp.MustCompile(`broker [01] at 127.0.0.1:[0-9]+ does not answer: .*; it coordinates the fence of the transactional ID "test-main"`)
	if err == nil || !coordinates.MatchString(err.Error()) {
		t.Errorf("%v; want which broker it is, and that it coordinates", err)
	}
}

// TestAFrozenCoordinatorIsLeftWhenAnotherOneHasItsPlace: what another broker names ends the wait, and not the time that a
// request has.
func TestAFrozenCoordinatorIsLeftWhenAnotherOneHasItsPlace(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
	s, lane := openSink(t, Config{Brokers: brokers, Topic: topicA}), laneName(topicA, 0, 1)
	frozen, release := make(chan struct{}), make(chan struct{})
	resume := sync.OnceFunc(func() { close(release) })
	t.Cleanup(resume)
	var first atomic.Bool
	c.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if first.CompareAndSwap(false, true) {
			close(frozen)
			c.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	go func() {
		<-frozen
		for before := c.CoordinatorFor("test-main"); c.CoordinatorFor("test-main") == before; {
			c.RehashCoordinators()
		}
	}()
	if err := fenceAsTest(t, s, lane); err != nil {
		t.Fatal(err)
	}
	resume() // it may lead the partition
	mustPublish(t, s, lane, pods("a", 1, 3))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 3)
}

// freezeBroker makes a broker of a fake cluster answer nothing until resume is called, or the test ends.
func freezeBroker(t *testing.T, c *kfake.Cluster, node int32) (resume func()) {
	t.Helper()
	frozen := make(chan struct{})
	resume = sync.OnceFunc(func() { close(frozen) })
	t.Cleanup(resume)
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if c.CurrentNode() == node {
			c.SleepControl(func() { <-frozen })
		}
		return nil, nil, false
	})
	return resume
}

// expiring is a context whose end is that of its time.
type expiring struct{ context.Context }

func (c expiring) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// TestARefusalOfTheCoordinatorIsExplained: the error names the missing right, or the process that took over.
func TestARefusalOfTheCoordinatorIsExplained(t *testing.T) {
	t.Parallel()
	for failure, want := range map[*kerr.Error]string{
		kerr.TransactionalIDAuthorizationFailed: `grant WRITE on it`,
		kerr.InvalidProducerEpoch:               `another process has claimed the transactional ID "test-main"`,
		kerr.ProducerFenced:                     `another process has claimed the transactional ID "test-main"`,
		kerr.InvalidProducerIDMapping:           `another process has claimed the transactional ID "test-main"`,
		kerr.ClusterAuthorizationFailed:         `IDEMPOTENT_WRITE`,
		kerr.InvalidTxnState:                    `"test-main"`,
		kerr.InvalidTransactionTimeout:          `"test-main"`,
	} {
		for _, key := range fenceRequests[1:] {
			c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
			s := openSink(t, Config{Brokers: brokers, Topic: topicA})
			c.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: failure, Count: 1})
			err := fenceAsTest(t, s, laneName(topicA, 0, 1))
			var deposed *sinks.DeposedError
			if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &deposed) != strings.HasPrefix(want, "another") {
				t.Errorf("%s at %s: %v; want an error with %s", failure.Message, key.Name(), err, want)
			}
			if err := fenceAsTest(t, s, laneName(topicA, 0, 1)); err != nil {
				t.Errorf("again after %s at %s: %v", failure.Message, key.Name(), err)
			}
		}
	}
}

// TestARecreatedTopicUnderAFencedLaneGoesOn: the new topic knows neither fence nor numbers, and ends before the position.
func TestARecreatedTopicUnderAFencedLaneGoesOn(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{1, 3} {
		_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
		s := openSink(t, Config{Brokers: brokers, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: partitions}, CheckTopics: checkOff})
		lane := laneName(topicA, 0, 1)
		mustFence(t, s, lane)
		mustPublish(t, s, lane, pods("a", 1, 9))
		deleteTopic(t, brokers, topicA)
		publishUntilAccepted(t, s, lane, pods("a", 9, 20))
		publishUntilAccepted(t, s, lane, pods("a", 20, 40))
		wantVersions(t, readTopics(t, brokers, topicA), 9, 40)
		if place := progressOf(s)[lane]; int64(place) != endOffsets(t, brokers, topicA)[0] {
			t.Errorf("the position is %d, the end %v", place, endOffsets(t, brokers, topicA))
		}
	}
}

// TestABrokerThatFailsStopsItsOwnFencedLanesOnly: other brokers may answer, and an UnavailableError would stop their lanes
// too.
func TestABrokerThatFailsStopsItsOwnFencedLanesOnly(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		key  kmsg.Key
		lane func(t *testing.T, c *kfake.Cluster, s *Sink, lane sinks.Lane) // brings the lane to that request
	}{
		"query of the end of the lane": {kmsg.ListOffsets, func(*testing.T, *kfake.Cluster, *Sink, sinks.Lane) {}},
		"read of the messages in doubt": {kmsg.Fetch, func(t *testing.T, c *kfake.Cluster, s *Sink, lane sinks.Lane) {
			mustPublish(t, s, lane, pods("a", 1, 2))
			c.Fault(faultAt(t, kerr.OutOfOrderSequenceNumber, 2))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(1, topicA))
			s := openSink(t, Config{Brokers: brokers, Topic: topicA})
			lane := laneName(topicA, 0, 1)
			mustFence(t, s, lane)
			at.lane(t, c, s, lane)
			var cut atomic.Bool
			cut.Store(true)
			c.ControlKey(int16(at.key), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				return nil, errors.New("the connection is cut"), cut.Load()
			})
			_, err := s.Publish(t.Context(), lane, pods("a", 2, 3))
			var all *sinks.UnavailableError
			if err == nil || errors.As(err, &all) {
				t.Errorf("publish: %v; want an error of the lane", err)
			}
			cut.Store(false)
			publishUntilAccepted(t, s, lane, pods("a", 2, 9))
		})
	}
}
