package source

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// State is the state of a scope.
type State string

// The states. A scope leaves each of them without help once the cause is gone.
const (
	Syncing     State = "syncing"     // the first list is being read, or the API server is still initializing the resource
	Live        State = "live"        // changes are emitted as they happen
	Stale       State = "stale"       // an open watch is silent; it is reopened from its position
	Forbidden   State = "forbidden"   // the API server does not allow list or watch
	Unreachable State = "unreachable" // the API server does not answer, or answers with errors
	Waiting     State = "waiting"     // the resource is not served yet
	Gone        State = "gone"        // the resource is no longer served; its objects are being emitted as deleted
)

// States holds every State.
var States = []State{Syncing, Live, Stale, Forbidden, Unreachable, Waiting, Gone}

// Status describes one scope, or a selected name that is not served. It is a copy.
type Status struct {
	Scope  string // ID of the scope; for a name that is not served, the name as written in the rule
	State  State
	Reason string    // one sentence; empty when live
	Remedy string    // what an operator can do; empty if nothing but waiting helps
	Since  time.Time // of the state
	Synced bool      // a list of the scope was completed, by this process or an earlier one

	Position  string    // resourceVersion that a new process would watch from
	Known     int       // objects known to exist
	LastEvent time.Time // when the last event arrived, bookmarks included; zero if never

	Events       uint64 // watch events read, bookmarks included
	Restarts     uint64 // watch connections opened after the first
	Relists      uint64 // times that history was lost
	Lists        uint64 // LIST requests sent; each page counts
	DecodeErrors uint64 // unparseable responses

	Changes map[event.Type]uint64 // emitted since the process started
}

// The conditions of the states. A failure of the API server affects all scopes and the discovery; it is logged once per
// reason.
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
	resourceVanished = condition.State{
		Name: string(Gone), Level: slog.LevelWarn, Message: "resource is no longer served, emitting its objects as deleted",
	}
	historyLost = condition.State{Name: "lost", Level: slog.LevelWarn, Message: "history was lost, reading all objects"}
)

func (s State) toCondition() condition.State {
	c := stateConditions[s]
	c.Name = string(s)
	return c
}

// stateForVerdict returns the state of a scope after a failure.
func stateForVerdict(v apiserver.Verdict) State {
	switch v {
	case apiserver.Forbidden:
		return Forbidden
	case apiserver.NotServed:
		return Waiting
	case apiserver.Starting:
		return Syncing
	default:
		return Unreachable
	}
}

// stateReporter updates the conditions of everything that is read from the API server. Safe for concurrent use.
type stateReporter struct {
	set    *condition.Set
	client *apiserver.Client
}

// addCondition returns a new condition in the state Syncing.
func (r *stateReporter) addCondition(name string) *condition.Condition {
	return r.set.Add(name, Syncing.toCondition())
}

// updateCondition sets the state of a condition, with the remedy for that state.
func (r *stateReporter) updateCondition(c *condition.Condition, state State, reason string) {
	remedy := ""
	switch state {
	case Unreachable:
		remedy = fmt.Sprintf("look at the API server at %s, the network, the certificate and the token", r.client.Host())
	case Stale:
		remedy = fmt.Sprintf("look at proxies and load balancers between here and the API server at %s", r.client.Host())
	case Forbidden:
		remedy = "`exporter rbac` prints the rights that the configuration needs"
	default: // needs none
	}
	c.Update(state.toCondition(), reason, remedy)
}

const (
	// maxStartingTime is how long an API server may initialize the cache of a resource. If it takes longer there is another
	// cause, such as a conversion webhook that is down.
	maxStartingTime = 30 * time.Second
	// maxRefusals is the number of consecutive refusals that end the Source if the scope is mandatory: with the waits in
	// between, 7 to 14 seconds. An API server that has just started, or its authorizer, may refuse for a moment.
	maxRefusals = 4
)

// health holds the condition and the counters of one scope. Safe for concurrent use.
type health struct {
	states    *stateReporter
	condition *condition.Condition

	mu            sync.Mutex
	counters      Status    // without the fields that come from condition
	startingSince time.Time // of consecutive Starting answers; zero if the last answer was another
	refusals      int       // consecutive
	everLive      bool

	// onRepeatedRefusal is called after maxRefusals consecutive refusals; nil if refusals are waited out. Set before use.
	onRepeatedRefusal func(err error, everLive bool)
}

func newHealth(states *stateReporter, scope string) *health {
	return &health{states: states, condition: states.addCondition(scope), counters: Status{Scope: scope}}
}

func (h *health) setState(state State, reason string) {
	h.states.updateCondition(h.condition, state, reason)
	if state == Live {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.startingSince, h.refusals, h.everLive = time.Time{}, 0, true
	}
}

// recordHistoryLost reports that history after position was lost. Each loss is logged.
func (h *health) recordHistoryLost(position, why string) {
	h.states.set.ReportEvent(h.counters.Scope, historyLost, why, "from", position)
	h.setState(Syncing, why)
	h.updateCounters(func(s *Status) { s.Relists++ })
}

// recordFailure sets the state after a failed request.
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

// timeStarting returns the time since the first of consecutive Starting answers, of which the caller has just received one.
func (h *health) timeStarting() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.startingSince.IsZero() {
		h.startingSince = time.Now()
	}
	return time.Since(h.startingSince)
}

// updateCounters changes the counters with h.mu held.
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

// ForbiddenError ends a Source because the API server does not allow it to read a mandatory scope (onForbidden: fail).
type ForbiddenError struct {
	Scope   selection.Scope
	Verb    string // the refused verb: "list" or "watch"
	AtStart bool   // refused since the start, rather than revoked later
	Err     error  // the API server's error
}

// Error describes the resource, the verb and the remedy.
func (e *ForbiddenError) Error() string {
	where := "at cluster scope"
	if e.Scope.Namespace != "" {
		where = "in namespace " + e.Scope.Namespace
	}
	return fmt.Sprintf("not allowed to %s %s %s, and its rule has onForbidden: fail: %v; "+
		`grant the right ("exporter rbac" prints the rights that the configuration needs), or set onForbidden: degrade`,
		e.Verb, e.Scope.Resource, where, apiserver.WithoutObject(e.Err))
}

func (e *ForbiddenError) Unwrap() error { return e.Err }
