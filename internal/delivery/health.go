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
	lanes *condition.Set       // those that fail

	mu           sync.Mutex
	newest       condition.Problem // the cause of the last failed Publish or ping
	reached      bool              // a ping succeeded, or the sink is no sinks.Pinger
	pingFailed   bool              // the last one
	lastPing     time.Time         // its start
	pinging      time.Time         // start of the ping that runs; zero if none does
	storeFailure error             // why progress is not stored; nil if it is
}

// newHealth returns the health of a sink before its first Publish. canPing: its destination will be pinged.
func newHealth(name string, log *slog.Logger, canPing bool) *health {
	component, initial := "sink/"+name, condition.Problem{}
	if canPing {
		initial.Code = condition.SinkConnecting
	}
	lanes := condition.NewSet(log, component, "lanes")
	lanes.MaxUpdated = maxNamedLanes
	return &health{sink: condition.New(log, component, initial), lanes: lanes, reached: !canPing}
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
	p := h.newest
	p.Severity, p.Effect = condition.Degraded, "the changes of these lanes wait in the journal; other lanes continue"
	h.lanes.Update(laneLabel(name), p)
}

// recordLaneRecovery records that a lane does not fail any more, or does not exist any more.
func (h *health) recordLaneRecovery(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes.Update(laneLabel(name), condition.Problem{})
}

// laneLabel returns the name of a lane for log and status page. What has no lane becomes dead letters.
func laneLabel(name sinks.Lane) string { return string(cmp.Or(name, "dead letters")) }

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
	lasts := func(lane condition.Status) bool { return time.Since(lane.Since) >= outageDelay }
	switch {
	case h.storeFailure != nil:
		return condition.Caused(condition.ProgressUnstored, h.storeFailure)
	case gate.State != ratelimit.Open, h.pingFailed && !s.LastAck.After(h.lastPing),
		s.LanesFailing > 0 && s.LanesDelivering == 0 && slices.ContainsFunc(h.lanes.Statuses(), lasts):
		p := h.newestCause(gate)
		p.Severity = condition.NotReady // of a lane alone the same problem may be a warning
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

// fillStats sets the conditions of the sink and of its failing lanes.
func (h *health) fillStats(s *Stats) {
	s.Condition, s.FailingLanes = h.sink.Status(), h.lanes.Statuses()
	slices.SortStableFunc(s.FailingLanes, func(a, b condition.Status) int { return a.Since.Compare(b.Since) })
}

// Conditions returns what is wrong: the status of the whole sink, or else those of lanes.
func (s Stats) Conditions() []condition.Status {
	if s.Condition.OK() && len(s.FailingLanes) > 0 {
		return s.FailingLanes
	}
	return []condition.Status{s.Condition}
}
