package delivery

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// What a sink can be in, decided from all of its lanes. Of lanes in trouble the log tells one by one, or in one line for
// those with the same reason.
var (
	stateConnecting = condition.State{Name: "connecting", Severity: condition.NotReady}
	stateDelivering = condition.State{Name: "delivering", Message: "sink delivers"}
	stateImpaired   = condition.State{Name: "impaired", Severity: condition.Degraded}
	stateAway       = condition.State{
		Name: "away", Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "sink takes no changes: all its lanes wait, changes stay in the journal",
	}
	stateNotStored = condition.State{
		Name: "unstored", Severity: condition.NotReady, Level: slog.LevelError,
		Message: "progress cannot be stored; delivery goes on and is repeated from the stored position after a restart",
	}

	laneRecovered = condition.State{Name: "working", Message: "lanes deliver again"}
	laneFailing   = condition.State{
		Name: "failing", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a lane fails and is tried again with back-off; other lanes go on",
	}
)

// outageDelay is for how long no lane may work before the sink is not ready.
const outageDelay = 2 * time.Second

// maxNamedLanes bounds the lanes in trouble that are told one by one; the others are counted.
const maxNamedLanes = 100

// FailingLane is what is known of a lane that fails.
type FailingLane struct {
	Lane   string
	Reason string // cause and remedy, one line
	Since  time.Time
}

// health decides how the sink is doing. Safe for concurrent use.
type health struct {
	sink  *condition.Condition
	lanes *condition.Set

	mu                         sync.Mutex
	failing                    map[sinks.Lane]*condition.Condition // maxNamedLanes at most
	recovered, recoveredBefore []sinks.Lane                        // that failed: since the last prune, and before it
	reached                    bool                                // the destination was reached, or nobody can ask
	pingFailure                string                              // why the last ping failed
	lastPing                   time.Time                           // when that was begun
	storeFailure               string                              // why progress is not stored

}

// newHealth returns the health of a sink that nobody has heard of yet; canAsk says that somebody will ask.
func newHealth(log *slog.Logger, canAsk bool) *health {
	initial := stateDelivering
	if canAsk {
		initial = stateConnecting
	}
	return &health{
		sink: condition.New(log, initial), lanes: condition.NewSet(log, "lanes"),
		failing: map[sinks.Lane]*condition.Condition{}, reached: !canAsk,
	}
}

// close ends what waits to be logged.
func (h *health) close() {
	h.lanes.Close()
	h.sink.Close()
}

// recordLaneFailure notes that a lane goes into back-off.
func (h *health) recordLaneFailure(name sinks.Lane, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.failing[name]
	if c == nil {
		if len(h.failing) == maxNamedLanes {
			return
		}
		c = h.lanes.Add(laneLabel(name), laneRecovered)
		h.failing[name] = c
	}
	c.Update(laneFailing, err.Error(), "")
}

// recordLaneRecovery notes that a lane left its back-off, or is no more.
func (h *health) recordLaneRecovery(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.failing[name]; c != nil {
		c.Update(laneRecovered, "", "")
		delete(h.failing, name)
		h.recovered = append(h.recovered, name)
	}
}

// removeRecoveredLanes forgets lanes that have worked again for a while; it is called every now and then.
func (h *health) removeRecoveredLanes() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.recoveredBefore {
		if h.failing[name] == nil {
			h.lanes.Remove(laneLabel(name))
		}
	}
	h.recoveredBefore, h.recovered = h.recovered, nil
}

// laneLabel is the name of a lane for people.
func laneLabel(name sinks.Lane) string {
	if name == unroutableLane {
		return "dead letters"
	}
	return string(name)
}

// recordPing notes what came of a ping.
func (h *health) recordPing(began time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastPing, h.pingFailure = began, ""
	if err != nil {
		h.pingFailure = err.Error()
		if gone := new(sinks.UnavailableError); errors.As(err, &gone) {
			h.pingFailure = gone.Reason
		}
		return
	}
	h.reached = true
}

// recordStore notes how storing the cursor went.
func (h *health) recordStore(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.storeFailure = ""
	if err != nil {
		h.storeFailure = err.Error()
	}
}

// updateCondition is the one place that says how the sink is doing. It is called regularly, from one goroutine.
func (h *health) updateCondition(s Stats, gate ratelimit.GateStatus) {
	state, reason := h.currentState(s, gate)
	h.sink.Update(state, reason, "")
}

func (h *health) currentState(s Stats, gate ratelimit.GateStatus) (state condition.State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.storeFailure != "":
		return stateNotStored, h.storeFailure
	case gate.State != ratelimit.Open:
		return stateAway, gate.Reason
	case h.pingFailure != "" && !s.LastAck.After(h.lastPing):
		return stateAway, h.pingFailure
	case s.LanesFailing > 0 && s.LanesDelivering == 0 && h.isLastingFailure():
		return stateAway, "no lane works: " + h.summarizeFailures(s.LanesFailing)
	case s.LanesFailing > 0:
		return stateImpaired, h.summarizeFailures(s.LanesFailing)
	case h.reached || !s.LastAck.IsZero():
		return stateDelivering, ""
	}
	return stateConnecting, "not reached yet"
}

// isLastingFailure reports whether some trouble is more than a moment: a topic that was just created has no leader yet. The caller
// holds h.mu.
func (h *health) isLastingFailure() bool {
	for _, c := range h.failing {
		if time.Since(c.Status().Since) >= outageDelay {
			return true
		}
	}
	return false
}

// summarizeFailures is the lanes in trouble in one line. The caller holds h.mu.
func (h *health) summarizeFailures(count int) string {
	first := h.failingLanes()
	if len(first) == 0 {
		return fmt.Sprintf("%d lanes fail", count)
	}
	text := fmt.Sprintf("lane %s: %s", first[0].Lane, first[0].Reason)
	if count > 1 {
		text += fmt.Sprintf(" (and %d more)", count-1)
	}
	return text
}

// failingLanes returns the lanes in trouble, those first that have it for longest. The caller holds h.mu.
func (h *health) failingLanes() []FailingLane {
	var all []FailingLane
	for name, c := range h.failing {
		s := c.Status()
		all = append(all, FailingLane{Lane: laneLabel(name), Reason: s.Explanation(), Since: s.Since})
	}
	slices.SortFunc(all, func(a, b FailingLane) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Lane, b.Lane))
	})
	return all
}

// fillStats fills in what health knows.
func (h *health) fillStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Condition = h.sink.Status()
	s.FailingLanes = h.failingLanes()
}
