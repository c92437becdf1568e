package app

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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

// runHandovers moves the Lease to a process that reaches more, until ctx ends. A holder names in the Lease which
// destinations it reaches, once it has not delivered to another one for yieldAfter and that does not answer it either; a
// standby that reaches all of these and one more accepts. Both apply the same test, so that an outage for all, or a
// destination that rejects everything, moves nothing.
func (t *terms) runHandovers(ctx context.Context) error {
	e := t.membership.election
	var watch holderWatch
	failingSince, surpassed := map[string]time.Time{}, 0
	for ratelimit.Sleep(ctx, handoverInterval) == nil {
		c := t.current.Load()
		t.membership.noneActive.Update(watch.checkHolder(e, c.replica.writer, c.cfg.Election.YieldAfter))
		if offer := e.Yielded(); offer != "" && c.replica.writer.Status().OK() && surpasses(c.sinks.reached(ctx), offer) {
			surpassed++
		} else {
			surpassed = 0
		}
		if surpassed == acceptAfter {
			t.log.Info("the active exporter does not reach every bus, and this one reaches more: it takes over", "active", e.Holder())
			e.AcceptYielded()
			surpassed = 0
		}
		failing := map[string]string{}
		if e.IsHolder() {
			failing = c.failingSinks()
		}
		t.membership.yieldFor(ctx, c, overdue(failingSince, failing, c.cfg.Election.YieldAfter))
	}
	return nil
}

// overdue notes since when each sink has been failing, and returns the causes of those that have been for so long.
func overdue(since map[string]time.Time, failing map[string]string, bound time.Duration) map[string]string {
	maps.DeleteFunc(since, func(sink string, _ time.Time) bool { return failing[sink] == "" })
	late := map[string]string{}
	for sink, cause := range failing {
		if since[sink].IsZero() {
			since[sink] = time.Now()
		}
		if time.Since(since[sink]) >= bound {
			late[sink] = cause
		}
	}
	return late
}

// yieldFor yields the Lease if a destination that fails does not answer.
func (m *membership) yieldFor(ctx context.Context, c *composition, failing map[string]string) {
	var reached []string
	if len(failing) > 0 {
		reached = c.sinks.reached(ctx)
	}
	for _, sink := range slices.Sorted(maps.Keys(failing)) {
		if slices.Contains(reached, sink) {
			continue
		}
		cause := "no sink delivers: " + failing[sink]
		if len(reached) > 0 {
			cause = "sink " + sink + " does not deliver: " + failing[sink]
		}
		m.election.SetYielding(offerPrefix + strings.Join(reached, ","))
		m.yielding.Update(condition.Problem{Code: condition.LeaseYielded, Cause: cause})
		return
	}
	m.election.SetYielding("")
	m.yielding.Clear()
}

// offerPrefix begins what a holder that yields the Lease writes there, before the names of the sinks that it reaches.
const offerPrefix = "reaches:"

// surpasses reports whether sinks are all of an offer and more.
func surpasses(reached []string, offer string) bool {
	names := strings.FieldsFunc(strings.TrimPrefix(offer, offerPrefix), func(r rune) bool { return r == ',' })
	return len(reached) > len(names) && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(reached, name) })
}

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

// failingSinks returns why sinks with a pinger do not deliver: all of them while a take-over does not end.
// It is safe for concurrent use.
func (c *composition) failingSinks() map[string]string {
	failing := map[string]string{}
	for _, r := range c.sinks.runners {
		if r == nil || c.sinks.pingers[r.name] == nil {
			continue
		}
		if !c.open.Load() {
			failing[r.name] = firstCause(c.replica.failoverConditions())
		} else if now := r.currentPipeline().Stats().Condition; now.Severity >= condition.NotReady {
			failing[r.name] = now.CauseText()
		}
	}
	maps.DeleteFunc(failing, func(_, cause string) bool { return cause == "" })
	return failing
}

// reached pings the destinations of all sinks that can be pinged, and returns the names of those that answer, sorted.
func (set *sinkSet) reached(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, busPingTimeout)
	defer cancel()
	var mu sync.Mutex
	var answered []string
	var pinging sync.WaitGroup
	for name, pinger := range set.pingers {
		pinging.Go(func() {
			if pinger.Ping(ctx) == nil {
				mu.Lock()
				defer mu.Unlock()
				answered = append(answered, name)
			}
		})
	}
	pinging.Wait()
	slices.Sort(answered)
	return answered
}
