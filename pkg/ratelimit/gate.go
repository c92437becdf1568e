package ratelimit

import (
	"context"
	"sync"
	"time"
)

// GateState says what a [Gate] lets through.
type GateState int

// The states of a gate.
const (
	Open    GateState = iota // everybody passes
	Closed                   // nobody passes before the delay is over
	Probing                  // the delay is over and one probe is under way; everybody else waits for its result
)

// String returns "open", "closed" or "probing".
func (s GateState) String() string {
	switch s {
	case Open:
		return "open"
	case Closed:
		return "closed"
	default:
		return "probing"
	}
}

// GateStatus describes a gate at one moment.
type GateStatus struct {
	State  GateState
	Reason string    // why it is not open; "" when open
	Since  time.Time // when it opened, or when the outage began
	Until  time.Time // when the next probe may pass; zero when open
	Probes int       // failed probes since the outage began
}

// Gate keeps everybody away from something that is unavailable as a whole. It starts open. When it is closed, nobody
// passes for a delay; then exactly one passes as a probe. The probe's success opens the gate for all; its failure
// closes it again, for longer.
//
// Who wants to pass calls [Gate.Wait] and, after trying, exactly one method of the [Pass].
type Gate struct {
	backoff *Backoff[struct{}]
	min     time.Duration
	observe func(from, to GateStatus)

	mu         sync.Mutex
	status     GateStatus
	generation uint64        // changes with every decision, so that a late result of an older pass is known as such
	changed    chan struct{} // closed and replaced with every decision
}

// NewGate returns an open gate whose delays grow from min to max like those of a [Backoff] with the same random.
// observe, which may be nil, is told when an outage begins and when it ends, not of the probes in between, so that a
// log line per call is one per change of state. It is called in order and under the gate's lock: it must not call the
// gate and must not block.
func NewGate(min, max time.Duration, random func() float64, observe func(from, to GateStatus)) *Gate {
	if observe == nil {
		observe = func(GateStatus, GateStatus) {}
	}
	return &Gate{
		backoff: NewBackoff[struct{}](min, max, random),
		min:     min,
		observe: observe,
		status:  GateStatus{Since: time.Now()},
		changed: make(chan struct{}),
	}
}

// Status returns the present state.
func (g *Gate) Status() GateStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// Wait blocks until the caller may try, and returns the pass it must report with; or the context's error when ctx ends
// first, without a pass.
func (g *Gate) Wait(ctx context.Context) (Pass, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Pass{}, err
		}
		pass, ok, changed, delay := g.tryPass()
		if ok {
			return pass, nil
		}
		if err := awaitChange(ctx, changed, delay); err != nil {
			return Pass{}, err
		}
	}
}

// tryPass returns a pass, or what to wait for: changed and, unless zero, delay, whichever is first.
func (g *Gate) tryPass() (pass Pass, ok bool, changed <-chan struct{}, delay time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.status.State {
	case Open:
		return Pass{gate: g, generation: g.generation}, true, nil, 0
	case Closed:
		if delay = time.Until(g.status.Until); delay > 0 {
			return Pass{}, false, g.changed, delay
		}
		g.status.State = Probing
		g.generation++ // the results of everybody who passed earlier no longer count
		return Pass{gate: g, generation: g.generation}, true, nil, 0
	default:
		return Pass{}, false, g.changed, 0
	}
}

// awaitChange waits until changed is closed or, when delay is not zero, delay is over.
func awaitChange(ctx context.Context, changed <-chan struct{}, delay time.Duration) error {
	var expired <-chan time.Time
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-changed:
	case <-expired:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Pass is the permission to try once; its methods report the result. Results of tries that began before the gate
// closed are ignored: one failure of many at once is enough to close it, and the probe's answer is newer than theirs.
type Pass struct {
	gate       *Gate
	generation uint64
}

// Succeeded reports that the far side answered. A probe's success opens the gate.
func (p Pass) Succeeded() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.generation != g.generation || g.status.State == Open {
		return
	}
	g.backoff.Forget(struct{}{})
	outage := g.status
	g.setStatus(GateStatus{State: Open, Since: time.Now()})
	g.observe(outage, g.status)
}

// Failed reports that the far side is unavailable and closes the gate: for after, but at least the gate's min, when the
// far side asked for it (after > 0), else for the next delay of the gate's back-off.
func (p Pass) Failed(reason string, after time.Duration) {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.generation != g.generation {
		return
	}
	now := time.Now()
	delay := g.backoff.When(struct{}{})
	if after > 0 {
		delay = max(after, g.min)
	}
	before := g.status
	next := GateStatus{State: Closed, Reason: reason, Since: now, Until: now.Add(delay)}
	if before.State != Open {
		next.Since, next.Probes = before.Since, before.Probes+1
	}
	g.setStatus(next)
	if before.State == Open {
		g.observe(before, next)
	}
}

// Abandoned reports that there is no result: the try was cancelled. An abandoned probe leaves the gate as it was before
// it, for the next one to probe.
func (p Pass) Abandoned() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.generation != g.generation || g.status.State == Open {
		return
	}
	next := g.status
	next.State = Closed
	g.setStatus(next)
}

// setStatus enters a new status and wakes everybody who waits. The caller holds g.mu.
func (g *Gate) setStatus(status GateStatus) {
	g.status = status
	g.generation++
	close(g.changed)
	g.changed = make(chan struct{})
}
