package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/cluster"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
	"github.com/kubecdc/kubecdc/test/sinktest"
)

func itoa(n int) string { return strconv.Itoa(n) }

const topicA = "k8s.core.pods"

// openSingleLane opens a sink on a fake cluster with one partition, and returns the lane of the pods of the tests.
func openSingleLane(t testing.TB, opts ...kfake.Opt) (*kfake.Cluster, []string, *Sink, sinks.Lane) {
	t.Helper()
	c, brokers := startFakeCluster(t, append([]kfake.Opt{kfake.NumBrokers(2), kfake.SeedTopics(1, topicA)}, opts...)...)
	s := openSink(t, Config{Brokers: brokers, Topic: "k8s.{group}.{resource}"})
	return c, brokers, s, laneOf(t, s, pod("a", 1))
}

// lookUp is Lane after a lookup of the topic, as the first Publish does it. It returns an error if no broker answers.
func lookUp(t testing.TB, s *Sink, c *event.Change) (sinks.Lane, error) {
	name := string(s.router.template.AppendName(nil, c, appendEscaped))
	if !s.router.hasRoute(name) {
		_, err := s.topics.refreshLayout(t.Context(), s.topics.topicByName(name), nil)
		var away *sinks.UnavailableError
		if errors.As(err, &away) {
			return "", err
		}
	}
	return s.Lane(c)
}

// laneOf repeats lookUp until the cluster is ready.
func laneOf(t testing.TB, s *Sink, c *event.Change) sinks.Lane {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		lane, err := lookUp(t, s, c)
		if err == nil {
			return lane
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-pause.C
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

// publishOnward publishes a batch until it is accepted or fails: a call may return while messages are under way.
func publishOnward(ctx context.Context, s *Sink, lane sinks.Lane, batch []sinks.Message) (accepted int, err error) {
	for more := true; more; more = err == nil && accepted < len(batch) {
		var n int
		n, err = s.Publish(ctx, lane, batch[accepted:])
		accepted += n
	}
	return accepted, err
}

// mustPublish fails the test unless the whole batch is accepted without an error.
func mustPublish(t testing.TB, s *Sink, lane sinks.Lane, batch []sinks.Message) {
	t.Helper()
	if n, err := publishOnward(t.Context(), s, lane, batch); n != len(batch) || err != nil {
		t.Fatalf("published %d of %d: %v", n, len(batch), err)
	}
}

// publishUntilAccepted publishes as delivery does: it retries from the first message that is not accepted.
func publishUntilAccepted(t testing.TB, s *Sink, lane sinks.Lane, batch []sinks.Message) {
	t.Helper()
	if n, err := publishUntilRejected(t, s, lane, batch); err != nil {
		t.Fatalf("%d messages are left: %v", len(batch)-n, err)
	}
}

// publishUntilRejected is publishUntilAccepted until one message is rejected. It returns the number of accepted ones.
func publishUntilRejected(t testing.TB, s *Sink, lane sinks.Lane, batch []sinks.Message) (accepted int, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		n, err := publishOnward(ctx, s, lane, batch[accepted:])
		accepted += n
		var rejected *sinks.RejectedError
		if err == nil || ctx.Err() != nil || errors.As(err, &rejected) {
			return accepted, err
		}
		<-pause.C
	}
}

// produceAlone sends one batch without the lane, and returns the answer.
func produceAlone(t testing.TB, s *Sink, leader int32, f *inFlightBatch) error {
	t.Helper()
	record.SetTimestamp(f.bytes, time.Now())
	p, err := s.cluster.Produce(leader, protocol.RecordBatch{Topic: topicA, Bytes: f.bytes}, cluster.ForProducing)
	if err != nil {
		return err
	}
	return p.Wait(t.Context())
}

func produceFault(err *kerr.Error) kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err}
}

func TestARecordHasTheDocumentedKeyAndHeaders(t *testing.T) {
	t.Parallel()
	_, brokers, s, lane := openSingleLane(t)
	c := pod("a", 7)
	c.Resource.Group = "apps"
	c.ObservedAt = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	sent := time.Now().Truncate(time.Millisecond)
	mustPublish(t, s, lane, []sinks.Message{{Offset: 7, Change: c}})
	got := readTopics(t, brokers, topicA)[0]
	if string(got.Key) != "test/apps/pods/default/a" {
		t.Errorf("key %q", got.Key)
	}
	if got.Timestamp.Before(sent) || got.Timestamp.After(time.Now()) {
		t.Errorf("timestamp %v; it was sent at %v", got.Timestamp, sent)
	}
	for name, want := range map[string]string{"id": "test/uid-a/7/updated", "type": "updated", "observedAt": "2026-01-02T03:04:05.000000006Z", "content-type": "application/json", "cluster": "test", "resource": "pods.apps"} {
		if value := recordHeader(got, name); value != want {
			t.Errorf("header %s is %q, want %q", name, value, want)
		}
	}
}

func TestTheBudgetOfRetainedBatchesIsReleased(t *testing.T) {
	t.Parallel()
	c, _, s, lane := openSingleLane(t)
	c.Fault(produceFault(kerr.RequestTimedOut))
	if n, err := s.Publish(t.Context(), lane, pods("a", 1, 5)); n != 0 || err == nil {
		t.Fatalf("published %d: %v", n, err)
	}
	if left := s.lanes.retained.remaining.Load(); left >= maxRetainedBytes {
		t.Error("the batch is not counted against the budget")
	}
	mustPublish(t, s, lane, pods("a", 1, 5))
	if left := s.lanes.retained.remaining.Load(); left != maxRetainedBytes {
		t.Errorf("%d bytes are left of %d", left, maxRetainedBytes)
	}
}

func TestBatchesInDoubtAreNeverWrittenAfterOtherMessages(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSingleLane(t)
	mustPublish(t, s, lane, pods("a", 1, 2))
	c.Fault(produceFault(kerr.NotEnoughReplicas))
	if n, err := s.Publish(t.Context(), lane, pods("a", 2, 4)); n != 0 || err == nil {
		t.Fatalf("published %d: %v", n, err)
	}
	before := s.lanes.byName[lane].numbers.nextSequence()
	mustPublish(t, s, lane, pods("a", 3, 5))
	if now := s.lanes.byName[lane].numbers.nextSequence(); now.Producer != before.Producer || now.Epoch <= before.Epoch || now.Sequence != 2 {
		t.Errorf("stamp %+v after %+v; want a newer epoch, which fences the batch in doubt", now, before)
	}
	records := readTopics(t, brokers, topicA)
	if len(records) != 3 || recordHeader(records[1], "id") != pod("a", 3).ID() {
		t.Errorf("%d records, want versions 1, 3, 4", len(records))
	}
}

func TestAMovedLeaderIsFollowedWithinOneCall(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSingleLane(t)
	mustPublish(t, s, lane, pods("a", 1, 3))
	for v := 3; v < 9; v++ {
		if err := c.MoveTopicPartition(topicA, 0, 1-c.LeaderFor(topicA, 0)); err != nil {
			t.Fatal(err)
		}
		mustPublish(t, s, lane, pods("a", v, v+1))
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 9)
}

func TestAPassingErrorIsLeftToTheCallersBackOff(t *testing.T) {
	t.Parallel()
	for _, passing := range []*kerr.Error{kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.NetworkException, kerr.NotEnoughReplicas, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.PolicyViolation} {
		c, brokers, s, lane := openSingleLane(t)
		c.Fault(produceFault(passing))
		n, err := s.Publish(t.Context(), lane, pods("a", 1, 4))
		var rejected *sinks.RejectedError
		var unavailable *sinks.UnavailableError
		if n != 0 || err == nil || errors.As(err, &rejected) || errors.As(err, &unavailable) {
			t.Errorf("%v: published %d: %v; want a plain error", passing.Message, n, err)
		}
		mustPublish(t, s, lane, pods("a", 1, 4))
		wantVersions(t, readTopics(t, brokers, topicA), 1, 4)
	}
}

// TestWhatIsTooLargeIsRejectedWithoutNumbersOnceTheLimitIsKnown: a batch that a broker refuses costs an epoch, and those
// behind it.
func TestWhatIsTooLargeIsRejectedWithoutNumbersOnceTheLimitIsKnown(t *testing.T) {
	t.Parallel()
	const limit, last = 20_000, 300
	c, brokers, s, lane := openSingleLane(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": itoa(limit)}))
	messages := pods("a", 1, last+1)
	for i := 0; i < last; i += 3 {
		large := *messages[i].Change
		large.After = []byte(`{"x":"` + randomText(2*limit) + `"}`)
		messages[i].Change = &large
	}
	publish := func(batch []sinks.Message) (rejected int) {
		for len(batch) > 0 {
			n, err := publishOnward(t.Context(), s, lane, batch)
			if batch = batch[n:]; err != nil {
				refusal := new(sinks.RejectedError)
				if !errors.As(err, &refusal) || !refusal.TooLarge || batch[0].Offset%3 != messages[0].Offset%3 {
					t.Fatalf("message %d: %v", batch[0].Offset, err)
				}
				rejected, batch = rejected+1, batch[1:]
			}
		}
		return rejected
	}
	rejected := publish(messages[:6])
	epochs := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Observe: true, Count: -1, TopLevel: true})
	if rejected += publish(messages[6:]); rejected != last/3 || epochs.Hits() > 0 {
		t.Errorf("%d rejected, want %d; %d requests for an epoch", rejected, last/3, epochs.Hits())
	}
	for i, r := range readTopics(t, brokers, topicA) {
		if v := podVersion(t, r); v != i/2*3+i%2+2 {
			t.Fatalf("record %d has version %d", i, v)
		}
	}
	alterTopic(t, brokers, topicA, "max.message.bytes", itoa(10*limit))
	s.topics.topicByName(topicA).limit.Load().foundAt = time.Now().Add(-limitAge)
	mustPublish(t, s, lane, messages[:1])
}

func TestASizeThatWasRefusedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	const limit = 5000
	c, brokers, s, lane := openSingleLane(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": itoa(limit)}))
	smallest, refused, gap := math.MaxInt, 0, uint32(math.MaxUint32)
	var seen kmsg.Request // the fake calls When several times for one request
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, When: func(r kmsg.Request) bool {
		batch := r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records
		sequence := binary.BigEndian.Uint32(batch[record.AtSequence:])
		if r == seen || sequence > gap { // sent in the same window as the refused one
			return false
		}
		seen, gap = r, math.MaxUint32
		if len(batch) >= smallest {
			t.Errorf("%d bytes are sent after %d were refused", len(batch), smallest)
		}
		if len(batch) > limit {
			smallest, gap = len(batch), sequence
			refused++
		}
		return false
	}})
	mustPublish(t, s, lane, pods("a", 1, 6000))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 6000)
	if c.Close(); refused == 0 {
		t.Error("nothing was refused: the test shows nothing")
	}
}

func TestDamageOnTheWayIsRepairedByTheSameBytes(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSingleLane(t)
	f := produceFault(kerr.CorruptMessage)
	f.Count = maxCorruptTries - 1
	c.Fault(f)
	mustPublish(t, s, lane, pods("a", 1, 5))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 5)
}

func TestASequenceThatStaysLostIsLeftToTheCallersBackOff(t *testing.T) {
	t.Parallel()
	for _, lost := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.InvalidProducerEpoch} {
		c, brokers, s, lane := openSingleLane(t)
		f := produceFault(lost)
		f.Count = -1
		fault := c.Fault(f)
		if n, err := s.Publish(t.Context(), lane, pods("a", 1, 5)); n != 0 || err == nil {
			t.Fatalf("%v: published %d: %v", lost.Message, n, err)
		}
		fault.Remove()
		mustPublish(t, s, lane, pods("a", 1, 5))
		wantVersions(t, readTopics(t, brokers, topicA), 1, 5)
	}
}

// refuseTransactionalIDs makes a fake cluster grant none.
func refuseTransactionalIDs(c *kfake.Cluster) {
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.TransactionalIDAuthorizationFailed, Count: -1, TopLevel: true})
}

func TestEpochsRunOutIntoANewProducerID(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSingleLane(t)
	refuseTransactionalIDs(c)
	mustPublish(t, s, lane, pods("a", 1, 3))
	id := s.lanes.byName[lane].numbers.nextSequence().Producer
	s.lanes.byName[lane].numbers.(*numberedSequencer).next = record.ProducerSequence{Producer: id, Epoch: 1<<15 - 1}
	c.Fault(produceFault(kerr.OutOfOrderSequenceNumber))
	mustPublish(t, s, lane, pods("a", 3, 6))
	if now := s.lanes.byName[lane].numbers.nextSequence(); now.Producer == id || now.Epoch != 0 || now.Sequence != 3 {
		t.Errorf("stamp %+v; want a new producer", now)
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 6)
}

func TestSequencesWrapAsTheJavaClientsDo(t *testing.T) {
	t.Parallel()
	s := &numberedSequencer{next: record.ProducerSequence{Sequence: 1<<31 - 3}}
	s.recordWritten(&inFlightBatch{offsets: make([]uint64, 5), records: 5}, false)
	if s.next.Sequence != 2 {
		t.Errorf("sequence %d, want 2", s.next.Sequence)
	}
}

func TestMissingRightsStopTheirTopicOrTheSinkAndAreNamed(t *testing.T) {
	t.Parallel()
	for refusal, remedy := range map[*kerr.Error]string{
		kerr.TopicAuthorizationFailed:   "grant WRITE",
		kerr.ClusterAuthorizationFailed: "IDEMPOTENT_WRITE",
		kerr.SaslAuthenticationFailed:   "kafka.sasl",
	} {
		c, brokers, s, lane := openSingleLane(t)
		c.Fault(produceFault(refusal))
		n, err := s.Publish(t.Context(), lane, pods("a", 1, 3))
		var unavailable *sinks.UnavailableError
		if n != 0 || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%v: published %d: %v", refusal.Message, n, err)
		}
		if whole := errors.As(err, &unavailable); whole == (refusal == kerr.TopicAuthorizationFailed) {
			t.Errorf("%v: holds the whole sink: %v", refusal.Message, whole)
		}
		mustPublish(t, s, lane, pods("a", 1, 3))
		wantVersions(t, readTopics(t, brokers, topicA), 1, 3)
	}
}

// old is a broker without producer IDs.
func old() kfake.Opt {
	versions := kversion.V2_7_0()
	versions.SetMaxKeyVersion(int16(kmsg.InitProducerID), -1)
	return kfake.MaxVersions(versions)
}

func TestABrokerWithoutProducerIDsNamesTheFallback(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), old())
	s := openSink(t, Config{Brokers: brokers, Topic: topicA})
	_, err := s.Publish(t.Context(), laneOf(t, s, pod("a", 1)), pods("a", 1, 2))
	var unavailable *sinks.UnavailableError
	if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), "kafka.idempotence") {
		t.Errorf("%v", err)
	}
}

func TestTheContractHoldsWithoutIdempotence(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(3), old())
	h := contractHarness(Config{Brokers: brokers, Topic: "k8s.{resource}", Idempotence: new(false),
		CreateTopics: CreateTopics{Enabled: true, Partitions: 4, ReplicationFactor: 1}})
	h.ExactRetry, h.ExactRestart = false, false
	sinktest.Run(t, h)
}

// contractHarness describes a sink of topics that begin with k8s.
func contractHarness(cfg Config) sinktest.Harness {
	return sinktest.Harness{
		New: func(t testing.TB) sinks.Sink { return openUnclosedSink(t, cfg) },
		Read: func(t testing.TB) []sinktest.Delivered {
			return deliveredRecords(readTopicsWithPrefix(t, cfg.Brokers, "k8s."))
		},
		Key:        (*event.Change).Key,
		ExactRetry: true, ExactRestart: true,
		Topics: []string{"k8s.audit.{resource}", "k8s.copy.{resource}"},
	}
}

func TestWithoutIdempotenceBatchesInDoubtAreResent(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA), old())
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, Idempotence: new(false)})
	lane := laneOf(t, s, pod("a", 1))
	c.Fault(produceFault(kerr.RequestTimedOut)) // applied by kfake
	publishUntilAccepted(t, s, lane, pods("a", 1, 4))
	publishUntilAccepted(t, s, lane, pods("a", 4, 6))
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records[:3], 1, 4)
	wantVersions(t, records[3:], 1, 6) // the copy, and later messages
}

func TestTopicsAreCreatedAsConfiguredAndExistingOnesAreUsed(t *testing.T) {
	t.Parallel()
	_, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(3, "seen.nodes"))
	cfg := Config{Brokers: brokers, Topic: "seen.{resource}", CreateTopics: CreateTopics{
		Enabled: true, Partitions: 5, ReplicationFactor: 1, Configs: []TopicConfig{{"cleanup.policy", "compact"}},
	}}
	first, second := openSink(t, cfg), openSink(t, cfg)
	node := pod("a", 1)
	node.Resource.Resource = "nodes"
	for _, s := range []*Sink{first, second} {
		if lane := laneOf(t, s, pod("a", 1)); !strings.HasSuffix(string(lane), "of5") {
			t.Errorf("lane %s, want one of 5", lane)
		}
		if lane := laneOf(t, s, node); !strings.HasSuffix(string(lane), "of3") {
			t.Errorf("lane %s, want one of 3", lane)
		}
	}
}

// TestACreatedTopicThatNoBrokerKnowsYetIsNotToBeCreatedByHand: brokers learn of a new topic from the controller.
func TestACreatedTopicThatNoBrokerKnowsYetIsNotToBeCreatedByHand(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, CreateTopics: CreateTopics{Enabled: true, Partitions: 1, ReplicationFactor: 1}})
	unaware := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: topicA, Err: kerr.UnknownTopicOrPartition, Count: -1})
	_, err := s.topics.refreshLayout(t.Context(), s.topics.topicByName(topicA), nil)
	if p := condition.ProblemOf(err, ""); p.Code != condition.SinkTargetMissing || !strings.Contains(p.Cause, "is created") || !strings.HasPrefix(p.Remedy, "wait") {
		t.Errorf("%+v: %v", p, err)
	}
	unaware.Remove()
	laneOf(t, s, pod("a", 1))
}

func TestAnUnknownLaneIsAnError(t *testing.T) {
	t.Parallel()
	_, _, s, _ := openSingleLane(t)
	for _, name := range []sinks.Lane{"", "a", "a/b", "a/1of", "a/of3", "a/3of3", "a/-1of3", "a/01of3", "a b/0of1"} {
		if n, err := s.Publish(t.Context(), name, pods("a", 1, 2)); n != 0 || err == nil {
			t.Errorf("%q: published %d: %v", name, n, err)
		}
	}
}

func TestAMissingPartitionIsNamed(t *testing.T) {
	t.Parallel()
	_, _, s, _ := openSingleLane(t)
	n, err := s.Publish(t.Context(), topicA+"/4of6", pods("a", 1, 2))
	if n != 0 || err == nil || !strings.Contains(err.Error(), "was recreated") {
		t.Errorf("published %d: %v", n, err)
	}
}

func TestLaneAllocatesNothingOnceATopicIsKnown(t *testing.T) {
	_, _, s, _ := openSingleLane(t)
	c := pod("a", 1)
	if got := testing.AllocsPerRun(100_000, func() { // far more than the client and the broker make beside it
		if _, err := s.Lane(c); err != nil {
			t.Error(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestManyTopicsAreCreatedAndCheckedInFewRequests: a first start has many topics at once.
func TestManyTopicsAreCreatedAndCheckedInFewRequests(t *testing.T) {
	t.Parallel()
	const topics = 300
	c, brokers := startFakeCluster(t, kfake.NumBrokers(1))
	var created, checked atomic.Int64
	for key, count := range map[kmsg.Key]*atomic.Int64{kmsg.CreateTopics: &created, kmsg.DescribeConfigs: &checked} {
		c.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			count.Add(1)
			return nil, nil, false
		})
	}
	for run, requests := range []*atomic.Int64{&created, &checked} {
		s, log := openSinkWithLog(t, Config{Brokers: brokers, Topic: "many.{resource}",
			CreateTopics: CreateTopics{Enabled: true, Partitions: 1, ReplicationFactor: 1}})
		var all sync.WaitGroup
		for i := range topics {
			all.Go(func() {
				if _, err := s.topics.refreshLayout(t.Context(), s.topics.topicByName("many.r"+itoa(i)), nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := requests.Load(); n == 0 || n > topics/10 {
			t.Errorf("run %d: %d requests for %d topics", run, n, topics)
		}
		if n := strings.Count(log.String(), "\n"); n > topics/10 {
			t.Errorf("run %d: %d lines, the first is %.200s", run, n, log.String())
		}
	}
}
