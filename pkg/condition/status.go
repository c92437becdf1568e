package condition

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

	From         string // the component that this waits for, such as "sink/main": while all of that fails, this is its effect
	Passed       bool   // another owner, which logs it, has passed it on by [Problem.AsError]
	LosesHistory bool   // something is not read from the API server meanwhile, so its history is lost after a while
}

// Status is a condition at one moment. A status without a code is well.
type Status struct {
	Problem             // with effect and remedy, unless OK
	Component string    // "journal", "sink/main"
	Members   []string  // the parts of the component that share the status, sorted: resources, lanes; empty for the whole
	Severity  Severity  // that of the code, or raised by the owner
	Since     time.Time // when this code began, or when the last one ended; another cause does not change it
	Deadline  time.Time // when history begins to get lost; zero if none is
}

// NewStatus returns a status of a problem that has no owner with a [Condition], such as a fact that does not change.
func NewStatus(component string, p Problem) Status {
	kind := p.Code.Kind()
	p.Effect, p.Remedy = cmp.Or(p.Effect, kind.Effect), cmp.Or(p.Remedy, kind.Remedy)
	return Status{Problem: p, Component: component, Severity: kind.Severity}
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

// Concerns reports whether the status is about a component or a part of it.
func (s Status) Concerns(component string) bool {
	return s.Component == component || strings.HasPrefix(s.Component, component+"/") ||
		slices.ContainsFunc(s.Members, func(m string) bool { return s.Component+"/"+m == component })
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

// Reports returns what is wrong, one report for each fault in the order of [Summarize].
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
	return fmt.Sprintf("%d (%s): %s", len(s.Members), joinNames(s.Members), cause)
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

// joinNames joins the first few names and counts the others.
func joinNames(all []string) string {
	if len(all) <= maxNames {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:maxNames], ", "), len(all)-maxNames)
}

// Summarize merges statuses of equal components with the same code and similar causes, in the order of the first of each.
// The result has the cause, the effect and the remedy of the first one that began, and the earliest times. Statuses that are
// OK are left out, and those that only follow from another one.
func Summarize(all []Status) []Status {
	type key struct {
		problemKey
		component string
		severity  Severity
	}
	indexes := map[key]int{}
	var merged []Status
	for _, s := range all {
		k := key{s.similarityKey(), s.Component, s.Severity}
		at, known := indexes[k]
		switch {
		case s.OK():
			continue
		case !known:
			indexes[k] = len(merged)
			merged = append(merged, s)
			continue
		}
		m := &merged[at]
		m.Members = append(slices.Clip(m.Members), s.Members...)
		m.Since, m.Deadline = Earlier(m.Since, s.Since), Earlier(m.Deadline, s.Deadline)
	}
	for i := range merged {
		slices.Sort(merged[i].Members)
	}
	var independent []Status
	for i, s := range merged {
		if !slices.ContainsFunc(merged[:i], s.followsFrom) &&
			!slices.ContainsFunc(merged[i+1:], func(from Status) bool { return s.followsFrom(from) && !from.followsFrom(s) }) {
			independent = append(independent, s.withEffects(merged))
		}
	}
	return independent
}

// withEffects returns s with the effects on the components that wait for it.
func (s Status) withEffects(all []Status) Status {
	for _, of := range all {
		if of.waitsFor(s) {
			s.Effect += "; " + of.Component + ": " + of.Effect
		}
	}
	return s
}

// waitsFor reports whether s is an effect of from, because all of the component that it waits for fails.
func (s Status) waitsFor(from Status) bool {
	return s.From != "" && from.Component == s.From && len(from.Members) == 0 && from.Severity == NotReady
}

// followsFrom reports whether s names the same fault as from, and less of it: its cause contains the one of from, which is
// as severe at least, and concerns a whole component: that of s, or one that all share, with the same code. What waits for
// another component follows from that.
func (s Status) followsFrom(from Status) bool {
	if s.waitsFor(from) {
		return true
	}
	if from.Cause == "" || len(from.Members) > 0 || from.Severity < s.Severity {
		return false
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

// Error is an error of a known kind. [ProblemOf] finds it in a chain.
type Error struct {
	Code   Code
	Cause  string // may be "" with an Err
	Remedy string // "": that of the code
	Err    error  // may be nil with a Cause
}

// AsError returns an error that stands for the problem, for what fails because of it.
func (p Problem) AsError() error {
	p.Effect, p.Passed = "", true
	return problemError{p}
}

type problemError struct{ problem Problem }

func (e problemError) Error() string    { return JoinRemedy(e.problem.Cause, e.problem.Remedy) }
func (e problemError) Problem() Problem { return e.problem }

func (e *Error) Error() string { return JoinRemedy(e.cause(), e.Remedy) }

func (e *Error) cause() string {
	switch {
	case e.Err == nil:
		return e.Cause
	case e.Cause == "":
		return e.Err.Error()
	}
	return e.Cause + ": " + e.Err.Error()
}

// JoinRemedy returns the text of an error with what can be done about it, if that is known.
func JoinRemedy(text, remedy string) string {
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

func (e *Error) Unwrap() error { return e.Err }

// Problem is what the error stands for.
func (e *Error) Problem() Problem { return Problem{Code: e.Code, Cause: e.cause(), Remedy: e.Remedy} }

// problemKey distinguishes what deserves a line of its own.
type problemKey struct {
	code  Code
	cause string
}

func (p Problem) exactKey() problemKey { return problemKey{p.Code, p.Cause} }

// similarityKey identifies problems that share a line: numbers in causes, such as ports and positions, do not matter.
func (p Problem) similarityKey() problemKey { return problemKey{p.Code, maskNumbers(p.Cause)} }

// maskNumbers replaces each number in a text by "#", so that equal faults of different things have equal texts.
func maskNumbers(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch digit := text[i] >= '0' && text[i] <= '9'; {
		case !digit:
			b.WriteByte(text[i])
		case i == 0 || text[i-1] < '0' || text[i-1] > '9':
			b.WriteByte('#')
		}
	}
	return b.String()
}
