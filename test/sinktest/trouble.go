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

// oversizeBody is larger than what most destinations take, also when it is compressed.
const oversizeBody = 1_600_000

// incompressible makes a change with a body that no compression makes much smaller.
func (f *factory) incompressible(object, version, size int) *event.Change {
	c := f.change(object, version)
	noise := make([]byte, size/4*3)
	random := rand.New(rand.NewPCG(uint64(object), uint64(version)))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	c.After = append(append([]byte(`{"kind":"ConfigMap","data":"`), base64.StdEncoding.EncodeToString(noise)...), `"}`...)
	return c
}

// oversizeInBatch publishes one batch with a change in its middle that is too large for most destinations. If it is
// rejected, the sink must blame it and no other, and what stands before and behind it must arrive in order.
func oversizeInBatch(t testing.TB, h Harness) {
	f, p := newFactory(), open(t, h)
	const large = 4
	messages := versions(f, 1, 9)
	messages[large].Change = f.incompressible(0, large+1, oversizeBody)
	lane := p.lane(messages[0].Change)
	done, rejected := 0, false
	p.eventually("publish a batch with a large body", func(ctx context.Context) error {
		n, err := p.publish(ctx, lane, messages[done:])
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
		return errors.New("the rest is to be published")
	})
	if rejected {
		messages = append(messages[:large:large], messages[large+1:]...)
	}
	newTruth(h, f, p, messages).once(t)
}

// stopWhileAway ends a Publish, and then the sink, while the destination cannot be reached. Both must end, and a later sink
// delivers the rest.
func stopWhileAway(t testing.TB, h Harness) {
	if h.Cut == nil {
		t.Skip("this destination cannot be made unreachable")
	}
	f := newFactory()
	sink := h.New(t)
	p := reached(t, sink)
	messages := versions(f, 1, 10)
	lane := p.lane(messages[0].Change)
	p.all(lane, messages[:4])

	h.Cut(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond) // any moment will do
	defer cancel()
	n, err := p.publish(ctx, lane, messages[4:])
	if n != 0 || err == nil {
		t.Errorf("an unreachable destination took %d messages (%v)", n, err)
	}
	closeSink(t, sink)
	h.Restore(t)

	h.ExactRetry = false // another sink knows nothing of the first one's attempts
	open(t, h).finish(h, f, lane, messages, 4)
}

// slowly publishes to a destination whose answers come late, and some of them perhaps too late.
func slowly(t testing.TB, h Harness) {
	if h.Slow == nil {
		t.Skip("this destination cannot be made slow")
	}
	hampered(t, h, h.Slow)
}

// throttled publishes to a destination that asks for time.
func throttled(t testing.TB, h Harness) {
	if h.Throttle == nil {
		t.Skip("this destination cannot be made to throttle")
	}
	hampered(t, h, h.Throttle)
}

// hampered publishes until three calls have been answered while trouble lasts, then to the end.
func hampered(t testing.TB, h Harness, trouble func(t testing.TB, on bool)) {
	f, p := newFactory(), open(t, h)
	messages := versions(f, 1, 12)
	lane := p.lane(messages[0].Change)
	p.all(lane, messages[:2])
	trouble(t, true)
	ctx, end := patient()
	defer end()
	done := 2
	var restarts []int
	for range 3 {
		n, err := p.publish(ctx, lane, messages[done:done+2])
		done += n
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) || ctx.Err() != nil {
			t.Errorf("trouble that passes was answered with %v", err)
		}
		if err != nil {
			restarts = append(restarts, done)
		}
	}
	trouble(t, false)
	for _, failed := range p.all(lane, messages[done:]) {
		restarts = append(restarts, done+failed)
	}
	newTruth(h, f, p, messages).check(t, map[sinks.Lane][]int{lane: restarts})
}
