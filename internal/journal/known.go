package journal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// KnownObjects holds what is stored of resources: their known objects and last bodies, which stay on disk, and their scopes
// with the positions, which are in memory too. Safe for concurrent use.
type KnownObjects struct {
	store   *store
	queue   *queue
	bodies  bodyIndex
	orphans *OrphanLedger

	// resources has what is committed of each resource, by name, without its objects. The committer's goroutine changes it,
	// with mu held, and reads it without.
	mu        sync.Mutex
	resources map[string]event.StoredResource
}

// Resources returns the names of all resources of which anything is stored, in order. It shows what is committed.
func (k *KnownObjects) Resources() ([]string, error) {
	if err := k.store.checkUsable(); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.resources)), nil
}

// LoadResource calls known, unless it is nil, for each known object of a resource, in order of keys, and returns what else
// is stored of it, which the caller must not modify; of a resource that is not known, nothing. The strings of a Known may be
// kept: they share no memory with those of others. known must not wait, and must not call the journal. It shows what is
// committed: call it before the resource appends.
func (k *KnownObjects) LoadResource(name string, known func(event.Known)) (event.StoredResource, error) {
	release, err := k.store.acquire()
	if err != nil {
		return event.StoredResource{}, err
	}
	defer release()
	if known != nil {
		prefix := codec.AppendNamePrefix(nil, codec.PrefixKnown, name)
		err = k.store.forEachKey(prefix, func(key, value []byte) error {
			object, err := codec.DecodeKnown(key[len(prefix):], value)
			if err == nil {
				known(object)
			}
			return err
		})
	}
	if err != nil {
		return event.StoredResource{}, k.store.checkCorruption("known objects of "+name, err)
	}
	bodiless, err := k.store.getValue(codec.KeyBodiless(name))
	if err != nil {
		return event.StoredResource{}, k.store.checkCorruption("bodies of "+name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	stored := k.resources[name]
	stored.BodiesMissing = bodiless != nil
	return stored, nil
}

// SetScopes replaces the scopes of a resource, and stores its version and kind. Known objects and bodies stay, and so does
// what is requested, see [event.CarrySnapshotRequests]. Durable when it returns nil; ordered with Append.
func (k *KnownObjects) SetScopes(ctx context.Context, r event.Resource, scopes []event.StoredScope) error {
	return k.queue.submit(ctx, func(g *group) error {
		stored, err := g.known.describeResource(r)
		if err == nil {
			next := sortScopes(scopes)
			event.CarrySnapshotRequests(stored.Scopes, next)
			stored.Scopes = next
		}
		return err
	}, nil)
}

// RecordBodiesFilled records that the bodies which a seed lacked were stored, as far as the objects exist. Durable when it
// returns nil; ordered with Append.
func (k *KnownObjects) RecordBodiesFilled(ctx context.Context, name string) error {
	return k.queue.submit(ctx, func(g *group) error { g.batch.removeKey(codec.KeyBodiless(name)); return nil }, nil)
}

// DropResource deletes all that is stored of a resource: known objects, bodies, scopes, version and kind. Its changes stay.
// Durable when it returns nil; ordered with Append.
func (k *KnownObjects) DropResource(ctx context.Context, name string) error {
	drop := func(g *group) error { g.known.dropResource(name); return nil }
	return k.queue.submit(ctx, drop, func() { k.bodies.removeResource(name) })
}

// Body returns the newest body of an object that was appended, committed or not; false when there is none. It costs a
// look-up in memory where the resource has no bodies at all, else about that of reading the body. The bytes must not be
// modified.
func (k *KnownObjects) Body(resource, key string) (event.Body, bool, error) {
	pending, has := k.bodies.findPending(resource, key)
	switch {
	case pending != nil:
		return pending.body, !pending.deleted, nil
	case !has:
		return event.Body{}, false, nil
	}
	release, err := k.store.acquire()
	if err != nil {
		return event.Body{}, false, err
	}
	defer release()
	stored, closer, err := k.store.db.Get(codec.KeyNamed(codec.PrefixBody, resource, key))
	if errors.Is(err, pebble.ErrNotFound) {
		return event.Body{}, false, nil
	}
	if err != nil {
		return event.Body{}, false, k.store.checkCorruption("body of "+key, err)
	}
	body, err := codec.DecodeBody(key, stored)
	if closeErr := closer.Close(); err == nil {
		err = closeErr
	}
	return body, err == nil, k.store.checkCorruption("body of "+key, err)
}

// BodyResources returns the names of all resources that have bodies, in order.
func (k *KnownObjects) BodyResources() []string { return k.bodies.resourceNames() }

// DropBodies deletes all bodies of a resource. Call it where no rule needs them any more, before the resource appends.
// Durable when it returns nil.
func (k *KnownObjects) DropBodies(ctx context.Context, resource string) error {
	drop := func(g *group) error { g.known.removeNamed(codec.PrefixBody, resource); return nil }
	return k.queue.submit(ctx, drop, func() { k.bodies.removeResource(resource) })
}

func (k *KnownObjects) loadFromStore() error {
	resources, err := loadResources(k.store.storeReader)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.resources = resources
	k.mu.Unlock()
	k.bodies.reset()
	return k.store.forEachName(codec.PrefixBody, k.bodies.recordStored)
}

// loadResources returns what is stored of each resource, by name, without its objects.
func loadResources(r storeReader) (map[string]event.StoredResource, error) {
	all := map[string]event.StoredResource{}
	return all, errors.Join(
		r.forEachKey([]byte{codec.PrefixResource}, func(key, value []byte) error {
			resource, err := codec.DecodeResource(value)
			all[string(key[1:])] = event.StoredResource{Resource: resource}
			return err
		}),
		r.forEachKey([]byte{codec.PrefixScope}, func(key, value []byte) error {
			resource, id, err := codec.SplitNamedKey(key)
			if err != nil {
				return err
			}
			s, err := codec.DecodeScope(id, value)
			stored := all[resource]
			stored.Scopes = append(stored.Scopes, s) // keys, and so IDs, come in order
			all[resource] = stored
			return err
		}))
}

// storedResources returns what is committed of all resources, by name. The caller must not modify it.
func (k *KnownObjects) storedResources() []event.StoredResource {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]event.StoredResource, 0, len(k.resources))
	for _, name := range slices.Sorted(maps.Keys(k.resources)) {
		all = append(all, k.resources[name])
	}
	return all
}

// publishWrite makes what a committed group did to resources visible.
func (k *KnownObjects) publishWrite(w *knownWrite) {
	k.mu.Lock()
	for name, r := range w.edited {
		if k.resources[name] = *r; r.Resource.Resource == "" {
			delete(k.resources, name)
		}
	}
	k.mu.Unlock()
	k.bodies.removeCommitted(w.bodies)
}

type knownWrite struct {
	known  *KnownObjects
	batch  *writeBatch
	edited map[string]*event.StoredResource // as they will be after the commit
	bodies []*pendingBody                   // that are committed with the group
}

func (k *KnownObjects) newWrite(b *writeBatch) knownWrite {
	return knownWrite{known: k, batch: b, edited: map[string]*event.StoredResource{}}
}

// addObservation stores an observation, with what it does to bodies. The position of the scope is in the same batch as its
// changes (I1).
func (w *knownWrite) addObservation(o *event.Observation, bodies []*pendingBody, log *logWrite) error {
	stored, err := w.describeResource(o.Resource)
	if err != nil {
		return err
	}
	for _, c := range o.Changes {
		log.addChange(c)
	}
	w.storeKnown(o.Resource.String(), o.Known, o.RemovedKeys)
	w.storeBodies(bodies)
	if o.Snapshot != "" || o.LostReason != "" || o.Position != "" || o.EndedRequest != "" {
		updateScope(stored, o)
	}
	return nil
}

// storeKnown stores known objects of a resource and removes others.
func (w *knownWrite) storeKnown(resource string, known []event.Known, removed []string) {
	b := w.batch
	b.key = codec.AppendNamePrefix(b.key[:0], codec.PrefixKnown, resource)
	prefix := len(b.key)
	for i := range known {
		w.known.orphans.touchObject(resource, known[i].Key, "")
		b.key = append(b.key[:prefix], known[i].Key...)
		b.value = codec.AppendKnown(b.value[:0], &known[i])
		b.putKey(b.key, b.value)
	}
	for _, key := range removed {
		w.known.orphans.touchObject(resource, key, "")
		b.key = append(b.key[:prefix], key...)
		b.removeKey(b.key)
	}
}

func (w *knownWrite) storeBodies(pending []*pendingBody) {
	w.bodies = append(w.bodies, pending...)
	b := w.batch
	for _, p := range pending {
		b.key = append(codec.AppendNamePrefix(b.key[:0], codec.PrefixBody, p.id.resource), p.id.key...)
		if p.deleted {
			b.removeKey(b.key)
			continue
		}
		b.value, b.compressed = codec.AppendBody(b.value[:0], b.compressed, &p.body)
		b.putKey(b.key, b.value)
	}
}

// updateScope records how far the scope has come. The reason why history is lost stays until there is a position again.
func updateScope(stored *event.StoredResource, o *event.Observation) {
	at, there := slices.BinarySearchFunc(stored.Scopes, o.Scope, compareScopeID)
	if !there {
		stored.Scopes = slices.Insert(stored.Scopes, at, event.StoredScope{ID: o.Scope})
	}
	s := &stored.Scopes[at]
	if o.LostReason != "" {
		s.Position, s.AheadUpTo, s.Snapshot, s.LostReason = "", "", "", o.LostReason
	}
	if o.Snapshot != "" {
		s.Snapshot = o.Snapshot
	}
	if o.Position != "" {
		s.Position, s.AheadUpTo, s.LostReason, s.Pass = o.Position, o.AheadUpTo, "", ""
	}
	if o.EndedRequest != "" {
		s.EndSnapshotRequest(o.EndedRequest, o.EndedCount, o.EndedAbsent)
	}
}

// describeResource returns a resource for editing, and stores its version and kind.
func (w *knownWrite) describeResource(r event.Resource) (*event.StoredResource, error) {
	if r.Resource == "" {
		return nil, errors.New("journal: a resource has no name")
	}
	stored := w.editResource(r.String())
	stored.Resource = r
	return stored, nil
}

// editResource is a resource as it will be after the commit, for the caller to change; zero where nothing is stored of it.
func (w *knownWrite) editResource(name string) *event.StoredResource {
	stored := w.edited[name]
	if stored == nil {
		r := w.known.resources[name] // only this goroutine changes it
		r.Scopes = slices.Clone(r.Scopes)
		stored = &r
		w.edited[name] = stored
	}
	return stored
}

// allResources returns what is stored of all resources after the commit, by name. The caller must not modify it.
func (w *knownWrite) allResources() map[string]event.StoredResource {
	all := maps.Clone(w.known.resources) // only this goroutine changes it
	for name, r := range w.edited {
		if all[name] = *r; r.Resource.Resource == "" {
			delete(all, name)
		}
	}
	return all
}

func (w *knownWrite) dropResource(name string) {
	w.removeNamed(codec.PrefixKnown, name)
	w.removeNamed(codec.PrefixBody, name)
	w.batch.removeKey(codec.KeyBodiless(name))
	*w.editResource(name) = event.StoredResource{}
}

// dropAll is dropResource for all resources.
func (w *knownWrite) dropAll() {
	for name := range w.known.resources { // only this goroutine changes it
		w.dropResource(name)
	}
	for name := range w.edited {
		w.dropResource(name)
	}
}

// removeNamed deletes all keys that belong to a resource under a first byte.
func (w *knownWrite) removeNamed(first byte, resource string) {
	w.batch.removePrefix(codec.AppendNamePrefix(nil, first, resource))
}

// writeResources stores what differs of resources and their scopes from what is committed.
func (w *knownWrite) writeResources() {
	for name, now := range w.edited {
		before := w.known.resources[name]
		switch {
		case now.Resource == before.Resource:
		case now.Resource.Resource == "":
			w.batch.removeKey(codec.KeyResource(name))
		default:
			w.batch.putKey(codec.KeyResource(name), codec.EncodeResource(now.Resource))
		}
		for _, s := range before.Scopes {
			if _, stays := slices.BinarySearchFunc(now.Scopes, s.ID, compareScopeID); !stays {
				w.batch.removeKey(codec.KeyNamed(codec.PrefixScope, name, s.ID))
			}
		}
		for _, s := range now.Scopes {
			if at, was := slices.BinarySearchFunc(before.Scopes, s.ID, compareScopeID); !was || before.Scopes[at] != s {
				w.batch.putKey(codec.KeyNamed(codec.PrefixScope, name, s.ID), codec.EncodeScope(s))
			}
		}
	}
}

// compareScopeID orders scopes by ID, which is the order of a StoredResource here.
func compareScopeID(s event.StoredScope, id string) int { return strings.Compare(s.ID, id) }

func sortScopes(scopes []event.StoredScope) []event.StoredScope {
	return slices.SortedFunc(slices.Values(scopes), func(a, b event.StoredScope) int { return compareScopeID(a, b.ID) })
}
