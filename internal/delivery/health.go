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

// The states of a sink, which follow from all of its lanes, and those of a lane.
var (
	stateConnecting = condition.State{Name: "connecting", Severity: condition.NotReady}
	stateDelivering = condition.State{Name: "delivering", Message: "sink delivers"}
	stateImpaired   = condition.State{Name: "impaired", Severity: condition.Degraded}
	stateAway       = condition.State{
		Name: "away", Severity: condition.NotReady, Level: slog.LevelWarn,
		Message: "sink does not deliver: all its lanes wait, changes stay in the journal",
	}
	stateNotStored = condition.State{
		Name: "unstored", Severity: condition.NotReady, Level: slog.LevelError,
		Message: "progress cannot be stored; delivery continues and is repeated from the stored position after a restart",
	}

	laneRecovered = condition.State{Name: "working", Message: "lanes deliver again"}
	laneFailing   = condition.State{
		Name: "failing", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a lane fails and is retried with back-off; other lanes continue",
	}
)

const (
	// outageDelay is how long all lanes have to fail before the sink is not ready: a topic that was just created has no leader
	// yet.
	outageDelay = 2 * time.Second

	// maxNamedLanes bounds the failing lanes that are named; the others are counted.
	maxNamedLanes = 100
)

// health derives the condition of the sink. Safe for concurrent use.
type health struct {
	sink  *condition.Condition
	lanes *condition.Set

	mu              sync.Mutex
	failing         map[sinks.Lane]*condition.Condition // maxNamedLanes at most
	recovered       []sinks.Lane                        // since the last removeRecoveredLanes
	recoveredBefore []sinks.Lane                        // before that one, and since the one before
	reached         bool                                // a ping succeeded, or the sink is no sinks.Pinger
	pingFailure     string                              // of the last ping; "" if it succeeded
	lastPing        time.Time                           // its start
	storeFailure    string                              // why progress is not stored; "" if it is
}

// newHealth returns the health of a sink before its first Publish. canPing: its destination will be pinged.
func newHealth(log *slog.Logger, canPing bool) *health {
	initial := stateDelivering
	if canPing {
		initial = stateConnecting
	}
	return &health{
		sink: condition.New(log, initial), lanes: condition.NewSet(log, "lanes"),
		failing: map[sinks.Lane]*condition.Condition{}, reached: !canPing,
	}
}

// close writes pending log lines and ends the conditions.
func (h *health) close() {
	h.lanes.Close()
	h.sink.Close()
}

// recordLaneFailure records that a lane backs off because of err.
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

// recordLaneRecovery records that a lane does not fail any more, or does not exist any more.
func (h *health) recordLaneRecovery(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.failing[name]; c != nil {
		c.Update(laneRecovered, "", "")
		delete(h.failing, name)
		h.recovered = append(h.recovered, name)
	}
}

// removeRecoveredLanes removes the conditions of lanes that recovered before the last call. The log has their recovery by
// then, see condition.Set.
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

// laneLabel returns the name of a lane for log and status page.
func laneLabel(name sinks.Lane) string {
	if name == unroutableLane {
		return "dead letters"
	}
	return string(name)
}

// recordPing records the result of a ping.
func (h *health) recordPing(start time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastPing, h.pingFailure = start, ""
	if err != nil {
		h.pingFailure = err.Error()
		if unavailable := new(sinks.UnavailableError); errors.As(err, &unavailable) {
			h.pingFailure = unavailable.Reason
		}
		return
	}
	h.reached = true
}

// recordStore records the result of storing progress.
func (h *health) recordStore(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.storeFailure = ""
	if err != nil {
		h.storeFailure = err.Error()
	}
}

// updateCondition derives the condition of the sink. One goroutine calls it regularly.
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
		return stateAway, "no lane delivers: " + h.summarizeFailures(s.LanesFailing)
	case s.LanesFailing > 0:
		return stateImpaired, h.summarizeFailures(s.LanesFailing)
	case h.reached || !s.LastAck.IsZero():
		return stateDelivering, ""
	}
	return stateConnecting, "not reached yet"
}

// isLastingFailure reports whether a lane has been failing for outageDelay. Requires h.mu.
func (h *health) isLastingFailure() bool {
	for _, c := range h.failing {
		if time.Since(c.Status().Since) >= outageDelay {
			return true
		}
	}
	return false
}

// summarizeFailures describes the failing lanes in one line. Requires h.mu.
func (h *health) summarizeFailures(count int) string {
	lanes := h.failingLanes()
	if len(lanes) == 0 {
		return fmt.Sprintf("%d lanes fail", count)
	}
	text := fmt.Sprintf("lane %s: %s", lanes[0].Lane, lanes[0].Reason)
	if count > 1 {
		text += fmt.Sprintf(" (and %d more)", count-1)
	}
	return text
}

// failingLanes returns the failing lanes, those that fail for longest first. Requires h.mu.
func (h *health) failingLanes() []FailingLane {
	var lanes []FailingLane
	for name, c := range h.failing {
		s := c.Status()
		lanes = append(lanes, FailingLane{Lane: laneLabel(name), Reason: s.Explanation(), Since: s.Since})
	}
	slices.SortFunc(lanes, func(a, b FailingLane) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Lane, b.Lane))
	})
	return lanes
}

// fillStats sets the condition and the failing lanes.
func (h *health) fillStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Condition = h.sink.Status()
	s.FailingLanes = h.failingLanes()
}
