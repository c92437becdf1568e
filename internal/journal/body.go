package journal

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// bodyKey names a body.
type bodyKey struct{ resource, key string }

// pendingBody is a body, or with gone its deletion, that was appended and is not committed yet.
type pendingBody struct {
	id      bodyKey
	body    event.Body
	deleted bool
}

// bodyIndex knows the bodies that were appended and are not committed yet, and which resources have any. The journal's mu
// guards it. What it holds is held by the queue as well, and bounded with it (I6).
type bodyIndex struct {
	pending   map[bodyKey]*pendingBody
	resources map[string]bool // those with a body, stored or pending
}

func newBodyIndex() bodyIndex {
	return bodyIndex{pending: map[bodyKey]*pendingBody{}, resources: map[string]bool{}}
}

// recordPending returns what an observation that is being queued does to bodies: those it brings, and before them the deletion of
// those whose object is journaled as deleted.
func (b *bodyIndex) recordPending(o *event.Observation) (noted []*pendingBody) {
	resource := o.Resource.String()
	if len(o.Bodies) > 0 {
		b.resources[resource] = true
	}
	if !b.resources[resource] {
		return nil
	}
	for _, key := range o.RemovedKeys {
		noted = append(noted, &pendingBody{id: bodyKey{resource, key}, deleted: true})
	}
	for i := range o.Bodies {
		noted = append(noted, &pendingBody{id: bodyKey{resource, o.Bodies[i].Key}, body: o.Bodies[i]})
	}
	for _, p := range noted {
		b.pending[p.id] = p
	}
	return noted
}

// removeCommitted forgets what is stored now, unless something newer has taken its place.
func (b *bodyIndex) removeCommitted(noted []*pendingBody) {
	for _, p := range noted {
		if b.pending[p.id] == p {
			delete(b.pending, p.id)
		}
	}
}

// dropResource notes that a resource has no bodies once what is queued now is committed.
func (b *bodyIndex) dropResource(resource string) {
	delete(b.resources, resource)
	maps.DeleteFunc(b.pending, func(place bodyKey, _ *pendingBody) bool { return place.resource == resource })
}

// Body returns the newest body of an object that was appended, committed or not; false when there is none. It costs a
// look-up in memory where the resource has no bodies at all, else about that of reading the body. The bytes must not be
// modified.
func (j *Journal) Body(resource, key string) (event.Body, bool, error) {
	j.mu.Lock()
	has, pending := j.bodies.resources[resource], j.bodies.pending[bodyKey{resource, key}]
	j.mu.Unlock()
	switch {
	case pending != nil:
		return pending.body, !pending.deleted, nil
	case !has:
		return event.Body{}, false, nil
	}
	done, err := j.acquireStore()
	if err != nil {
		return event.Body{}, false, err
	}
	defer done()
	stored, closer, err := j.db.Get(codec.KeyNamed(codec.PrefixBody, resource, key))
	if errors.Is(err, pebble.ErrNotFound) {
		return event.Body{}, false, nil
	}
	if err != nil {
		return event.Body{}, false, j.checkCorruption("body of "+key, err)
	}
	body, err := codec.DecodeBody(key, stored)
	if closeErr := closer.Close(); err == nil {
		err = closeErr
	}
	return body, err == nil, j.checkCorruption("body of "+key, err)
}

// BodyResources returns the names of all resources that have bodies, in order.
func (j *Journal) BodyResources() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.bodies.resources))
}

// DropBodies deletes all bodies of a resource. Call it where nothing asks for them any more, before the resource appends.
// Durable when it returns nil.
func (j *Journal) DropBodies(ctx context.Context, resource string) error {
	return j.submitRequest(ctx, func(g *group) error { g.deleteNamed(codec.PrefixBody, resource); return nil }, func(b *bodyIndex) { b.dropResource(resource) })
}

// storeBodies writes and deletes bodies.
func (g *group) storeBodies(noted []*pendingBody) {
	g.bodies = append(g.bodies, noted...)
	for _, p := range noted {
		g.key = append(codec.AppendNamePrefix(g.key[:0], codec.PrefixBody, p.id.resource), p.id.key...)
		if p.deleted {
			g.deleteKey(g.key)
			continue
		}
		g.value, g.compressed = codec.AppendBody(g.value[:0], g.compressed, &p.body)
		g.setKey(g.key, g.value)
	}
}
