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

// Checkpoint is what the journal holds at one moment: the positions are those of the observations up to the newest change.
type Checkpoint struct {
	Newest    uint64
	Resources []event.StoredResource // by name, all of which anything is stored
}

// Checkpoint returns what is committed at this moment, which the caller must not modify. It does not wait.
func (j *Journal) Checkpoint() Checkpoint {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := Checkpoint{Newest: j.logExtent.newest, Resources: make([]event.StoredResource, 0, len(j.resources))}
	for _, name := range slices.Sorted(maps.Keys(j.resources)) {
		m.Resources = append(m.Resources, j.resources[name])
	}
	return m
}

// LowestCursor is the newest offset up to which every declared sink but these has settled everything. It does not wait.
func (j *Journal) LowestCursor(but ...string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if name, low := slowestSink(j.sinks, but...); name != "" {
		return low
	}
	return j.logExtent.newest
}

// ForEachKnown calls each for every object that is known at the moment of the marking which it returns, without summaries,
// until each returns an error, which it returns. The journal goes on meanwhile.
func (j *Journal) ForEachKnown(ctx context.Context, each func(resource string, k event.Known) error) (m Checkpoint, err error) {
	done, err := j.acquireStore()
	if err != nil {
		return m, err
	}
	defer done()
	var snapshot *pebble.Snapshot
	err = j.submitRequest(context.WithoutCancel(ctx), func(g *group) error { // no group is half committed here
		snapshot, m = j.db.NewSnapshot(), j.Checkpoint()
		return nil
	}, nil)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	err = storeReader{from: snapshot}.forEachKey([]byte{codec.PrefixKnown}, func(key, value []byte) error {
		name, object, err := codec.SplitNamedKey(key)
		if err != nil {
			return err
		}
		k, err := codec.DecodeKnown([]byte(object), value)
		if k.Summary = ""; err != nil || !k.Exists() {
			return err
		}
		return each(name, k)
	})
	return m, j.checkCorruption("inventory", err)
}
