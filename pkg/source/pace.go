package source

import (
	"context"
	"time"
)

// pollScheduler decides when the API server is asked what it serves: soon after a trigger rang, and else regularly. It is used by
// one goroutine, except for ring.
type pollScheduler struct {
	interval    time.Duration
	requested   chan struct{}
	lastPoll    time.Time     // end of the last poll
	lastRequest time.Time     // last ring
	spacing     time.Duration // kept from the last poll, if rings ask for one
}

const (
	// A type comes with a burst of changes (created, accepted, established, announced as an APIService): the poll waits
	// for the first silence of settled, and not longer than unsettled.
	settleDelay, maxSettleDelay = 500 * time.Millisecond, 2 * time.Second
	// minSpacing is how close polls may follow each other. It doubles with every poll that finds nothing new, up to the
	// interval: changes that change nothing served, such as rotated CA bundles, cost no more than regular polls do.
	minSpacing = time.Second
	// calmInterval is the time between polls while every trigger is watched and none rang for calmAfter. Until then the
	// polls are as usual, because discovery may lag behind what rang.
	calmInterval, calmAfter = 30 * time.Second, time.Minute
)

func newPollScheduler(interval time.Duration) *pollScheduler {
	now := time.Now()
	return &pollScheduler{interval: interval, requested: make(chan struct{}, 1), lastPoll: now, lastRequest: now, spacing: minSpacing}
}

// requestPoll asks for a poll. It never blocks and may be called by many goroutines.
func (p *pollScheduler) requestPoll() { signal(p.requested) }

// recordPoll says that a poll has ended, whether it was asked for and whether it found something else than before.
func (p *pollScheduler) recordPoll(asked, changed bool) {
	p.lastPoll = time.Now()
	if asked && !changed {
		p.spacing = min(2*p.spacing, max(p.interval, minSpacing))
	} else {
		p.spacing = minSpacing
	}
}

// waitForPoll returns when it is time to poll, and says whether a trigger asked for it. relaxed says that nothing but a trigger
// is waited for.
func (p *pollScheduler) waitForPoll(ctx context.Context, relaxed bool) (asked bool, err error) {
	latest := p.interval
	if relaxed && time.Since(p.lastRequest) >= calmAfter {
		latest = max(p.interval, calmInterval)
	}
	timer := time.NewTimer(time.Until(p.lastPoll.Add(latest)))
	defer timer.Stop()
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return asked, ctx.Err()
		case <-timer.C:
			return asked, nil
		case <-p.requested:
			p.lastRequest = time.Now()
			if !asked {
				asked, first = true, p.lastRequest
			}
			due := min(settleDelay, time.Until(first.Add(maxSettleDelay)))
			due = max(due, time.Until(p.lastPoll.Add(p.spacing)))
			timer.Reset(min(due, time.Until(p.lastPoll.Add(latest))))
		}
	}
}

// signal sends to a channel of capacity 1 that somebody waits for, unless it was sent to already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
