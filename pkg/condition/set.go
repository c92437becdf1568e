package condition

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// A fault of many members reaches them one after the other. A Set waits until no further member has changed for the quiet
// time, but no longer than the maximum delay, and then logs one line per reason. Members notice a recovery, and what the
// fault cost, at their own next attempts, so that these delays are longer.
const (
	quietTimeFault    = time.Second
	maxDelayFault     = 5 * time.Second
	quietTimeRecovery = 3 * time.Second
	maxDelayRecovery  = 40 * time.Second
)

// Set holds conditions of one kind by name. It is safe for concurrent use.
type Set struct {
	component string // of all members
	noun      string
	lines     *logQueue

	mu           sync.Mutex
	members      map[string]*Condition
	pending      map[string]transition // by member, since the last lines
	events       map[string]transition // reported events, since the last lines
	loggedKeys   map[string]problemKey // of failing members: the problem that is in the log
	firstPending time.Time             // when the first of pending and events was added
	timer        *time.Timer
	closed       bool
}

// NewSet returns an empty set of parts of a component. noun is the attribute of a line that names the members: "resources".
func NewSet(log *slog.Logger, component, noun string) *Set {
	return &Set{
		component: component, noun: noun, lines: newLogQueue(log),
		members: map[string]*Condition{}, loggedKeys: map[string]problemKey{},
		pending: map[string]transition{}, events: map[string]transition{},
	}
}

// Add returns a new condition with a name and a problem, or none if that is zero; the start is not logged. It replaces one
// of that name: changes of that are not logged any more.
func (s *Set) Add(name string, initial Problem) *Condition {
	var c *Condition
	of := Status{Component: s.component, Members: []string{name}}
	c = newCondition(of, initial, func(t transition) { s.addTransition(name, c, t) }, func() {})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = c
	delete(s.loggedKeys, name)
	if initial.Code != "" {
		s.loggedKeys[name] = problemKey{code: initial.Code}
	}
	return c
}

// Remove removes a condition. Its changes are not logged any more, but for the end of a problem that is in the log.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	c := s.members[name]
	delete(s.members, name)
	if ended, waits := s.pending[name]; !waits || !ended.to.OK() {
		delete(s.pending, name)
		delete(s.loggedKeys, name)
	}
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// ReportEvent logs a single event of something that may or may not have a condition. Every event is logged; equal events of
// many share one line. attrs are those of Update.
func (s *Set) ReportEvent(name string, code Code, cause string, attrs ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := NewStatus(s.component, Problem{Code: code, Cause: cause})
	to.Members = []string{name}
	s.delayLines(func() { s.events[name] = transition{to: to, attrs: attrs} })
}

// Statuses returns the status of each member, in the order of their names.
func (s *Set) Statuses() (all []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		all = append(all, s.members[name].Status())
	}
	return all
}

// Close writes the delayed lines and waits for those that another goroutine writes. Nothing is logged afterwards.
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

// addTransition keeps a transition of c for the next lines, unless c was replaced or removed. Requires c.mu.
func (s *Set) addTransition(name string, c *Condition, t transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[name] == c {
		s.delayLines(func() { s.pending[name] = t })
	}
}

// delayLines calls add, which adds to the next lines, and delays these. Requires s.mu.
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
		if !t.to.OK() && t.to.Code.Kind().Level > slog.LevelDebug {
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

// queueLines queues one line for each new status of members and for each kind of event. Requires s.mu.
func (s *Set) queueLines() {
	s.queueSummaries(s.events)
	known := slices.Collect(maps.Values(s.loggedKeys))
	for name, t := range s.pending {
		before, wasFailing := s.loggedKeys[name]
		now := t.to.similarityKey()
		if t.to.OK() {
			delete(s.loggedKeys, name)
		} else {
			s.loggedKeys[name] = now
		}
		// Not logged: a failure that ended before its line was due, and another reason of a failure that the log has
		// already.
		if !wasFailing && t.to.OK() || wasFailing && (before == now || slices.Contains(known, now)) {
			delete(s.pending, name)
		}
	}
	s.queueSummaries(s.pending)
}

// queueSummaries queues one line for each kind of transition in a map by member, and empties the map.
func (s *Set) queueSummaries(all map[string]transition) {
	names := map[problemKey][]string{}
	var keys []problemKey
	for _, name := range slices.Sorted(maps.Keys(all)) {
		key := all[name].lineKey()
		if names[key] == nil {
			keys = append(keys, key)
		}
		names[key] = append(names[key], name)
	}
	for _, key := range keys {
		line := all[names[key][0]]
		if len(names[key]) > 1 {
			line.attrs = nil
		}
		for _, name := range names[key] {
			line.lasted = max(line.lasted, all[name].lasted)
		}
		line.attrs = append([]any{s.noun, joinNames(names[key])}, line.attrs...)
		s.lines.enqueue(line.logLine())
	}
	clear(all)
}

// lineKey identifies transitions that share a line.
func (t transition) lineKey() problemKey {
	if t.to.OK() {
		return problemKey{cause: t.ended.Kind().Ended}
	}
	return t.to.similarityKey()
}
