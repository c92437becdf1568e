package delivery

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// repartitioner replaces lanes by others when the sink asks for it: a topic has more partitions, or was recreated.
type repartitioner struct {
	log      *slog.Logger
	sink     sinks.Repartitioner // nil: the lanes of the sink never change
	replacer *laneReplacer
	resolver *laneResolver
	queue    *laneQueue
	health   *health
}

// applyPending replaces the lanes of each pending repartition as soon as they have settled the same. If one of the lanes
// fails or lags, none is replaced and all of them go on to deliver.
func (p *repartitioner) applyPending() {
	if p.sink == nil {
		return
	}
	p.resolver.mu.Lock()
	pending := p.sink.PendingRepartitions()
	p.resolver.mu.Unlock()
	p.queue.addLanes(p.replacer.resumeWithdrawn(pending)...)
	for _, r := range pending {
		stopped, resumed := p.replacer.stopLanes(r)
		p.queue.addLanes(resumed...)
		if !stopped {
			continue
		}
		p.applyRepartition(r)
		if r.Reason != "" {
			p.log.Info("lanes replaced", "reason", r.Reason, "lanes", len(r.To))
		}
	}
}

// applyRepartition replaces the lanes of one repartition. No change may be queued for an old lane between the two steps.
func (p *repartitioner) applyRepartition(r sinks.Repartition) {
	p.resolver.mu.Lock()
	p.sink.ApplyRepartition(r)
	p.replacer.replaceLanes(r)
	p.resolver.mu.Unlock()
	for _, name := range r.From {
		p.health.forgetLane(name)
	}
}

// laneReplacer is the part of the ledger that stops and replaces lanes.
type laneReplacer struct {
	mu      *sync.Mutex // backlog.mu; guards the following
	lanes   *laneTable
	stopped []sinks.Lane // may hold lanes that have resumed, or do not exist
}

func newLaneReplacer(b *backlog) *laneReplacer { return &laneReplacer{mu: &b.mu, lanes: &b.lanes} }

// stopLanes stops the lanes of r and reports whether nothing of them is in flight. Several lanes deliver what they have
// queued first and get nothing more: the new lanes begin where all of them have got to, so that nothing but the positions
// of lanes is to be known, also after a crash. A single lane, and those that are lost, are paused. If one of the lanes
// fails, lags, is held or in doubt, all of them are resumed instead, because the repartition may then take very long; it
// returns those that the caller must add to the workqueue.
func (p *laneReplacer) stopLanes(r sinks.Repartition) (stopped bool, resumed []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hasProblem := func(name sinks.Lane) bool {
		l := p.lanes.byName[name]
		return l != nil && (l.state.isFailing() || l.inDoubt || l.lagsFrom != l.drainedAt || l.held)
	}
	stop := r.Lost || !slices.ContainsFunc(r.From, hasProblem)
	drain := !r.Lost && len(r.From) > 1
	stopped = stop
	for _, name := range r.From {
		l := p.lanes.ensureLane(name)
		stopped = stopped && !l.state.isPublishing() && (!drain || l.queue.entryCount() == 0)
		switch {
		case !stop:
			if p.resumeLane(l) {
				resumed = append(resumed, l)
			}
			continue
		case !drain:
			l.paused = true
		case l.drainedAt == 0:
			p.lanes.startDraining(l)
		}
		p.stopped = append(p.stopped, name)
	}
	return stopped, resumed
}

// resumeWithdrawn resumes stopped lanes if their repartition is no longer pending: a topic that was recreated may have got
// its old layout back. It returns those that the caller must add to the workqueue.
func (p *laneReplacer) resumeWithdrawn(pending []sinks.Repartition) (resumed []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.stopped) == 0 {
		return nil
	}
	stillPending := map[sinks.Lane]bool{}
	for _, r := range pending {
		for _, name := range r.From {
			stillPending[name] = true
		}
	}
	for _, name := range p.stopped {
		if l := p.lanes.byName[name]; l != nil && !stillPending[name] && p.resumeLane(l) {
			resumed = append(resumed, l)
		}
	}
	p.stopped = nil
	return resumed
}

// resumeLane lets a lane go on that was stopped. If it returns true, the caller must add the lane to the workqueue. The
// back-off of a failing lane ended while it was paused. Requires mu.
func (p *laneReplacer) resumeLane(l *lane) bool {
	if l.drainedAt > 0 {
		p.lanes.stopDraining(l)
	}
	l.paused = false
	switch {
	case l.state.isScheduled():
		return false
	case l.state.isFailing():
		p.lanes.become(l, backingOff)
	case l.lagsFrom == 0 && l.queue.entryCount() == 0:
		return false
	default:
		p.lanes.become(l, queued)
	}
	l.pass = 0
	return true
}

// replaceLanes drops the old lanes. The new ones lag from the lowest position of these, in one step: no cursor may miss
// these changes (I2).
func (p *laneReplacer) replaceLanes(r sinks.Repartition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.lanes
	from := t.read
	for _, name := range r.From {
		l := t.byName[name]
		from = min(from, l.settledUpTo(t.read))
		t.dropLane(l)
	}
	for _, name := range r.To {
		if l := t.ensureLane(name); from < t.read {
			t.startLagging(l, from+1, time.Time{})
		}
	}
	ratelimit.Wake(t.spaceFreed)
}
