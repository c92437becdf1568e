package sinktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// testTimeout bounds waits that end by a condition in every sink that keeps the contract. It is never slept.
const testTimeout = 3 * time.Minute

// retryPause is between two attempts at something that is not possible yet.
const retryPause = 20 * time.Millisecond

// idleTimerKey finds the timer of a context that [patient] makes.
type idleTimerKey struct{}

// withIdleTimeout makes a context that ends when nothing was published under it for as long as patience.
func withIdleTimeout() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	quiet := time.AfterFunc(testTimeout, cancel)
	return context.WithValue(ctx, idleTimerKey{}, quiet), func() {
		quiet.Stop()
		cancel()
	}
}

// resetIdleTimeout notes that something was published under a context, which lasts the longer if it is a patient one.
func resetIdleTimeout(ctx context.Context) {
	if quiet, ok := ctx.Value(idleTimerKey{}).(*time.Timer); ok {
		quiet.Reset(testTimeout)
	}
}

// publisher calls a sink as delivery does and checks that every answer agrees with itself.
type publisher struct {
	t    testing.TB
	sink sinks.Sink
}

func openSink(t testing.TB, h Harness) publisher {
	t.Helper()
	sink := h.New(t)
	t.Cleanup(func() { closeSink(t, sink) })
	return awaitReachable(t, sink)
}

// awaitReachable waits until a sink that can tell has found its destination.
func awaitReachable(t testing.TB, sink sinks.Sink) publisher {
	t.Helper()
	p := publisher{t: t, sink: sink}
	if pinger, ok := sink.(sinks.Pinger); ok {
		p.retryUntilDone("ping", pinger.Ping)
	}
	return p
}

func closeSink(t testing.TB, sink sinks.Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	if err := sink.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// laneOf returns the lane of c.
func (p publisher) laneOf(c *event.Change) sinks.Lane { return p.laneForTopic(c, nil) }

// laneForTopic is lane for a change that is published with this topic. If that is not nil, the sink is a Router. A lane that
// only asks for those that there are is replaced by these.
func (p publisher) laneForTopic(c *event.Change, topic *sinks.Template) sinks.Lane {
	p.t.Helper()
	lane := p.askLane(c, topic)
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return lane
	}
	p.retryUntilDone("an empty batch", func(ctx context.Context) error {
		_, err := p.sink.Publish(ctx, lane, nil)
		return err
	})
	for _, r := range changing.PendingRepartitions() {
		changing.ApplyRepartition(r)
	}
	return p.askLane(c, topic)
}

func (p publisher) askLane(c *event.Change, topic *sinks.Template) sinks.Lane {
	p.t.Helper()
	lane, err := p.sink.Lane(c)
	if topic != nil {
		lane, err = p.sink.(sinks.Router).LaneTo(c, topic)
	}
	if err != nil {
		p.t.Fatalf("lane: %v", err)
	}
	return lane
}

// byLane sorts messages into lanes and keeps their order.
func (p publisher) byLane(messages []sinks.Message) map[sinks.Lane][]sinks.Message {
	p.t.Helper()
	lanes := make(map[sinks.Lane][]sinks.Message)
	for _, m := range messages {
		lane := p.laneForTopic(m.Change, m.Topic)
		lanes[lane] = append(lanes[lane], m)
	}
	return lanes
}

// publishBatch publishes a batch until that fails or is done, in as many calls as the sink makes of it: each with a copy, which
// is taken back as soon as the call returns, and whose n and err must agree. Safe for concurrent use.
func (p publisher) publishBatch(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (accepted int, err error) {
	for more := true; more; more = err == nil && accepted < len(batch) {
		own := cloneBatch(batch[accepted:])
		var n int
		n, err = p.sink.Publish(ctx, lane, own)
		switch {
		case n < 0 || n > len(own):
			p.t.Errorf("Publish of %d messages counted %d", len(own), n)
			return accepted, err
		case n == 0 && len(own) > 0 && err == nil:
			p.t.Errorf("Publish counted none of %d messages and returned no error", len(own))
			return accepted, nil
		case n == len(own) && err != nil:
			p.t.Errorf("Publish counted all %d messages and returned an error: %v", n, err)
		}
		overwriteBatch(own)
		if accepted += n; n > 0 {
			resetIdleTimeout(ctx)
		}
	}
	return accepted, err
}

// publishAll publishes a batch to its end, going on after errors as delivery does, and returns at which messages a Publish
// began anew after an error. A rejection fails the test.
func (p publisher) publishAll(lane sinks.Lane, batch []sinks.Message) (restarts []int) {
	p.t.Helper()
	done := 0
	p.retryUntilDone("publish", func(ctx context.Context) error {
		n, err := p.publishBatch(ctx, lane, batch[done:])
		done += n
		if err != nil {
			restarts = append(restarts, done)
		}
		return err
	})
	return restarts
}

// publishEverything publishes messages lane by lane.
func (p publisher) publishEverything(messages []sinks.Message) {
	p.t.Helper()
	for lane, batch := range p.byLane(messages) {
		p.publishAll(lane, batch)
	}
}

// retryUntilDone calls step until it succeeds. A rejected message and the end of patience, which begins anew whenever step has
// published something, fail the test.
func (p publisher) retryUntilDone(what string, step func(ctx context.Context) error) {
	p.t.Helper()
	ctx, end := withIdleTimeout()
	defer end()
	pause := time.NewTicker(retryPause)
	defer pause.Stop()
	for {
		err := step(ctx)
		if err == nil {
			return
		}
		var rejected *sinks.RejectedError
		if errors.As(err, &rejected) {
			p.t.Errorf("%s: a message that the destination should take: %v", what, err)
			return
		}
		select {
		case <-ctx.Done():
			p.t.Errorf("%s: gave up: %v", what, err)
			return
		case <-pause.C:
		}
	}
}
