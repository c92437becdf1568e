package condition

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// maxLoggedReasons bounds the reasons that are logged of one trouble, so that a reason with a number in it does not fill the log.
const maxLoggedReasons = 16

// Condition is the condition of one thing. Its methods may be called concurrently. They do not wait for each other's lines
// in the log.
type Condition struct {
	reportTransition func(transition) // takes note of what is worth a line; called with mu held, does not wait
	writeLines       func()           // writes what was noted; called without mu

	status       atomic.Pointer[Status]
	timerRunning atomic.Bool // a timer of UpdateAfter runs

	mu           sync.Mutex
	failingSince time.Time // when the trouble began; zero while all is well
	logged       map[statusKey]bool
	timer        *time.Timer
	updates      uint64 // a timer that was set before the last one is void
	closed       bool
}

// transition is a change that is worth a line in the log.
type transition struct {
	to     Status
	lasted time.Duration // of the trouble that has ended; zero if there was none
	attrs  []any
}

// New returns a condition that starts in a state, without a line in the log.
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

// Status returns what was reported last. It never waits.
func (c *Condition) Status() Status { return *c.status.Load() }

// Update reports what is the case now. Another state, or another reason for it, is one line in the log; attrs are further
// attributes of that line, as slog takes them. Each reason is logged once in a trouble. It costs next to nothing while
// nothing changes.
func (c *Condition) Update(state State, reason, remedy string, attrs ...any) {
	if !c.timerRunning.Load() && c.isUnchanged(state, reason, remedy) {
		return
	}
	c.UpdateIf(func(Status) bool { return true }, state, reason, remedy, attrs...)
}

// UpdateIf is Become where a fact holds of the status as it is now; otherwise it changes nothing. It is for answers that
// overtake each other: one to a question from before the last change is no news. fact is called with the lock held, so that
// nothing changes meanwhile; it must not wait, nor use the condition.
func (c *Condition) UpdateIf(fact func(now Status) bool, state State, reason, remedy string, attrs ...any) {
	c.mu.Lock()
	if fact(c.Status()) {
		c.stopTimer()
		c.storeStatus(Status{State: state, Reason: reason, Remedy: remedy}, attrs)
	}
	c.mu.Unlock()
	c.writeLines()
}

// UpdateAfter enters a state after a delay, unless Become or UpdateAfter is called before. It is for trouble that comes and
// goes: it is over once there was none for a while.
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

// applyDelayed enters the state that a timer waited for, unless something else was reported in this moment.
func (c *Condition) applyDelayed(number uint64, state State) {
	c.mu.Lock()
	if c.updates == number {
		c.stopTimer()
		c.storeStatus(Status{State: state}, nil)
	}
	c.mu.Unlock()
	c.writeLines()
}

// Close ends a delay of UpdateAfter; nothing more is logged.
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

// stopTimer ends a delay. mu is held.
func (c *Condition) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = nil
	c.updates++
	c.timerRunning.Store(false)
}

// storeStatus stores a status and reports what is worth a line. mu is held.
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

// recordIfNew says whether a status was not logged yet in this trouble, and notes it. mu is held.
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
