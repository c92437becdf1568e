package source

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// trigger watches one of selection.Triggers and rings for every change of it. What changed is not looked at: discovery says it.
type trigger struct {
	endpoint *endpoint
	log      *slog.Logger
	ring     func()
	live     atomic.Bool // a watch is open

	// Owned by run.
	position  string
	denied    bool // and that has been logged
	bookmarks bool // the API server sends them, so silence means something
	stale     bool // a watch fell silent and nothing has been heard since
}

const (
	// anyPosition begins with whatever the API server's cache holds; each object there rings once.
	anyPosition = "0"
	// deniedWait is how often, before jitter, a right is tried again that did not come with the API server's start.
	deniedWait = 5 * time.Minute
)

func (c *Client) trigger(r event.Resource, log *slog.Logger, ring func()) (*trigger, error) {
	e, err := c.ofMetadata().endpoint(selection.Scope{ID: r.String(), Resource: r})
	if err != nil {
		return nil, err
	}
	return &trigger{endpoint: e, log: log, ring: ring, position: anyPosition}, nil
}

// run watches until ctx ends. Without it types are found later; so whatever fails here is tried again and is no trouble
// of the Source.
func (t *trigger) run(ctx context.Context) {
	var p backoff
	for {
		lasted, err := t.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		if lasted >= steadyAfter {
			p.reset()
		}
		wait := p.wait(err)
		switch v := classifyError(err); {
		case errors.Is(err, errStale):
			t.silence(err)
		case v == expired, v == tooLarge:
			t.position = anyPosition
		case v == forbidden, v == notServed, v == refused:
			t.deny(err)
			if p.failures > triesToIdentify {
				wait = deniedWait + rand.N(deniedWait)
			}
		}
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// watch rings for what one connection brings, until it ends, and says how long it was open.
func (t *trigger) watch(ctx context.Context) (time.Duration, error) {
	c, err := t.endpoint.watch(ctx, nil, metav1.ListOptions{ResourceVersion: t.position})
	if err != nil {
		return 0, err
	}
	defer c.stop()
	opened := time.Now()
	t.allow()
	t.live.Store(!t.stale)
	defer t.live.Store(false)
	if t.position == anyPosition {
		t.ring() // for what happened before
	}
	err = t.pass(ctx, c)
	return time.Since(opened), err
}

// pass rings for every change until the watch ends, or falls silent though bookmarks should come, as for the watches of
// data: then a new type would be found no sooner than without the trigger.
func (t *trigger) pass(ctx context.Context, c *connection) error {
	quiet := time.NewTimer(staleAfter)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
			if t.bookmarks {
				return errStale
			}
		case b, ok := <-c.batches:
			if !ok {
				return c.err
			}
			quiet.Reset(staleAfter)
			if len(b.events) > 0 {
				t.ring()
			}
			t.hear(b.bookmarks)
			// Initial objects come in no order, but none is newer than what the cache held: nothing after is missed.
			if b.position != "" {
				t.position = b.position
			}
		}
	}
}

// hear notes that something came.
func (t *trigger) hear(bookmark bool) {
	t.bookmarks = t.bookmarks || bookmark
	if t.stale {
		t.stale = false
		t.live.Store(true)
		t.log.Info("changes of this resource are announced again", "resource", t.endpoint.scope.ID)
	}
}

// silence notes that a watch brings nothing any more. Until one does again, discovery is read as without triggers.
func (t *trigger) silence(err error) {
	if !t.stale {
		t.stale = true
		t.log.Warn("the watch fell silent, opening it again", "resource", t.endpoint.scope.ID, "reason", reason(err))
	}
}

func (t *trigger) deny(err error) {
	if !t.denied {
		t.denied = true
		t.log.Info("changes of this resource are not announced, new types are found by asking", "resource", t.endpoint.scope.ID, "reason", reason(err))
	}
}

func (t *trigger) allow() {
	if t.denied {
		t.denied = false
		t.log.Info("changes of this resource are announced now", "resource", t.endpoint.scope.ID)
	}
}

// pace decides when the API server is asked what it serves: soon after a trigger rang, and else regularly. It is used by
// one goroutine, except for ring.
type pace struct {
	interval time.Duration
	bell     chan struct{}
	polled   time.Time     // end of the last poll
	rung     time.Time     // last ring
	spacing  time.Duration // kept from the last poll, if rings ask for one
}

const (
	// A type comes with a burst of changes (created, accepted, established, announced as an APIService): the poll waits
	// for the first silence of settled, and not longer than unsettled.
	settled, unsettled = 500 * time.Millisecond, 2 * time.Second
	// closest is how close polls may follow each other. It doubles with every poll that finds nothing new, up to the
	// interval: changes that change nothing served, such as rotated CA bundles, cost no more than regular polls do.
	closest = time.Second
	// calmInterval is the time between polls while every trigger is watched and none rang for calmAfter. Until then the
	// polls are as usual, because discovery may lag behind what rang.
	calmInterval, calmAfter = 30 * time.Second, time.Minute
)

func newPace(interval time.Duration) *pace {
	now := time.Now()
	return &pace{interval: interval, bell: make(chan struct{}, 1), polled: now, rung: now, spacing: closest}
}

// ring asks for a poll. It never blocks and may be called by many goroutines.
func (p *pace) ring() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// note says that a poll has ended, whether it was asked for and whether it found something else than before.
func (p *pace) note(asked, changed bool) {
	p.polled = time.Now()
	if asked && !changed {
		p.spacing = min(2*p.spacing, max(p.interval, closest))
	} else {
		p.spacing = closest
	}
}

// wait returns when it is time to poll, and says whether a trigger asked for it. relaxed says that nothing but a trigger
// is waited for.
func (p *pace) wait(ctx context.Context, relaxed bool) (asked bool, err error) {
	latest := p.polled.Add(p.interval)
	if relaxed && time.Since(p.rung) >= calmAfter {
		latest = p.polled.Add(max(p.interval, calmInterval))
	}
	timer := time.NewTimer(time.Until(latest))
	defer timer.Stop()
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return asked, ctx.Err()
		case <-timer.C:
			return asked, nil
		case <-p.bell:
			p.rung = time.Now()
			if !asked {
				asked, first = true, p.rung
			}
			due := earlier(p.rung.Add(settled), first.Add(unsettled))
			if soonest := p.polled.Add(p.spacing); due.Before(soonest) {
				due = soonest
			}
			timer.Reset(time.Until(earlier(due, latest)))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
