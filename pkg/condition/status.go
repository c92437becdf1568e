package condition

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

// Severity says what a state means for readiness.
type Severity int

// The severities. Everything but OK is trouble: it has a reason, and it ends with a line in the log.
const (
	OK       Severity = iota // all is well
	Degraded                 // people should know, and the exporter is ready all the same
	NotReady                 // the exporter is not ready
)

// State is what a condition can be in. States are declared once, as variables of the package that uses them, and are
// distinguished by their names.
type State struct {
	Name     string // one word for metrics and the page, such as "unreachable"
	Severity Severity
	Message  string     // of the line in the log when the state is entered; "" for no line
	Level    slog.Level // of that line
}

// Status describes a condition at one moment. It is a value: nobody changes it.
type Status struct {
	State  State
	Reason string    // why, in one sentence; "" when there is nothing to explain
	Remedy string    // what a person can do about it; "" when waiting is all there is
	Since  time.Time // when the state was entered; another reason for the same state does not change it
}

// OK says whether all is well.
func (s Status) OK() bool { return s.State.Severity == OK }

// Explanation is the reason and the remedy in one line; "" when all is well.
func (s Status) Explanation() string {
	switch {
	case s.OK():
		return ""
	case s.Remedy == "":
		return cmp.Or(s.Reason, s.State.Name)
	}
	return cmp.Or(s.Reason, s.State.Name) + "; " + s.Remedy
}

// NotReady is the explanation of what makes the exporter not ready; "" when it does not.
func (s Status) NotReady() string {
	if s.State.Severity != NotReady {
		return ""
	}
	return s.Explanation()
}

// Degraded is the explanation of a problem that does not affect readiness; "" without one.
func (s Status) Degraded() string {
	if s.State.Severity != Degraded {
		return ""
	}
	return s.Explanation()
}

func (s Status) exactKey() statusKey { return statusKey{s.State.Name, s.Reason} }

// statusKey distinguishes what deserves a line of its own.
type statusKey struct{ state, reason string }

// Summary is a status that several conditions share.
type Summary struct {
	Status          // Since is the earliest of all
	Names  []string // sorted, at least one
}

// similarityKey is the key of statuses that are worth one line: numbers in reasons, such as ports and positions, do not make
// faults different.
func (s Status) similarityKey() statusKey { return statusKey{s.State.Name, MaskNumbers(s.Reason)} }

// MaskNumbers is a text with each number in it replaced: texts that are alike say the same of different things.
func MaskNumbers(text string) string {
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

// Summarize joins equal statuses: those with the same state, and reasons that are alike. The result is ordered by the first
// name, whose reason it has.
func Summarize(statuses map[string]Status) []Summary {
	places := map[statusKey]int{}
	var all []Summary
	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		status := statuses[name]
		at, known := places[status.similarityKey()]
		if !known {
			at = len(all)
			places[status.similarityKey()] = at
			all = append(all, Summary{Status: status})
		}
		all[at].Names = append(all[at].Names, name)
		if status.Since.Before(all[at].Since) {
			all[at].Since = status.Since
		}
	}
	return all
}
