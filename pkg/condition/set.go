package condition

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// A fault that hits many members hits them one after the other. A Set waits until no further member has changed for the
// quiet time, but no longer than the limit, and then writes one line for each reason. The end of a fault, and what it has
// cost, may come to each member at its own next attempt, so that it is waited for longer.
const (
	quietTimeFault    = time.Second
	maxDelayFault     = 5 * time.Second
	quietTimeRecovery = 3 * time.Second
	maxDelayRecovery  = 40 * time.Second
)

// maxNamesInLine bounds the names that a line gives of the members it is about.
const maxNamesInLine = 3

// Set holds conditions of one kind by their names. Its methods may be called concurrently.
type Set struct {
	noun  string
	lines *logQueue

	mu           sync.Mutex
	members      map[string]*Condition
	pending      map[string]transition // since the last lines
	events       map[string]transition // as well
	loggedKeys   map[string]statusKey  // of members in trouble: what the log has of it
	firstPending time.Time             // when the first of pending came
	timer        *time.Timer
	closed       bool
}

// NewSet returns an empty set. noun is the attribute of a line that names the members: "resources".
func NewSet(log *slog.Logger, noun string) *Set {
	return &Set{
		noun: noun, lines: newLogQueue(log),
		members: map[string]*Condition{}, pending: map[string]transition{}, events: map[string]transition{}, loggedKeys: map[string]statusKey{},
	}
}

// Add returns a new condition with a name, in place of one that had the name: what happens to that is not logged any more.
func (s *Set) Add(name string, initial State) *Condition {
	var c *Condition
	c = newCondition(initial, func(t transition) { s.addTransition(name, c, t) }, func() {})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = c
	delete(s.loggedKeys, name)
	if initial.Severity != OK {
		s.loggedKeys[name] = statusKey{state: initial.Name}
	}
	return c
}

// Remove forgets a condition. What happens to it is not logged any more.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	c := s.members[name]
	delete(s.members, name)
	delete(s.pending, name)
	delete(s.loggedKeys, name)
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// ReportEvent reports what happened to something once, whether it has a condition or not: it is always worth a line, and what
// happens to many is one. attrs are those of Become.
func (s *Set) ReportEvent(name string, what State, reason string, attrs ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delayLines(func() { s.events[name] = transition{to: Status{State: what, Reason: reason}, attrs: attrs} })
}

// Close writes the lines that wait for others, and waits for those that another goroutine writes. Nothing is logged after
// it.
func (s *Set) Close() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.queueLines()
	s.closed = true
	s.mu.Unlock()
	s.lines.drain()
}

// addTransition keeps a transition of c for the next lines, unless c does not have its name any more. It is called with the lock of
// c held.
func (s *Set) addTransition(name string, c *Condition, t transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[name] == c {
		s.delayLines(func() { s.pending[name] = t })
	}
}

// delayLines adds to what the next lines are about, and puts them off. mu is held.
func (s *Set) delayLines(add func()) {
	if s.closed {
		return
	}
	now := time.Now()
	if len(s.pending)+len(s.events) == 0 {
		s.firstPending = now
	}
	add()
	quiet, limit := quietTimeRecovery, maxDelayRecovery
	for _, t := range s.pending {
		if !t.to.OK() && t.to.State.Message != "" {
			quiet, limit = quietTimeFault, maxDelayFault
		}
	}
	wait := min(quiet, s.firstPending.Add(limit).Sub(now))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.writePending)
		return
	}
	s.timer.Reset(wait)
}

func (s *Set) writePending() {
	s.mu.Lock()
	s.queueLines()
	s.mu.Unlock()
	s.lines.writeQueued()
}

// queueLines queues one line for each status that members have entered, and for what happened. mu is held.
func (s *Set) queueLines() {
	s.queueSummaries(s.events)
	known := slices.Collect(maps.Values(s.loggedKeys))
	for name, t := range s.pending {
		before, inTrouble := s.loggedKeys[name]
		now := t.to.similarityKey()
		if t.to.OK() {
			delete(s.loggedKeys, name)
		} else {
			s.loggedKeys[name] = now
		}
		if !inTrouble && t.to.OK() || inTrouble && (before == now || slices.Contains(known, now)) {
			delete(s.pending, name) // over before it was worth a line; or another reason of the same trouble, and the log has it already
		}
	}
	s.queueSummaries(s.pending)
}

// queueSummaries queues one line for each status in a map of those of members, and empties it.
func (s *Set) queueSummaries(all map[string]transition) {
	statuses := make(map[string]Status, len(all))
	for name, t := range all {
		statuses[name] = t.to
	}
	for _, summary := range Summarize(statuses) {
		joined := transition{to: summary.Status, attrs: []any{s.noun, joinNames(summary.Names)}}
		for _, name := range summary.Names {
			joined.lasted = max(joined.lasted, all[name].lasted)
			if len(summary.Names) == 1 {
				joined.attrs = append(joined.attrs, all[name].attrs...)
			}
		}
		s.lines.enqueue(joined.logLine())
	}
	clear(all)
}

// joinNames writes the first few of many.
func joinNames(all []string) string {
	if len(all) <= maxNamesInLine {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNamesInLine], ", "), len(all)-maxNamesInLine)
}
