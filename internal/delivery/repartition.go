package delivery

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
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
	abort    func(error)
}

// applyPending replaces the lanes of each pending repartition as soon as nothing of them is in flight. Until then their
// changes queue up. If one of the lanes fails or lags, none is replaced and all of them go on to deliver.
func (p *repartitioner) applyPending() {
	if p.sink == nil {
		return
	}
	p.resolver.mu.Lock()
	pending := p.sink.PendingRepartitions()
	p.resolver.mu.Unlock()
	p.queue.addLanes(p.replacer.resumeWithdrawn(pending)...)
	for _, r := range pending {
		quiet, resumed := p.replacer.pauseLanes(r)
		p.queue.addLanes(resumed...)
		if !quiet {
			continue
		}
		if err := p.applyRepartition(r); err != nil {
			p.abort(err)
			return
		}
		if r.Reason != "" {
			p.log.Info("lanes replaced", "reason", r.Reason, "lanes", len(r.To))
		}
	}
}

// applyRepartition replaces the lanes of one repartition, which are paused and have nothing in flight. An error is a defect
// of the sink.
func (p *repartitioner) applyRepartition(r sinks.Repartition) error {
	p.resolver.mu.Lock()
	p.sink.ApplyRepartition(r)
	err := p.moveQueuedChanges(r)
	p.resolver.mu.Unlock()
	for _, name := range r.From {
		p.health.forgetLane(name)
	}
	return err
}

// moveQueuedChanges moves what is queued for the replaced lanes to the new ones. Requires resolver.mu: no change may be
// queued for an old lane between the two steps.
func (p *repartitioner) moveQueuedChanges(r sinks.Repartition) error {
	var moved []placement
	last := uint64(0)
	for _, e := range p.replacer.queuedEntries(r) {
		if e.change.Type != event.Watermark {
			all, err := p.resolver.resolveLanes(e.originalRecord(), Route{Topic: e.topic})
			if err != nil {
				return err
			}
			moved = append(moved, placement{all[0].lane, e})
			continue
		}
		if e.offset == last { // the copy of another lane
			continue
		}
		last = e.offset
		all, err := p.resolver.resolveLanes(e.originalRecord(), Route{Topic: e.topic})
		if err != nil {
			return err
		}
		moved = append(moved, all...)
	}
	p.queue.addLanes(p.replacer.replaceLanes(r, moved)...)
	return nil
}

// formerLanes are the lanes that others have replaced. A new lane continues where the slowest of them was; what the others
// had settled beyond that is not published again when the new lane is read from the journal.
type formerLanes struct {
	laneOf  func(*event.Change) sinks.Lane
	settled map[sinks.Lane]uint64       // up to this offset
	newest  uint64                      // the highest of these
	before  map[sinks.Lane]*formerLanes // what these lanes had replaced, where that had settled more
}

// add records how far a lane is that is about to be replaced.
func (f *formerLanes) add(l *lane, read uint64) {
	upTo := l.settledUpTo(read)
	f.settled[l.name], f.newest = upTo, max(f.newest, upTo)
	if l.former != nil && l.former.newest > upTo {
		f.before[l.name], f.newest = l.former, max(f.newest, l.former.newest)
	}
}

// hasSettled reports whether the former lane of a change had settled it. A watermark had several.
func (f *formerLanes) hasSettled(c *event.Change, offset uint64) bool {
	if f == nil || offset > f.newest || c.Type == event.Watermark {
		return false
	}
	name := f.laneOf(c)
	return offset <= f.settled[name] || f.before[name].hasSettled(c, offset)
}

// laneReplacer is the part of the ledger that pauses and replaces lanes.
type laneReplacer struct {
	mu     *sync.Mutex // backlog.mu; guards the following
	lanes  *laneTable
	paused []sinks.Lane // may hold lanes that are not paused any more, or do not exist
}

func newLaneReplacer(b *backlog) *laneReplacer { return &laneReplacer{mu: &b.mu, lanes: &b.lanes} }

// pauseLanes pauses the lanes of r and reports whether nothing of them is in flight. If one of them fails, lags, is held or
// in doubt, it resumes all of them instead, because the repartition may then take very long; it returns those that the
// caller must add to the workqueue.
func (p *laneReplacer) pauseLanes(r sinks.Repartition) (quiet bool, resumed []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hasProblem := func(name sinks.Lane) bool {
		l := p.lanes.byName[name]
		return l != nil && (l.state.isFailing() || l.inDoubt || l.lagsFrom > 0 || l.held)
	}
	pause := r.Lost || !slices.ContainsFunc(r.From, hasProblem)
	quiet = pause
	for _, name := range r.From {
		l := p.lanes.ensureLane(name)
		quiet = quiet && !l.state.isPublishing()
		if l.paused = pause; pause {
			p.paused = append(p.paused, name)
		} else if p.claimResumed(l) {
			resumed = append(resumed, l)
		}
	}
	return quiet, resumed
}

// resumeWithdrawn resumes paused lanes if their repartition is no longer pending: a topic that was recreated may have got
// its old layout back. It returns those that the caller must add to the workqueue.
func (p *laneReplacer) resumeWithdrawn(pending []sinks.Repartition) (resumed []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.paused) == 0 {
		return nil
	}
	stillPending := map[sinks.Lane]bool{}
	for _, r := range pending {
		for _, name := range r.From {
			stillPending[name] = true
		}
	}
	for _, name := range p.paused {
		if l := p.lanes.byName[name]; l == nil || !l.paused || stillPending[name] {
			continue
		} else if l.paused = false; p.claimResumed(l) {
			resumed = append(resumed, l)
		}
	}
	p.paused = nil
	return resumed
}

// claimResumed schedules a lane that is not paused any more. If it returns true, the caller must add the lane to the
// workqueue. The back-off of a failing lane ended while it was paused. Requires mu.
func (p *laneReplacer) claimResumed(l *lane) bool {
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

// queuedEntries returns what is queued for the lanes of r, in journal order. These are paused: it does not change until
// replaceLanes.
func (p *laneReplacer) queuedEntries(r sinks.Repartition) (queued []entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Lost { // the new lanes read everything again
		return nil
	}
	for _, name := range r.From {
		queued = append(queued, p.lanes.byName[name].queue.pendingEntries()...)
	}
	slices.SortFunc(queued, func(a, b entry) int { return cmp.Compare(a.offset, b.offset) })
	return queued
}

// replaceLanes drops the old lanes and queues their entries with new ones, in one step: no cursor may miss these changes
// (I2). If the old lanes accept nothing any more, the new ones lag from the lowest position of the old. It returns the lanes
// that the caller must add to the workqueue.
func (p *laneReplacer) replaceLanes(r sinks.Repartition, moved []placement) (schedule []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.lanes
	former := &formerLanes{laneOf: r.FormerLane, settled: map[sinks.Lane]uint64{}, before: map[sinks.Lane]*formerLanes{}}
	from := t.read
	for _, name := range r.From {
		former.add(t.byName[name], t.read)
		from = min(from, former.settled[name])
		t.dropLane(t.byName[name])
	}
	for _, name := range r.To {
		l := t.ensureLane(name)
		l.former = former
		if r.Lost && from < t.read {
			t.startLagging(l, from+1, time.Time{})
		}
	}
	for _, m := range moved {
		l := t.ensureLane(m.lane)
		t.queueEntry(l, m.entry)
		if t.claimSchedule(l) != nil {
			schedule = append(schedule, l)
		}
	}
	signal(t.spaceFreed)
	return schedule
}
