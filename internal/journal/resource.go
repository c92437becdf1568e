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
	if err := j.refusal(); err != nil {
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
	done, err := j.use()
	if err != nil {
		return event.StoredResource{}, err
	}
	defer done()
	if known != nil {
		prefix := codec.AppendNamePrefix(nil, codec.PrefixKnown, name)
		err = j.each(prefix, func(key, value []byte) error {
			k, err := codec.DecodeKnown(key[len(prefix):], value)
			if err == nil {
				known(k)
			}
			return err
		})
	}
	if err != nil {
		return event.StoredResource{}, j.checked("known objects of "+name, err)
	}
	bodiless, err := j.get(codec.KeyBodiless(name))
	if err != nil {
		return event.StoredResource{}, j.checked("bodies of "+name, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	stored := j.resources[name]
	stored.Bodiless = bodiless != nil
	return stored, nil
}

// SetScopes makes scopes, as they are given, the only scopes of a resource, and stores its version and kind. Known objects
// and bodies stay. Durable when it returns nil; ordered with Append.
func (j *Journal) SetScopes(ctx context.Context, r event.Resource, scopes []event.StoredScope) error {
	return j.submit(ctx, func(g *group) error {
		stored, err := g.of(r)
		if err == nil {
			stored.Scopes = sorted(scopes)
		}
		return err
	}, nil)
}

// Filled says that a resource whose known objects were seeded without bodies has those that were found. Durable when it
// returns nil; ordered with Append.
func (j *Journal) Filled(ctx context.Context, name string) error {
	return j.submit(ctx, func(g *group) error { g.delete(codec.KeyBodiless(name)); return nil }, nil)
}

// DropResource forgets all that is stored of a resource: known objects, bodies, scopes, version and kind. Its changes stay.
// Durable when it returns nil; ordered with Append.
func (j *Journal) DropResource(ctx context.Context, name string) error {
	return j.submit(ctx, func(g *group) error { g.dropResource(name); return nil }, func(b *bodies) { b.drop(name) })
}

// dropResource deletes all that is stored of a resource.
func (g *group) dropResource(name string) {
	g.dropNamed(codec.PrefixKnown, name)
	g.dropNamed(codec.PrefixBody, name)
	g.delete(codec.KeyBodiless(name))
	*g.resource(name) = event.StoredResource{}
}

// dropNamed deletes all keys that belong to a resource under a first byte.
func (g *group) dropNamed(first byte, resource string) {
	prefix := codec.AppendNamePrefix(nil, first, resource)
	_ = g.batch.DeleteRange(prefix, codec.KeyAfter(prefix), nil)
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

// of is resource for one that is stored from now on, in this version and kind.
func (g *group) of(r event.Resource) (*event.StoredResource, error) {
	if r.Resource == "" {
		return nil, errors.New("journal: a resource has no name")
	}
	stored := g.resource(r.String())
	stored.Resource = r
	return stored, nil
}

// resource is what is stored of a resource as it will be after the commit, for the caller to change; zero where nothing is.
func (g *group) resource(name string) *event.StoredResource {
	stored := g.resources[name]
	if stored == nil {
		r := g.j.resources[name] // only this goroutine changes it
		r.Scopes = slices.Clone(r.Scopes)
		stored = &r
		g.resources[name] = stored
	}
	return stored
}

// sealResources writes what differs of resources and their scopes from what is committed.
func (g *group) sealResources() {
	for name, now := range g.resources {
		before := g.j.resources[name]
		switch {
		case now.Resource == before.Resource:
		case now.Resource.Resource == "":
			g.delete(codec.KeyResource(name))
		default:
			g.set(codec.KeyResource(name), codec.EncodeResource(now.Resource))
		}
		for _, s := range before.Scopes {
			if _, stays := slices.BinarySearchFunc(now.Scopes, s.ID, byID); !stays {
				g.delete(codec.KeyOf(codec.PrefixScope, name, s.ID))
			}
		}
		for _, s := range now.Scopes {
			if at, was := slices.BinarySearchFunc(before.Scopes, s.ID, byID); !was || before.Scopes[at] != s {
				g.set(codec.KeyOf(codec.PrefixScope, name, s.ID), codec.EncodeScope(s))
			}
		}
	}
}

// byID orders scopes, as those of a StoredResource are ordered here.
func byID(s event.StoredScope, id string) int { return strings.Compare(s.ID, id) }

func sorted(scopes []event.StoredScope) []event.StoredScope {
	return slices.SortedFunc(slices.Values(scopes), func(a, b event.StoredScope) int { return byID(a, b.ID) })
}
