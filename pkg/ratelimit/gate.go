package ratelimit

import (
	"context"
	"sync"
	"time"
)

// GateState is what a [Gate] lets pass.
type GateState int

// The states of a gate.
const (
	Open    GateState = iota // every caller passes
	Closed                   // no caller passes before the delay is over
	Probing                  // the delay is over and one probe has passed; all other callers wait for its result
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

// GateStatus is the state of a gate at one moment.
type GateStatus struct {
	State  GateState
	Reason string    // why it is not open; "" when open
	Since  time.Time // when it opened, or when the outage began
	Until  time.Time // when the next probe may pass; zero when open
	Probed time.Time // when the current probe passed; zero unless probing
	Probes int       // failed probes since the outage began
}

// Gate blocks all attempts at something that is unavailable as a whole. It starts open. While it is closed, no caller passes
// for a delay; then exactly one passes as a probe. The success of the probe opens the gate for all; its failure closes the
// gate again, for longer.
//
// A caller calls [Gate.Wait] before an attempt and exactly one method of the [Pass] after it.
type Gate struct {
	backoff *Backoff[struct{}]
	min     time.Duration
	observe func(from, to GateStatus)

	mu         sync.Mutex
	status     GateStatus
	generation uint64        // changes with every change of status; a pass of an older generation reports an outdated result
	changed    chan struct{} // closed and replaced with every change of status
}

// NewGate returns an open gate with delays that grow from min to max like those of a [Backoff] with the same random.
// observe, which may be nil, is called when an outage begins and when it ends, not for the probes in between. It is called
// in order and under the lock of the gate: it must not call the gate and must not block.
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

// Status returns the current state.
func (g *Gate) Status() GateStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// Wait blocks until the caller may try, and returns the pass to report the result with. If ctx ends first, it returns the
// error of ctx, and there is nothing to report.
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

// tryPass returns a pass, or what to wait for: the first of changed and, unless zero, delay.
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
		g.status.State, g.status.Probed = Probing, time.Now()
		g.generation++ // results of earlier passes are outdated
		return Pass{gate: g, generation: g.generation}, true, nil, 0
	default:
		return Pass{}, false, g.changed, 0
	}
}

// awaitChange waits until changed is closed or, if delay is not zero, delay has passed.
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

// Pass is the permission for one attempt; its methods report the result. Results of attempts that began before the gate
// closed are ignored: one of many concurrent failures closes it, and the result of the probe is newer than theirs.
type Pass struct {
	gate       *Gate
	generation uint64
}

// Succeeded reports that the peer answered. If the attempt was a probe, the gate opens.
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

// Failed reports that the peer is unavailable and closes the gate: if the peer asked for time (after > 0), for that time,
// but at least for the min of the gate; else for the next delay of its back-off.
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

// Abandoned reports that the attempt has no result, because it was cancelled. After an abandoned probe the next caller
// probes at once.
func (p Pass) Abandoned() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.generation != g.generation || g.status.State == Open {
		return
	}
	next := g.status
	next.State, next.Probed = Closed, time.Time{}
	g.setStatus(next)
}

// setStatus sets a new status and wakes all waiting callers. Requires g.mu.
func (g *Gate) setStatus(status GateStatus) {
	g.status = status
	g.generation++
	close(g.changed)
	g.changed = make(chan struct{})
}

// Backoff spaces the tries of each failing item: after its n-th failure in a row, counted from zero, an item waits
// between min·2ⁿ and min·2ⁿ⁺¹, evenly spread, and never less than min or more than max. Half of the longest wait is
// fixed and half is random ("equal jitter"), so that items which failed together do not come back together.
//
// Unlike the default limiter of client-go it has no bucket that all items share: a thousand items that failed in one outage
// wait independently. It holds memory for failing items only; Forget must be called on success.
type Backoff[T comparable] struct {
	min, max time.Duration
	random   func() float64

	mu       sync.Mutex
	failures map[T]int
}

// NewBackoff returns a Backoff with waits from min to max. random returns numbers in [0,1), is called under a lock and
// is usually rand.Float64. min must be positive and not above max.
func NewBackoff[T comparable](min, max time.Duration, random func() float64) *Backoff[T] {
	if min <= 0 || max < min {
		panic("ratelimit: back-off needs 0 < min <= max")
	}
	return &Backoff[T]{min: min, max: max, random: random, failures: map[T]int{}}
}

// When records one more failure of item and returns how long to wait before the next try.
func (b *Backoff[T]) When(item T) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.failures[item]
	b.failures[item] = n + 1
	return WaitAfter(n, b.min, b.max, b.random())
}

// Forget ends the history of item: its next failure counts as the first, and no memory is held for it.
func (b *Backoff[T]) Forget(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, item)
}

// NumRequeues returns how often item failed since it was last forgotten.
func (b *Backoff[T]) NumRequeues(item T) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures[item]
}

// WaitAfter returns the wait after failure n, counted from zero, as [Backoff] has it. random is a number in [0,1).
func WaitAfter(n int, least, most time.Duration, random float64) time.Duration {
	longest := most
	// Shifting most down instead of least up cannot overflow.
	if n < 62 && least <= most>>(n+1) {
		longest = least << (n + 1)
	}
	shortest := max(least, longest/2)
	return shortest + time.Duration(random*float64(longest-shortest))
}

// Sleep waits for d and returns nil, or the error of ctx when that ends first.
func Sleep(ctx context.Context, d time.Duration) error { return SleepUnlessWoken(ctx, d, nil) }

// SleepUnlessWoken is Sleep that also ends, without an error, on a receive from woken, see [Wake].
func SleepUnlessWoken(ctx context.Context, d time.Duration, woken <-chan struct{}) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake sends to a channel of capacity 1 unless that is full. It never waits.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
