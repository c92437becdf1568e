package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/record"
)

// storedState is the state of a sink in a journal.
type storedState struct {
	mu    sync.Mutex
	state []byte
	saved [][]byte // every state that was saved
}

// restoreState restores the stored state, and stores that of the sink there.
func restoreState(t testing.TB, s *Sink, k *storedState, newest uint64) {
	t.Helper()
	save := func(context.Context) error {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.state = s.State(0)
		k.saved = append(k.saved, k.state)
		return nil
	}
	if err := s.RestoreState(k.state, newest, save); err != nil {
		t.Fatal(err)
	}
}

// openSuccessors opens one sink after the other on a fake cluster with one partition, with a common state. Their batches
// hold a few messages each, so that several are in flight.
func openSuccessors(t testing.TB, opts ...kfake.Opt) (c *kfake.Cluster, brokers []string, next func(newest uint64) (*Sink, sinks.Lane), k *storedState) {
	t.Helper()
	c, brokers = startFakeCluster(t, append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, topicA)}, opts...)...)
	k = &storedState{}
	next = func(newest uint64) (*Sink, sinks.Lane) {
		s := openSink(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes})
		restoreState(t, s, k, newest)
		return s, laneOf(t, s, pod("a", 1))
	}
	return c, brokers, next, k
}

// TestAfterAChangeOfRoutesTheDeadProcessIsTurnedAway: what has the offset of another message is found by its ID.
func TestAfterAChangeOfRoutesTheDeadProcessIsTurnedAway(t *testing.T) {
	t.Parallel()
	_, brokers, next, k := openSuccessors(t)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 5))
	k.state = s.State(0)
	mustPublish(t, s, lane, pods("a", 5, 9)) // acknowledged, but not saved
	dead := s.lanes.byName[lane]
	late, err := dead.encoder.encodeBatch(t.Context(), pods("a", 9, 12), dead.numbers.nextSequence())
	if err != nil {
		t.Fatal(err)
	}
	s, lane = next(0)
	others := pods("a", 5, 10)
	for i := range others {
		others[i].Offset -= 4
	}
	mustPublish(t, s, lane, others)
	if err := produceAlone(t, s, 0, late); protocol.ClassifyError(err) != protocol.Fenced {
		t.Errorf("the batch of the dead process: %v; want it refused", err)
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 10)
}

// TestAClaimThatBrokersHaveForgottenIsMadeAgain: a copy of the journal, or a coordinator that was restored, has another one.
func TestAClaimThatBrokersHaveForgottenIsMadeAgain(t *testing.T) {
	t.Parallel()
	_, brokers, next, _ := openSuccessors(t)
	first, lane := next(0)
	mustPublish(t, first, lane, pods("a", 1, 5))
	second, _ := next(4)
	for v := 5; v < 20; v += 3 {
		publishUntilAccepted(t, second, lane, pods("a", v, v+3))
		publishUntilAccepted(t, first, lane, pods("a", v, v+3)) // it finds what the other one wrote
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 20)
}

// TestAPingSaysThatNoTransactionalIDIsGranted before anything is published.
func TestAPingSaysThatNoTransactionalIDIsGranted(t *testing.T) {
	t.Parallel()
	c, _, s, _ := openSingleLane(t)
	refuseTransactionalIDs(c)
	pingUntilReady(t, s)
	wantWarning(t, s, "TRANSACTIONAL_ID")
}

// Partitions are added while no process runs. What the previous process had is finished in the layout that it had, where its
// records are found.
func TestPartitionsThatAreAddedBetweenProcessesRepeatNothing(t *testing.T) {
	t.Parallel()
	count := 2
	for partitionForKey(pod("a", 1).AppendKey(nil), count) != 0 { // so that all is read in order, from one partition
		count++
	}
	for _, waits := range []bool{false, true} { // the predecessor did not know the partitions when it stored its cursor
		_, brokers, next, k := openSuccessors(t)
		s, lane := next(0)
		mustPublish(t, s, lane, pods("a", 1, 5))
		k.state = s.State(0)
		mustPublish(t, s, lane, pods("a", 5, 9)) // acknowledged, but not saved
		addPartitions(t, brokers, topicA, int32(count))
		s, _ = next(10)
		if waits {
			s.ResumeLanes([]sinks.Lane{waitingLane(topicA)})
		}
		mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 3, 10))
		for _, r := range s.PendingRepartitions() {
			if len(r.To) != 1 {
				t.Fatalf("repartition to %d lanes while the changes of the predecessor are not settled", len(r.To))
			}
			s.ApplyRepartition(r)
		}
		mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 10, 12))
		s.ObserveSettled(11)
		due := s.PendingRepartitions()
		if len(due) != 1 || len(due[0].From) != 1 || len(due[0].To) != count {
			t.Fatalf("the topic has %d partitions, and nothing of the predecessor is left: %+v", count, due)
		}
		s.ApplyRepartition(due[0])
		mustPublish(t, s, laneOf(t, s, pod("a", 1)), pods("a", 12, 20))
		wantVersions(t, readTopics(t, brokers, topicA), 1, 20)
	}
}

func TestAWindowWithLostAnswersIsNotDuplicatedByTheNextProcess(t *testing.T) {
	t.Parallel()
	for _, lost := range []*kerr.Error{kerr.RequestTimedOut, kerr.NotEnoughReplicas} { // the first one is applied by kfake, with those behind
		for _, version := range []int{2, 5, 9} {
			c, brokers, next, _ := openSuccessors(t)
			s, lane := next(0)
			mustPublish(t, s, lane, pods("a", 1, 2))
			c.Fault(faultAt(t, lost, version))
			if n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 30)); err == nil || len(s.lanes.byName[lane].window.batches) < 2 {
				t.Fatalf("published %d: %v", n, err)
			}
			s, lane = next(29)
			mustPublish(t, s, lane, pods("a", 1, 60))
			wantVersions(t, readTopics(t, brokers, topicA), 1, 60)
		}
	}
}

// Each time the successor has read the partition and sends the rest, one more batch of the dead process arrives.
func TestAWindowThatArrivesInPiecesIsNotDuplicated(t *testing.T) {
	t.Parallel()
	c, brokers, next, k := openSuccessors(t)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 2))
	k.state = s.State(0)
	dead := s.lanes.byName[lane]
	dead.encoder.maxRecords = 1 // other batches than those of the successor
	var late []*inFlightBatch
	for v := 2; v < 2+maxInFlight; v++ {
		f, err := dead.encoder.encodeBatch(t.Context(), pods("a", v, v+1), dead.window.sequenceAfter(dead.numbers.nextSequence()))
		if err != nil {
			t.Fatal(err)
		}
		late, dead.window.batches = append(late, f), append(dead.window.batches, f)
	}
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		first := binary.BigEndian.Uint32(r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records[record.AtCount:]) > 1
		if first && len(late) > 0 {
			f := late[0]
			late = late[1:]
			c.SleepControl(func() {
				if err := produceAlone(t, s, 0, f); protocol.ClassifyError(err) != protocol.Fenced {
					t.Errorf("a late batch: %v; want it refused", err)
				}
			})
		}
		return nil, nil, false
	})
	successor, lane := next(29)
	mustPublish(t, successor, lane, pods("a", 1, 60))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 60)
	if len(late) > 0 {
		t.Errorf("%d batches did not arrive: the test shows nothing", len(late))
	}
}

// TestAFrozenBrokerAtARestartStopsItsOwnLanesOnly: the others do not wait until it can be fenced and read, and no
// transaction has its partition meanwhile, which would not end.
func TestAFrozenBrokerAtARestartStopsItsOwnLanesOnly(t *testing.T) {
	t.Parallel()
	c, brokers := startFakeCluster(t, kfake.NumBrokers(2), kfake.SeedTopics(2, topicA))
	cfg := Config{Brokers: brokers, Topic: topicA, CheckTopics: checkOff, RequestTimeout: 5 * time.Second}
	older, k := openSink(t, cfg), &storedState{}
	restoreState(t, older, k, 0)
	publish := func(s *Sink, p, from, to int) {
		publishUntilAccepted(t, s, laneName(topicA, int32(p), 2), pods("p"+itoa(p), from, to))
	}
	for p := range 2 {
		if err := c.MoveTopicPartition(topicA, int32(p), int32(p)); err != nil {
			t.Fatal(err)
		}
		publish(older, p, 1, 10)
	}
	k.state = older.State(0)
	for p := range 2 {
		publish(older, p, 10, 20) // acknowledged, but not saved
	}
	for c.CoordinatorFor(older.fence.Load().transactional.ID) != 0 {
		c.RehashCoordinators()
	}
	var fenced atomic.Bool // the partition of the frozen broker
	c.ControlKey(int16(kmsg.AddPartitionsToTxn), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range r.(*kmsg.AddPartitionsToTxnRequest).Topics {
			fenced.Store(fenced.Load() || slices.Contains(topic.Partitions, 1))
		}
		return nil, nil, false
	})
	resume := freezeBroker(t, c, 1)
	newer := openSink(t, cfg)
	restoreState(t, newer, k, 40)
	failed := make(chan error, 1)
	go func() {
		_, err := newer.Publish(t.Context(), laneName(topicA, 1, 2), pods("p1", 5, 40))
		failed <- err
	}()
	publish(newer, 0, 5, 40)
	if err := <-failed; err == nil || fenced.Load() {
		t.Errorf("the leader does not answer: %v, fenced: %t", err, fenced.Load())
	}
	resume()
	publish(newer, 1, 5, 40)
	if !fenced.Load() {
		t.Error("the partition was not fenced: the test shows nothing")
	}
	wantStreams(t, readTopics(t, brokers, topicA), 2, 39)
}

func TestAMessageThatWasRejectedIsNotTakenForOneThatWasWritten(t *testing.T) {
	t.Parallel()
	c, brokers, next, k := openSuccessors(t)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 3))
	k.state = s.State(0)
	c.Fault(produceFault(kerr.InvalidRecord))
	var rejected *sinks.RejectedError
	if n, err := s.Publish(t.Context(), lane, pods("a", 3, 4)); n != 0 || !errors.As(err, &rejected) {
		t.Fatalf("published %d: %v", n, err)
	}
	mustPublish(t, s, lane, pods("a", 4, 6)) // 3 is a dead letter, and durable
	s, lane = next(8)
	mustPublish(t, s, lane, append(pods("a", 1, 3), pods("a", 4, 9)...))
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records[:2], 1, 3)
	wantVersions(t, records[2:], 4, 9)
}

func TestAJournalThatWentBackInTimeLosesNothing(t *testing.T) {
	t.Parallel()
	_, brokers, next, k := openSuccessors(t)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 3))
	k.state = s.State(0)
	mustPublish(t, s, lane, pods("a", 3, 9))
	s, lane = next(4) // a copy of the journal that ends with 4
	mustPublish(t, s, lane, pods("a", 1, 6))
	others := pods("a", 20, 23) // the journal has other changes now
	for i := range others {
		others[i].Offset = uint64(6 + i)
	}
	mustPublish(t, s, lane, others)
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records[:8], 1, 9)
	wantVersions(t, records[8:], 20, 23)
}

func TestWithoutATransactionalIDChangesInDoubtAreResentAndThatIsSaid(t *testing.T) {
	t.Parallel()
	c, brokers, next, k := openSuccessors(t)
	refuseTransactionalIDs(c)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 3))
	k.state = s.State(0)
	mustPublish(t, s, lane, pods("a", 3, 5))
	s, lane = next(8)
	mustPublish(t, s, lane, pods("a", 1, 9))
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records[:4], 1, 5)
	wantVersions(t, records[4:], 3, 9) // what is stored as acknowledged is not
	wantWarning(t, s, "TRANSACTIONAL_ID")
}

// wantWarning fails the test unless a condition of a sink has this word.
func wantWarning(t *testing.T, s *Sink, word string) {
	t.Helper()
	for _, c := range s.Conditions() {
		if c.Code == condition.SinkMayLose && strings.Contains(c.Cause, word) {
			return
		}
	}
	t.Errorf("no condition names %s: %v", word, s.Conditions())
}

func TestWithoutTheRightToReadChangesInDoubtAreResentAndThatIsSaid(t *testing.T) {
	t.Parallel()
	c, brokers, next, k := openSuccessors(t)
	s, lane := next(0)
	mustPublish(t, s, lane, pods("a", 1, 3))
	k.state = s.State(0)
	mustPublish(t, s, lane, pods("a", 3, 5))
	refused := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	s, lane = next(8)
	mustPublish(t, s, lane, pods("a", 1, 9))
	refused.Remove()
	records := readTopics(t, brokers, topicA)
	wantVersions(t, records[:4], 1, 5)
	wantVersions(t, records[4:], 3, 9) // 1 and 2 were acknowledged and stored
	wantWarning(t, s, "grant READ")
}

func TestTheFirstBatchOfALaneWaitsUntilItsEpochIsStored(t *testing.T) {
	t.Parallel()
	_, brokers, s, lane := openSingleLane(t)
	full := errors.New("disk full")
	if err := s.RestoreState(nil, 0, func(context.Context) error { return full }); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Publish(t.Context(), lane, pods("a", 1, 3)); n != 0 || !errors.Is(err, full) {
		t.Errorf("published %d: %v", n, err)
	}
	if records := readTopics(t, brokers, topicA); len(records) != 0 {
		t.Errorf("%d records are written before their numbers are stored", len(records))
	}
}

func TestAStateThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"\x03\x00\x00\x00", "\x04", "\x04\x01\x03abc", "\x04\x00\x00\x00\x00extra", "\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		s := openSink(t, Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA})
		if err := s.RestoreState([]byte(state), 0, nil); err == nil {
			t.Errorf("%q was read", state)
		}
	}
}

func FuzzState(f *testing.F) {
	open := func() *Sink {
		s, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Topic: topicA}, format.JSON, slog.New(slog.DiscardHandler))
		if err != nil {
			f.Fatal(err)
		}
		return s
	}
	first := open()
	_ = first.journal.recordLanes(f.Context(), map[sinks.Lane]sinks.LanePosition{laneName("t", 0, 1): 5, laneName("u", 1, 2): 9})
	f.Add(first.State(0))
	f.Fuzz(func(t *testing.T, state []byte) {
		s, again := open(), open()
		defer closeSink(t, s)
		defer closeSink(t, again)
		if s.RestoreState(state, 1, func(context.Context) error { return nil }) != nil || len(state) == 0 {
			return
		}
		if err := again.RestoreState(s.State(0), 1, nil); err != nil {
			t.Errorf("what was read cannot be written and read: %v", err)
		}
	})
}
