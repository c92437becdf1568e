package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// pollScheduler decides when discovery is polled: soon after a trigger, and otherwise regularly. It is used by one
// goroutine, except for requestPoll.
type pollScheduler struct {
	interval    time.Duration
	requested   chan struct{} // capacity 1
	lastPoll    time.Time     // end of the last poll
	lastRequest time.Time
	spacing     time.Duration // minimum time between the last poll and a requested one
}

const (
	// A new type causes a burst of changes (created, accepted, established, announced as an APIService). A requested poll
	// waits for the first pause of settleDelay, but no longer than maxSettleDelay.
	settleDelay, maxSettleDelay = 500 * time.Millisecond, 2 * time.Second
	// minSpacing is the initial spacing. It doubles with each requested poll that finds nothing new, up to the interval, so
	// that changes without effect on discovery, such as rotated CA bundles, cost no more than regular polls.
	minSpacing = time.Second
	// calmInterval is the time between polls while every trigger is live and there was no request for calmAfter. Until then
	// polls are regular, because discovery may lag behind the change that a trigger has seen.
	calmInterval, calmAfter = 30 * time.Second, time.Minute
)

func newPollScheduler(interval time.Duration) *pollScheduler {
	now := time.Now()
	return &pollScheduler{
		interval: interval, requested: make(chan struct{}, 1), lastPoll: now, lastRequest: now, spacing: minSpacing,
	}
}

// requestPoll requests a poll soon. It never blocks. Safe for concurrent use.
func (p *pollScheduler) requestPoll() { signal(p.requested) }

// recordPoll records the end of a poll, whether it was requested, and whether its result differs from the previous one.
func (p *pollScheduler) recordPoll(requested, changed bool) {
	p.lastPoll = time.Now()
	if requested && !changed {
		p.spacing = min(2*p.spacing, max(p.interval, minSpacing))
	} else {
		p.spacing = minSpacing
	}
}

// waitForPoll returns when the next poll is due, and whether it was requested. settled means that only triggers can announce
// something new.
func (p *pollScheduler) waitForPoll(ctx context.Context, settled bool) (requested bool, err error) {
	latest := p.interval
	if settled && time.Since(p.lastRequest) >= calmAfter {
		latest = max(p.interval, calmInterval)
	}
	timer := time.NewTimer(time.Until(p.lastPoll.Add(latest)))
	defer timer.Stop()
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return requested, ctx.Err()
		case <-timer.C:
			return requested, nil
		case <-p.requested:
			p.lastRequest = time.Now()
			if !requested {
				requested, first = true, p.lastRequest
			}
			due := min(settleDelay, time.Until(first.Add(maxSettleDelay)))
			due = max(due, time.Until(p.lastPoll.Add(p.spacing)))
			timer.Reset(min(due, time.Until(p.lastPoll.Add(latest))))
		}
	}
}

// backoff computes the waits after consecutive failures. The zero value is ready. It is used by one goroutine.
type backoff struct {
	failures      int
	needsOperator bool // the failures are such that only an operator can resolve them
}

const (
	minWait = 100 * time.Millisecond
	maxWait = 15 * time.Second
	// minDeniedWait and maxDeniedWait bound the wait, before jitter, after failures that only an operator can resolve. More
	// frequent retries would fill the API server's audit log. The first waits are short because an API server that has just
	// started denies what it allows a moment later.
	minDeniedWait = time.Second
	maxDeniedWait = 15 * time.Second
	// maxStartingWait bounds the wait for an API server that is starting, unless it asks for a longer one.
	maxStartingWait = time.Second
	// maxRetryAfter bounds a Retry-After. The maintenance page of a proxy may ask for hours, and nothing would be read until
	// long after the maintenance.
	maxRetryAfter = time.Minute
)

func (p *backoff) reset() { p.failures = 0 }

// countFailure counts a failure. A refusal at the end of an outage is the first of its kind, so the waits start over: an API
// server that has just started refuses for a moment, and history must not be lost over a long wait.
func (p *backoff) countFailure(needsOperator bool) {
	if needsOperator != p.needsOperator {
		p.failures, p.needsOperator = 0, needsOperator
	}
	p.failures++
}

// nextWait returns the wait after err: an exponential back-off with jitter, so that scopes do not retry in step, and not
// less than the Retry-After of the API server, up to maxRetryAfter.
func (p *backoff) nextWait(err error) time.Duration {
	longest := maxWait
	v := apiserver.Classify(err)
	p.countFailure(v == apiserver.Forbidden || v == apiserver.NotServed)
	switch v {
	case apiserver.Forbidden, apiserver.NotServed:
		d := p.exponentialWait(minDeniedWait, maxDeniedWait)
		return d + rand.N(d)
	case apiserver.Starting:
		longest = maxStartingWait
	default: // an ordinary failure
	}
	d := p.exponentialWait(minWait, longest)
	d = d/2 + rand.N(d/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, min(maxRetryAfter, time.Duration(seconds)*time.Second))
	}
	return d
}

// exponentialWait doubles first with each failure, up to longest.
func (p *backoff) exponentialWait(first, longest time.Duration) time.Duration {
	if p.failures > 16 {
		return longest
	}
	return min(longest, first<<(p.failures-1))
}

// trigger watches one of selection.Triggers and requests a discovery poll for every change. The content of the change is
// ignored: discovery is the only source of what is served.
type trigger struct {
	endpoint    *apiserver.Endpoint
	condition   *condition.Condition // OK unless new types are found later than usual
	requestPoll func()
	live        atomic.Bool // a watch is open, so changes request polls

	// Owned by run.
	position  string
	bookmarks bool // the API server sends bookmarks, so silence is a failure
}

const (
	// anyPosition starts with the content of the API server's cache, each object as one event.
	anyPosition = "0"
	// deniedRecheck is the interval, before jitter, for trying a right again that stayed denied after the API server's
	// start.
	deniedRecheck = 5 * time.Minute
)

func newTrigger(client *apiserver.Client, r event.Resource, all *condition.Set, requestPoll func()) (*trigger, error) {
	e, err := client.Endpoint(selection.Scope{ID: r.String(), Resource: r, MetadataOnly: true})
	return &trigger{endpoint: e, condition: all.Add(r.String(), condition.Problem{}), requestPoll: requestPoll, position: anyPosition}, err
}

// run watches until ctx ends. Failures are retried and do not affect the readiness of the Source: without the trigger, types
// are only found later.
func (t *trigger) run(ctx context.Context) {
	var p backoff
	for {
		opened := time.Now()
		err := t.watchDefinitions(ctx)
		if t.live.Swap(false) && time.Since(opened) >= steadyAfter {
			p.reset()
		}
		wait := p.nextWait(err)
		switch v := apiserver.Classify(err); {
		case errors.Is(err, errStale):
			t.condition.Update(condition.Problem{Code: condition.TypesSilent, Cause: err.Error()})
		case v == apiserver.Expired, v == apiserver.TooLarge:
			t.position = anyPosition
		case v == apiserver.Forbidden, v == apiserver.NotServed, v == apiserver.Refused:
			t.condition.Update(condition.Problem{Code: condition.TypesUnwatched, Cause: apiserver.Reason(err)})
			if p.failures > maxIdentifyAttempts {
				wait = deniedRecheck + rand.N(deniedRecheck)
			}
		}
		if sleep(ctx, wait) != nil {
			return
		}
	}
}

// watchDefinitions requests a poll for every change that one connection delivers, until it ends. A connection that should
// deliver bookmarks and is silent is closed, as for the watches of data: a dead connection would suppress the frequent
// polls.
func (t *trigger) watchDefinitions(ctx context.Context) error {
	c, err := t.endpoint.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: t.position})
	if err != nil {
		return err
	}
	defer c.Stop()
	if t.condition.Status().Code != condition.TypesSilent { // otherwise it must deliver something first
		t.markLive()
	}
	if t.position == anyPosition {
		t.requestPoll() // for changes before the watch
	}
	for {
		b, err := c.Next(ctx, staleAfter)
		switch {
		case errors.Is(err, apiserver.ErrQuiet) && t.bookmarks:
			return errStale
		case errors.Is(err, apiserver.ErrQuiet):
			continue
		case err != nil:
			return err
		}
		t.markLive()
		t.bookmarks = t.bookmarks || b.Bookmarks
		if len(b.Events) > 0 {
			t.requestPoll()
		}
		// Initial objects arrive unordered, but none is newer than the cache was, so no later change is missed.
		if b.Position != "" {
			t.position = b.Position
		}
	}
}

// markLive records that the connection works.
func (t *trigger) markLive() {
	t.live.Store(true)
	t.condition.Clear()
}
