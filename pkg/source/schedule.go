package source

import (
	"context"
	"time"
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
