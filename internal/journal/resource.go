package journal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Resources returns the names of all resources of which anything is stored, in order. It shows what is committed.
func (j *Journal) Resources() ([]string, error) {
	if err := j.checkUsable(); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.resources)), nil
}

// LoadResource calls known, unless it is nil, for each known object of a resource, in order of keys, and returns what else
// is stored of it, which the caller must not modify; of a resource that is not known, nothing. The strings of a Known may be
// kept: they share no memory with those of others. known must not wait, and must not call the journal. It shows what is
// committed: call it before the resource appends.
func (j *Journal) LoadResource(name string, known func(event.Known)) (event.StoredResource, error) {
	done, err := j.acquireStore()
	if err != nil {
		return event.StoredResource{}, err
	}
	defer done()
	if known != nil {
		prefix := codec.AppendNamePrefix(nil, codec.PrefixKnown, name)
		err = j.forEachKey(prefix, func(key, value []byte) error {
			k, err := codec.DecodeKnown(key[len(prefix):], value)
			if err == nil {
				known(k)
			}
			return err
		})
	}
	if err != nil {
		return event.StoredResource{}, j.checkCorruption("known objects of "+name, err)
	}
	bodiless, err := j.getValue(codec.KeyBodiless(name))
	if err != nil {
		return event.StoredResource{}, j.checkCorruption("bodies of "+name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	stored := j.resources[name]
	stored.BodiesMissing = bodiless != nil
	return stored, nil
}

// SetScopes makes scopes, as they are given, the only scopes of a resource, and stores its version and kind. Known objects
// and bodies stay. Durable when it returns nil; ordered with Append.
func (j *Journal) SetScopes(ctx context.Context, r event.Resource, scopes []event.StoredScope) error {
	return j.submitRequest(ctx, func(g *group) error {
		stored, err := g.describeResource(r)
		if err == nil {
			stored.Scopes = sortScopes(scopes)
		}
		return err
	}, nil)
}

// RecordBodiesFilled says that a resource whose known objects were seeded without bodies has those that were found. Durable when it
// returns nil; ordered with Append.
func (j *Journal) RecordBodiesFilled(ctx context.Context, name string) error {
	return j.submitRequest(ctx, func(g *group) error { g.deleteKey(codec.KeyBodiless(name)); return nil }, nil)
}

// DropResource forgets all that is stored of a resource: known objects, bodies, scopes, version and kind. Its changes stay.
// Durable when it returns nil; ordered with Append.
func (j *Journal) DropResource(ctx context.Context, name string) error {
	return j.submitRequest(ctx, func(g *group) error { g.dropResource(name); return nil }, func(b *bodyIndex) { b.dropResource(name) })
}

// dropResource deletes all that is stored of a resource.
func (g *group) dropResource(name string) {
	g.deleteNamed(codec.PrefixKnown, name)
	g.deleteNamed(codec.PrefixBody, name)
	g.deleteKey(codec.KeyBodiless(name))
	*g.editResource(name) = event.StoredResource{}
}

// deleteNamed deletes all keys that belong to a resource under a first byte.
func (g *group) deleteNamed(first byte, resource string) {
	prefix := codec.AppendNamePrefix(nil, first, resource)
	_ = g.batch.DeleteRange(prefix, codec.KeyAfterPrefix(prefix), nil)
}

// dropResources is dropResource for all.
func (g *group) dropResources() {
	for name := range g.j.resources { // only this goroutine changes it
		g.dropResource(name)
	}
	for name := range g.resources {
		g.dropResource(name)
	}
}

// describeResource is resource for one that is stored from now on, in this version and kind.
func (g *group) describeResource(r event.Resource) (*event.StoredResource, error) {
	if r.Resource == "" {
		return nil, errors.New("journal: a resource has no name")
	}
	stored := g.editResource(r.String())
	stored.Resource = r
	return stored, nil
}

// editResource is what is stored of a resource as it will be after the commit, for the caller to change; zero where nothing is.
func (g *group) editResource(name string) *event.StoredResource {
	stored := g.resources[name]
	if stored == nil {
		r := g.j.resources[name] // only this goroutine changes it
		r.Scopes = slices.Clone(r.Scopes)
		stored = &r
		g.resources[name] = stored
	}
	return stored
}

// writeResources writes what differs of resources and their scopes from what is committed.
func (g *group) writeResources() {
	for name, now := range g.resources {
		before := g.j.resources[name]
		switch {
		case now.Resource == before.Resource:
		case now.Resource.Resource == "":
			g.deleteKey(codec.KeyResource(name))
		default:
			g.setKey(codec.KeyResource(name), codec.EncodeResource(now.Resource))
		}
		for _, s := range before.Scopes {
			if _, stays := slices.BinarySearchFunc(now.Scopes, s.ID, compareScopeID); !stays {
				g.deleteKey(codec.KeyNamed(codec.PrefixScope, name, s.ID))
			}
		}
		for _, s := range now.Scopes {
			if at, was := slices.BinarySearchFunc(before.Scopes, s.ID, compareScopeID); !was || before.Scopes[at] != s {
				g.setKey(codec.KeyNamed(codec.PrefixScope, name, s.ID), codec.EncodeScope(s))
			}
		}
	}
}

// compareScopeID orders scopes, as those of a StoredResource are ordered here.
func compareScopeID(s event.StoredScope, id string) int { return strings.Compare(s.ID, id) }

func sortScopes(scopes []event.StoredScope) []event.StoredScope {
	return slices.SortedFunc(slices.Values(scopes), func(a, b event.StoredScope) int { return compareScopeID(a, b.ID) })
}
