package sinktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// largeBody is larger than most objects and, with its envelope, below the limit most destinations start with (1 MiB).
const largeBody = 900_000

// Run checks, in subtests named as promises, that the sink described by h keeps the contract of package sinks. The caller's
// TestMain checks that no goroutine outlives Close (leaks.Main).
func Run(t *testing.T, h Harness) {
	for _, promise := range contractTests {
		t.Run(promise.name, func(t *testing.T) { promise.test(t, h) })
	}
}

var contractTests = []struct {
	name string
	test func(testing.TB, Harness)
}{
	{"ChangesArriveInOrderWithTheirIDs", testArrivesInOrder},
	{"ChangesOfOneObjectShareALane", testObjectsShareALane},
	{"LanesKeepTheirNamesAcrossARestart", testLanesSurviveRestart},
	{"LanesPublishConcurrently", testConcurrentLanes},
	{"DeletedChangesArrive", testDeletedArrives},
	{"GapRecordsArrive", testGapsArrive},
	{"AnEmptyBatchIsAccepted", testEmptyBatch},
	{"LargeBodiesArriveOrAreRejectedAlone", testLargeBodies},
	{"ACancelledContextKeepsTheWriterRule", testCancelledContext},
	{"ARandomRunNeverStepsBack", testRandomRun},
	{"ChangesArriveInTheTopicsTheyAreSentTo", testRoutedTopics},
	{"AReplayAfterARestartIsRecognised", testReplay},
	{"ARestartWithChangesInFlightLosesNothing", testInFlightRestarts},
	{"ReleasedLanesCanBeUsedAgain", testReleasedLanes},
	{"ReplacedLanesKeepTheirOrder", testRepartitioning},
	{"LaneDoesNotNeedTheDestination", testLanesDuringOutage},
	{"AnOutageLosesNothing", testOutage},
	{"AStopDuringAnOutageEndsAndLosesNothing", testStopDuringOutage},
	{"LateAnswersLoseAndReorderNothing", testSlowAnswers},
	{"ThrottlingLosesAndReordersNothing", testThrottling},
	{"OnlyTheOversizedChangeOfABatchIsRejected", testOversizeInBatch}, // last: every later Read would return the large body
}

// makeVersions returns versions 1 to last of each object, one version of all objects after the other.
func makeVersions(f *changeFactory, objects, last int) []sinks.Message {
	var messages []sinks.Message
	for version := 1; version <= last; version++ {
		for object := range objects {
			messages = append(messages, f.newMessage(f.newChange(object, version)))
		}
	}
	return messages
}

func testArrivesInOrder(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 8, 10)
	p.publishEverything(messages)
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

func testObjectsShareALane(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	for object := range 50 {
		want := p.laneOf(f.newChange(object, 1))
		listed := f.newChange(object, 3)
		listed.Type, listed.Delta = event.Snapshot, event.DeltaReplaced
		recreated := f.newChange(object, 5)
		recreated.UID = f.tag + "-another-life"
		for _, c := range []*event.Change{f.newChange(object, 2), listed, f.newDeleted(object, 4), recreated} {
			if got := p.laneOf(c); got != want {
				t.Errorf("%s is in lane %q, earlier changes of the object in %q", c.ID(), got, want)
			}
		}
	}
}

func testLanesSurviveRestart(t testing.TB, h Harness) {
	f, before, after := newChangeFactory(), openSink(t, h), openSink(t, h)
	for object := range 50 {
		c := f.newChange(object, 1)
		if first, second := before.laneOf(c), after.laneOf(c); first != second {
			t.Errorf("%s is in lane %q, after a restart in %q", c.ID(), first, second)
		}
	}
	if first, second := before.laneOf(f.newGap()), after.laneOf(f.newGap()); first != second {
		t.Errorf("a gap is in lane %q, after a restart in %q", first, second)
	}
}

func testConcurrentLanes(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 40, 10)
	tr := newPublishedTruth(h, f, p, messages)
	var lanes sync.WaitGroup
	for lane, batch := range tr.lanes {
		lanes.Go(func() { p.publishAll(lane, batch) })
	}
	lanes.Wait()
	tr.checkOnce(t)
}

func testDeletedArrives(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	away := f.newDeleted(1, 2) // deleted while the exporter was stopped; its last state is unknown
	away.Before, away.FinalStateUnknown = nil, true
	messages := []sinks.Message{
		f.newMessage(f.newChange(0, 1)), f.newMessage(f.newDeleted(0, 2)), f.newMessage(f.newChange(0, 3)),
		f.newMessage(away), f.newMessage(f.newDeleted(2, 2)),
	}
	p.publishEverything(messages)
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

func testGapsArrive(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := []sinks.Message{f.newMessage(f.newChange(0, 1)), f.newMessage(f.newGap()), f.newMessage(f.newChange(0, 2))}
	p.publishEverything(messages)
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

func testEmptyBatch(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	p.publishAll(p.laneOf(f.newChange(0, 1)), nil)
}

// testLargeBodies publishes a large change between two small ones of the same object. The destination may reject it, but
// must accept the others.
func testLargeBodies(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := []sinks.Message{
		f.newMessage(f.newChange(0, 1)), f.newMessage(f.newLargeChange(0, 2, largeBody)), f.newMessage(f.newChange(0, 3)),
	}
	lane := p.laneOf(messages[0].Change)
	p.publishAll(lane, messages[:1])

	rejected := false
	p.retryUntilDone("publish a large body", func(ctx context.Context) error {
		n, err := p.publishBatch(ctx, lane, messages[1:2])
		var rejection *sinks.RejectedError
		if !errors.As(err, &rejection) {
			return err
		}
		if rejected = true; n != 0 || !rejection.TooLarge || rejection.Reason == "" {
			t.Errorf("a body of %d bytes was rejected with n %d, %+v; want n 0, TooLarge and a reason", largeBody, n, rejection)
		}
		return nil
	})
	rest := messages[2:]
	if rejected { // then a truncated form replaces it
		messages[1].Change = f.newChange(0, 2)
		rest = messages[1:]
	}
	p.publishAll(lane, rest)
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

// testCancelledContext publishes with a context that has already ended: what the sink counts must be there, and later calls
// must accept the rest.
func testCancelledContext(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 1, 20)
	lane := p.laneOf(messages[0].Change)
	p.publishAll(lane, messages[:5])

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n, err := p.publishBatch(ended, lane, messages[5:])
	var rejected *sinks.RejectedError
	if errors.As(err, &rejected) {
		t.Errorf("a Publish with a cancelled context returned a rejection: %v", err)
	}
	p.finishAndCheck(h, f, lane, messages, 5+n)
}

// testReplay publishes acknowledged changes again through a new sink, as after a crash before the cursor was stored.
func testReplay(t testing.TB, h Harness) {
	if !h.ExactReplay {
		t.Skip("the destination does not detect duplicates; consumers drop them by ID")
	}
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 8, 10)
	p.publishEverything(messages)
	again := openSink(t, h)
	again.publishEverything(messages[20:])
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

func testOutage(t testing.TB, h Harness) {
	if h.Cut == nil {
		t.Skip("this destination cannot be made unreachable")
	}
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 1, 10)
	lane := p.laneOf(messages[0].Change)
	p.publishAll(lane, messages[:4])

	h.Cut(t)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	n, err := p.publishBatch(ctx, lane, messages[4:])
	var rejected *sinks.RejectedError
	if n != 0 || err == nil || errors.As(err, &rejected) {
		t.Errorf("Publish to an unreachable destination returned %d, %v; want 0 and an error that is not a rejection", n, err)
	}
	h.Restore(t)

	p.finishAndCheck(h, f, lane, messages, 4)
}

// testRandomRun publishes random batches over all lanes at once under contexts that end at random moments, and continues
// after what was acknowledged. Nothing may be missing, and no object's history may go back before an acknowledgement.
func testRandomRun(t testing.TB, h Harness) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	PublishRandomly(t, h, rand.New(rand.NewPCG(seed, 1)), 24, 40)
}

// PublishRandomly publishes last versions of each object in random batches, concurrently over their lanes, some of them
// under a context that ends while they are in flight. After each error it continues as delivery does. Then it compares the
// destination with what was published. The caller may break connections meanwhile.
func PublishRandomly(t testing.TB, h Harness, random *rand.Rand, objects, last int) {
	t.Helper()
	f, p := newChangeFactory(), openSink(t, h)
	p.publishTruth(newPublishedTruth(h, f, p, makeVersions(f, objects, last)), random)
}
