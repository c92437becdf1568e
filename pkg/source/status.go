package source

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
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
	Scope  string // ID of the scope; for what is not served, the selection as written
	State  State
	Reason string    // one sentence; empty when live
	Remedy string    // what a person can do about it; empty when waiting is all there is
	Since  time.Time // of the state
	Synced bool      // all that exists has been seen since the scope was first started, now or in an earlier process

	Position  string    // resourceVersion from which a new process would watch on
	Known     int       // objects known to exist
	LastEvent time.Time // when the API server last said something, bookmarks included; zero if never

	Events       uint64 // watch events read, bookmarks included
	Restarts     uint64 // watch connections opened after the first
	Relists      uint64 // times history was lost
	Lists        uint64 // LIST requests sent, each page one
	DecodeErrors uint64 // answers that could not be read

	Changes map[event.Type]uint64 // emitted since the process started
}

// The states as conditions. A fault of the API server hits all scopes, and discovery: it is one line for each reason.
var (
	stateConditions = map[State]condition.State{
		Syncing:     {Severity: condition.Degraded},
		Live:        {Message: "watching"},
		Stale:       {Severity: condition.NotReady, Level: slog.LevelWarn, Message: "the watch fell silent, opening it again"},
		Gone:        {Severity: condition.Degraded},
		Forbidden:   {Severity: condition.Degraded, Level: slog.LevelWarn, Message: "not watching, will try again"},
		Unreachable: {Severity: condition.NotReady, Level: slog.LevelWarn, Message: "not watching, will try again"},
		Waiting:     {Severity: condition.Degraded, Level: slog.LevelWarn, Message: "selected but not served, waiting for it"},
	}
	resourceVanished = condition.State{Name: string(Gone), Level: slog.LevelWarn, Message: "resource is served no more, its objects are announced as deleted"}
	historyLost      = condition.State{Name: "lost", Level: slog.LevelWarn, Message: "history was lost, reading all objects"}
)

func (s State) condition() condition.State {
	c := stateConditions[s]
	c.Name = string(s)
	return c
}

// updateCondition reports the state of something that is read of the API server.
func (s *Source) updateCondition(c *condition.Condition, state State, reason string) {
	remedy := ""
	switch state {
	case Unreachable:
		remedy = fmt.Sprintf("look at the API server at %s, the network, the certificate and the token", s.cfg.Client.Host())
	case Stale:
		remedy = fmt.Sprintf("look at what is between here and the API server at %s", s.cfg.Client.Host())
	case Forbidden:
		remedy = "`exporter rbac` prints the rights that the configuration needs"
	}
	c.Update(state.condition(), reason, remedy)
}

// stateForVerdict is what a failure makes of a scope.
func stateForVerdict(v apiserver.Verdict) State {
	switch v {
	case apiserver.Forbidden:
		return Forbidden
	case apiserver.NotServed:
		return Waiting
	case apiserver.Starting:
		return Syncing
	}
	return Unreachable
}

// health is how one scope is doing, as its follower sees it. Safe for concurrent use.
type health struct {
	source    *Source
	condition *condition.Condition

	mu            sync.Mutex
	counters      Status    // without what the condition has
	startingSince time.Time // since when the API server says that it starts; zero if it does not
	refusals      int       // in a row
	everLive      bool      // it has been Live

	// onRepeatedRefusal is called with the refusal that is one too many, and whether the scope has been Live; nil if a refusal is
	// waited out. It is set before the scope runs.
	onRepeatedRefusal func(err error, lived bool)
}

// maxStartingTime is how long an API server may fill its cache of a resource. If that takes longer something else is in
// the way, such as a conversion webhook that is down.
const maxStartingTime = 30 * time.Second

// setState reports the state.
func (h *health) setState(state State, reason string) {
	h.source.updateCondition(h.condition, state, reason)
	if state == Live {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.startingSince, h.refusals, h.everLive = time.Time{}, 0, true
	}
}

// recordHistoryLost notes that history ends at position. That is always worth a line.
func (h *health) recordHistoryLost(position, why string) {
	h.source.conditions.ReportEvent(h.counters.Scope, historyLost, why, "from", position)
	h.setState(Syncing, why)
	h.updateCounters(func(s *Status) { s.Relists++ })
}

// recordFailure notes that a request failed.
func (h *health) recordFailure(err error) {
	v := apiserver.Classify(err)
	state := stateForVerdict(v)
	if v == apiserver.Starting && h.timeStarting() > maxStartingTime {
		state = Unreachable
	}
	h.setState(state, apiserver.Reason(err))
	h.mu.Lock()
	defer h.mu.Unlock()
	if v != apiserver.Forbidden {
		h.refusals = 0
		return
	}
	if h.refusals++; h.refusals == maxRefusals && h.onRepeatedRefusal != nil {
		h.onRepeatedRefusal(err, h.everLive)
	}
}

// timeStarting notes that the API server says that it starts, and returns for how long it has.
func (h *health) timeStarting() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.startingSince.IsZero() {
		h.startingSince = time.Now()
	}
	return time.Since(h.startingSince)
}

func (h *health) updateCounters(change func(*Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.counters)
}

func (h *health) status() Status {
	c := h.condition.Status()
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.counters
	s.State, s.Reason, s.Remedy, s.Since = State(c.State.Name), c.Reason, c.Remedy, c.Since
	return s
}
