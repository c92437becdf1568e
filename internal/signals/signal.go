package signals

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

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

	Ended  time.Time `json:"ended,omitzero"`
	Count  uint64    `json:"count"`  // of what the signal was about, as Result explains it
	Result string    `json:"result"` // in one sentence
}

// Subject returns what the signal is about.
func (s Signal) Subject() Subject { return Subject{s.Sink, s.Rule} }

// Request is what a client asks for.
type Request struct {
	// ID is that of the signal, by [NewID], so that a request without an answer can be sent again; "": the exporter makes one.
	ID string `json:"id,omitempty"`

	Kind Kind          `json:"signal"`
	Sink string        `json:"sink"`
	Rule string        `json:"rule,omitempty"` // of a pause or a resume: a rule in place of a sink
	For  time.Duration `json:"for,omitempty"`  // of a pause; 0: until resumed

	Offsets []uint64 `json:"offsets,omitempty"` // of dead letters; nil: all

	Select    []string `json:"select,omitempty"`    // of a snapshot: the resources; nil: all
	Namespace string   `json:"namespace,omitempty"` // of a snapshot: the only namespace; "": all
	Objects   []string `json:"objects,omitempty"`   // of a snapshot: the only objects, "namespace/name" or "name"; nil: all

	Offset uint64    `json:"offset,omitempty"` // of a replay: the first change; 0: From decides
	From   time.Time `json:"from,omitzero"`    // of a replay without an offset: when the first change was observed, or later

	Target string `json:"target,omitempty"` // of a cancel: the ID of a signal; the sink is that of it
}

// UnmarshalJSON reads a request in JSON. "for" is a duration such as "30m", or a number of nanoseconds.
func (r *Request) UnmarshalJSON(text []byte) error {
	type plain Request // without this method
	wire := struct {
		*plain
		For json.RawMessage `json:"for"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(text, &wire); err != nil {
		return err
	}
	var duration string
	switch {
	case len(wire.For) == 0:
		return nil
	case json.Unmarshal(wire.For, &duration) != nil:
		return json.Unmarshal(wire.For, &r.For)
	}
	var err error
	if r.For, err = time.ParseDuration(duration); err != nil {
		err = fmt.Errorf(`"for" is %.40q; expected a duration such as "30m"`, duration)
	}
	return err
}

// MaxObjects bounds the objects of one request: they are stored with each scope that can have them.
const MaxObjects = 200

// maxObjectKey bounds the bytes of the key of an object: 63 of its namespace, and 253 of its name.
const maxObjectKey = 63 + 1 + 253

// IsObject reports whether a snapshot can name an object by this key: "namespace/name", or "name".
func IsObject(key string) bool {
	namespace, name, namespaced := strings.Cut(key, "/")
	return len(key) <= maxObjectKey && namespace != "" && (!namespaced || name != "" && !strings.Contains(name, "/"))
}

// idLength is how many characters the ID of a signal has.
const idLength = 10

// NewID returns an ID that no other signal has.
func NewID() string { return strings.ToLower(rand.Text()[:idLength]) }

// isID reports whether text is what NewID returns.
func isID(text string) bool {
	return len(text) == idLength && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// withID returns the request with an ID.
func (r Request) withID() Request {
	if !isID(r.ID) {
		r.ID = NewID()
	}
	return r
}

// New returns the signal that a request makes.
func (r Request) New(now time.Time) Signal {
	r = r.withID()
	s := Signal{
		ID: r.ID, Kind: r.Kind, Sink: r.Sink, Rule: r.Rule, Created: now.UTC().Truncate(time.Millisecond), State: Active,
		Select: r.Select, Namespace: r.Namespace, Objects: r.Objects, Offset: r.Offset, From: r.From, Target: r.Target,
	}
	if r.Kind == Pause {
		s.Since = s.Created
		if r.For > 0 {
			s.Until = s.Created.Add(r.For)
		}
	}
	return s
}

// End returns the signal with its end. The objects that it asked for are dropped: their number is in the result.
func (s Signal) End(state State, now time.Time, count uint64, result string) Signal {
	s.Objects = nil
	s.State, s.Ended, s.Count, s.Result = state, now.UTC().Truncate(time.Millisecond), count, result
	return s
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

// maxEnded bounds the signals that are kept after their end.
const maxEnded = 100

// Book is all signals that are kept, the oldest first. Its methods change it and contact nothing.
type Book struct {
	Revision uint64   `json:"revision"` // number of changes: of two books of one deployment the higher one is newer
	Signals  []Signal `json:"signals"`
}

// Find returns the signal with an ID.
func (b *Book) Find(id string) (Signal, bool) {
	i := b.index(id)
	if i < 0 {
		return Signal{}, false
	}
	return b.Signals[i], true
}

// ActivePause returns the pause that is in force for a sink or a rule.
func (b *Book) ActivePause(of Subject) (Signal, bool) {
	for _, s := range b.Signals {
		if s.Kind == Pause && s.State == Active && s.Subject() == of {
			return s, true
		}
	}
	return Signal{}, false
}

// Put adds a signal, or replaces the one with its ID. A pause supersedes the one in force. The oldest ended signals beyond
// the bound are dropped.
func (b *Book) Put(s Signal) {
	if s.Kind == Pause && s.State == Active {
		if before, paused := b.ActivePause(s.Subject()); paused && before.ID != s.ID {
			s.Since = before.Since
			b.Put(before.End(Superseded, s.Created, 0, "by signal "+s.ID))
		}
	}
	if i := b.index(s.ID); i >= 0 {
		b.Signals[i] = s
	} else {
		b.Signals = append(b.Signals, s)
	}
	ended := 0
	for _, s := range b.Signals {
		if s.State != Active {
			ended++
		}
	}
	b.Signals = slices.DeleteFunc(b.Signals, func(s Signal) bool {
		if s.State == Active || ended <= maxEnded {
			return false
		}
		ended--
		return true
	})
}

// PutIfActive replaces the signal with the ID of s, unless that has ended meanwhile.
func (b *Book) PutIfActive(s Signal) {
	if before, ok := b.Find(s.ID); ok && before.State == Active {
		b.Put(s)
	}
}

func (b *Book) index(id string) int {
	return slices.IndexFunc(b.Signals, func(s Signal) bool { return s.ID == id })
}
