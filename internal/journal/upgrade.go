package journal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// scopesBelongToResources is the version since which scopes, known objects and bodies are kept as they are now.
const scopesBelongToResources = 3

// Keys of versions 1 and 2, which kept known objects and bodies by scope, under the same first bytes as now.
const (
	oldPosition = 'p' // scope (rest): position
	oldSnapshot = 's' // scope (rest): ID of the snapshot
	oldGone     = 1   // a bit of the first byte of a known object
	upgradeStep = 1 << 20
)

const lostByUpgrade = "the journal comes from an earlier version of the exporter, in which "

// upgrade makes a store of an older version one of this version. The scope records, which say what is to be believed, are
// converted in one write together with the version, after which an older exporter refuses the store. Then known objects and
// bodies go from scopes to their resources; a crash in between leaves scopes behind, and the next start goes on with those.
func (j *Journal) upgrade(from uint64) error {
	if from < codec.Version {
		raise := j.convertScopes
		if from >= scopesBelongToResources {
			raise = func() error { return j.db.Set(codec.KeyVersion, codec.EncodeVersion(), pebble.Sync) }
		}
		if err := raise(); err != nil {
			return err
		}
		j.opts.Logger.Info("journal upgraded; an older exporter refuses it from now on", "dir", j.opts.Dir, "from", from, "to", codec.Version)
	}
	for _, first := range []byte{codec.PrefixKnown, codec.PrefixBody} {
		var scopes []string
		err := j.forEachName(first, func(name string) {
			if resourceOf(name) != name {
				scopes = append(scopes, name)
			}
		})
		for _, scope := range scopes {
			err = errors.Join(err, j.moveToResource(first, scope))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resourceOf is the name of the resource that the ID of an old scope begins with.
func resourceOf(scope string) string {
	name, _, _ := strings.Cut(scope, ";")
	return name
}

// oldResource is a resource as an older version knew it.
type oldResource struct {
	scopes map[string]*event.StoredScope
	gone   bool // there are markers of deletes that are ahead of the position
}

func (j *Journal) convertScopes() error {
	b := j.db.NewBatch()
	defer b.Close()
	resources, err := j.readOldScopes(b)
	if err != nil {
		return err
	}
	for name, r := range resources {
		lost := r.lost()
		for _, s := range r.scopes {
			if lost != "" && s.Position != "" {
				s.Position, s.Snapshot, s.LostReason = "", "", lostByUpgrade+lost
			}
			_ = b.Set(codec.KeyNamed(codec.PrefixScope, name, s.ID), codec.EncodeScope(*s), nil) // a batch in memory does not fail
		}
		_ = b.Set(codec.KeyResource(name), codec.EncodeResource(event.ParseResourceName(name)), nil)
	}
	for _, first := range []byte{oldPosition, oldSnapshot} {
		_ = b.DeleteRange([]byte{first}, []byte{first + 1}, nil)
	}
	_ = b.Set(codec.KeyVersion, codec.EncodeVersion(), nil)
	return b.Commit(pebble.Sync)
}

// readOldScopes reads what versions 1 and 2 stored of scopes, by resource, and deletes the markers of objects that are gone.
func (r storeReader) readOldScopes(b *pebble.Batch) (map[string]*oldResource, error) {
	resources := map[string]*oldResource{}
	scope := func(id string) *event.StoredScope {
		r := resources[resourceOf(id)]
		if r == nil {
			r = &oldResource{scopes: map[string]*event.StoredScope{}}
			resources[resourceOf(id)] = r
		}
		if r.scopes[id] == nil {
			r.scopes[id] = &event.StoredScope{ID: id}
		}
		return r.scopes[id]
	}
	return resources, errors.Join(
		r.forEachKey([]byte{oldPosition}, func(key, value []byte) error {
			scope(string(key[1:])).Position = string(value)
			return nil
		}),
		r.forEachKey([]byte{oldSnapshot}, func(key, value []byte) error {
			scope(string(key[1:])).Snapshot = string(value)
			return nil
		}),
		r.forEachName(codec.PrefixBody, func(id string) { scope(id) }),
		r.forEachKey([]byte{codec.PrefixKnown}, func(key, value []byte) error {
			id, _, err := codec.SplitNamedKey(key)
			if err != nil || len(value) == 0 {
				return fmt.Errorf("%w: known object %x", codec.ErrMalformed, key)
			}
			scope(id)
			if value[0]&oldGone != 0 {
				resources[resourceOf(id)].gone = true
				_ = b.Delete(key, nil)
			}
			return nil
		}),
	)
}

// lost is why the positions of a resource cannot be gone on from, or empty.
func (r *oldResource) lost() string {
	if r.gone {
		return "deletes of this resource were emitted that its position was still before"
	}
	namespaces := map[string]bool{}
	for id := range r.scopes {
		_, rest, _ := strings.Cut(id, ";ns=")
		namespace, _, _ := strings.Cut(rest, ";")
		if len(r.scopes) > 1 && (namespace == "" || namespaces[namespace]) {
			return "several rules of this resource kept what they knew of its objects apart"
		}
		namespaces[namespace] = true
	}
	return ""
}

// moveToResource moves what an old scope has under a first byte to its resource, in steps of bounded size. Where the
// resource has the object already, from another scope, the newer version of it stays.
func (j *Journal) moveToResource(first byte, scope string) error {
	from, to := codec.AppendNamePrefix(nil, first, scope), codec.AppendNamePrefix(nil, first, resourceOf(scope))
	b := j.db.NewBatch()
	defer func() { b.Close() }()
	err := j.forEachKey(from, func(key, value []byte) error {
		moved := append(slices.Clone(to), key[len(from):]...)
		there, err := j.getValue(moved)
		if err != nil {
			return err
		}
		older := false
		if there != nil {
			if older, err = olderVersion(first, value, there); err != nil {
				return err
			}
		}
		if !older {
			_ = b.Set(moved, value, nil)
		}
		_ = b.Delete(key, nil)
		if b.Len() < upgradeStep {
			return nil
		}
		defer b.Reset()
		return b.Commit(pebble.NoSync)
	})
	if err != nil {
		return err
	}
	return b.Commit(pebble.Sync)
}

// olderVersion says whether a known object, or a body, has a lower resourceVersion than another one.
func olderVersion(first byte, a, b []byte) (bool, error) {
	var versions [2]string
	for i, value := range [][]byte{a, b} {
		if first == codec.PrefixKnown {
			k, err := codec.DecodeKnown(nil, value)
			if err != nil {
				return false, err
			}
			versions[i] = k.ResourceVersion
			continue
		}
		body, err := codec.DecodeBody("", value)
		if err != nil {
			return false, err
		}
		versions[i] = body.ResourceVersion
	}
	if len(versions[0]) != len(versions[1]) { // decimal numbers without leading zeros
		return len(versions[0]) < len(versions[1]), nil
	}
	return versions[0] < versions[1], nil
}
