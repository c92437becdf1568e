package condition

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// maxReasons bounds the reasons that are logged of one trouble, so that a reason with a number in it does not fill the log.
const maxReasons = 16

// Condition is the condition of one thing. Its methods may be called concurrently. They do not wait for each other's lines
// in the log.
type Condition struct {
	report func(transition) // takes note of what is worth a line; called with mu held, does not wait
	write  func()           // writes what was noted; called without mu

	status atomic.Pointer[Status]
	due    atomic.Bool // a timer of BecomeAfter runs

	mu        sync.Mutex
	began     time.Time // when the trouble began; zero while all is well
	said      map[key]bool
	timer     *time.Timer
	decisions uint64 // a timer that was set before the last one is void
	closed    bool
}

// transition is a change that is worth a line in the log.
type transition struct {
	to     Status
	lasted time.Duration // of the trouble that has ended; zero if there was none
	attrs  []any
}

// New returns a condition that starts in a state, without a line in the log.
func New(log *slog.Logger, initial State) *Condition {
	lines := newLines(log)
	return newCondition(initial, func(t transition) { lines.add(t.line()) }, lines.write)
}

func newCondition(initial State, report func(transition), write func()) *Condition {
	c := &Condition{report: report, write: write}
	now := time.Now()
	c.status.Store(&Status{State: initial, Since: now})
	if initial.Severity != OK {
		c.began = now
	}
	return c
}

// Status returns what was reported last. It never waits.
func (c *Condition) Status() Status { return *c.status.Load() }

// Become reports what is the case now. Another state, or another reason for it, is one line in the log; attrs are further
// attributes of that line, as slog takes them. Each reason is logged once in a trouble. It costs next to nothing while
// nothing changes.
func (c *Condition) Become(state State, reason, remedy string, attrs ...any) {
	if !c.due.Load() && c.is(state, reason, remedy) {
		return
	}
	c.BecomeIf(func(Status) bool { return true }, state, reason, remedy, attrs...)
}

// BecomeIf is Become where a fact holds of the status as it is now; otherwise it changes nothing. It is for answers that
// overtake each other: one to a question from before the last change is no news. fact is called with the lock held, so that
// nothing changes meanwhile; it must not wait, nor use the condition.
func (c *Condition) BecomeIf(fact func(now Status) bool, state State, reason, remedy string, attrs ...any) {
	c.mu.Lock()
	if fact(c.Status()) {
		c.stopTimer()
		c.enter(Status{State: state, Reason: reason, Remedy: remedy}, attrs)
	}
	c.mu.Unlock()
	c.write()
}

// BecomeAfter enters a state after a delay, unless Become or BecomeAfter is called before. It is for trouble that comes and
// goes: it is over once there was none for a while.
func (c *Condition) BecomeAfter(delay time.Duration, state State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	if c.closed {
		return
	}
	c.due.Store(true)
	number := c.decisions
	c.timer = time.AfterFunc(delay, func() { c.fire(number, state) })
}

// fire enters the state that a timer waited for, unless something else was reported in this moment.
func (c *Condition) fire(number uint64, state State) {
	c.mu.Lock()
	if c.decisions == number {
		c.stopTimer()
		c.enter(Status{State: state}, nil)
	}
	c.mu.Unlock()
	c.write()
}

// Close ends a delay of BecomeAfter; nothing more is logged.
func (c *Condition) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	c.closed = true
}

func (c *Condition) is(state State, reason, remedy string) bool {
	s := c.status.Load()
	return s.State.Name == state.Name && s.Reason == reason && s.Remedy == remedy
}

// stopTimer ends a delay. mu is held.
func (c *Condition) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = nil
	c.decisions++
	c.due.Store(false)
}

// enter stores a status and reports what is worth a line. mu is held.
func (c *Condition) enter(next Status, attrs []any) {
	before, now := c.status.Load(), time.Now()
	next.Since = now
	if next.State.Name == before.State.Name {
		next.Since = before.Since
	}
	c.status.Store(&next)
	changed := next.key() != before.key()
	t := transition{to: next, attrs: attrs}
	switch {
	case next.OK():
		if !c.began.IsZero() {
			t.lasted = now.Sub(c.began)
		}
		c.began, c.said = time.Time{}, nil
		changed = next.State.Name != before.State.Name
	case c.began.IsZero():
		c.began, c.said = now, map[key]bool{}
	}
	if !changed || !c.news(next) || c.closed {
		return
	}
	c.report(t)
}

// news says whether a status was not logged yet in this trouble, and notes it. mu is held.
func (c *Condition) news(s Status) bool {
	if s.OK() {
		return true
	}
	if c.said[s.key()] || len(c.said) == maxReasons {
		return false
	}
	if c.said == nil {
		c.said = map[key]bool{}
	}
	c.said[s.key()] = true
	return true
}
