package journal

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// request is something the committer does as part of a group.
type request interface {
	addTo(g *group) error
}

// queued is a request on its way to the committer.
type queued struct {
	request
	bytes int64
	done  chan error // receives the outcome, once; nil when nobody waits. Capacity 1.
}

// Append queues an observation for the next commit and returns at once. It owns the slices and changes from then on. Calls
// are logged in the order in which they return; one scope appends from one goroutine. It waits while PendingBytes are not
// yet committed, MaxBytes are stored or the disk has no more than Reserve left (I6), and fails only when ctx ends or the journal does.
func (j *Journal) Append(ctx context.Context, o event.Observation) error {
	if o.Resource.Resource == "" || o.Scope == "" {
		return fmt.Errorf("journal: append for resource %q, scope %q: both must be given", o.Resource, o.Scope)
	}
	j.mu.Lock()
	for {
		if err := j.refusal(); err != nil {
			j.mu.Unlock()
			return err
		}
		if j.admits() {
			j.enqueue(queued{request: &observed{o, j.bodies.note(&o)}, bytes: sizeOf(&o)})
			j.mu.Unlock()
			return nil
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("journal: append for %s: %w", o.Scope, context.Cause(ctx))
		case <-j.failed.ch:
		case <-j.ended:
		}
		j.mu.Lock()
	}
}

// enqueue hands q to the committer, and wakes it when there was nothing to do or a group is worth committing. The caller
// holds mu.
func (j *Journal) enqueue(q queued) {
	j.queue = append(j.queue, q)
	j.pending += q.bytes
	if len(j.queue) == 1 || j.pending >= j.enough() {
		j.poke()
	}
}

// poke makes the committer look. It never waits.
func (j *Journal) poke() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// notify makes those who wait look again. The caller holds mu.
func (j *Journal) notify() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// submit queues a request and waits until it is durable.
func (j *Journal) submit(ctx context.Context, r request) error {
	done := make(chan error, 1)
	j.mu.Lock()
	if err := j.refusal(); err != nil {
		j.mu.Unlock()
		return err
	}
	if n, ok := r.(interface{ noteTo(*bodies) }); ok {
		n.noteTo(&j.bodies)
	}
	j.enqueue(queued{request: r, done: done})
	j.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("journal: %w", context.Cause(ctx))
	case <-j.failed.ch:
		return j.failed.get()
	case <-j.ended:
	}
	select {
	case err := <-done: // committed by the last group
		return err
	default:
		return ErrClosed
	}
}

// observed is an observation with what it does to bodies.
type observed struct {
	event.Observation
	bodies []notedBody
}

// sizeOf estimates the memory an observation holds, in bytes.
func sizeOf(o *event.Observation) int64 {
	const perKnown = 160
	n := 128 + perKnown*int64(len(o.Known)+len(o.Forget))
	for _, c := range o.Changes {
		n += int64(c.Size())
	}
	for i := range o.Bodies {
		n += perKnown + int64(len(o.Bodies[i].Raw))
	}
	return n
}

func (o *observed) addTo(g *group) error {
	if err := g.storeResource(o.Resource); err != nil {
		return err
	}
	for _, c := range o.Changes {
		g.add(c)
	}
	o.storeKnown(g)
	g.storeBodies(o.bodies)
	g.bodies = append(g.bodies, o.bodies...)
	o.storeScope(g)
	return nil
}

func (o *observed) storeKnown(g *group) {
	if len(o.Known)+len(o.Forget) == 0 {
		return
	}
	g.key = appendNamePrefix(g.key[:0], prefixKnown, o.Resource.String())
	prefix := len(g.key)
	for i := range o.Known {
		k := &o.Known[i]
		g.key = append(g.key[:prefix], k.Key...)
		g.value = appendKnown(g.value[:0], k)
		g.set(g.key, g.value)
	}
	for _, key := range o.Forget {
		g.key = append(g.key[:prefix], key...)
		g.delete(g.key)
	}
}

// storeScope stores how far the scope has come, in the same batch as its changes (I1). Why history is lost is remembered until
// there is a position again.
func (o *observed) storeScope(g *group) {
	if o.Snapshot == "" && o.Lost == "" && o.Position == "" {
		return
	}
	place := scopePlace{o.Resource.String(), o.Scope}
	s := g.scope(place)
	if o.Lost != "" {
		s.Position, s.Snapshot, s.Lost = "", "", o.Lost
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.Lost, s.Pass = o.Position, "", ""
	}
	g.scopes[place] = s
}

// announcement forgets the recovery, and the reason to begin anew.
type announcement struct{}

func (announcement) addTo(g *group) error {
	g.delete(keyRecovery)
	g.delete(keyAnew)
	g.announced = true
	return nil
}
