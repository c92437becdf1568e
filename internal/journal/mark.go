package journal

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Marking is what the journal holds at one moment: the positions are those of the observations up to the newest change.
type Marking struct {
	Newest    uint64
	Resources []event.StoredResource // by name, all of which anything is stored
}

// shown is what is committed of resources. What the committer works on may be ahead of it.
type shown struct {
	resources map[string]event.Resource
	scopes    map[scopePlace]event.StoredScope
}

func (j *Journal) showAll() {
	j.shown = shown{maps.Clone(j.resources), maps.Clone(j.scopes)}
}

// show takes over what a group has changed. The caller holds mu.
func (j *Journal) show(g *group) {
	if g.renamed {
		j.shown.resources = maps.Clone(j.resources)
	}
	for place := range g.scopes {
		if s, ok := j.scopes[place]; ok {
			j.shown.scopes[place] = s
		} else {
			delete(j.shown.scopes, place)
		}
	}
}

// Mark returns what is committed at this moment. It does not wait.
func (j *Journal) Mark() Marking {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.marking()
}

func (j *Journal) marking() Marking {
	at := make(map[string]int, len(j.shown.resources))
	m := Marking{Newest: j.ext.newest, Resources: make([]event.StoredResource, 0, len(j.shown.resources))}
	for _, name := range slices.Sorted(maps.Keys(j.shown.resources)) {
		at[name] = len(m.Resources)
		m.Resources = append(m.Resources, event.StoredResource{Resource: j.shown.resources[name]})
	}
	for place, s := range j.shown.scopes {
		if i, ok := at[place.resource]; ok {
			m.Resources[i].Scopes = append(m.Resources[i].Scopes, s)
		}
	}
	for i := range m.Resources {
		slices.SortFunc(m.Resources[i].Scopes, func(a, b event.StoredScope) int { return strings.Compare(a.ID, b.ID) })
	}
	return m
}

// Settled is the newest offset up to which every declared sink but these has settled everything. It does not wait.
func (j *Journal) Settled(but ...string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	low := j.ext.newest
	for name, s := range j.sinks {
		if s.declared && !slices.Contains(but, name) {
			low = min(low, s.cursor.Low)
		}
	}
	return low
}

// Inventory calls each for every object that is known at the moment of the marking which it returns, without summaries, until
// each returns an error, which it returns. The journal goes on meanwhile.
func (j *Journal) Inventory(ctx context.Context, each func(resource string, k event.Known) error) (m Marking, err error) {
	done, err := j.use()
	if err != nil {
		return m, err
	}
	defer done()
	var snapshot *pebble.Snapshot
	err = j.submit(context.WithoutCancel(ctx), func(g *group) error { // no group is half committed here
		snapshot, m = j.db.NewSnapshot(), j.Mark()
		return nil
	}, nil)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	it, err := snapshot.NewIter(&pebble.IterOptions{LowerBound: []byte{codec.PrefixKnown}, UpperBound: []byte{codec.PrefixKnown + 1}})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		name, key, err := codec.CutName(it.Key())
		if err != nil {
			return m, j.checked("inventory", err)
		}
		k, err := codec.DecodeKnown([]byte(key), it.Value())
		if err != nil {
			return m, j.checked("inventory", err)
		}
		if k.Summary = ""; !k.Exists() {
			continue
		}
		if err := each(name, k); err != nil {
			return m, err
		}
	}
	return m, it.Error()
}
