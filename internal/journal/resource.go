package journal

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

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
		prefix := appendNamePrefix(nil, prefixKnown, name)
		err = j.each(prefix, func(key, value []byte) error {
			k, err := decodeKnown(key[len(prefix):], value)
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
	return j.submit(ctx, &scopeSet{r, slices.Clone(scopes)})
}

type scopeSet struct {
	resource event.Resource
	scopes   []event.StoredScope
}

func (s *scopeSet) addTo(g *group) error {
	name := s.resource.String()
	if err := g.storeResource(s.resource); err != nil {
		return err
	}
	g.dropScopes(name)
	for _, scope := range s.scopes {
		g.scopes[scopePlace{name, scope.ID}] = scope
	}
	return nil
}

// DropResource forgets all that is stored of a resource: known objects, bodies, scopes, version and kind. Its changes stay.
// Durable when it returns nil; ordered with Append.
func (j *Journal) DropResource(ctx context.Context, name string) error {
	return j.submit(ctx, resourceDrop(name))
}

type resourceDrop string

func (r resourceDrop) addTo(g *group) error {
	g.dropNamed(prefixKnown, string(r))
	g.dropNamed(prefixBody, string(r))
	g.dropScopes(string(r))
	g.resources[string(r)] = event.Resource{}
	return nil
}

func (r resourceDrop) noteTo(b *bodies) { b.drop(string(r)) }

// storeResource remembers the version and kind of a resource.
func (g *group) storeResource(r event.Resource) error {
	if r.Resource == "" {
		return fmt.Errorf("journal: a resource has no name")
	}
	g.resources[r.String()] = r
	return nil
}

// scope returns a scope record as it will be after the commit.
func (g *group) scope(place scopePlace) event.StoredScope {
	s, ok := g.scopes[place]
	if !ok {
		g.j.mu.Lock()
		s = g.j.scopes[place]
		g.j.mu.Unlock()
	}
	s.ID = place.scope
	return s
}

// dropScopes drops all scope records of a resource.
func (g *group) dropScopes(resource string) {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	for _, all := range []map[scopePlace]event.StoredScope{g.j.scopes, g.scopes} {
		for place := range all {
			if place.resource == resource {
				g.scopes[place] = event.StoredScope{}
			}
		}
	}
}

// dropNamed deletes all keys that belong to a resource under a first byte.
func (g *group) dropNamed(first byte, resource string) {
	prefix := appendNamePrefix(nil, first, resource)
	_ = g.batch.DeleteRange(prefix, keyAfter(prefix), nil)
}

// resourceNames returns the names of all resources, as they will be after the commit.
func (g *group) resourceNames() []string {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Keys(g.j.resources)), slices.Collect(maps.Keys(g.resources)))
}

// sealResources writes the records of resources and scopes that differ from what is stored.
func (g *group) sealResources() {
	g.j.mu.Lock()
	defer g.j.mu.Unlock()
	for name, r := range g.resources {
		switch stored := g.j.resources[name]; {
		case r == stored:
		case r.Resource == "":
			g.delete(keyResource(name))
		default:
			g.set(keyResource(name), encodeResource(r))
		}
	}
	for place, s := range g.scopes {
		switch stored := g.j.scopes[place]; {
		case s == stored:
		case s.ID == "":
			g.delete(keyOf(prefixScope, place.resource, place.scope))
		default:
			g.set(keyOf(prefixScope, place.resource, place.scope), encodeScope(s))
		}
	}
}

// publishResources lets everybody see what sealResources wrote. The caller holds mu.
func (g *group) publishResources() {
	for name, r := range g.resources {
		if r.Resource == "" {
			delete(g.j.resources, name)
		} else {
			g.j.resources[name] = r
		}
	}
	for place, s := range g.scopes {
		if s.ID == "" {
			delete(g.j.scopes, place)
		} else {
			g.j.scopes[place] = s
		}
	}
}

// loadResources loads the records of resources and scopes.
func (j *Journal) loadResources() error {
	j.resources, j.scopes = map[string]event.Resource{}, map[scopePlace]event.StoredScope{}
	err := forEachResource(j.db, func(name string, r event.Resource) { j.resources[name] = r })
	if err != nil {
		return err
	}
	return forEachScope(j.db, func(resource string, s event.StoredScope) { j.scopes[scopePlace{resource, s.ID}] = s })
}
