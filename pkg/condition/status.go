package condition

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

// Severity is what a state means for readiness.
type Severity int

// The severities. A state other than OK is a failure: it has a reason, and its end is logged.
const (
	OK       Severity = iota
	Degraded          // a warning; the exporter is ready
	NotReady          // the exporter is not ready
)

// State is a state of a condition. Packages declare their states as variables; states are compared by name.
type State struct {
	Name     string // one word for metrics and the page, such as "unreachable"
	Severity Severity
	Message  string     // of the line in the log when the state is entered; "" for no line
	Level    slog.Level // of that line
}

// Status is a condition at one moment.
type Status struct {
	State  State
	Reason string    // why, in one sentence; "" if there is nothing to explain
	Remedy string    // what the operator can do; "" if nothing but waiting
	Since  time.Time // when the state was entered; another reason for the same state does not change it
}

// OK reports whether the state is not a failure.
func (s Status) OK() bool { return s.State.Severity == OK }

// Explanation returns the reason and the remedy in one line; "" if OK.
func (s Status) Explanation() string {
	switch {
	case s.OK():
		return ""
	case s.Remedy == "":
		return cmp.Or(s.Reason, s.State.Name)
	}
	return cmp.Or(s.Reason, s.State.Name) + "; " + s.Remedy
}

// NotReady returns the explanation if the state makes the exporter not ready; else "".
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

// similarityKey identifies statuses that share a log line: numbers in reasons, such as ports and positions, do not matter.
func (s Status) similarityKey() statusKey { return statusKey{s.State.Name, MaskNumbers(s.Reason)} }

// MaskNumbers replaces each number in a text by "#", so that equal faults of different things have equal texts.
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

// Summarize joins similar statuses: those with the same state and with reasons that differ in numbers only. The result is
// ordered by the first name of each, and has the reason of that one.
func Summarize(statuses map[string]Status) []Summary {
	indexes := map[statusKey]int{}
	var all []Summary
	for _, name := range slices.Sorted(maps.Keys(statuses)) {
		status := statuses[name]
		at, known := indexes[status.similarityKey()]
		if !known {
			at = len(all)
			indexes[status.similarityKey()] = at
			all = append(all, Summary{Status: status})
		}
		all[at].Names = append(all[at].Names, name)
		if status.Since.Before(all[at].Since) {
			all[at].Since = status.Since
		}
	}
	return all
}
