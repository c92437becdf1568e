package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Scopes returns the names of all scopes that have a position, a snapshot or known objects, in order.
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

// scopeNames returns the names of all scopes that have a position, a snapshot or known objects, in order.
func scopeNames(db *pebble.DB) ([]string, error) {
	names := map[string]bool{}
	add := func(key, _ []byte) error {
		names[string(key[1:])] = true
		return nil
	}
	err := errors.Join(
		forEach(db, []byte{prefixPosition}, add),
		forEach(db, []byte{prefixSnapshot}, add),
		addScopes(db, prefixKnown, names),
	)
	return slices.Sorted(maps.Keys(names)), err
}

// addScopes adds the scopes that have something under prefix, with one seek a scope.
func addScopes(db *pebble.DB, prefix byte, names map[string]bool) error {
	it, err := iterate(db, []byte{prefix})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); {
		s := scanner{s: string(it.Key()[1:])}
		scope := s.string()
		if s.failed {
			return fmt.Errorf("%w: scope in the key %x", errMalformed, it.Key())
		}
		names[scope] = true
		it.SeekGE(keyAfter(appendString([]byte{prefix}, scope)))
	}
	return it.Error()
}

// LoadScope returns what is stored of a scope to go on from; of one that is not known, nothing. It shows what is committed;
// call it before the scope appends.
func (j *Journal) LoadScope(scope string) (event.Stored, error) {
	done, err := j.use()
	if err != nil {
		return event.Stored{}, err
	}
	defer done()
	position, err := j.get(keyPosition(scope))
	if err != nil {
		return event.Stored{}, j.checked("position of "+scope, err)
	}
	snapshot, err := j.get(keySnapshot(scope))
	if err != nil {
		return event.Stored{}, j.checked("snapshot of "+scope, err)
	}
	stored := event.Stored{Position: string(position), Snapshot: string(snapshot)}
	prefix := appendKnownPrefix(nil, scope)
	err = j.each(prefix, func(key, value []byte) error {
		k, err := decodeKnown(string(key[len(prefix):]), value)
		stored.Known = append(stored.Known, k)
		return err
	})
	if err != nil {
		return event.Stored{}, j.checked("known objects of "+scope, err)
	}
	return stored, nil
}

// DropScope forgets all that is stored of a scope that is served or configured no longer, bodies included. Its changes
// stay. Durable when it returns nil; ordered with Append.
func (j *Journal) DropScope(ctx context.Context, scope string) error {
	return j.submit(ctx, scopeDrop(scope))
}

type scopeDrop string

func (s scopeDrop) addTo(g *group) error {
	prefix := appendKnownPrefix(nil, string(s))
	_ = g.batch.DeleteRange(prefix, keyAfter(prefix), nil)
	g.dropBodies(string(s))
	g.delete(keySnapshot(string(s)))
	g.delete(keyPosition(string(s)))
	delete(g.positions, string(s))
	return nil
}

func (s scopeDrop) noteTo(b *bodies) { b.drop(string(s)) }
