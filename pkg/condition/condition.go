package condition

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxLoggedCauses bounds the causes that are logged during one failure, so that a cause with a varying name does not fill
// the log. Causes that differ in numbers only are logged once.
const maxLoggedCauses = 16

// Condition is the condition of one thing. It is safe for concurrent use, and its methods do not block on a slow log that
// another goroutine writes to.
type Condition struct {
	reportTransition func(transition) // queues a transition for the log; called with mu held, does not block
	writeLines       func()           // writes the queued transitions; called without mu

	status       atomic.Pointer[Status]
	timerRunning atomic.Bool // a timer of ClearAfter is running

	mu           sync.Mutex
	failingSince time.Time // when the failure began; zero while OK
	blindSince   time.Time // when history began to be missed; zero while it is not
	ended        Code      // the last code of this failure whose end is logged
	logged       map[problemKey]bool
	timer        *time.Timer
	updates      uint64 // number of updates: a timer that was set before the last one is void
	closed       bool
}

// transition is a change of status that is logged.
type transition struct {
	to     Status
	ended  Code          // of the failure that has ended; "" if none has
	lasted time.Duration // duration of that failure
	attrs  []any
}

// New returns the condition of a component, which starts with a problem or, if that is zero, without. The start is not
// logged.
func New(log *slog.Logger, component string, initial Problem) *Condition {
	lines := newLogQueue(log)
	return newCondition(Status{Component: component}, initial, func(t transition) { lines.enqueue(t.logLine()) }, lines.writeQueued)
}

func newCondition(of Status, initial Problem, report func(transition), write func()) *Condition {
	c := &Condition{reportTransition: func(transition) {}, writeLines: write}
	of.Since = time.Now()
	c.status.Store(&of)
	c.storeStatus(initial, nil)
	c.reportTransition = report
	return c
}

// Status returns a copy of the last status. It never blocks.
func (c *Condition) Status() Status {
	s := *c.status.Load()
	s.Members = slices.Clone(s.Members)
	return s
}

// Update sets the problem, or none if that is zero. A change of the code or of its cause is logged in one line, unless the
// problem was passed on; attrs are further attributes of that line, as slog takes them. During one failure each cause is
// logged once. An update without a change costs next to nothing.
func (c *Condition) Update(p Problem, attrs ...any) {
	if !c.timerRunning.Load() && c.isUnchanged(p) {
		return
	}
	c.UpdateIf(func(Status) bool { return true }, p, attrs...)
}

// Clear is Update without a problem.
func (c *Condition) Clear(attrs ...any) { c.Update(Problem{}, attrs...) }

// UpdateIf is Update if fact returns true for the current status; otherwise it changes nothing. It is for responses that may
// overtake each other: the response to a request from before the last change is outdated. fact is called with the lock held;
// it must not block, nor use the condition.
func (c *Condition) UpdateIf(fact func(now Status) bool, p Problem, attrs ...any) {
	c.mu.Lock()
	if fact(c.Status()) {
		c.stopTimer()
		c.storeStatus(p, attrs)
	}
	c.mu.Unlock()
	c.writeLines()
}

// ClearAfter ends the problem after a delay, unless there is an update before. It is for intermittent failures, which end
// when none was observed for a while.
func (c *Condition) ClearAfter(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	if c.closed {
		return
	}
	c.timerRunning.Store(true)
	number := c.updates
	c.timer = time.AfterFunc(delay, func() {
		c.UpdateIf(func(Status) bool { return c.updates == number }, Problem{})
	})
}

// Close stops a pending ClearAfter. Nothing is logged afterwards.
func (c *Condition) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopTimer()
	c.closed = true
}

func (c *Condition) isUnchanged(p Problem) bool {
	now := c.status.Load()
	return p == Problem{} && now.OK() || !now.OK() && now.Problem == NewStatus("", p).Problem
}

// stopTimer stops a pending ClearAfter. Requires c.mu.
func (c *Condition) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = nil
	c.updates++
	c.timerRunning.Store(false)
}

// storeStatus stores a status and queues the log line for it, if there is one. Requires c.mu.
func (c *Condition) storeStatus(p Problem, attrs []any) {
	before, now := c.status.Load(), time.Now()
	next := NewStatus(before.Component, p)
	next.Members, next.Since = before.Members, now
	if next.Code == before.Code {
		next.Since = before.Since
	}
	next.Deadline = c.historyDeadline(p.LosesHistory, now)
	c.status.Store(&next)
	if next.exactKey() == before.exactKey() {
		return
	}
	t := transition{to: next, attrs: attrs}
	if next.OK() {
		t.ended, t.lasted = c.ended, now.Sub(c.failingSince)
		c.failingSince, c.ended, c.logged = time.Time{}, "", nil
	} else {
		if c.failingSince.IsZero() {
			c.failingSince, c.logged = now, map[problemKey]bool{}
		}
		if next.Passed {
			return
		}
		if next.Code.Kind().Ended != "" {
			c.ended = next.Code
		}
		if c.logged[next.similarityKey()] || len(c.logged) == maxLoggedCauses {
			return
		}
		c.logged[next.similarityKey()] = true
	}
	if !c.closed {
		c.reportTransition(t)
	}
}

// historyDeadline returns when history begins to get lost; zero if it is being read. Requires c.mu.
func (c *Condition) historyDeadline(blind bool, now time.Time) time.Time {
	switch {
	case !blind:
		c.blindSince = time.Time{}
		return time.Time{}
	case c.blindSince.IsZero():
		c.blindSince = now
	}
	return c.blindSince.Add(historyKept)
}
