package sinktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// testTimeout bounds waits for conditions that every sink meets if it keeps the contract. No test sleeps for it.
const testTimeout = 3 * time.Minute

// retryPause is the pause between two attempts.
const retryPause = 20 * time.Millisecond

// idleTimerKey is the key of the timer in a context of withIdleTimeout.
type idleTimerKey struct{}

// withIdleTimeout returns a context that ends when nothing was published under it for testTimeout.
func withIdleTimeout() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	idle := time.AfterFunc(testTimeout, cancel)
	return context.WithValue(ctx, idleTimerKey{}, idle), func() {
		idle.Stop()
		cancel()
	}
}

// resetIdleTimeout records that something was published under a context, if that is one of withIdleTimeout.
func resetIdleTimeout(ctx context.Context) {
	if idle, ok := ctx.Value(idleTimerKey{}).(*time.Timer); ok {
		idle.Reset(testTimeout)
	}
}

// publisher calls a sink as delivery does and checks that count and error of every answer agree.
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

// awaitReachable waits until a sink that is a Pinger has reached its destination.
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

// laneForTopic returns the lane of a change that is published with this topic; if that is not nil, the sink is a Router. A
// lane that exists only until the layout of the destination is known is replaced first.
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

// publishBatch publishes a batch until it is done or a call fails, in as many calls as the sink needs. Each call gets a copy
// that is overwritten after it returns, and its n and err must agree. Safe for concurrent use.
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

// publishAll publishes a batch to its end, with retries as in delivery, and returns the messages at which a Publish began
// again after an error. A rejection fails the test.
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

// retryUntilDone calls step until it succeeds. The test fails if a message is rejected, or if nothing is published for
// testTimeout.
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
			p.t.Errorf("%s: the destination should accept this message: %v", what, err)
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

// finishAndCheck publishes messages from done on, where the last Publish failed, and compares the destination with all
// messages.
func (p publisher) finishAndCheck(h Harness, f *changeFactory, lane sinks.Lane, messages []sinks.Message, done int) {
	p.t.Helper()
	restarts := []int{done}
	for _, failed := range p.publishAll(lane, messages[done:]) {
		restarts = append(restarts, done+failed)
	}
	newPublishedTruth(h, f, p, messages).checkOrder(p.t, map[sinks.Lane][]int{lane: restarts})
}

// awaitReplacement waits until the sink requests the replacement of its lanes. Until that is applied, Lane returns the old
// ones.
func (p publisher) awaitReplacement(m sinks.Message) {
	p.t.Helper()
	changing := p.sink.(sinks.Repartitioner)
	before := p.askLane(m.Change, nil)
	p.retryUntilDone("the lanes are replaced", func(context.Context) error {
		due := changing.PendingRepartitions()
		if now := p.askLane(m.Change, nil); now != before {
			p.t.Errorf("lane %q became %q before the repartition was applied", before, now)
		}
		if len(due) == 0 {
			return errors.New("not yet")
		}
		for _, r := range due {
			changing.ApplyRepartition(r)
		}
		return nil
	})
}

// publishTruth publishes the messages of tr in random batches and compares the destination with them.
func (p publisher) publishTruth(tr *publishedTruth, random *rand.Rand) {
	p.t.Helper()
	var mu sync.Mutex
	restarts := make(map[sinks.Lane][]int)
	var lanes sync.WaitGroup
	for lane, messages := range tr.lanes {
		own := rand.New(rand.NewPCG(random.Uint64(), 2)) // of this lane's goroutine
		lanes.Go(func() {
			starts := p.publishLaneRandomly(lane, messages, own)
			mu.Lock()
			defer mu.Unlock()
			restarts[lane] = starts
		})
	}
	lanes.Wait()
	tr.checkOrder(p.t, restarts)
}

// publishLaneRandomly publishes one lane to its end and returns the messages at which a Publish began again after an
// error.
func (p publisher) publishLaneRandomly(lane sinks.Lane, messages []sinks.Message, random *rand.Rand) []int {
	var restarts []int
	done := 0
	p.retryUntilDone("publish at random", func(ctx context.Context) error {
		for done < len(messages) {
			limit := 16
			if random.IntN(4) == 0 {
				limit = 1000
			}
			size := 1 + random.IntN(min(limit, len(messages)-done))
			n, err := p.publishMaybeCancelled(ctx, lane, messages[done:done+size], random)
			done += n
			if err != nil {
				restarts = append(restarts, done)
			}
			if err != nil && (ctx.Err() != nil || !errors.Is(err, context.Canceled)) {
				return err // such as an outage: the next attempt comes after a pause
			}
		}
		return nil
	})
	return restarts
}

// publishMaybeCancelled publishes under a context that, one time in four, ends during the call.
func (p publisher) publishMaybeCancelled(ctx context.Context, lane sinks.Lane, batch []sinks.Message,
	random *rand.Rand,
) (int, error) {
	if random.IntN(4) != 0 {
		return p.publishBatch(ctx, lane, batch)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	yields := random.IntN(200)
	var canceller sync.WaitGroup
	canceller.Go(func() {
		for range yields {
			runtime.Gosched()
		}
		cancel()
	})
	defer canceller.Wait()
	return p.publishBatch(ctx, lane, batch)
}
