package sinktest

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// oversizeBody is larger than most destinations accept, also when it is compressed.
const oversizeBody = 1_600_000

// newIncompressible returns a change with a body that compression does not make much smaller.
func (f *changeFactory) newIncompressible(object, version, size int) *event.Change {
	c := f.newChange(object, version)
	noise := make([]byte, size/4*3)
	random := rand.New(rand.NewPCG(uint64(object), uint64(version)))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	c.After = append(append([]byte(`{"kind":"ConfigMap","data":"`), base64.StdEncoding.EncodeToString(noise)...), `"}`...)
	return c
}

// testOversizeInBatch publishes one batch with a change in its middle that is too large for most destinations. If it is
// rejected, the rejection must be about this change alone, and the changes before and after it must arrive in order.
func testOversizeInBatch(t testing.TB, h Harness) {
	f, p := newChangeFactory(), openSink(t, h)
	const large = 4
	messages := makeVersions(f, 1, 9)
	messages[large].Change = f.newIncompressible(0, large+1, oversizeBody)
	lane := p.laneOf(messages[0].Change)
	done, rejected := 0, false
	p.retryUntilDone("publish a batch with a large body", func(ctx context.Context) error {
		n, err := p.publishBatch(ctx, lane, messages[done:])
		done += n
		var rejection *sinks.RejectedError
		if !errors.As(err, &rejection) {
			return err
		}
		if rejected || done != large || !rejection.TooLarge {
			t.Errorf("message %d was rejected: %v; the large one is message %d", done, rejection, large)
			return nil
		}
		rejected = true
		done++
		return errors.New("the rest has to be published")
	})
	if rejected {
		messages = append(messages[:large:large], messages[large+1:]...)
	}
	newPublishedTruth(h, f, p, messages).checkOnce(t)
}

// testStopDuringOutage cancels a Publish and then closes the sink while the destination is unreachable. Both must return,
// and a later sink delivers the rest.
func testStopDuringOutage(t testing.TB, h Harness) {
	if h.Cut == nil {
		t.Skip("this destination cannot be made unreachable")
	}
	f := newChangeFactory()
	sink := h.New(t)
	p := awaitReachable(t, sink)
	messages := makeVersions(f, 1, 10)
	lane := p.laneOf(messages[0].Change)
	p.publishAll(lane, messages[:4])

	h.Cut(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // any moment will do
	defer cancel()
	n, err := p.publishBatch(ctx, lane, messages[4:])
	if n != 0 || err == nil {
		t.Errorf("an unreachable destination accepted %d messages (%v)", n, err)
	}
	closeSink(t, sink)
	h.Restore(t)

	h.ExactRetry = false // another sink does not know the attempts of the first
	openSink(t, h).finishAndCheck(h, f, lane, messages, 4)
}

// testSlowAnswers publishes to a destination with late responses, some of them possibly after the timeout of the sink.
func testSlowAnswers(t testing.TB, h Harness) {
	if h.Slow == nil {
		t.Skip("this destination cannot be made slow")
	}
	publishHampered(t, h, h.Slow)
}

// testThrottling publishes to a destination that asks to retry later.
func testThrottling(t testing.TB, h Harness) {
	if h.Throttle == nil {
		t.Skip("this destination cannot be made to throttle")
	}
	publishHampered(t, h, h.Throttle)
}

// publishHampered makes three calls while the fault lasts, and publishes the rest after it.
func publishHampered(t testing.TB, h Harness, fault func(t testing.TB, on bool)) {
	f, p := newChangeFactory(), openSink(t, h)
	messages := makeVersions(f, 1, 12)
	lane := p.laneOf(messages[0].Change)
	p.publishAll(lane, messages[:2])
	fault(t, true)
	ctx, end := withIdleTimeout()
	defer end()
	done := 2
	var restarts []int
	for range 3 {
		n, err := p.publishBatch(ctx, lane, messages[done:done+2])
		done += n
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) || ctx.Err() != nil {
			t.Errorf("a temporary fault led to %v", err)
		}
		if err != nil {
			restarts = append(restarts, done)
		}
	}
	fault(t, false)
	for _, failed := range p.publishAll(lane, messages[done:]) {
		restarts = append(restarts, done+failed)
	}
	newPublishedTruth(h, f, p, messages).checkOrder(t, map[sinks.Lane][]int{lane: restarts})
}
