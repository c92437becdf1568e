package source

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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
	Waiting     State = "waiting"     // the resource is not served yet, could not be watched yet, or not to be emitted yet
	Paused      State = "paused"      // a signal has paused the rule; it is watched from its position afterwards
	Gone        State = "gone"        // the resource is no longer served; its objects are being emitted as deleted
)

// States holds every State.
var States = []State{Syncing, Live, Stale, Forbidden, Unreachable, Waiting, Paused, Gone}

// Status describes one scope, or a selected name that is not served. It is a copy. Tags name metrics, see internal/admin.
type Status struct {
	// Scope is the ID of the scope; for a name that is not served, the name as written in the rule.
	Scope     string `label:"resource"`
	Resource  string // and the only namespace that the scope covers; both "" for a name that is not served
	Namespace string
	State     State
	Condition condition.Status // why the state is not live
	Reread    condition.Status // why objects cannot be read beside the watch, for a resync or for missing states
	Listing   condition.Status // what is wrong with what its server lists
	Snapshot  condition.Status // while a sink waits for the objects that exist
	Ways      string           // what its server can do, as far as it was asked, see [apiserver.Ways]
	Synced    bool             // a list of the scope was completed, by this process or an earlier one

	Position  string    // resourceVersion that a new process would watch from
	Known     int       `metric:"kubecdc_resource_known_objects" help:"Objects known to exist."`
	LastEvent time.Time `metric:"kubecdc_resource_last_event_timestamp_seconds" help:"When the last watch event arrived, bookmarks included; 0 if none did."`

	Events       uint64 `metric:"kubecdc_resource_events_total" help:"Watch events read, bookmarks included."`
	Restarts     uint64 `metric:"kubecdc_resource_watch_restarts_total" help:"Watch connections opened after the first."`
	Relists      uint64 `metric:"kubecdc_resource_relists_total" help:"Times history was lost and the stream got a gap record."`
	Lists        uint64 `metric:"kubecdc_resource_list_requests_total" help:"LIST requests sent, each page one."`
	DecodeErrors uint64 `metric:"kubecdc_resource_decode_errors_total" help:"Answers of the API server that could not be read."`

	// Changes were emitted since the process started.
	Changes map[event.Type]uint64 `metric:"kubecdc_resource_changes_total" by:"type" help:"Changes made, by type."`
}

// states are the states of the codes. A scope without a code is live.
var states = map[condition.Code]State{
	"": Live, condition.ResourceSyncing: Syncing, condition.ResourceListing: Syncing, condition.ResourceSilent: Stale,
	condition.ResourceGone: Gone, condition.ResourceForbidden: Forbidden, condition.ResourceNotServed: Waiting, condition.RedactionHeld: Waiting,
	condition.RulePaused:           Paused,
	condition.APIServerUnreachable: Unreachable, condition.APIServerBusy: Unreachable, condition.ResourceFailing: Unreachable, condition.ResourceNeverWatched: Waiting,
	condition.CredentialsRefused: Unreachable, condition.CertificateRefused: Unreachable,
}

// selectionStatus returns what is wrong with the selection as a whole, once the API server was asked what it serves: nothing
// of it can be watched.
func selectionStatus(scopes []Status) condition.Status {
	forbidden, since := 0, time.Time{}
	for _, s := range scopes {
		if s.State == Forbidden {
			forbidden++
		} else if s.State != Waiting || s.Condition.Code == condition.RedactionHeld {
			return condition.Status{Component: "discovery"}
		}
		if s.Condition.Since.After(since) {
			since = s.Condition.Since
		}
	}
	cause := "the rules select nothing that the API server serves"
	if len(scopes) > 0 {
		cause = fmt.Sprintf("of %d selected resources %d are forbidden and %d not served, or not watched once", len(scopes), forbidden, len(scopes)-forbidden)
	}
	status := condition.NewStatus("discovery", condition.Problem{Code: condition.NothingWatched, Cause: cause})
	status.Since = since
	return status
}

// stateReporter updates the conditions of everything that is read from the API server. Safe for concurrent use.
type stateReporter struct {
	set    *condition.Set
	client *apiserver.Client
}

// problemOf returns the problem of a scope after a failed request.
func (r *stateReporter) problemOf(err error) condition.Problem {
	var held *HeldError
	if errors.As(err, &held) {
		return held.Problem
	}
	if p := r.client.Problem(err); p.Code != "" {
		return p
	}
	p := condition.Problem{Code: condition.ResourceFailing, Cause: apiserver.Reason(err)}
	switch apiserver.Classify(err) {
	case apiserver.Forbidden:
		p.Code = condition.ResourceForbidden
	case apiserver.NotServed:
		if !errors.Is(err, errUnwatchable) {
			p.Code = condition.ResourceNotServed
		}
	case apiserver.Starting:
		p.Code = condition.ResourceSyncing
	default:
		if strings.HasPrefix(p.Cause, "conversion webhook") {
			p.Remedy = "mend the conversion webhook that the cause names: kubectl get crd shows where it is called, in spec.conversion"
		}
	}
	return p
}

// problemOfAll returns the problem of a request that concerns no single scope.
func (r *stateReporter) problemOfAll(err error) condition.Problem {
	if p := r.client.Problem(err); p.Code != "" {
		return p
	}
	return condition.Problem{Code: condition.APIServerUnreachable, Cause: apiserver.Reason(err), Remedy: "look at the API server at " + r.client.Host()}
}

const (
	// maxStartingTime is how long an API server may initialize the cache of a resource. If it takes longer there is another
	// cause, such as a conversion webhook that is down.
	maxStartingTime = 20 * time.Second
	// maxRefusals is the number of consecutive refusals that end the Source if the scope is mandatory: with the waits in
	// between, 7 to 14 seconds. An API server that has just started, or its authorizer, may refuse for a moment.
	maxRefusals = 4
)

// health holds the condition and the counters of one scope. Safe for concurrent use.
type health struct {
	states    *stateReporter
	scope     selection.Scope
	condition *condition.Condition
	reread    *condition.Condition // of the readings beside the watch
	listing   *condition.Condition // of what the server lists
	snapshot  *condition.Condition // of snapshots for single sinks

	synced atomic.Bool // see Status

	mu            sync.Mutex
	counters      Status    // without the fields that are here
	startingSince time.Time // of consecutive Starting answers; zero if the last answer was another
	refusals      int       // consecutive
	everLive      bool
	proven        bool // a watch has worked

	// onRepeatedRefusal is called after maxRefusals consecutive refusals; nil if refusals are waited out. Set before use.
	onRepeatedRefusal func(err error, everLive bool)
}

func newHealth(states *stateReporter, of selection.Scope) *health {
	scope := of.ID
	return &health{
		states: states, scope: of, condition: states.set.Add(scope, condition.Problem{Code: condition.ResourceSyncing}),
		reread:   states.set.Add(rereadName(scope), condition.Problem{}),
		listing:  states.set.Add(listingName(scope), condition.Problem{}),
		snapshot: states.set.Add(snapshotName(scope), condition.Problem{}), counters: Status{Scope: scope},
	}
}

// rereadName is the name of the condition of a scope's readings beside the watch.
func rereadName(scope string) string { return scope + " (beside the watch)" }

// listingName is the name of the condition of what the server of a scope lists.
func listingName(scope string) string { return scope + " (its lists)" }

// snapshotName is the name of the condition of a scope's snapshots for single sinks.
func snapshotName(scope string) string { return scope + " (for one sink)" }

// recordReread sets the condition of the readings beside the watch after a request.
func (h *health) recordReread(err error) {
	p := condition.Problem{}
	if err != nil {
		p = condition.Problem{Code: condition.ResourceUnread, Cause: apiserver.Reason(err), Remedy: h.states.problemOf(err).Code.Kind().Remedy}
	}
	h.reread.Update(p)
}

// recordLive records that changes are emitted as they happen. proven is false while only a list shows it.
func (h *health) recordLive(proven bool) {
	h.condition.Clear()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startingSince, h.refusals, h.everLive, h.proven = time.Time{}, 0, true, h.proven || proven
}

// recordProblem records why changes are not emitted as they happen. A scope that was read before misses history meanwhile.
func (h *health) recordProblem(p condition.Problem) {
	switch p.Code {
	case condition.APIServerUnreachable, condition.APIServerBusy:
		p.Effect, p.LosesHistory = condition.ResourceFailing.Kind().Effect, h.synced.Load()
	case condition.ResourceFailing, condition.ResourceSilent, condition.RedactionHeld, condition.RulePaused,
		condition.CredentialsRefused, condition.CertificateRefused:
		p.LosesHistory = h.synced.Load()
	case condition.ResourceSyncing:
		if h.synced.Load() {
			p.Code = condition.ResourceListing
		}
	default: // the code has everything
	}
	h.condition.Update(p)
}

// recordHistoryLost reports that history after position was lost. Each loss is logged.
func (h *health) recordHistoryLost(position, why string) {
	h.states.set.ReportEvent(h.counters.Scope, condition.HistoryLost, why, "from", position)
	h.recordProblem(condition.Problem{Code: condition.ResourceSyncing, Cause: why})
	h.updateCounters(func(s *Status) { s.Relists++ })
}

// recordFailure records the problem after a failed request.
func (h *health) recordFailure(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.states.problemOf(err)
	if p.Code == condition.ResourceSyncing {
		if h.startingSince.IsZero() {
			h.startingSince = time.Now()
		}
		if time.Since(h.startingSince) > maxStartingTime {
			p.Code = condition.ResourceFailing
		}
	}
	if h.scope.ByWildcard && !h.proven && (p.Code == condition.APIServerUnreachable || p.Code == condition.APIServerBusy || p.Code == condition.ResourceFailing) {
		p = condition.Problem{Code: condition.ResourceNeverWatched, Cause: p.Cause}
		p.Remedy = fmt.Sprintf("exclude it: resources[%d].exclude: [%q]; or mend what the cause names", h.scope.Rule, h.scope.Resource)
	}
	h.recordProblem(p)
	if p.Code != condition.ResourceForbidden {
		h.refusals = 0
		return
	}
	if h.refusals++; h.refusals == maxRefusals && h.onRepeatedRefusal != nil {
		h.onRepeatedRefusal(err, h.everLive)
	}
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
	s.State, s.Condition, s.Reread, s.Synced = states[c.Code], c, h.reread.Status(), h.synced.Load()
	s.Listing, s.Snapshot = h.listing.Status(), h.snapshot.Status()
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
