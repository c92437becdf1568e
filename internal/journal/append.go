package journal

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// request is something the committer does as part of a group.
type request func(g *group) error

// queued is a request on its way to the committer.
type queued struct {
	request
	bytes int64      // that Append is bounded by
	size  int64      // of a patient one
	done  chan error // receives the outcome, once; nil when nobody waits. Capacity 1.
}

// Append queues an observation for the next commit and returns at once. It owns the slices and changes from then on. Calls
// are logged in the order in which they return; one scope appends from one goroutine. It waits while PendingBytes are not
// yet committed, MaxBytes are stored or the disk has no more than Reserve left (I6), and fails only when ctx ends or the
// journal does.
func (j *Journal) Append(ctx context.Context, o event.Observation) error {
	if o.Resource.Resource == "" || o.Scope == "" {
		return fmt.Errorf("journal: append for resource %q, scope %q: both must be given", o.Resource, o.Scope)
	}
	j.mu.Lock()
	for {
		if err := j.checkUsable(); err != nil {
			j.mu.Unlock()
			return err
		}
		if j.hasSpaceForAppend() {
			noted := j.bodies.recordPending(&o)
			j.enqueueRequest(queued{request: func(g *group) error { return g.addObservation(&o, noted) }, bytes: observationSize(&o)})
			j.mu.Unlock()
			return nil
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("journal: append for %s: %w", o.Scope, context.Cause(ctx))
		case <-j.storeFailure.done:
		case <-j.closed:
		}
		j.mu.Lock()
	}
}

// enqueueRequest hands q to the committer, and wakes it when there was nothing to do or a group is worth committing. The caller
// holds mu.
func (j *Journal) enqueueRequest(q queued) {
	j.queue = append(j.queue, q)
	j.pending += q.bytes
	if len(j.queue) == 1 || j.pending >= j.groupTarget() {
		j.signalCommitter()
	}
}

// signalCommitter makes the committer look. It never waits.
func (j *Journal) signalCommitter() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// notifyWaiters makes those who wait look again. The caller holds mu.
func (j *Journal) notifyWaiters() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// submitRequest queues a request and waits until it is durable. note, if it is not nil, says at once what it does to bodies.
func (j *Journal) submitRequest(ctx context.Context, r request, note func(*bodyIndex)) error {
	done := make(chan error, 1)
	j.mu.Lock()
	if err := j.checkUsable(); err != nil {
		j.mu.Unlock()
		return err
	}
	if note != nil {
		note(&j.bodies)
	}
	j.enqueueRequest(queued{request: r, done: done})
	j.mu.Unlock()
	return j.waitForOutcome(ctx, done)
}

// waitForOutcome waits until a request is durable, or refused.
func (j *Journal) waitForOutcome(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("journal: %w", context.Cause(ctx))
	case <-j.storeFailure.done:
		return j.storeFailure.current()
	case <-j.closed:
	}
	select {
	case err := <-done: // committed by the last group
		return err
	default:
		return ErrClosed
	}
}

// observationSize estimates the memory an observation holds, in bytes.
func observationSize(o *event.Observation) int64 {
	const perKnown = 160
	n := 128 + perKnown*int64(len(o.Known)+len(o.RemovedKeys))
	for _, c := range o.Changes {
		n += int64(c.Size())
	}
	for i := range o.Bodies {
		n += perKnown + int64(len(o.Bodies[i].Raw))
	}
	return n
}

// addObservation stores an observation, with what it does to bodies.
func (g *group) addObservation(o *event.Observation, bodies []*pendingBody) error {
	stored, err := g.describeResource(o.Resource)
	if err != nil {
		return err
	}
	for _, c := range o.Changes {
		g.addChange(c)
	}
	g.storeKnown(o.Resource.String(), o.Known, o.RemovedKeys)
	g.storeBodies(bodies)
	if o.Snapshot != "" || o.LostReason != "" || o.Position != "" {
		storeScope(stored, o)
	}
	return nil
}

// storeKnown stores known objects of a resource and forgets others.
func (g *group) storeKnown(resource string, known []event.Known, forget []string) {
	g.key = codec.AppendNamePrefix(g.key[:0], codec.PrefixKnown, resource)
	prefix := len(g.key)
	for i := range known {
		g.key = append(g.key[:prefix], known[i].Key...)
		g.value = codec.AppendKnown(g.value[:0], &known[i])
		g.setKey(g.key, g.value)
	}
	for _, key := range forget {
		g.key = append(g.key[:prefix], key...)
		g.deleteKey(g.key)
	}
}

// storeScope stores how far the scope has come, in the same batch as its changes (I1). Why history is lost is remembered
// until there is a position again.
func storeScope(stored *event.StoredResource, o *event.Observation) {
	at, there := slices.BinarySearchFunc(stored.Scopes, o.Scope, compareScopeID)
	if !there {
		stored.Scopes = slices.Insert(stored.Scopes, at, event.StoredScope{ID: o.Scope})
	}
	s := &stored.Scopes[at]
	if o.LostReason != "" {
		s.Position, s.Snapshot, s.LostReason = "", "", o.LostReason
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.LostReason, s.Pass = o.Position, "", ""
	}
}

// RecordGapsEmitted says that the gaps which Recovered and BegunAnew asked for are in the journal. Durable when it returns nil.
func (j *Journal) RecordGapsEmitted(ctx context.Context) error {
	return j.submitRequest(ctx, func(g *group) error {
		g.deleteKey(codec.KeyRecovery)
		g.deleteKey(codec.KeyResetReason)
		g.gapsEmitted = true
		return nil
	}, nil)
}

// Flush waits until everything appended before it is durable and visible to readers.
func (j *Journal) Flush(ctx context.Context) error {
	return j.submitRequest(ctx, func(*group) error { return nil }, nil)
}
