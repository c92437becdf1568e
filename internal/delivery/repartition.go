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
		l.paused = pause
		quiet = quiet && !l.working
		if !pause && !l.scheduled && !l.working && (l.failing || len(l.pending()) > 0) {
			l.scheduled, l.probing, l.pass = true, false, 0 // also one that fails: its back-off was over meanwhile
			b.file(l)
			resumed = append(resumed, l)
		}
	}
	return quiet, resumed
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
