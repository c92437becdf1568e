package sinktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// patience bounds waits that end by a condition in every sink that keeps the contract. It is never slept.
const patience = 3 * time.Minute

// retryPause is between two attempts at something that is not possible yet.
const retryPause = 20 * time.Millisecond

// quietKey finds the timer of a context that [patient] makes.
type quietKey struct{}

// patient makes a context that ends when nothing was published under it for as long as patience.
func patient() (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	quiet := time.AfterFunc(patience, cancel)
	return context.WithValue(ctx, quietKey{}, quiet), func() {
		quiet.Stop()
		cancel()
	}
}

// gotAhead notes that something was published under a context, which lasts the longer if it is a patient one.
func gotAhead(ctx context.Context) {
	if quiet, ok := ctx.Value(quietKey{}).(*time.Timer); ok {
		quiet.Reset(patience)
	}
}

// publisher calls a sink as delivery does and checks that every answer agrees with itself.
type publisher struct {
	t    testing.TB
	sink sinks.Sink
}

func open(t testing.TB, h Harness) publisher {
	t.Helper()
	sink := h.New(t)
	t.Cleanup(func() { closeSink(t, sink) })
	return reached(t, sink)
}

// reached waits until a sink that can tell has found its destination.
func reached(t testing.TB, sink sinks.Sink) publisher {
	t.Helper()
	p := publisher{t: t, sink: sink}
	if pinger, ok := sink.(sinks.Pinger); ok {
		p.eventually("ping", pinger.Ping)
	}
	return p
}

func closeSink(t testing.TB, sink sinks.Sink) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := sink.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// lane returns the lane of c.
func (p publisher) lane(c *event.Change) sinks.Lane { return p.laneTo(c, nil) }

// laneTo is lane for a change that is published with this topic. If that is not nil, the sink is a Router. A lane that
// only asks for those that there are is replaced by these.
func (p publisher) laneTo(c *event.Change, topic *sinks.Template) sinks.Lane {
	p.t.Helper()
	lane := p.name(c, topic)
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return lane
	}
	p.eventually("an empty batch", func(ctx context.Context) error {
		_, err := p.sink.Publish(ctx, lane, nil)
		return err
	})
	for _, r := range changing.Repartitions() {
		changing.Repartition(r)
	}
	return p.name(c, topic)
}

func (p publisher) name(c *event.Change, topic *sinks.Template) sinks.Lane {
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
		lane := p.laneTo(m.Change, m.Topic)
		lanes[lane] = append(lanes[lane], m)
	}
	return lanes
}

// publish publishes a batch until that fails or is done, in as many calls as the sink makes of it: each with a copy, which
// is taken back as soon as the call returns, and whose n and err must agree. Safe for concurrent use.
func (p publisher) publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (accepted int, err error) {
	for more := true; more; more = err == nil && accepted < len(batch) {
		own := copies(batch[accepted:])
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
		scribble(own)
		if accepted += n; n > 0 {
			gotAhead(ctx)
		}
	}
	return accepted, err
}

// all publishes a batch to its end, going on after errors as delivery does, and returns at which messages a Publish
// began anew after an error. A rejection fails the test.
func (p publisher) all(lane sinks.Lane, batch []sinks.Message) (restarts []int) {
	p.t.Helper()
	done := 0
	p.eventually("publish", func(ctx context.Context) error {
		n, err := p.publish(ctx, lane, batch[done:])
		done += n
		if err != nil {
			restarts = append(restarts, done)
		}
		return err
	})
	return restarts
}

// everything publishes messages lane by lane.
func (p publisher) everything(messages []sinks.Message) {
	p.t.Helper()
	for lane, batch := range p.byLane(messages) {
		p.all(lane, batch)
	}
}

// eventually calls step until it succeeds. A rejected message and the end of patience, which begins anew whenever step has
// published something, fail the test.
func (p publisher) eventually(what string, step func(ctx context.Context) error) {
	p.t.Helper()
	ctx, end := patient()
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
