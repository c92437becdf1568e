package condition

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// A fault of many members reaches them in succession. A Set waits until no other member has changed for the quiet time, at
// most the maximum delay, and then logs one line per code. Members notice a recovery at their next attempts: later.
const (
	quietTimeFault    = time.Second
	maxDelayFault     = 5 * time.Second
	quietTimeRecovery = 3 * time.Second
	maxDelayRecovery  = 40 * time.Second
)

// maxLoggedCauses bounds the causes logged during a failure, and the lines of one moment: a varying name fills no log.
const maxLoggedCauses = 16

// Set holds conditions of one kind by name. It is safe for concurrent use.
type Set struct {
	log       *slog.Logger
	component string // of all members
	noun      string // "" for a component without parts, whose lines are not delayed

	mu           sync.Mutex
	members      map[string]*Condition
	others       []transition // events, and ends of removed members, since the last lines
	firstPending time.Time    // when the first transition came that has no line yet; zero if none has
	timer        *time.Timer
	quietUntil   time.Time // see [Condition.QuietUntil]
	closed       bool
	lines        []func() // write a line each
	writing      bool     // a goroutine writes lines, which writer waits for
	writer       sync.WaitGroup
}

// NewSet returns an empty set of parts of a component. noun is the attribute of a line that names the members: "resources".
func NewSet(log *slog.Logger, component, noun string) *Set {
	return &Set{log: log, component: component, noun: noun, members: map[string]*Condition{}}
}

// Add returns a new condition in place of one of that name. Neither its first problem nor changes of the other are logged.
func (s *Set) Add(name string, initial Problem) *Condition {
	of := Status{Component: s.component, Since: time.Now()}
	if name != "" {
		of.Members = []string{name}
	}
	c := &Condition{set: s, inLog: map[problemKey]bool{}, closed: true}
	if initial.Code != "" {
		c.inLog[initial.similarityKey()] = true
	}
	c.status.Store(&of)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.storeStatus(initial, nil)
	c.closed = false
	if replaced := s.members[name]; replaced != nil {
		replaced.closed, replaced.pending = true, nil
	}
	s.members[name] = c
	return c
}

// Remove removes a condition. Its changes are not logged any more, but for the end of a problem that is in the log.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.members[name]; c != nil {
		c.closed = true
		if end := c.pending; end != nil && end.to.OK() && len(c.inLog) > 0 {
			s.others = append(s.others, *end)
		}
		delete(s.members, name)
	}
}

// Update updates the condition of a name, which is a member while it has a problem. Calls are not concurrent.
func (s *Set) Update(name string, p Problem) {
	s.mu.Lock()
	c := s.members[name]
	s.mu.Unlock()
	switch {
	case c == nil && p.Code == "":
		return
	case c == nil:
		c = s.Add(name, Problem{})
	}
	if c.Update(p); p.Code == "" {
		s.Remove(name)
	}
}

// ReportEvent logs one event of what may have no condition. Equal events of many share a line. attrs are those of Update.
func (s *Set) ReportEvent(name string, code Code, cause string, attrs ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := NewStatus(s.component, Problem{Code: code, Cause: cause})
	to.Members = []string{name}
	s.others = append(s.others, transition{to: to, key: to.similarityKey(), attrs: attrs})
	s.scheduleLines()
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
	s.writeLines()
	s.writer.Wait()
}

// comesWithAStart are the codes of what may end by itself, unlike a wrong address or password, which is said at once.
var comesWithAStart = []Code{SinkTargetMissing, SinkTimeout, SinkBusy, SinkFailing}

// scheduleLines queues the line of a transition that has just come, or delays it. Requires s.mu.
func (s *Set) scheduleLines() {
	now := time.Now()
	switch {
	case s.closed:
		return
	case now.Before(s.quietUntil) && slices.Contains(comesWithAStart, s.members[""].pending.to.Code):
		if s.timer == nil {
			s.timer = time.AfterFunc(s.quietUntil.Sub(now), s.writePending)
		}
		return
	case s.noun == "":
		s.queueLines() // the caller writes them
		return
	case s.firstPending.IsZero():
		s.firstPending = now
	}
	quiet, limit := quietTimeRecovery, maxDelayRecovery
	for _, c := range s.members {
		if t := c.pending; t != nil && !t.to.OK() && t.to.Code.Kind().Level > slog.LevelDebug {
			quiet, limit = quietTimeFault, maxDelayFault
		}
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(min(quiet, s.firstPending.Add(limit).Sub(now)), s.writePending)
}

func (s *Set) writePending() {
	s.mu.Lock()
	s.queueLines()
	s.mu.Unlock()
	s.writeLines()
}

// queueLines queues a line for each code and remedy of events and of members, unless these are many. Requires s.mu.
func (s *Set) queueLines() {
	known := map[problemKey]bool{}
	for _, c := range s.members {
		maps.Copy(known, c.inLog)
	}
	due := s.others
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		if c := s.members[name]; c.pending != nil {
			if c.isNews(known) {
				due = append(due, *c.pending)
			}
			c.pending = nil
		}
	}
	s.others, s.firstPending = nil, time.Time{}
	lines := groupBy(due, func(t transition) [2]string { return [2]string{string(t.to.Code), t.to.Remedy} })
	if len(lines) > maxLoggedCauses {
		lines = groupBy(due, func(t transition) [2]string { return [2]string{string(t.to.Code)} })
	}
	for _, alike := range lines {
		s.queueLine(alike)
	}
}

// isNews records that the pending transition is in the log, and reports whether it has to be written for that. Known causes,
// of this failure or another, are no news, nor is an end with nothing but debug lines since the last. Requires s.mu.
func (c *Condition) isNews(known map[problemKey]bool) bool {
	failing, t := len(c.inLog) > 0, c.pending
	switch {
	case t.to.OK():
		clear(c.inLog)
		news := failing && t.ended != "" && !c.endInLog
		c.endInLog = c.endInLog || news
		return news
	case c.inLog[t.key], len(c.inLog) == maxLoggedCauses:
		return false
	}
	c.inLog[t.key] = true
	c.endInLog = c.endInLog && t.to.Code.Kind().Level <= slog.LevelDebug
	return !failing || !known[t.key]
}

// queueLine queues a line for transitions to or from one code, with the attributes of one alone. Requires s.mu.
func (s *Set) queueLine(alike []transition) {
	t, all := alike[0], []Status(nil)
	for _, one := range alike {
		t.lasted, all = max(t.lasted, one.lasted), append(all, one.to)
	}
	t.to = mergeStatuses(all)
	level, message, attrs := slog.LevelInfo, t.ended.Kind().Ended, []any{"ended", string(t.ended), "lasted", t.lasted.Round(time.Millisecond)}
	if !t.to.OK() {
		level, message, attrs = t.to.Code.Kind().Level, t.to.Code.Kind().Message, []any{"code", string(t.to.Code)}
		if t.to.Cause != "" {
			attrs = append(attrs, "reason", t.to.Cause)
		}
		attrs = append(attrs, "effect", t.to.EffectText(time.Now()), "remedy", t.to.Remedy)
	}
	if s.noun != "" {
		attrs = append(attrs, s.noun, JoinNames(t.to.Members))
	}
	if len(alike) == 1 {
		attrs = append(attrs, t.attrs...)
	}
	s.lines = append(s.lines, func() { s.log.Log(context.Background(), level, message, attrs...) })
}

// writeLines writes the queued lines in order, and without the lock: a log may block. It leaves them to one that writes.
func (s *Set) writeLines() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writing || len(s.lines) == 0 {
		return
	}
	s.writing = true
	s.writer.Add(1)
	for len(s.lines) > 0 {
		due := s.lines
		s.lines = nil
		s.mu.Unlock()
		for _, write := range due {
			write()
		}
		s.mu.Lock()
	}
	s.writing = false
	s.writer.Done()
}
