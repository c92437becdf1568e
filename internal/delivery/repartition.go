package delivery

import (
	"cmp"
	"slices"

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
		p.log.Info("lanes are replaced: objects go where they belong now", "reason", r.Reason, "lanes", len(r.To))
	}
}

// move gives what is queued for lanes that were replaced to the new ones. The caller holds p.naming.
func (p *Pipeline) move(r sinks.Repartition) error {
	for _, e := range p.backlog.remove(r) {
		name, moved, err := p.name(e.record(), e.topic)
		if err != nil {
			return err
		}
		moved.owned = e.owned
		if l := p.backlog.requeue(name, moved); l != nil {
			p.queue.Add(l)
		}
	}
	return nil
}

// pause keeps lanes that are to be replaced from being served, and says whether nothing of them is on its way. Where one
// is in trouble they go on, since nobody waits for it: those that the caller must hand to the workqueue are returned.
func (b *backlog) pause(r sinks.Repartition) (quiet bool, resumed []*lane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	trouble := func(name sinks.Lane) bool {
		l := b.lanes[name]
		return l != nil && (l.failing || l.next > 0)
	}
	pause := r.Gone || !slices.ContainsFunc(r.From, trouble)
	quiet = pause
	for _, name := range r.From {
		l := b.lane(name)
		l.paused = pause
		quiet = quiet && !l.working
		if !pause && !l.scheduled && !l.working && (l.failing || len(l.pending()) > 0) {
			l.scheduled, l.probing = true, false // also one that fails: its back-off was over meanwhile
			b.file(l)
			resumed = append(resumed, l)
		}
	}
	return quiet, resumed
}

// remove drops lanes that were replaced and returns what was queued for them, in order. Lanes that are gone take along
// what they had accepted: the new ones are behind from there.
func (b *backlog) remove(r sinks.Repartition) (queued []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := b.read
	for _, name := range r.From {
		l := b.lanes[name]
		from = min(from, l.position(b.read))
		if !r.Gone {
			queued = append(queued, l.pending()...)
		}
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
	if r.Gone && from < b.read {
		for _, name := range r.To {
			b.fallBehind(b.lane(name), from+1, b.lane(name).observed)
		}
	}
	wake(b.room)
	slices.SortFunc(queued, func(a, c entry) int { return cmp.Compare(a.offset, c.offset) })
	return queued
}

// requeue adds what was queued for another lane before.
func (b *backlog) requeue(name sinks.Lane, e entry) *lane {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lane(name)
	b.push(l, e)
	return b.schedule(l)
}
