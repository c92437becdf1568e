package app

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/election"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

const (
	handoverInterval = time.Second
	busPingTimeout   = 5 * time.Second
	// acceptAfter is how often in a row a standby has to reach a bus before it takes over: at the end of an outage that they
	// share, the holder has as many intervals to notice that as well.
	acceptAfter = 3
)

// runHandovers moves the Lease to a process that can deliver, until ctx ends. A holder that has not delivered anywhere for
// yieldAfter, and reaches no destination, yields the Lease; a standby accepts it if it reaches one. Both apply the same
// test, so that an outage for all, or a destination that rejects everything, moves nothing.
func (t *terms) runHandovers(ctx context.Context) error {
	e := t.membership.election
	var failingSince time.Time
	var watch holderWatch
	reached := 0
	for ratelimit.Sleep(ctx, handoverInterval) == nil {
		c := t.current.Load()
		t.membership.noneActive.Update(watch.checkHolder(e, c.replica.writer, c.cfg.Election.YieldAfter))
		problem := ""
		if e.IsHolder() {
			problem = c.deliveryProblem()
		}
		if e.IsYielded() && c.replica.writer.Status().OK() && c.sinks.reachAny(ctx) {
			reached++
		} else {
			reached = 0
		}
		if reached == acceptAfter {
			t.log.Info("the active exporter reaches no bus, and this one does: it takes over", "active", e.Holder())
			e.AcceptYielded()
			reached = 0
		}
		if problem == "" {
			failingSince = time.Time{}
		} else if failingSince.IsZero() {
			failingSince = time.Now()
		}
		yields := problem != "" && time.Since(failingSince) >= c.cfg.Election.YieldAfter && !c.sinks.reachAny(ctx)
		t.membership.setYielding(yields, problem)
	}
	return nil
}

// holderWatch observes the holder of a Lease from a standby.
type holderWatch struct {
	stranger string    // the holder, if the state has another owner
	since    time.Time // of that
}

// checkHolder returns the problem that the holder of the Lease has not been active for so long: it is not the owner of the
// state, or has not renewed the Lease. Nothing is known of it while Lease or state cannot be read.
func (h *holderWatch) checkHolder(e *election.Election, w *state.Writer, bound time.Duration) condition.Problem {
	holder, owner, stranger := e.Holder(), w.Stats().Owner.Identity, ""
	if e.IsHolder() || holder == "" || !e.Status().OK() || !w.Status().OK() {
		*h = holderWatch{}
		return condition.Problem{}
	}
	if holder != owner {
		stranger = holder
	}
	if stranger != h.stranger {
		*h = holderWatch{stranger, time.Now()}
	}
	p := condition.Problem{Code: condition.NoneActive}
	switch {
	case stranger != "" && time.Since(h.since) >= bound:
		p.Cause = fmt.Sprintf("%q holds the Lease and has not taken over the state, whose owner is %q", holder, cmp.Or(owner, "none"))
	case e.Unrenewed() >= bound:
		p.Cause = fmt.Sprintf("%q holds the Lease, which has not expired, and has not renewed it for more than %v", holder, bound)
	default:
		return condition.Problem{}
	}
	return p
}

func (m *membership) setYielding(yields bool, problem string) {
	m.election.SetYielding(yields)
	if yields {
		m.yielding.Update(condition.Problem{Code: condition.LeaseYielded, Cause: problem})
	} else {
		m.yielding.Clear()
	}
}

// deliveryProblem returns why no sink delivers, "" if one does. It is safe for concurrent use.
func (c *composition) deliveryProblem() string {
	if !c.open.Load() {
		return firstCause(c.replica.failoverConditions())
	}
	reason := ""
	for _, r := range c.sinks.runners {
		now := r.currentPipeline().Stats().Condition
		if now.Severity < condition.NotReady {
			return ""
		}
		reason = now.CauseText()
	}
	return "no sink delivers: " + reason
}

// reachAny pings the destinations of all sinks that can be pinged, and reports whether one answers.
func (set *sinkSet) reachAny(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, busPingTimeout)
	defer cancel()
	var answered atomic.Bool
	var pinging sync.WaitGroup
	for _, pinger := range set.pingers {
		pinging.Go(func() {
			if pinger.Ping(ctx) == nil {
				answered.Store(true)
			}
		})
	}
	pinging.Wait()
	return answered.Load()
}
