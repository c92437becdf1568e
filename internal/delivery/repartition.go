package delivery

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// applyRepartitions replaces lanes where the sink asks for that, as soon as nothing of them is on its way. Until then their
// changes queue up; one that fails or is behind keeps the others of its set where they are, and these go on.
func (p *Pipeline) applyRepartitions() {
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return
	}
	p.laneMu.Lock()
	due := changing.PendingRepartitions()
	p.laneMu.Unlock()
	p.enqueueLanes(p.backlog.resumeWithdrawn(due))
	for _, r := range due {
		quiet, resumed := p.backlog.pauseLanes(r)
		p.enqueueLanes(resumed)
		if !quiet {
			continue
		}
		p.laneMu.Lock()
		changing.ApplyRepartition(r)
		err := p.moveQueuedChanges(r)
		p.laneMu.Unlock()
		for _, name := range r.From {
			p.health.recordLaneRecovery(name)
		}
		if err != nil {
			p.abort(err)
			return
		}
		if r.Reason != "" {
			p.log.Info("lanes are replaced: objects go where they belong now", "reason", r.Reason, "lanes", len(r.To))
		}
	}
}

// moveQueuedChanges gives what is queued for lanes that were replaced to the new ones. The caller holds p.naming.
func (p *Pipeline) moveQueuedChanges(r sinks.Repartition) error {
	queued := p.backlog.queuedEntries(r)
	names := make([]sinks.Lane, len(queued))
	for i, e := range queued {
		var err error
		if names[i], _, err = p.resolveLane(e.originalRecord(), e.topic); err != nil {
			return err
		}
	}
	p.enqueueLanes(p.backlog.replaceLanes(r, queued, names))
	return nil
}

// pauseLanes keeps lanes that are to be replaced from being served, and says whether nothing of them is on its way. Where one
// is in trouble they go on, since nobody waits for it: those that the caller must hand to the workqueue are returned.
func (b *backlog) pauseLanes(r sinks.Repartition) (quiet bool, resumed []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trouble := func(name sinks.Lane) bool {
		l := b.lanes[name]
		return l != nil && (l.failing || l.inDoubt || l.lagsFrom > 0)
	}
	pause := r.Lost || !slices.ContainsFunc(r.From, trouble)
	quiet = pause
	for _, name := range r.From {
		l := b.ensureLane(name)
		quiet = quiet && !l.publishing
		if l.paused = pause; pause {
			b.paused = append(b.paused, name)
		} else if b.claimResumed(l) {
			resumed = append(resumed, l)
		}
	}
	return quiet, resumed
}

// resumeWithdrawn lets lanes be served again that were to be replaced and are not any more: a topic that is made anew may come back
// as it was. It returns those that the caller must hand to the workqueue.
func (b *backlog) resumeWithdrawn(due []sinks.Repartition) (resumed []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.paused) == 0 {
		return nil
	}
	still := map[sinks.Lane]bool{}
	for _, r := range due {
		for _, name := range r.From {
			still[name] = true
		}
	}
	for _, name := range b.paused {
		if l := b.lanes[name]; l == nil || !l.paused || still[name] {
			continue
		} else if l.paused = false; b.claimResumed(l) {
			resumed = append(resumed, l)
		}
	}
	b.paused = nil
	return resumed
}

// claimResumed claims a place in the workqueue for a lane that may be served. The caller holds b.mu.
func (b *backlog) claimResumed(l *lane) bool {
	if l.scheduled || l.publishing || !l.failing && l.lagsFrom == 0 && len(l.pendingEntries()) == 0 {
		return false
	}
	l.scheduled, l.reloading, l.pass = true, false, 0 // also one that fails: its back-off was over meanwhile
	b.updateMembership(l)
	return true
}

// queuedEntries returns what is queued for lanes that are to be replaced, in order. Nothing changes that until replaceLanes.
func (b *backlog) queuedEntries(r sinks.Repartition) (queued []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Lost { // it is read again
		return nil
	}
	for _, name := range r.From {
		queued = append(queued, b.lanes[name].pendingEntries()...)
	}
	slices.SortFunc(queued, func(a, c entry) int { return cmp.Compare(a.offset, c.offset) })
	return queued
}

// replaceLanes drops lanes and gives what was queued for them to others, whose names are given one by one, in one step: no
// cursor may miss it (I2). Lanes that are gone take along what they had accepted: the new ones are behind from there. It
// returns the lanes that the caller must hand to the workqueue.
func (b *backlog) replaceLanes(r sinks.Repartition, queued []entry, names []sinks.Lane) (schedule []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.read
	for _, name := range r.From {
		from = min(from, b.lanes[name].settledUpTo(b.read))
		b.dropLane(b.lanes[name])
	}
	if r.Lost && from < b.read {
		for _, name := range r.To {
			b.startLagging(b.ensureLane(name), from+1, time.Time{})
		}
	}
	for i, e := range queued {
		l := b.ensureLane(names[i])
		b.queueEntry(l, e)
		if b.claimSchedule(l) != nil {
			schedule = append(schedule, l)
		}
	}
	signal(b.spaceFreed)
	return schedule
}

// dropLane empties l and forgets it. The caller holds b.mu.
func (b *backlog) dropLane(l *lane) {
	b.pending -= len(l.pendingEntries())
	l.truncateQueue(0)
	b.addBytes(l, -l.bytes)
	if l.lagsFrom > 0 {
		b.stopLagging(l)
	}
	if l.failing {
		l.failing = false
		b.failing--
	}
	b.updateMembership(l)
	b.removeLane(l)
}
