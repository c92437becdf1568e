package delivery

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// outageDelay is how long all lanes have to fail before the sink is not ready: a topic that was just created has no leader
	// yet.
	outageDelay = 2 * time.Second

	// maxProbeDelay is the longest wait between two attempts at a destination that is away, and unansweredAfter is how long an
	// attempt may take before it is a cause itself. So the cause of an outage is at most the sum of them old.
	maxProbeDelay   = 5 * time.Second
	unansweredAfter = 5 * time.Second

	// maxNamedLanes bounds the failing lanes that are named; the others are counted.
	maxNamedLanes = 100
)

// health derives the conditions of the sink. Safe for concurrent use.
type health struct {
	sink  *condition.Condition // of the sink as a whole
	lanes *condition.Set

	mu           sync.Mutex
	failing      map[sinks.Lane]*condition.Condition // maxNamedLanes at most
	newest       condition.Problem                   // the cause of the last failed Publish or ping
	reached      bool                                // a ping succeeded, or the sink is no sinks.Pinger
	pingFailed   bool                                // the last one
	lastPing     time.Time                           // its start
	pinging      time.Time                           // start of the ping that runs; zero if none does
	storeFailure error                               // why progress is not stored; nil if it is
}

// newHealth returns the health of a sink before its first Publish. canPing: its destination will be pinged.
func newHealth(name string, log *slog.Logger, canPing bool) *health {
	component, initial := "sink/"+name, condition.Problem{}
	if canPing {
		initial.Code = condition.SinkConnecting
	}
	return &health{
		sink: condition.New(log, component, initial), lanes: condition.NewSet(log, component, "lanes"),
		failing: map[sinks.Lane]*condition.Condition{}, reached: !canPing,
	}
}

// close writes pending log lines and ends the conditions.
func (h *health) close() {
	h.lanes.Close()
	h.sink.Close()
}

// recordUnavailable records that the whole destination was unavailable for a Publish.
func (h *health) recordUnavailable(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest = condition.ProblemOf(err, condition.SinkFailing)
}

// recordLaneFailure records that a lane backs off because of err.
func (h *health) recordLaneFailure(name sinks.Lane, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest = condition.ProblemOf(err, condition.SinkFailing)
	c := h.failing[name]
	if c == nil {
		if len(h.failing) == maxNamedLanes {
			return
		}
		c = h.lanes.Add(laneLabel(name), condition.Problem{})
		h.failing[name] = c
	}
	p := h.newest
	p.Effect = "the changes of these lanes wait in the journal; other lanes continue"
	c.Update(p)
}

// recordLaneRecovery records that a lane does not fail any more, or does not exist any more.
func (h *health) recordLaneRecovery(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.failing[name]; c != nil {
		c.Clear()
		delete(h.failing, name)
		h.lanes.Remove(laneLabel(name))
	}
}

// laneLabel returns the name of a lane for log and status page.
func laneLabel(name sinks.Lane) string {
	if name == unroutableLane {
		return "dead letters"
	}
	return string(name)
}

// recordPingStart records when a ping begins.
func (h *health) recordPingStart(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinging = now
}

// recordPing records the result of a ping.
func (h *health) recordPing(start time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastPing, h.pinging, h.pingFailed = start, time.Time{}, err != nil
	if err != nil {
		h.newest = condition.ProblemOf(err, condition.SinkFailing)
		return
	}
	h.reached = true
}

// recordStore records the result of storing progress.
func (h *health) recordStore(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.storeFailure = err
}

// updateCondition derives the condition of the whole sink. One goroutine calls it regularly.
func (h *health) updateCondition(s Stats, gate ratelimit.GateStatus) {
	h.sink.Update(h.currentProblem(s, gate))
}

// currentProblem returns what is wrong with the whole sink. Several causes of one outage are one problem with the newest of
// them: a destination that was closed and now hangs is reported as hanging.
func (h *health) currentProblem(s Stats, gate ratelimit.GateStatus) condition.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.storeFailure != nil:
		return condition.Caused(condition.ProgressUnstored, h.storeFailure)
	case gate.State != ratelimit.Open, h.pingFailed && !s.LastAck.After(h.lastPing),
		s.LanesFailing > 0 && s.LanesDelivering == 0 && h.isLastingFailure():
		p := h.newestCause(gate)
		if p.Code == "" { // the gate has closed a moment ago
			p = condition.Problem{Code: condition.SinkFailing, Cause: gate.Reason}
		}
		if s.Lanes > 0 {
			p.Effect = fmt.Sprintf("0 of %d lanes deliver; %s", s.Lanes, condition.SinkFailing.Kind().Effect)
		}
		return p
	case h.reached || !s.LastAck.IsZero():
		return condition.Problem{}
	}
	return condition.Problem{Code: condition.SinkConnecting}
}

// newestCause returns the cause of the last failure, or the attempt since then that has no answer yet. Requires h.mu.
func (h *health) newestCause(gate ratelimit.GateStatus) condition.Problem {
	started := condition.Earlier(gate.Probed, h.pinging)
	if waited := time.Since(started); !started.IsZero() && waited >= unansweredAfter && h.newest.Code != condition.SinkTimeout {
		return condition.Problem{Code: condition.SinkTimeout, Cause: fmt.Sprintf("no answer for %d s", int(waited.Seconds()))}
	}
	return h.newest
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

// fillStats sets the conditions of the sink and of its failing lanes.
func (h *health) fillStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.failing {
		s.FailingLanes = append(s.FailingLanes, c.Status())
	}
	slices.SortFunc(s.FailingLanes, func(a, b condition.Status) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name(), b.Name()))
	})
	s.Condition = h.sink.Status()
}

// Conditions returns what is wrong: one status for the whole sink, or else one for all lanes that fail for the same cause.
func (s Stats) Conditions() []condition.Status {
	if !s.Condition.OK() {
		s.Condition.Severity = condition.NotReady // of a lane alone the same problem may be a warning
		return []condition.Status{s.Condition}
	}
	lanes := condition.Summarize(s.FailingLanes)
	for i := range lanes {
		lanes[i].Severity = condition.Degraded // others deliver
	}
	if len(lanes) == 0 {
		return []condition.Status{s.Condition}
	}
	return lanes
}
