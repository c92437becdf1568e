package condition

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Severity is what a problem means for readiness.
type Severity int

// The severities.
const (
	OK       Severity = iota
	Degraded          // a warning; the exporter is ready
	NotReady          // the exporter is not ready
)

// String returns "ok", "degraded" or "notReady", the values of the metric's label.
func (s Severity) String() string { return [...]string{"ok", "degraded", "notReady"}[s] }

// historyKept is how long an API server keeps the history of its objects, unless --etcd-compaction-interval is set: what was
// not read by then is lost.
const historyKept = 5 * time.Minute

// Problem is what is wrong. The zero value means that nothing is.
type Problem struct {
	Code   Code
	Cause  string // the newest cause, in one sentence; "" if the code explains it
	Effect string // what does not work meanwhile; "": that of the code
	Remedy string // what the operator can do; "": that of the code

	Severity Severity // OK: that of the code

	From         string // the component that this waits for, such as "sink/main": see [Status.waitsFor]
	Passed       bool   // another owner, which logs it, has passed it on by [Problem.AsError]
	LosesHistory bool   // something is not read from the API server meanwhile, so its history is lost after a while
}

// Status is a condition at one moment. A status without a code is well.
type Status struct {
	Problem             // with severity, effect and remedy, unless OK
	Component string    // "journal", "sink/main"
	Members   []string  // the parts of the component that share the status, sorted: resources, lanes; empty for the whole
	Of        int       // so many parts the component has; 0: that is not known
	Since     time.Time // when this code began, or when the last one ended; another cause does not change it
	Deadline  time.Time // when history begins to get lost; zero if none is
}

// NewStatus returns a status of a problem that has no owner with a [Condition], such as a fact that does not change.
func NewStatus(component string, p Problem) Status {
	kind := p.Code.Kind()
	p.Severity, p.Effect, p.Remedy = cmp.Or(p.Severity, kind.Severity), cmp.Or(p.Effect, kind.Effect), cmp.Or(p.Remedy, kind.Remedy)
	return Status{Problem: p, Component: component}
}

// OK reports whether nothing is wrong.
func (s Status) OK() bool { return s.Code == "" }

// Name returns the component with its only member: "resource/pods", or the component alone.
func (s Status) Name() string {
	if len(s.Members) == 1 {
		return s.Component + "/" + s.Members[0]
	}
	return s.Component
}

// Text describes the problem in one line, as every output shows it; "" if OK.
func (s Status) Text(now time.Time) string {
	if s.OK() {
		return ""
	}
	text := string(s.Code) + ": " + s.CauseText() + ". Effect: " + s.EffectText(now) + ". Remedy: " + s.Remedy + "."
	if !s.Since.IsZero() {
		text += " Since " + s.Since.UTC().Format(time.RFC3339) + "."
	}
	return text
}

// Report is a problem as viewers and programs get it. Members may be added; none is renamed.
type Report struct {
	Name     string    `json:"name"`
	Reason   string    `json:"reason"` // all of the following, one line
	Counts   bool      `json:"counts"` // it makes the exporter not ready
	Code     Code      `json:"code"`
	Cause    string    `json:"cause"`
	Effect   string    `json:"effect"`
	Remedy   string    `json:"remedy"`
	Parts    int       `json:"parts"` // resources or lanes that share it; 0 for the whole
	Since    time.Time `json:"since,omitzero"`
	Deadline time.Time `json:"deadline,omitzero"` // when history begins to get lost
}

// Reports returns what is wrong, in the order of [Summarize].
func Reports(all []Status, now time.Time) []Report {
	reports := []Report{}
	for _, s := range Summarize(all) {
		reports = append(reports, Report{
			s.Name(), s.Text(now), s.Severity == NotReady, s.Code, s.CauseText(), s.EffectText(now), s.Remedy,
			len(s.Members), s.Since, s.Deadline,
		})
	}
	return reports
}

// CauseText returns the cause, with the members that share it.
func (s Status) CauseText() string {
	cause := cmp.Or(strings.Join(strings.Fields(s.Cause), " "), s.Code.Kind().Message)
	if len(s.Members) < 2 {
		return cause
	}
	return CountNames(s.Members, s.Of) + ": " + cause
}

// CountNames counts names, of so many if that is known, with the first few and the pattern that covers all of them.
func CountNames(all []string, of int) string {
	count := fmt.Sprint(len(all))
	if of > 0 {
		count = fmt.Sprintf("%d of %d", len(all), of)
	}
	if p := patternOf(all); p != "" {
		return fmt.Sprintf("%s (%s: %s)", count, p, JoinNames(all))
	}
	return fmt.Sprintf("%s (%s)", count, JoinNames(all))
}

// patternOf returns the whole parts that several names begin with, and a wildcard; "" if they share none.
func patternOf(all []string) string {
	if len(all) <= maxNames {
		return ""
	}
	first, last := slices.Min(all), slices.Max(all)
	n := 0
	for n < len(first) && n < len(last) && first[n] == last[n] {
		n++
	}
	switch n = strings.LastIndexAny(first[:n], "./:") + 1; {
	case n == 0:
		return ""
	case first[n-1] == '.':
		return first[:n] + ">"
	}
	return first[:n] + "*"
}

// EffectText returns the effect, with the time that is left before history is lost.
func (s Status) EffectText(now time.Time) string {
	left := s.Deadline.Sub(now)
	switch {
	case s.Deadline.IsZero():
		return s.Effect
	case left <= 0:
		return fmt.Sprintf("%s; history has been getting lost for about %s", s.Effect, formatMinutes(-left))
	}
	return fmt.Sprintf("%s; history is lost in about %s", s.Effect, formatMinutes(left))
}

func formatMinutes(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

// maxNames bounds the members that a line names.
const maxNames = 3

// JoinNames joins the first few names and counts the others.
func JoinNames(all []string) string {
	if len(all) <= maxNames {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), len(all)-maxNames)
}

// Summarize returns one status for each code of each component, with the members of all, up to three causes, the effect and
// remedy of the most severe, and the earliest times. Those come first that make the exporter not ready, then in the order of
// the first of each. Statuses that are OK are left out, and those that only follow from another one.
func Summarize(all []Status) []Status {
	failing := slices.DeleteFunc(slices.Clone(all), Status.OK)
	slices.SortStableFunc(failing, func(a, b Status) int { return cmp.Compare(b.Severity, a.Severity) })
	faults := mergeBy(failing, func(s Status) [3]string { return [...]string{s.Component, string(s.Code), maskNumbers(s.Cause)} })
	var independent []Status
	for i, s := range faults {
		if !slices.ContainsFunc(faults[:i], s.followsFrom) &&
			!slices.ContainsFunc(faults[i+1:], func(from Status) bool { return s.followsFrom(from) && !from.followsFrom(s) }) {
			independent = append(independent, s.withEffects(faults))
		}
	}
	return mergeBy(independent, func(s Status) [2]string { return [...]string{s.Component, string(s.Code)} })
}

// mergeBy merges the statuses with equal keys.
func mergeBy[K comparable](all []Status, keyOf func(Status) K) (merged []Status) {
	for _, alike := range groupBy(all, keyOf) {
		merged = append(merged, mergeStatuses(alike))
	}
	return merged
}

// mergeStatuses returns the first of several statuses with the members of all of them, unless one is of the whole.
func mergeStatuses(alike []Status) Status {
	m, whole, known := alike[0], false, map[string]bool{}
	var members, causes []string
	for _, s := range alike {
		if masked := maskNumbers(s.Cause); masked != "" && !known[masked] {
			known[masked], causes = true, append(causes, s.Cause)
		}
		whole, members = whole || len(s.Members) == 0, append(members, s.Members...)
		m.Since, m.Deadline = Earlier(m.Since, s.Since), Earlier(m.Deadline, s.Deadline)
	}
	if slices.Sort(members); whole {
		members = nil
	}
	m.Members, m.Cause = slices.Compact(members), strings.Join(causes[:min(maxNames, len(causes))], "; ")
	if more := len(causes) - maxNames; more > 0 {
		m.Cause += fmt.Sprintf("; and %d other causes", more)
	}
	return m
}

// groupBy returns the elements with equal keys together, in the order of the first of each.
func groupBy[T any, K comparable](all []T, keyOf func(T) K) (groups [][]T) {
	indexes := map[K]int{}
	for _, one := range all {
		i, known := indexes[keyOf(one)]
		if !known {
			i = len(groups)
			indexes[keyOf(one)], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], one)
	}
	return groups
}

// withEffects returns s with the effects on the components that wait for it. Those with the same problem have no other
// effect, but perhaps a deadline.
func (s Status) withEffects(all []Status) Status {
	for _, of := range all {
		switch {
		case !of.waitsFor(s):
		case of.similarityKey() == s.similarityKey():
			s.Deadline = Earlier(s.Deadline, of.Deadline)
		default:
			s.Effect += "; " + of.Component + ": " + of.Effect
		}
	}
	return s
}

// waitsFor reports whether s is an effect of from, because all of the component that it waits for fails, or has the same
// problem.
func (s Status) waitsFor(from Status) bool {
	return s.From != "" && from.Component == s.From && len(from.Members) == 0 &&
		(from.Severity == NotReady || from.similarityKey() == s.similarityKey())
}

// followsFrom reports whether s names the same fault as from, and less of it: its cause contains the one of from, which is
// as severe at least, and concerns a whole component: that of s, or one that all share, with the same code. What waits for
// another component follows from that.
func (s Status) followsFrom(from Status) bool {
	if waits := s.waitsFor(from); waits || from.Cause == "" || len(from.Members) > 0 || from.Severity < s.Severity {
		return waits
	}
	shared := from.Code == s.Code && !strings.Contains(from.Component, "/")
	starts := s.Cause == "" && s.Code.Kind().Level < slog.LevelInfo // an ordinary part of a start, of which more is known
	return from.Component == s.Component && starts ||
		(from.Component == s.Component || shared) && strings.Contains(maskNumbers(s.Cause), maskNumbers(from.Cause))
}

// Earlier returns the earlier of two times; a zero time stands for none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// ProblemOf returns the problem that an error stands for. An error that knows it has a method Problem; any other one has the
// code otherwise.
func ProblemOf(err error, otherwise Code) Problem {
	var known interface{ Problem() Problem }
	if errors.As(err, &known) {
		return known.Problem()
	}
	return Problem{Code: otherwise, Cause: err.Error()}
}

// Caused returns the problem with a code whose cause is err, with the remedy of err if that knows one.
func Caused(code Code, err error) Problem {
	remedy := ProblemOf(err, code).Remedy
	return Problem{Code: code, Cause: strings.TrimSuffix(err.Error(), "; "+remedy), Remedy: remedy}
}

// Wrap returns an error that stands for the problem, of which err is the reason, or a part of it; nil if there is none.
// [ProblemOf] finds the problem in a chain.
func (p Problem) Wrap(err error) error {
	if err != nil {
		p.Cause = strings.TrimPrefix(p.Cause+": "+err.Error(), ": ")
	}
	return &problemError{p, err}
}

// AsError returns an error that stands for the problem of another owner, for what fails because of it.
func (p Problem) AsError() error {
	p.Effect, p.Passed = "", true
	return p.Wrap(nil)
}

type problemError struct {
	problem Problem
	err     error // may be nil
}

func (e *problemError) Error() string    { return JoinRemedy(e.problem.Cause, e.problem.Remedy) }
func (e *problemError) Problem() Problem { return e.problem }
func (e *problemError) Unwrap() error    { return e.err }

// JoinRemedy returns the text of an error with what can be done about it, if that is known.
func JoinRemedy(text, remedy string) string {
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

// problemKey distinguishes what deserves a line of its own.
type problemKey struct {
	code  Code
	cause string
}

// similarityKey identifies problems that are logged once: numbers in causes, such as ports and positions, do not matter.
func (p Problem) similarityKey() problemKey {
	return problemKey{p.Code, maskNumbers(p.Cause) + p.Remedy}
}

var numbers = regexp.MustCompile(`[0-9]+([hm.][0-9]+)*`)

// maskNumbers replaces each number and duration in a text by "#", so that equal faults of different things have equal texts.
func maskNumbers(text string) string { return numbers.ReplaceAllString(text, "#") }

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
	endInLog     bool                // the log has nothing above debug level since the line of an end
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

// QuietUntil makes c log what a start brings with it only if it is still there at this time.
func (c *Condition) QuietUntil(t time.Time) *Condition {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.set.quietUntil = t
	return c
}

// Close writes what waits for [Condition.QuietUntil], and ends the logging of changes.
func (c *Condition) Close() {
	c.set.mu.Lock()
	if c.closed = true; c.set.noun == "" {
		c.set.queueLines()
	}
	c.set.mu.Unlock()
	c.set.writeLines()
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
