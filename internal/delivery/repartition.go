package delivery

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// repartition replaces lanes where the sink asks for that, as soon as nothing of them is on its way. Until then their
// changes queue up; one that fails or is behind keeps the others of its set where they are, and these go on.
func (p *Pipeline) repartition() {
	changing, ok := p.sink.(sinks.Repartitioner)
	if !ok {
		return
	}
	p.naming.Lock()
	due := changing.Repartitions()
	p.naming.Unlock()
	p.hand(p.backlog.withdraw(due))
	for _, r := range due {
		quiet, resumed := p.backlog.pause(r)
		p.hand(resumed)
		if !quiet {
			continue
		}
		p.naming.Lock()
		changing.Repartition(r)
		err := p.move(r)
		p.naming.Unlock()
		for _, name := range r.From {
			p.health.laneWorks(name)
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

// move gives what is queued for lanes that were replaced to the new ones. The caller holds p.naming.
func (p *Pipeline) move(r sinks.Repartition) error {
	queued := p.backlog.queued(r)
	names := make([]sinks.Lane, len(queued))
	for i, e := range queued {
		var err error
		if names[i], _, err = p.name(e.record(), e.topic); err != nil {
			return err
		}
	}
	p.hand(p.backlog.replaceLanes(r, queued, names))
	return nil
}

// pause keeps lanes that are to be replaced from being served, and says whether nothing of them is on its way. Where one
// is in trouble they go on, since nobody waits for it: those that the caller must hand to the workqueue are returned.
func (b *backlog) pause(r sinks.Repartition) (quiet bool, resumed []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trouble := func(name sinks.Lane) bool {
		l := b.lanes[name]
		return l != nil && (l.failing || l.unsure || l.next > 0)
	}
	pause := r.Gone || !slices.ContainsFunc(r.From, trouble)
	quiet = pause
	for _, name := range r.From {
		l := b.lane(name)
		quiet = quiet && !l.working
		if l.paused = pause; pause {
			b.paused = append(b.paused, name)
		} else if b.resume(l) {
			resumed = append(resumed, l)
		}
	}
	return quiet, resumed
}

// withdraw lets lanes be served again that were to be replaced and are not any more: a topic that is made anew may come back
// as it was. It returns those that the caller must hand to the workqueue.
func (b *backlog) withdraw(due []sinks.Repartition) (resumed []*lane) {
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
		} else if l.paused = false; b.resume(l) {
			resumed = append(resumed, l)
		}
	}
	b.paused = nil
	return resumed
}

// resume claims a place in the workqueue for a lane that may be served. The caller holds b.mu.
func (b *backlog) resume(l *lane) bool {
	if l.scheduled || l.working || !l.failing && l.next == 0 && len(l.pending()) == 0 {
		return false
	}
	l.scheduled, l.probing, l.pass = true, false, 0 // also one that fails: its back-off was over meanwhile
	b.file(l)
	return true
}

// queued returns what is queued for lanes that are to be replaced, in order. Nothing changes that until replaceLanes.
func (b *backlog) queued(r sinks.Repartition) (queued []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Gone { // it is read again
		return nil
	}
	for _, name := range r.From {
		queued = append(queued, b.lanes[name].pending()...)
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
		from = min(from, b.lanes[name].position(b.read))
		b.drop(b.lanes[name])
	}
	if r.Gone && from < b.read {
		for _, name := range r.To {
			b.fallBehind(b.lane(name), from+1, time.Time{})
		}
	}
	for i, e := range queued {
		l := b.lane(names[i])
		b.push(l, e)
		if b.schedule(l) != nil {
			schedule = append(schedule, l)
		}
	}
	wake(b.room)
	return schedule
}

// drop empties l and forgets it. The caller holds b.mu.
func (b *backlog) drop(l *lane) {
	b.pending -= len(l.pending())
	l.cut(0)
	b.grow(l, -l.bytes)
	if l.next > 0 {
		b.catchUp(l)
	}
	if l.failing {
		l.failing = false
		b.failing--
	}
	b.file(l)
	b.forget(l)
}
