package delivery

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// outageAfter is how long nothing may be acknowledged of what is tried before that is a condition: a topic that was just
	// created has no leader yet.
	outageAfter = 10 * time.Second

	// startTakes is how long what a start brings with it may take, such as topics that have to be created: a problem is in the
	// log if it lasts longer.
	startTakes = 30 * time.Second

	// codeKept is how long a code stays when attempts fail for several reasons in turns.
	codeKept = 30 * time.Second

	// maxProbeDelay is the longest wait between two attempts at a destination that is away, and unansweredAfter is how long an
	// attempt may take before it is a cause itself. So the cause of an outage is at most the sum of them old.
	maxProbeDelay   = 5 * time.Second
	unansweredAfter = 5 * time.Second
)

// health derives the conditions of the sink from what was tried and what was acknowledged. An acknowledgement alone ends an
// outage: a destination that answers a ping need not accept a change. Safe for concurrent use.
type health struct {
	component string
	log       *slog.Logger
	sink      *condition.Condition // of the sink as a whole

	started time.Time

	mu           sync.Mutex
	attempts     map[sinks.Lane]*attempt // of lanes of which nothing was acknowledged since they were tried
	proof        time.Time               // the start of the newest Publish of which something was acknowledged; zero: there is none
	proven       sinks.Lane              // the lane of that
	reached      bool                    // a ping succeeded, or the sink is no sinks.Pinger
	ping         attempt                 // pings since the last one that succeeded
	newest       cause                   // of the last failures of any kind
	outage       time.Time               // the first failure since the last acknowledgement, once it is an outage; zero: there is none
	storeFailure error                   // why progress is not stored; nil if it is
	faults       map[condition.Code]*laneFault
}

type attempt struct {
	since   time.Time // the start of the first try
	running time.Time // the start of the one that has no answer yet; zero if there is none
	failure cause
	alone   bool // it failed again after others were acknowledged
}

// causesOfLanes are codes that say nothing of other lanes.
var causesOfLanes = []condition.Code{
	condition.SinkTargetMissing, condition.SinkMisconfigured, condition.SinkUnauthorized, condition.LaneUnread,
}

func (a *attempt) begin(now time.Time) {
	a.since, a.running = condition.Earlier(a.since, now), now
}

// cause is the newest of several alternating causes, with a code that is steady.
type cause struct {
	condition.Problem
	before        condition.Code // the code before this one
	changed, seen time.Time      // when the code came, and when it was last the newest
}

// replace records a newer cause. A code does not come back while the one that followed it is still seen.
func (c *cause) replace(p condition.Problem, now time.Time) {
	switch steady := now.Sub(c.changed) < codeKept || p.Code == c.before && now.Sub(c.seen) < codeKept; {
	case p.Code == c.Code:
	case steady:
		return
	default:
		c.before, c.changed = c.Code, now
	}
	c.Problem, c.seen = p, now
}

// laneFault is one code of lanes that fail while others deliver.
type laneFault struct {
	condition *condition.Condition
	members   []string
}

// newHealth returns the health of a sink before its first Publish. canPing: its destination will be pinged.
func newHealth(name string, log *slog.Logger, canPing bool) *health {
	component, initial := "sink/"+name, condition.Problem{}
	if canPing {
		initial.Code = condition.SinkConnecting
	}
	return &health{
		component: component, log: log, started: time.Now(), reached: !canPing,
		sink:     condition.New(log, component, initial).QuietUntil(time.Now().Add(startTakes)),
		attempts: map[sinks.Lane]*attempt{}, faults: map[condition.Code]*laneFault{},
	}
}

func (h *health) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.faults {
		f.condition.Close()
	}
	h.sink.Close()
}

// attemptOf returns the attempt of a lane, which begins now if there is none. Requires h.mu.
func (h *health) attemptOf(name sinks.Lane, now time.Time) *attempt {
	a := h.attempts[name]
	if a == nil {
		a = &attempt{since: now}
		h.attempts[name] = a
	}
	return a
}

func (h *health) recordPublish(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.attemptOf(name, now).begin(now)
}

// recordAnswer records that the Publish of a lane has returned.
func (h *health) recordAnswer(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.attempts[name]; a != nil {
		a.running = time.Time{}
	}
}

// recordAcknowledged records that changes of a lane were acknowledged in a Publish.
func (h *health) recordAcknowledged(name sinks.Lane, start time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if start.After(h.proof) {
		h.proof, h.proven = start, name
	}
	h.outage, h.ping, h.newest = time.Time{}, attempt{}, cause{Problem: h.newest.Problem}
	delete(h.attempts, name)
}

// recordFailure records that a Publish of a lane failed, or that it has to wait, because of err.
func (h *health) recordFailure(name sinks.Lane, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, p := time.Now(), condition.ProblemOf(err, condition.SinkFailing)
	a := h.attemptOf(name, now)
	a.failure.replace(p, now)
	a.alone = h.failsAlone(name, a, now)
	h.newest.replace(p, now)
}

// failsAlone reports whether other lanes deliver while this one does not: one of them was tried later and acknowledged. Of
// causesOfLanes it is enough that one was acknowledged shortly before, and that none has failed since. Requires h.mu.
func (h *health) failsAlone(name sinks.Lane, of *attempt, now time.Time) bool {
	if !h.proof.Before(of.since) {
		return true
	}
	if !slices.Contains(causesOfLanes, of.failure.Code) || !h.outage.IsZero() || h.proven == name || of.since.Sub(h.proof) > outageAfter {
		return false
	}
	for other, a := range h.attempts {
		if other != name && (a.failure.Code != "" || now.Sub(a.since) >= unansweredAfter) {
			return false
		}
	}
	return true
}

// forgetLane records that nothing of a lane is waiting for an acknowledgement, or that it does not exist any more.
func (h *health) forgetLane(name sinks.Lane) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attempts, name)
}

// labelsOf returns the names of lanes for log and status page. What has no lane becomes dead letters.
func labelsOf(names []sinks.Lane) (labels []string) {
	for _, name := range names {
		labels = append(labels, string(cmp.Or(name, "dead letters")))
	}
	return labels
}

func (h *health) recordPingStart(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ping.begin(now)
}

func (h *health) recordPing(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ping.running = time.Time{}
	if err == nil {
		h.reached, h.ping = true, attempt{}
		return
	}
	h.newest.replace(condition.ProblemOf(err, condition.SinkFailing), time.Now())
}

func (h *health) recordStore(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.storeFailure = err
}

// updateConditions derives the conditions of the sink and of its lanes. paused: no Publish proves the destination well or
// unhealthy, pings do. One goroutine calls it regularly.
func (h *health) updateConditions(s Stats, paused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, since := time.Now(), h.ping.since
	for name, a := range h.attempts {
		if !paused && !h.failsAlone(name, a, now) {
			since = condition.Earlier(since, a.since)
		}
	}
	switch {
	case since.IsZero():
		h.outage = time.Time{}
	case h.outage.IsZero() && now.Sub(since) >= outageAfter:
		h.outage = since
	}
	if h.outage.IsZero() {
		h.updateLanes(s.Lanes, now)
	}
	h.sink.UpdateSince(h.outage, h.currentProblem(s, now, paused))
}

// currentProblem returns what is wrong with the whole sink. Several causes of one outage are one problem with the newest of
// them: a destination that was closed and now hangs is reported as hanging. Requires h.mu.
func (h *health) currentProblem(s Stats, now time.Time, paused bool) condition.Problem {
	started := h.ping.running // of the try that has waited for its answer for longest
	for _, a := range h.attempts {
		started = condition.Earlier(started, a.running)
	}
	if !started.IsZero() && now.Sub(started) >= unansweredAfter && h.newest.Code != condition.SinkTimeout {
		h.newest.replace(condition.Problem{Code: condition.SinkTimeout, Cause: fmt.Sprintf("no answer for %d s", int(now.Sub(started).Seconds()))}, now)
	}
	switch {
	case h.storeFailure != nil:
		return condition.Caused(condition.ProgressUnstored, h.storeFailure)
	case !h.outage.IsZero():
		p := h.newest.Problem
		if slices.Contains(causesOfLanes, p.Code) {
			if lanes := h.lanesBy(func(a *attempt) bool { return a.failure.Code == p.Code })[p.Code]; len(lanes) > 0 {
				p = h.attempts[lanes[0]].failure.Problem
				p.Cause = condition.Status{Problem: p, Members: labelsOf(lanes), Of: s.Lanes}.CauseText()
			}
		}
		p.Severity = condition.NotReady // of a lane alone the same problem may be a warning
		if s.Lanes > 0 {
			p.Effect = fmt.Sprintf("no lane delivers, %d of %d wait; %s", len(h.attempts), s.Lanes, condition.SinkFailing.Kind().Effect)
		}
		return p
	case h.proof.IsZero() && (!h.reached || len(h.attempts) > 0 && !paused):
		return condition.Problem{Code: condition.SinkConnecting, Cause: h.newest.Cause, Remedy: h.newest.Remedy}
	}
	return condition.Problem{}
}

// lanesBy returns the lanes with attempts that count, by the code of their failure; first that which fails for longest.
// Requires h.mu.
func (h *health) lanesBy(counts func(*attempt) bool) map[condition.Code][]sinks.Lane {
	all := map[condition.Code][]sinks.Lane{}
	for name, a := range h.attempts {
		if counts(a) {
			all[a.failure.Code] = append(all[a.failure.Code], name)
		}
	}
	for _, names := range all {
		slices.SortFunc(names, func(a, b sinks.Lane) int {
			return cmp.Or(h.attempts[a].since.Compare(h.attempts[b].since), cmp.Compare(a, b))
		})
	}
	return all
}

// updateLanes derives one condition for each code of the lanes that fail while others deliver. Requires h.mu.
func (h *health) updateLanes(lanes int, now time.Time) {
	alone := h.lanesBy(func(a *attempt) bool { return a.alone && now.Sub(a.since) >= outageAfter })
	for code, names := range alone {
		f := h.faults[code]
		if f == nil {
			f = &laneFault{condition: condition.New(h.log, h.component, condition.Problem{}).QuietUntil(h.started.Add(startTakes))}
			h.faults[code] = f
		}
		first := h.attempts[names[0]]
		p := first.failure.Problem
		p.Severity, p.Effect = condition.Degraded, "the changes of these lanes wait in the journal; other lanes continue"
		f.members = labelsOf(names)
		f.condition.UpdateSince(first.since, p, "lanes", condition.CountNames(f.members, lanes))
	}
	for code, f := range h.faults {
		if len(alone[code]) == 0 {
			f.condition.Clear("lanes", condition.JoinNames(f.members))
			f.condition.Close()
			delete(h.faults, code)
		}
	}
}

// fillStats sets the conditions of the sink and of its failing lanes.
func (h *health) fillStats(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Condition = h.sink.Status()
	for _, code := range slices.Sorted(maps.Keys(h.faults)) {
		status := h.faults[code].condition.Status()
		status.Members, status.Of = h.faults[code].members, s.Lanes
		s.FailingLanes = append(s.FailingLanes, status)
	}
	slices.SortStableFunc(s.FailingLanes, func(a, b condition.Status) int { return a.Since.Compare(b.Since) })
}

// Conditions returns what is wrong: the status of the whole sink, or else those of lanes.
func (s Stats) Conditions() []condition.Status {
	if s.Condition.OK() && len(s.FailingLanes) > 0 {
		return s.FailingLanes
	}
	return []condition.Status{s.Condition}
}
