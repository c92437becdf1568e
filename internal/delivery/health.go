package delivery

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Retries are counted; the log gets one line per change of state. A pipeline has thousands of lanes that may flap, so
// "lanes fail" is one state of the whole pipeline, and it ends only after this long without a failure.
const (
	calmAfter       = 5 * time.Second
	deadLetterEvery = 10 * time.Second // at most one line about dead letters in this time, and one about reduced changes
)

// health turns events into log lines per change of state and into reasons for readiness. Safe for concurrent use.
type health struct {
	log *slog.Logger

	mu          sync.Mutex
	failing     int // lanes in back-off
	reported    bool
	laneReason  string
	lastFailure time.Time

	blockedReason string // why the dispatcher cannot go on
	blockedSince  time.Time
	blockedOn     *event.Change
	blockedLogged bool

	settleReason string

	reducedUnlogged int
	reducedLast     *event.Change
	reducedReason   string
	reducedLogged   time.Time

	deadUnlogged int
	deadReason   string
	deadLogged   time.Time
}

func newHealth(log *slog.Logger) *health { return &health{log: log} }

// laneFails notes that l goes into back-off.
func (h *health) laneFails(l *lane, err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.laneReason, h.lastFailure = string(l.name)+": "+err.Error(), now
	if !l.failing {
		l.failing = true
		h.failing++
	}
	if !h.reported {
		h.reported = true
		h.log.Warn("a lane fails and is tried again with back-off; other lanes go on", "lane", l.name, "error", err)
	}
}

// laneWorks notes that l left its back-off, if it was in one.
func (h *health) laneWorks(l *lane) {
	if !l.failing {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l.failing = false
	h.failing--
}

// blocked notes that nothing behind r can be delivered for now. An unavailable sink is the gate's to log.
func (h *health) blocked(r event.Record, err error, kind failure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blockedOn == nil {
		h.blockedOn, h.blockedSince = r.Change, time.Now()
	}
	if kind != unavailable && !h.blockedLogged {
		h.blockedLogged = true
		h.log.Warn("a change has no lane yet; everything behind it waits", "offset", r.Offset, "key", r.Change.Key(), "error", err)
	}
	h.blockedReason = err.Error()
}

// routed notes that the dispatcher goes on.
func (h *health) routed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blockedLogged {
		h.log.Info("the change that had no lane goes on", "waited", time.Since(h.blockedSince).Round(time.Millisecond))
	}
	h.blockedOn, h.blockedReason, h.blockedLogged = nil, "", false
}

// reduced notes that a change was too large and is sent without a part of it. Several steps of one change count once.
func (h *health) reduced(c *event.Change, reason *sinks.RejectedError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reducedLast == nil || h.reducedLast.ID() != c.ID() {
		h.reducedUnlogged++
	}
	h.reducedLast, h.reducedReason = &event.Change{
		Type: c.Type, Cluster: c.Cluster, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		ResourceVersion: c.ResourceVersion, Snapshot: c.Snapshot, Pass: c.Pass, Omitted: c.Omitted,
	}, reason.Error()
}

// deadLettered notes a change that was rejected.
func (h *health) deadLettered(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadUnlogged++
	h.deadReason = err.Error()
}

// settled notes how storing the cursor went.
func (h *health) settled(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && h.settleReason != "":
		h.settleReason = ""
		h.log.Info("progress is stored again")
	case err != nil && h.settleReason == "":
		h.log.Error("progress cannot be stored; delivery goes on and is repeated from the stored position after a restart", "error", err)
		fallthrough
	case err != nil:
		h.settleReason = err.Error()
	}
}

// tick writes the lines that wait for time to pass.
func (h *health) tick(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reported && h.failing == 0 && now.Sub(h.lastFailure) >= calmAfter {
		h.reported, h.laneReason = false, ""
		h.log.Info("all lanes deliver again")
	}
	if h.reducedUnlogged > 0 && now.Sub(h.reducedLogged) >= deadLetterEvery {
		h.log.Warn("changes are too large for the destination and are sent without parts of them; onOversize: deadLetter keeps them whole",
			"count", h.reducedUnlogged, "last", h.reducedLast.Key(), "without", h.reducedLast.Omitted, "reason", h.reducedReason)
		h.reducedUnlogged, h.reducedLogged = 0, now
	}
	if h.deadUnlogged > 0 && now.Sub(h.deadLogged) >= deadLetterEvery {
		h.log.Warn("changes were rejected for ever and are dead letters", "count", h.deadUnlogged, "lastReason", h.deadReason)
		h.deadUnlogged, h.deadLogged = 0, now
	}
}

// describe fills in what health knows.
func (h *health) describe(s *Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.LanesBackingOff, s.LaneReason = h.failing, h.laneReason
	s.BlockedReason, s.SettleReason = h.blockedReason, h.settleReason
	if s.OldestObserved.IsZero() && h.blockedOn != nil {
		s.OldestObserved = h.blockedOn.ObservedAt
	}
}
