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

// scopePlace names a scope record.
type scopePlace struct{ resource, scope string }

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
// is stored of it; of a resource that is not known, nothing. The strings of a Known may be kept: they share no memory with those
// of others. known must not wait, and must not call the journal. It shows what is committed: call it before the
// resource appends.
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
	j.mu.Lock()
	defer j.mu.Unlock()
	stored := event.StoredResource{Resource: j.resources[name]}
	for place, scope := range j.scopes {
		if place.resource == name {
			stored.Scopes = append(stored.Scopes, scope)
		}
	}
	slices.SortFunc(stored.Scopes, func(a, b event.StoredScope) int { return strings.Compare(a.ID, b.ID) })
	return stored, nil
}

// SetScopes makes scopes, as they are given, the only scopes of a resource, and stores its version and kind. Known objects
// and bodies stay. Durable when it returns nil; ordered with Append.
func (j *Journal) SetScopes(ctx context.Context, r event.Resource, scopes []event.StoredScope) error {
	return j.submit(ctx, func(g *group) error {
		if err := g.storeResource(r); err != nil {
			return err
		}
		g.dropScopes(r.String())
		g.storeScopes(r, scopes)
		return nil
	}, nil)
}

// storeScopes adds scopes of a resource.
func (g *group) storeScopes(r event.Resource, scopes []event.StoredScope) {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	for _, s := range scopes {
		place := scopePlace{r.String(), s.ID}
		g.j.scopes[place], g.scopes[place] = s, true
	}
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
	g.dropScopes(name)
	g.delete(codec.KeyResource(name))
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	delete(g.j.resources, name)
	g.renamed = true
}

// storeResource remembers the version and kind of a resource.
func (g *group) storeResource(r event.Resource) error {
	if r.Resource == "" {
		return errors.New("journal: a resource has no name")
	}
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	if name := r.String(); g.j.resources[name] != r {
		g.j.resources[name], g.renamed = r, true
		g.set(codec.KeyResource(name), codec.EncodeResource(r))
	}
	return nil
}

// dropScopes drops all scope records of a resource.
func (g *group) dropScopes(resource string) {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	for place := range g.j.scopes {
		if place.resource == resource {
			delete(g.j.scopes, place)
			g.scopes[place] = true
		}
	}
}

// dropNamed deletes all keys that belong to a resource under a first byte.
func (g *group) dropNamed(first byte, resource string) {
	prefix := codec.AppendNamePrefix(nil, first, resource)
	_ = g.batch.DeleteRange(prefix, codec.KeyAfter(prefix), nil)
}

// sealScopes writes the scope records that have changed, each once.
func (g *group) sealScopes() {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	for place := range g.scopes {
		key := codec.KeyOf(codec.PrefixScope, place.resource, place.scope)
		if s, ok := g.j.scopes[place]; ok {
			g.set(key, codec.EncodeScope(s))
		} else {
			g.delete(key)
		}
	}
}
