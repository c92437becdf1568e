package journal

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Scopes returns the names of all scopes that have a position or known objects, in order.
func (j *Journal) Scopes() ([]string, error) {
	done, err := j.use()
	if err != nil {
		return nil, err
	}
	defer done()
	names, err := scopeNames(j.db)
	if err != nil {
		return nil, j.checked("scopes", err)
	}
	return names, nil
}

// scopeNames returns the names of all scopes that have a position or known objects, in order.
func scopeNames(db *pebble.DB) ([]string, error) {
	names := map[string]bool{}
	err := forEach(db, []byte{prefixPosition}, func(key, _ []byte) error {
		names[string(key[1:])] = true
		return nil
	})
	if err == nil {
		err = addKnownScopes(db, names)
	}
	return slices.Sorted(maps.Keys(names)), err
}

// addKnownScopes adds the scopes that have known objects, with one seek a scope.
func addKnownScopes(db *pebble.DB, names map[string]bool) error {
	it, err := iterate(db, []byte{prefixKnown})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); {
		s := scanner{s: string(it.Key()[1:])}
		scope := s.string()
		if s.failed {
			return fmt.Errorf("%w: key of a known object %x", errMalformed, it.Key())
		}
		names[scope] = true
		it.SeekGE(keyAfter(appendKnownPrefix(nil, scope)))
	}
	return it.Error()
}

// LoadScope returns the position a scope can be watched from, empty when there is none, and what is known of its objects,
// in order of keys. It shows what is committed; call it before the scope appends.
func (j *Journal) LoadScope(scope string) (position string, known []event.Known, err error) {
	done, err := j.use()
	if err != nil {
		return "", nil, err
	}
	defer done()
	value, err := j.get(keyPosition(scope))
	if err != nil {
		return "", nil, j.checked("position of "+scope, err)
	}
	prefix := appendKnownPrefix(nil, scope)
	err = j.each(prefix, func(key, value []byte) error {
		k, err := decodeKnown(string(key[len(prefix):]), value)
		known = append(known, k)
		return err
	})
	if err != nil {
		return "", nil, j.checked("known objects of "+scope, err)
	}
	return string(value), known, nil
}

// DropScope forgets the position and the known objects of a scope that is served or configured no longer. Its changes
// stay. Durable when it returns nil; ordered with Append.
func (j *Journal) DropScope(ctx context.Context, scope string) error {
	return j.submit(ctx, scopeDrop(scope))
}

type scopeDrop string

func (s scopeDrop) addTo(g *group) error {
	prefix := appendKnownPrefix(nil, string(s))
	_ = g.batch.DeleteRange(prefix, keyAfter(prefix), nil)
	g.delete(keyPosition(string(s)))
	delete(g.positions, string(s))
	return nil
}
