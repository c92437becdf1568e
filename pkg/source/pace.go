package source

import (
	"context"
	"time"
)

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
func (p *pace) ring() { nudge(p.bell) }

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
	latest := p.interval
	if relaxed && time.Since(p.rung) >= calmAfter {
		latest = max(p.interval, calmInterval)
	}
	timer := time.NewTimer(time.Until(p.polled.Add(latest)))
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
			due := min(settled, time.Until(first.Add(unsettled)))
			due = max(due, time.Until(p.polled.Add(p.spacing)))
			timer.Reset(min(due, time.Until(p.polled.Add(latest))))
		}
	}
}

// nudge sends to a channel of capacity 1 that somebody waits for, unless it was sent to already.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
