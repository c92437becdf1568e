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
	quietFault = time.Second
	limitFault = 5 * time.Second
	quietEnd   = 3 * time.Second
	limitEnd   = 40 * time.Second
)

// namesInLine bounds the names that a line gives of the members it is about.
const namesInLine = 3

// Set holds conditions of one kind by their names. Its methods may be called concurrently.
type Set struct {
	noun  string
	lines *lines

	mu        sync.Mutex
	members   map[string]*Condition
	pending   map[string]transition // since the last lines
	happened  map[string]transition // as well
	announced map[string]key        // of members in trouble: what the log has of it
	first     time.Time             // when the first of pending came
	timer     *time.Timer
	closed    bool
}

// NewSet returns an empty set. noun is the attribute of a line that names the members: "resources".
func NewSet(log *slog.Logger, noun string) *Set {
	return &Set{
		noun: noun, lines: newLines(log),
		members: map[string]*Condition{}, pending: map[string]transition{}, happened: map[string]transition{}, announced: map[string]key{},
	}
}

// Add returns a new condition with a name, in place of one that had the name: what happens to that is not logged any more.
func (s *Set) Add(name string, initial State) *Condition {
	var c *Condition
	c = newCondition(initial, func(t transition) { s.note(name, c, t) }, func() {})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[name] = c
	delete(s.announced, name)
	if initial.Severity != OK {
		s.announced[name] = key{state: initial.Name}
	}
	return c
}

// Remove forgets a condition. What happens to it is not logged any more.
func (s *Set) Remove(name string) {
	s.mu.Lock()
	c := s.members[name]
	delete(s.members, name)
	delete(s.pending, name)
	delete(s.announced, name)
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Happened reports what happened to something once, whether it has a condition or not: it is always worth a line, and what
// happens to many is one. attrs are those of Become.
func (s *Set) Happened(name string, what State, reason string, attrs ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait(func() { s.happened[name] = transition{to: Status{State: what, Reason: reason}, attrs: attrs} })
}

// Close writes the lines that wait for others, and waits for those that another goroutine writes. Nothing is logged after
// it.
func (s *Set) Close() {
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.announce()
	s.closed = true
	s.mu.Unlock()
	s.lines.finish()
}

// note keeps a transition of c for the next lines, unless c does not have its name any more. It is called with the lock of
// c held.
func (s *Set) note(name string, c *Condition, t transition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[name] == c {
		s.wait(func() { s.pending[name] = t })
	}
}

// wait adds to what the next lines are about, and puts them off. mu is held.
func (s *Set) wait(add func()) {
	if s.closed {
		return
	}
	now := time.Now()
	if len(s.pending)+len(s.happened) == 0 {
		s.first = now
	}
	add()
	quiet, limit := quietEnd, limitEnd
	for _, t := range s.pending {
		if !t.to.OK() && t.to.State.Message != "" {
			quiet, limit = quietFault, limitFault
		}
	}
	wait := min(quiet, s.first.Add(limit).Sub(now))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.flush)
		return
	}
	s.timer.Reset(wait)
}

func (s *Set) flush() {
	s.mu.Lock()
	s.announce()
	s.mu.Unlock()
	s.lines.write()
}

// announce queues one line for each status that members have entered, and for what happened. mu is held.
func (s *Set) announce() {
	s.join(s.happened)
	known := slices.Collect(maps.Values(s.announced))
	for name, t := range s.pending {
		before, inTrouble := s.announced[name]
		now := t.to.likeness()
		if t.to.OK() {
			delete(s.announced, name)
		} else {
			s.announced[name] = now
		}
		if !inTrouble && t.to.OK() || inTrouble && (before == now || slices.Contains(known, now)) {
			delete(s.pending, name) // over before it was worth a line; or another reason of the same trouble, and the log has it already
		}
	}
	s.join(s.pending)
}

// join queues one line for each status in a map of those of members, and empties it.
func (s *Set) join(all map[string]transition) {
	statuses := make(map[string]Status, len(all))
	for name, t := range all {
		statuses[name] = t.to
	}
	for _, summary := range Summarize(statuses) {
		joined := transition{to: summary.Status, attrs: []any{s.noun, names(summary.Names)}}
		for _, name := range summary.Names {
			joined.lasted = max(joined.lasted, all[name].lasted)
			if len(summary.Names) == 1 {
				joined.attrs = append(joined.attrs, all[name].attrs...)
			}
		}
		s.lines.add(joined.line())
	}
	clear(all)
}

// names writes the first few of many.
func names(all []string) string {
	if len(all) <= namesInLine {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:namesInLine], ", "), len(all)-namesInLine)
}
