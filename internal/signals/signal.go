package signals

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Kind is what a signal asks for.
type Kind string

// The kinds.
const (
	Pause  Kind = "pause"  // deliver nothing to a sink, or read nothing of a rule, until it is resumed
	Resume Kind = "resume" // end the pause of a sink or of a rule

	Snapshot Kind = "snapshot" // emit the existing objects again for a sink
	Replay   Kind = "replay"   // emit again for a sink what the journal keeps
	Cancel   Kind = "cancel"   // end a snapshot or a replay that is active

	Watermark Kind = "watermark" // emit a watermark of each resource now; it is not kept

	RetryDeadLetters   Kind = "deadletters.retry"   // deliver dead letters of a sink once more
	DiscardDeadLetters Kind = "deadletters.discard" // drop dead letters of a sink
)

// GoesOn reports whether a signal of the kind goes on after the process that has accepted it.
func (k Kind) GoesOn() bool { return k == Pause || k == Snapshot || k == Replay }

// State is how far a signal is.
type State string

// The states. All but Active are ends.
const (
	Active     State = "active"     // in force, or being worked on
	Done       State = "done"       // has done what it asked for
	Nothing    State = "nothing"    // there was nothing to do
	Refused    State = "refused"    // asked for what cannot be done
	Aborted    State = "aborted"    // ended before it had done what it asked for
	Superseded State = "superseded" // a later signal took its place
)

// Subject is what a signal is about: a sink, or a rule. Another name is another subject.
type Subject struct{ Sink, Rule string }

// Kind returns "sink" or "rule".
func (s Subject) Kind() string {
	if s.Rule != "" {
		return "rule"
	}
	return "sink"
}

// Name returns the name of the sink or of the rule.
func (s Subject) Name() string { return s.Sink + s.Rule }

// Component is the component of conditions of the subject: "sink/main", "rule/pods".
func (s Subject) Component() string { return s.Kind() + "/" + s.Name() }

// Flag is how commands name the subject: "--sink main", "--rule pods".
func (s Subject) Flag() string { return "--" + s.Kind() + " " + s.Name() }

// String returns "sink main" or "rule pods".
func (s Subject) String() string { return s.Kind() + " " + s.Name() }

// Signal is one request with what became of it, as it is stored and shown. Members may be added; none is renamed.
type Signal struct {
	ID      string    `json:"id"`
	Kind    Kind      `json:"signal"`
	Sink    string    `json:"sink"`           // "" if it is about a rule
	Rule    string    `json:"rule,omitempty"` // of a pause or a resume: the name of the rule; "" if it is about a sink
	Created time.Time `json:"created"`
	Since   time.Time `json:"since,omitzero"` // of a pause: when it began, also by a pause that this one superseded
	Until   time.Time `json:"until,omitzero"` // of a pause: when it ends by itself; zero: with resume
	State   State     `json:"state"`

	Select    []string `json:"select,omitempty"`    // of a snapshot: the resources; nil: all
	Namespace string   `json:"namespace,omitempty"` // of a snapshot: the only namespace; "": all
	Objects   []string `json:"objects,omitempty"`   // of a snapshot: the only objects; nil: all. Until its end

	Offset uint64    `json:"offset,omitempty"` // of a replay: the first change
	From   time.Time `json:"from,omitzero"`    // of a replay without an offset: when the first change was observed, or later
	// Delivered is true of a replay that the sink has received but for its end, which is done: Count and Result are final.
	Delivered bool `json:"delivered,omitempty"`

	Target string `json:"target,omitempty"` // of a cancel: the ID of the signal that it ends

	Request string `json:"request,omitempty"` // fingerprint of what was asked, by which the same request is known again

	number uint64 // of its entry in the book

	Ended  time.Time `json:"ended,omitzero"`
	Count  uint64    `json:"count"`  // of what the signal was about, as Result explains it
	Result string    `json:"result"` // in one sentence
}

// Subject returns what the signal is about.
func (s Signal) Subject() Subject { return Subject{s.Sink, s.Rule} }

// Bounds of the text of a signal that has ended, in bytes.
const (
	maxRefusal = 200
	maxResult  = 1 << 10
	maxSelect  = 1 << 10
)

// End returns the signal with its end. The objects that it asked for are dropped, and a long list of resources: their number
// is in the result.
func (s Signal) End(state State, now time.Time, count uint64, result string) Signal {
	s.Objects = nil
	if bytes := len(strings.Join(s.Select, ",")); state == Refused || bytes > maxSelect {
		s.Select = nil
	}
	most := maxResult
	if state == Refused {
		most = maxRefusal
	}
	s.State, s.Ended, s.Count, s.Result = state, now.UTC().Truncate(time.Millisecond), count, keepText(result, most)
	return s
}

// keepText returns text in one printable line of so many bytes at most.
func keepText(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text[:min(len(text), 2*most)]) // what follows is cut anyway
	if len(text) <= most {
		return text
	}
	const cut = "…"
	end := most - len(cut)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cut
}

// IsDue reports whether a pause has ended by itself.
func (s Signal) IsDue(now time.Time) bool { return !s.Until.IsZero() && !now.Before(s.Until) }

// PausedProblem returns the problem of what the signal has paused: of a sink with so many changes that wait for it.
func (s Signal) PausedProblem(waiting uint64) condition.Problem {
	until := "until it is resumed"
	if !s.Until.IsZero() {
		until = "until " + s.Until.Format(time.RFC3339)
	}
	p := condition.Problem{
		Code: condition.RulePaused, Cause: fmt.Sprintf("paused by signal %s %s", s.ID, until),
		Remedy: "exporter signal resume " + s.Subject().Flag(),
	}
	if s.Rule == "" {
		p.Code = condition.SinkPaused
		p.Cause += fmt.Sprintf("; %d changes wait", waiting)
	}
	return p
}

// PausedStatus returns the condition of what the signal has paused, see [Signal.PausedProblem].
func (s Signal) PausedStatus(waiting uint64) condition.Status {
	status := condition.NewStatus(s.Subject().Component(), s.PausedProblem(waiting))
	status.Since = s.Since
	return status
}
