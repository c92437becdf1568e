package source

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// State is the condition of a scope.
type State string

// The states. A scope leaves any of them by itself once what is in the way is gone.
const (
	Syncing     State = "syncing"     // the first list is being read, or the API server is not ready to show the resource
	Live        State = "live"        // changes arrive as they happen
	Stale       State = "stale"       // nothing is heard of a watch that is open; it is opened again from its position
	Forbidden   State = "forbidden"   // the API server does not allow list or watch
	Unreachable State = "unreachable" // the API server does not answer, or with errors
	Waiting     State = "waiting"     // nothing serves the resource yet
	Gone        State = "gone"        // the resource is served no more; its objects are being announced as deleted
)

// States are all of them.
var States = []State{Syncing, Live, Stale, Forbidden, Unreachable, Waiting, Gone}

// Status describes one scope, or a selected resource that nothing serves. It is a copy.
type Status struct {
	Scope    string         // ID of the scope; for what is not served, the selection as written
	Resource event.Resource // zero for what is not served
	State    State
	Reason   string    // one sentence; empty when live
	Since    time.Time // of the state
	Synced   bool      // all that exists has been seen since the scope was first started, now or in an earlier process

	Position  string    // resourceVersion from which a new process would watch on
	Known     int       // objects known to exist
	LastEvent time.Time // when the API server last said something, bookmarks included; zero if never

	Events       uint64 // watch events read, bookmarks included
	Restarts     uint64 // watch connections opened after the first
	Relists      uint64 // times history was lost
	Lists        uint64 // LIST requests sent, each page one
	DecodeErrors uint64 // answers that could not be read
	StockFraming bool   // the slower framer is in use, see DecodeErrors

	Changes map[event.Type]uint64 // told since the process started
}

// inLog is what the log says when scopes enter a state. A fault of the API server hits all scopes; it is one line for each
// reason.
var inLog = map[State]condition.State{
	Syncing:     {Severity: condition.Degraded, Message: "not watching yet"},
	Live:        {Message: "watching"},
	Stale:       {Severity: condition.NotReady, Level: slog.LevelWarn, Message: "the watch fell silent, opening it again"},
	Gone:        {Severity: condition.Degraded, Level: slog.LevelWarn, Message: "resource is served no more"},
	Forbidden:   {Severity: condition.Degraded, Level: slog.LevelWarn, Message: "not watching, will try again"},
	Unreachable: {Severity: condition.NotReady, Level: slog.LevelWarn, Message: "not watching, will try again"},
	Waiting:     {Severity: condition.Degraded, Level: slog.LevelWarn, Message: "not watching, will try again"},
}

// logged is the state as a condition.
func (s State) logged() condition.State {
	c := inLog[s]
	c.Name = string(s)
	return c
}

// health is the state of one scope as its runner sees it. Safe for concurrent use.
type health struct {
	log       *slog.Logger
	condition *condition.Condition

	mu       sync.Mutex
	s        Status
	starting time.Time // since when the API server says that it starts; zero if it does not
	refusals int       // in a row
	lived    bool      // it has been Live

	// insist is called with the refusal that is one too many, and whether the scope has been Live; nil if a refusal is
	// waited out. It is set before the scope runs.
	insist func(err error, lived bool)
}

// startingLimit is how long an API server may fill its cache of a resource. If that takes longer something else is in
// the way, such as a conversion webhook that is down.
const startingLimit = 30 * time.Second

// newHealth returns the health of a scope that starts. all are those of the Source.
func newHealth(log *slog.Logger, all *condition.Set, s selection.Scope) *health {
	return &health{
		log: log.With("scope", s.ID), condition: all.Add(s.ID, Syncing.logged()),
		s: Status{Scope: s.ID, Resource: s.Resource, State: Syncing, Reason: "starting", Since: time.Now()},
	}
}

// become notes the state. The log has a line if it is another than before.
func (h *health) become(state State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if state == Live {
		h.starting, h.refusals, h.lived = time.Time{}, 0, true
	}
	if h.s.State == state {
		h.s.Reason = reason
		return
	}
	h.s.State, h.s.Reason, h.s.Since = state, reason, time.Now()
	h.condition.Become(state.logged(), reason, "")
}

// lost notes that history ends at position. That is always worth a line.
func (h *health) lost(position, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log.Warn("history was lost, reading all objects", "from", position, "reason", why)
	if h.s.State != Syncing {
		h.s.State, h.s.Since = Syncing, time.Now()
	}
	h.s.Reason = why
	h.s.Relists++
}

// failed notes that a request failed.
func (h *health) failed(err error) {
	v := classifyError(err)
	state := v.state()
	if v == starting && h.startsFor() > startingLimit {
		state = Unreachable
	}
	h.become(state, reason(err))
	h.refused(v, err)
}

// refused counts refusals in a row.
func (h *health) refused(v verdict, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v != forbidden {
		h.refusals = 0
		return
	}
	if h.refusals++; h.refusals == refusalsToFail && h.insist != nil {
		h.insist(err, h.lived)
	}
}

// startsFor notes that the API server says that it starts, and returns for how long it has.
func (h *health) startsFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.starting.IsZero() {
		h.starting = time.Now()
	}
	return time.Since(h.starting)
}

func (h *health) note(change func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.s)
}

func (h *health) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.s
}
