package condition

import (
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// Condition is the condition of one thing. It is safe for concurrent use, and its methods do not block on a slow log that
// another goroutine writes to.
type Condition struct {
	set    *Set // of this one alone, unless it is a member
	status atomic.Pointer[Status]

	// Guarded by set.mu.
	failingSince time.Time           // when the failure began; zero while OK
	began        time.Time           // when the caller says that it began; zero if the first update is that
	ended        Code                // the last code of this failure whose end is logged
	inLog        map[problemKey]bool // causes of this failure, or of the one that has ended, that the log has
	pending      *transition         // the newest one that the set has not looked at; nil if it has
	closed       bool                // nothing is logged any more
}

// transition is a change of status that is logged.
type transition struct {
	to     Status
	key    problemKey    // transitions of several members with the same one share a line
	ended  Code          // of the failure that has ended; "" if none has
	lasted time.Duration // duration of that failure
	attrs  []any
}

// New returns the condition of a component, which starts with a problem or, if that is zero, without. The start is not
// logged.
func New(log *slog.Logger, component string, initial Problem) *Condition {
	return NewSet(log, component, "").Add("", initial)
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
	if c.status.Load().Problem != NewStatus("", p).Problem {
		c.UpdateIf(func(Status) bool { return true }, p, attrs...)
	}
}

// UpdateSince is Update of a problem that began earlier; a zero time: with its first update.
func (c *Condition) UpdateSince(since time.Time, p Problem, attrs ...any) {
	c.set.mu.Lock()
	c.began = since
	c.set.mu.Unlock()
	c.Update(p, attrs...)
}

// Clear is Update without a problem.
func (c *Condition) Clear(attrs ...any) { c.Update(Problem{}, attrs...) }

// UpdateIf is Update if fact returns true for the current status; otherwise it changes nothing. It is for responses that may
// overtake each other: the response to a request from before the last change is outdated. fact is called with the lock held;
// it must not block, nor use the condition.
func (c *Condition) UpdateIf(fact func(now Status) bool, p Problem, attrs ...any) {
	c.set.mu.Lock()
	if fact(c.Status()) {
		c.storeStatus(p, attrs)
	}
	c.set.mu.Unlock()
	if c.set.noun == "" { // those of members are written by a timer
		c.set.writeLines()
	}
}

// Close ends the logging of changes.
func (c *Condition) Close() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.closed = true
}

// storeStatus stores a status and passes it to the set, if it is to be logged. Requires c.set.mu.
func (c *Condition) storeStatus(p Problem, attrs []any) {
	before, now := c.status.Load(), time.Now()
	next := NewStatus(before.Component, p)
	next.Members, next.Since = before.Members, now
	if next.Code == before.Code {
		next.Since = before.Since
	}
	if !next.OK() && !c.began.IsZero() {
		next.Since = c.began
	}
	if p.LosesHistory { // also under the code before, if that has a deadline
		next.Deadline = Earlier(before.Deadline, now.Add(historyKept))
	}
	c.status.Store(&next)
	if next.Code == before.Code && next.Cause == before.Cause {
		return
	}
	t := transition{to: next, key: next.similarityKey(), attrs: attrs}
	switch {
	case next.OK():
		t.ended, t.lasted, t.key.cause = c.ended, now.Sub(c.failingSince), c.ended.Kind().Ended
		c.failingSince, c.ended = time.Time{}, ""
	case c.failingSince.IsZero():
		c.failingSince = now
	}
	if next.Passed {
		return
	}
	if next.Code.Kind().Ended != "" {
		c.ended = next.Code
	}
	if !c.closed {
		c.pending = &t
		c.set.scheduleLines()
	}
}
