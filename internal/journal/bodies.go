package journal

import (
	"maps"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// bodyKey names a body.
type bodyKey struct{ resource, key string }

// pendingBody is a body, or its deletion, that was appended and is not committed yet.
type pendingBody struct {
	id      bodyKey
	body    event.Body
	deleted bool
}

// bodyIndex holds the bodies that were appended and are not committed yet, and the names of resources with bodies. It is
// changed in the order of the queue; lock order: queue.mu, then mu. The queue holds the same bodies, and bounds them (I6).
type bodyIndex struct {
	mu        sync.Mutex
	pending   map[bodyKey]*pendingBody
	resources map[string]bool // those with a body, stored or pending
}

// reset forgets everything: no resource has a body.
func (b *bodyIndex) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending, b.resources = map[bodyKey]*pendingBody{}, map[string]bool{}
}

// recordStored records that a resource has bodies in the store.
func (b *bodyIndex) recordStored(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resources[resource] = true
}

// recordPending records and returns what an observation that is being queued does to bodies: it stores those that it has,
// and before them deletes those of removed objects.
func (b *bodyIndex) recordPending(o *event.Observation) (pending []*pendingBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	resource := o.Resource.String()
	if len(o.Bodies) > 0 {
		b.resources[resource] = true
	}
	if !b.resources[resource] {
		return nil
	}
	for _, key := range o.RemovedKeys {
		pending = append(pending, &pendingBody{id: bodyKey{resource, key}, deleted: true})
	}
	for i := range o.Bodies {
		pending = append(pending, &pendingBody{id: bodyKey{resource, o.Bodies[i].Key}, body: o.Bodies[i]})
	}
	for _, p := range pending {
		b.pending[p.id] = p
	}
	return pending
}

// removeCommitted forgets pending bodies that are stored now. Newer ones of the same objects stay.
func (b *bodyIndex) removeCommitted(committed []*pendingBody) {
	if len(committed) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range committed {
		if b.pending[p.id] == p {
			delete(b.pending, p.id)
		}
	}
}

// removeResource records that a resource has no bodies once what is queued now is committed.
func (b *bodyIndex) removeResource(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.resources, resource)
	maps.DeleteFunc(b.pending, func(id bodyKey, _ *pendingBody) bool { return id.resource == resource })
}

// findPending returns the pending body of an object, nil where there is none, and whether its resource has bodies at all.
func (b *bodyIndex) findPending(resource, key string) (pending *pendingBody, has bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending[bodyKey{resource, key}], b.resources[resource]
}

// resourceNames returns the names of all resources that have bodies, in order.
func (b *bodyIndex) resourceNames() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.resources))
}
