package kafka

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// openSmallBatches opens a sink with batches of a few messages each, and publishes version 1, so that the next Publish has
// several batches in flight.
func openSmallBatches(t testing.TB, opts ...kfake.Opt) (*kfake.Cluster, []string, *Sink, sinks.Lane) {
	t.Helper()
	c, brokers := startFakeCluster(t, append([]kfake.Opt{kfake.NumBrokers(2), kfake.SeedTopics(1, topicA)}, opts...)...)
	s := openSink(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes})
	lane := laneOf(t, s, pod("a", 1))
	mustPublish(t, s, lane, pods("a", 1, 2))
	return c, brokers, s, lane
}

// faultAt refuses, once, the batch that holds a version of pod a.
func faultAt(t testing.TB, err *kerr.Error, version int) kfake.Fault {
	f := produceFault(err)
	id := pod("a", version).ID()
	f.When = func(r kmsg.Request) bool { return requestContains(t, r, id) }
	return f
}

func TestSeveralBatchesAreInFlightAndThoseInFrontOfAFailureAreAcknowledged(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	c.Fault(faultAt(t, kerr.RequestTimedOut, 5)) // applied by kfake
	n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40))
	if n == 0 || n > 3 || err == nil {
		t.Fatalf("published %d: %v; want what is in front of version 5", n, err)
	}
	if left := len(s.lanes.byName[lane].window.batches); left != maxInFlight+1 {
		t.Errorf("%d batches are left in flight; want those from the failure on, those that were sent meanwhile, and the next one", left)
	}
	mustPublish(t, s, lane, pods("a", 2+n, 40))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
}

func TestNothingIsLostRepeatedOrReorderedWhereverAWindowFails(t *testing.T) {
	t.Parallel()
	for _, failure := range []*kerr.Error{
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, // applied by kfake
		kerr.NotEnoughReplicas, kerr.NotLeaderForPartition, kerr.UnknownTopicOrPartition, kerr.CorruptMessage, kerr.MessageTooLarge,
		kerr.InvalidRecord, kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.TopicAuthorizationFailed,
	} {
		for _, version := range []int{2, 13, 39} {
			c, brokers, s, lane := openSmallBatches(t)
			c.Fault(faultAt(t, failure, version))
			publishUntilAccepted(t, s, lane, pods("a", 2, 40))
			wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
			if t.Failed() {
				t.Fatalf("after %s at version %d", failure.Message, version)
			}
		}
	}
}

func TestARecordRejectedInTheMiddleOfAWindowIsRejectedAlone(t *testing.T) {
	t.Parallel()
	for _, refusal := range []*kerr.Error{kerr.InvalidRecord, kerr.CorruptMessage} {
		for _, bad := range []int{2, 12, 39} {
			c, brokers, s, lane := openSmallBatches(t)
			f := faultAt(t, refusal, bad)
			f.Count = -1
			c.Fault(f)
			n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40))
			var rejected *sinks.RejectedError
			if n != bad-2 || !errors.As(err, &rejected) || rejected.TooLarge {
				t.Fatalf("published %d: %v; want a rejection of version %d", n, err, bad)
			}
			mustPublish(t, s, lane, pods("a", bad+1, 50))
			records := readTopics(t, brokers, topicA)
			wantVersions(t, records[:bad-1], 1, bad)
			wantVersions(t, records[bad-1:], bad+1, 50)
		}
	}
}

func TestAWindowInDoubtIsResentWhenItsBytesAreNotRetained(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	s.lanes.retained.tryReserve(maxRetainedBytes)
	for from := 2; from < 100; from += 40 {
		c.Fault(faultAt(t, kerr.RequestTimedOut, from+4))
		n, err := publishOnward(t.Context(), s, lane, pods("a", from, from+40))
		if err == nil || len(s.lanes.byName[lane].window.batches) < 2 {
			t.Fatalf("published %d: %v", n, err)
		}
		for _, f := range s.lanes.byName[lane].window.batches {
			if f.bytes != nil {
				t.Error("a batch is retained beyond the budget")
			}
		}
		mustPublish(t, s, lane, pods("a", from+n, from+40))
	}
	if left := s.lanes.retained.remaining.Load(); left != 0 {
		t.Errorf("the budget has grown by %d bytes", left)
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 122)
}

func TestShorterBatchesAfterAWindowInDoubtCauseNoDuplicate(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	c.Fault(faultAt(t, kerr.RequestTimedOut, 3))
	if n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40)); n != 0 || err == nil || len(s.lanes.byName[lane].window.batches) != maxInFlight+1 {
		t.Fatalf("published %d: %v", n, err)
	}
	for v := 2; v < 40; v++ {
		mustPublish(t, s, lane, pods("a", v, v+1))
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
}

func TestAFailureBehindTheMessagesOfACallIsLeftToTheNextOne(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	c.Fault(faultAt(t, kerr.RequestTimedOut, 3))
	if n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40)); n != 0 || err == nil {
		t.Fatalf("published %d: %v", n, err)
	}
	flights := s.lanes.byName[lane].window.batches
	begin := func(i int) int { return int(flights[i].offsets[0]) }
	mustPublish(t, s, lane, pods("a", 2, begin(1)))
	fault := c.Fault(faultAt(t, kerr.RequestTimedOut, begin(2)))
	mustPublish(t, s, lane, pods("a", begin(1), begin(2))) // the batches in doubt behind them are sent too
	publishUntilAccepted(t, s, lane, pods("a", begin(2), 40))
	if fault.Hits() != 1 { // this call awaits it; the last one may return earlier
		t.Error("nothing failed: the test shows nothing")
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
}

// The bytes of a batch under way may be gone when the answer requires sending it again. If the caller then returns with
// fewer messages than before, which delivery never does, some are written twice.
func TestAFailureAfterACallLosesNothingWhenBatchesAreNotRetained(t *testing.T) {
	t.Parallel()
	for _, failure := range []*kerr.Error{kerr.RequestTimedOut, kerr.CorruptMessage, kerr.NotLeaderForPartition} {
		for _, bad := range []int{3, 18, 38} {
			c, brokers, s, lane := openSmallBatches(t)
			s.lanes.retained.tryReserve(maxRetainedBytes)
			c.Fault(faultAt(t, kerr.RequestTimedOut, 3))
			if n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40)); err == nil {
				t.Fatalf("published %d", n)
			}
			c.Fault(faultAt(t, failure, bad))
			for from := 2; from < 40; from += 7 {
				publishUntilAccepted(t, s, lane, pods("a", from, min(from+7, 40)))
			}
			next := 1
			for _, r := range readTopics(t, brokers, topicA) {
				v := podVersion(t, r)
				if v > next {
					t.Fatalf("version %d comes behind %d", v, next-1)
				}
				next = max(next, v+1)
			}
			if next != 40 {
				t.Errorf("the last version is %d", next-1)
			}
		}
	}
}

// A broker accepts any number from a producer that it does not know: with two batches, it could reject the first and accept
// the second.
func TestABrokerThatMayNotKnowTheSequenceIsSentOneBatch(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]sinks.Message{"a new producer": nil, "a producer that may be forgotten": pods("a", 1, 2)} {
		c, brokers := startFakeCluster(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topicA))
		s := openSink(t, Config{Brokers: brokers, Topic: topicA, BatchBytes: minBatchBytes})
		lane := laneOf(t, s, pod("a", 1))
		mustPublish(t, s, lane, before)
		if before != nil {
			s.lanes.byName[lane].numbers.(*fencedSequencer).lastWritten = time.Now().Add(-2 * producerRetention)
		}
		c.Fault(produceFault(kerr.NotEnoughReplicas))
		if n, err := publishOnward(t.Context(), s, lane, pods("a", 2, 40)); n != 0 || err == nil || len(s.lanes.byName[lane].window.batches) != 1 {
			t.Errorf("%s: published %d: %v", name, n, err)
		}
	}
}

func TestANetworkThatTakesLongForOneBatchGetsOneAtATime(t *testing.T) {
	t.Parallel()
	l := &lane{
		numbers: &numberedSequencer{lastWritten: time.Now()},
		window:  publishWindow{partition: &partitionClient{requestTimeout: 10 * time.Second}},
	}
	for _, c := range []struct {
		err   error
		each  time.Duration
		depth int
	}{{nil, 900 * time.Millisecond, maxInFlight}, {nil, 1100 * time.Millisecond, 1}, {nil, 0, maxInFlight}, {io.EOF, 0, 1}} {
		if l.window.adaptLimit(c.err, c.each); l.windowDepth() != c.depth {
			t.Errorf("%v and %v each: %d in flight, want %d", c.err, c.each, l.windowDepth(), c.depth)
		}
	}
}

func TestACallCancelledInTheMiddleOfAWindowIsResumed(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	ctx, cancel := context.WithCancel(t.Context())
	wake := make(chan struct{})
	last := pod("a", 12).ID()
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if requestContains(t, r, last) && ctx.Err() == nil {
			cancel()
			c.SleepControl(func() { <-wake })
		}
		return nil, nil, false
	})
	n, err := publishOnward(ctx, s, lane, pods("a", 2, 40))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("published %d: %v", n, err)
	}
	close(wake)
	publishUntilAccepted(t, s, lane, pods("a", 2+n, 40))
	wantVersions(t, readTopics(t, brokers, topicA), 1, 40)
}

// The window slides from one call to the next: a call with more messages than may be in flight returns while the window is
// full. The next call neither sends these batches again nor waits for them before it sends new ones.
func TestALargeCallReturnsWhileTheWindowIsFull(t *testing.T) {
	t.Parallel()
	c, brokers, s, lane := openSmallBatches(t)
	calls := 0
	for at := 2; at < 100; calls++ {
		batch := pods("a", at, min(at+40, 100))
		n, err := s.Publish(t.Context(), lane, batch)
		if n == 0 || err != nil {
			t.Fatalf("published %d of %d: %v", n, len(batch), err)
		}
		under := 0
		for _, f := range s.lanes.byName[lane].window.batches {
			if f.pending != nil {
				under++
			}
		}
		if len(batch) == 40 && under != maxInFlight {
			t.Errorf("%d batches are under way behind %d of %d messages, want %d", under, n, len(batch), maxInFlight)
		}
		at += n
	}
	wantVersions(t, readTopics(t, brokers, topicA), 1, 100)
	if c.Close(); calls < 3 {
		t.Errorf("%d calls: the test shows nothing", calls)
	}
}
