package condition

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// maxLoggedReasons bounds the reasons that are logged during one failure, so that a reason that contains a number does not
// fill the log.
const maxLoggedReasons = 16

// Condition is the condition of one thing. It is safe for concurrent use, and its methods do not block on a slow log that
// another goroutine writes to.
type Condition struct {
	reportTransition func(transition) // queues a transition for the log; called with mu held, does not block
	writeLines       func()           // writes the queued transitions; called without mu

	status       atomic.Pointer[Status]
	timerRunning atomic.Bool // a timer of UpdateAfter is running

	mu           sync.Mutex
	failingSince time.Time // when the failure began; zero while OK
	logged       map[statusKey]bool
	timer        *time.Timer
	updates      uint64 // number of updates: a timer that was set before the last one is void
	closed       bool
}

// transition is a change of status that is logged.
type transition struct {
	to     Status
	lasted time.Duration // duration of the failure that has ended; zero if there was none
	attrs  []any
}

// New returns a condition that starts in a state. That is not logged.
func New(log *slog.Logger, initial State) *Condition {
	lines := newLogQueue(log)
	return newCondition(initial, func(t transition) { lines.enqueue(t.logLine()) }, lines.writeQueued)
}

func newCondition(initial State, report func(transition), write func()) *Condition {
	c := &Condition{reportTransition: report, writeLines: write}
	now := time.Now()
	c.status.Store(&Status{State: initial, Since: now})
	if initial.Severity != OK {
		c.failingSince = now
	}
	return c
}

// Status returns the last status. It never blocks.
func (c *Condition) Status() Status { return *c.status.Load() }

// Update sets the status. A change of the state or of its reason is logged in one line; attrs are further attributes of that
// line, as slog takes them. During one failure each reason is logged once. An update without a change costs next to nothing.
func (c *Condition) Update(state State, reason, remedy string, attrs ...any) {
	if !c.timerRunning.Load() && c.isUnchanged(state, reason, remedy) {
		return
	}
	c.UpdateIf(func(Status) bool { return true }, state, reason, remedy, attrs...)
}

// UpdateIf is Update if fact returns true for the current status; otherwise it changes nothing. It is for responses that may
// overtake each other: the response to a request from before the last change is outdated. fact is called with the lock held;
// it must not block, nor use the condition.
func (c *Condition) UpdateIf(fact func(now Status) bool, state State, reason, remedy string, attrs ...any) {
	c.mu.Lock()
	if fact(c.Status()) {
		c.stopTimer()
		c.storeStatus(Status{State: state, Reason: reason, Remedy: remedy}, attrs)
	}
	c.mu.Unlock()
	c.writeLines()
}

// UpdateAfter sets a state after a delay, unless Update or UpdateAfter is called before that. It is for intermittent
// failures, which end when none was observed for a while.
func (c *Condition) UpdateAfter(delay time.Duration, state State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	if c.closed {
		return
	}
	c.timerRunning.Store(true)
	number := c.updates
	c.timer = time.AfterFunc(delay, func() { c.applyDelayed(number, state) })
}

// applyDelayed sets the state of an expired timer, unless there was an update since the timer was set.
func (c *Condition) applyDelayed(number uint64, state State) {
	c.mu.Lock()
	if c.updates == number {
		c.stopTimer()
		c.storeStatus(Status{State: state}, nil)
	}
	c.mu.Unlock()
	c.writeLines()
}

// Close stops a pending UpdateAfter. Nothing is logged afterwards.
func (c *Condition) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	c.closed = true
}

func (c *Condition) isUnchanged(state State, reason, remedy string) bool {
	s := c.status.Load()
	return s.State.Name == state.Name && s.Reason == reason && s.Remedy == remedy
}

// stopTimer stops a pending UpdateAfter. Requires c.mu.
func (c *Condition) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = nil
	c.updates++
	c.timerRunning.Store(false)
}

// storeStatus stores a status and queues the log line for it, if there is one. Requires c.mu.
func (c *Condition) storeStatus(next Status, attrs []any) {
	before, now := c.status.Load(), time.Now()
	next.Since = now
	if next.State.Name == before.State.Name {
		next.Since = before.Since
	}
	c.status.Store(&next)
	changed := next.exactKey() != before.exactKey()
	t := transition{to: next, attrs: attrs}
	switch {
	case next.OK():
		if !c.failingSince.IsZero() {
			t.lasted = now.Sub(c.failingSince)
		}
		c.failingSince, c.logged = time.Time{}, nil
		changed = next.State.Name != before.State.Name
	case c.failingSince.IsZero():
		c.failingSince, c.logged = now, map[statusKey]bool{}
	}
	if !changed || !c.recordIfNew(next) || c.closed {
		return
	}
	c.reportTransition(t)
}

// recordIfNew reports whether a status was not logged yet during this failure, and records it as logged. Requires c.mu.
func (c *Condition) recordIfNew(s Status) bool {
	if s.OK() {
		return true
	}
	if c.logged[s.exactKey()] || len(c.logged) == maxLoggedReasons {
		return false
	}
	if c.logged == nil {
		c.logged = map[statusKey]bool{}
	}
	c.logged[s.exactKey()] = true
	return true
}
