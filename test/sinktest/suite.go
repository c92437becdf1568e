package sinktest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// largeBody is larger than most objects and, with its envelope, below the limit most destinations start with (1 MiB).
const largeBody = 900_000

// Run proves, in subtests named as promises, that the sink described by h keeps the contract of package sinks. That no
// goroutine outlives Close is for the caller's TestMain to see (goleak).
func Run(t *testing.T, h Harness) {
	for _, promise := range promises {
		t.Run(promise.name, func(t *testing.T) { promise.test(t, h) })
	}
}

var promises = []struct {
	name string
	test func(testing.TB, Harness)
}{
	{"ChangesArriveInOrderWithTheirIDs", arriveInOrder},
	{"ChangesOfOneObjectShareALane", shareALane},
	{"LanesKeepTheirNamesAcrossARestart", lanesSurvive},
	{"LanesPublishConcurrently", publishConcurrently},
	{"DeletedChangesArrive", deletedArrive},
	{"GapRecordsArrive", gapsArrive},
	{"AnEmptyBatchIsAccepted", emptyBatch},
	{"LargeBodiesArriveOrAreRejectedAlone", largeBodies},
	{"ACancelledContextKeepsTheWriterRule", cancelled},
	{"ARandomRunNeverStepsBack", randomRun},
	{"ChangesArriveInTheTopicsTheyAreSentTo", routed},
	{"AReplayAfterARestartIsRecognised", replay},
	{"ARestartWithChangesInFlightLosesNothing", inFlightRestarts},
	{"ForgottenLanesAreUsedAgain", forgotten},
	{"ReplacedLanesKeepTheirOrder", repartitioned},
	{"LanesAreNamedWhileTheDestinationIsAway", namedWhileAway},
	{"AnOutageLosesNothing", outage},
	{"AStopDuringAnOutageEndsAndLosesNothing", stopWhileAway},
	{"LateAnswersLoseAndReorderNothing", slowly},
	{"ThrottlingLosesAndReordersNothing", throttled},
	{"AnOversizeInMidBatchIsBlamedAlone", oversizeInBatch}, // last: who reads the destination reads it, too
}

// versions makes versions first to last of each of n objects, interleaved as time would.
func versions(f *factory, objects, last int) []sinks.Message {
	var messages []sinks.Message
	for version := 1; version <= last; version++ {
		for object := range objects {
			messages = append(messages, f.message(f.change(object, version)))
		}
	}
	return messages
}

func arriveInOrder(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	messages := versions(f, 8, 10)
	p.everything(messages)
	newTruth(h, f, p, messages).once(t)
}

func shareALane(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	for object := range 50 {
		want := p.lane(f.change(object, 1))
		listed := f.change(object, 3)
		listed.Type, listed.Delta = event.Snapshot, event.DeltaReplaced
		recreated := f.change(object, 5)
		recreated.UID = f.tag + "-another-life"
		for _, c := range []*event.Change{f.change(object, 2), listed, f.deleted(object, 4), recreated} {
			if got := p.lane(c); got != want {
				t.Errorf("%s is in lane %q, earlier changes of the object in %q", c.ID(), got, want)
			}
		}
	}
}

func lanesSurvive(t testing.TB, h Harness) {
	f, before, after := newFactory(), open(t, h), open(t, h)
	for object := range 50 {
		c := f.change(object, 1)
		if first, second := before.lane(c), after.lane(c); first != second {
			t.Errorf("%s is in lane %q, after a restart in %q", c.ID(), first, second)
		}
	}
	if first, second := before.lane(f.gap()), after.lane(f.gap()); first != second {
		t.Errorf("a gap is in lane %q, after a restart in %q", first, second)
	}
}

func publishConcurrently(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	messages := versions(f, 40, 10)
	tr := newTruth(h, f, p, messages)
	var lanes sync.WaitGroup
	for lane, batch := range tr.lanes {
		lanes.Go(func() { p.all(lane, batch) })
	}
	lanes.Wait()
	tr.once(t)
}

func deletedArrive(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	away := f.deleted(1, 2) // deleted while nobody watched, nothing kept of it
	away.Before, away.FinalStateUnknown = nil, true
	messages := []sinks.Message{
		f.message(f.change(0, 1)), f.message(f.deleted(0, 2)), f.message(f.change(0, 3)),
		f.message(away), f.message(f.deleted(2, 2)),
	}
	p.everything(messages)
	newTruth(h, f, p, messages).once(t)
}

func gapsArrive(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	messages := []sinks.Message{f.message(f.change(0, 1)), f.message(f.gap()), f.message(f.change(0, 2))}
	p.everything(messages)
	newTruth(h, f, p, messages).once(t)
}

func emptyBatch(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	p.all(p.lane(f.change(0, 1)), nil)
}

// largeBodies publishes a large change between two small ones of the same object. It may be too large for the
// destination, but then its neighbours must not suffer.
func largeBodies(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	messages := []sinks.Message{f.message(f.change(0, 1)), f.message(f.big(0, 2, largeBody)), f.message(f.change(0, 3))}
	lane := p.lane(messages[0].Change)
	p.all(lane, messages[:1])

	rejected := false
	p.eventually("publish a large body", func(ctx context.Context) error {
		n, err := p.publish(ctx, lane, messages[1:2])
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
	if rejected { // then a smaller form takes its place
		messages[1].Change = f.change(0, 2)
		rest = messages[1:]
	}
	p.all(lane, rest)
	newTruth(h, f, p, messages).once(t)
}

// cancelled publishes with a context that has ended already: whatever the sink counts must be there, and the rest must
// go through later.
func cancelled(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	messages := versions(f, 1, 20)
	lane := p.lane(messages[0].Change)
	p.all(lane, messages[:5])

	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n, err := p.publish(ended, lane, messages[5:])
	var rejected *sinks.RejectedError
	if errors.As(err, &rejected) {
		t.Errorf("a cancelled context was answered with a rejection: %v", err)
	}
	p.finish(h, f, lane, messages, 5+n)
}

// replay publishes acknowledged changes again through a new sink, as after a crash before the cursor was stored.
func replay(t testing.TB, h Harness) {
	if !h.ExactReplay {
		t.Skip("the destination does not recognise a replay; consumers drop duplicates by ID")
	}
	f, p := newFactory(), open(t, h)
	messages := versions(f, 8, 10)
	p.everything(messages)
	again := open(t, h)
	again.everything(messages[20:])
	newTruth(h, f, p, messages).once(t)
}

func outage(t testing.TB, h Harness) {
	if h.Cut == nil {
		t.Skip("this destination cannot be made unreachable")
	}
	f, p := newFactory(), open(t, h)
	messages := versions(f, 1, 10)
	lane := p.lane(messages[0].Change)
	p.all(lane, messages[:4])

	h.Cut(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, err := p.publish(ctx, lane, messages[4:])
	var rejected *sinks.RejectedError
	if n != 0 || err == nil || errors.As(err, &rejected) {
		t.Errorf("an unreachable destination was answered with n %d and the error %v; want 0 and one that is not a rejection", n, err)
	}
	h.Restore(t)

	p.finish(h, f, lane, messages, 4)
}

// finish publishes messages from done on, where the last Publish had failed, and compares.
func (p publisher) finish(h Harness, f *factory, lane sinks.Lane, messages []sinks.Message, done int) {
	p.t.Helper()
	restarts := []int{done}
	for _, failed := range p.all(lane, messages[done:]) {
		restarts = append(restarts, done+failed)
	}
	newTruth(h, f, p, messages).check(p.t, map[sinks.Lane][]int{lane: restarts})
}
