package state

import (
	"bytes"
	"cmp"
	"container/heap"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// shards is the number of maps that hold the known objects. One part at a time is stored again, which is found without a
// pass over all of them.
const shards = 256

// table holds the newest value of each key, in stored form. One goroutine at a time uses it.
type table struct {
	seed   maphash.Seed
	known  [shards]entryMap  // entries under keyKnown
	others map[string]string // all other entries
	size   int               // number of known objects
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), others: map[string]string{}}
	for i := range t.known {
		t.known[i] = newEntryMap()
	}
	return t
}

func (t *table) shardOf(key []byte) (*entryMap, uint64) {
	hash := maphash.Bytes(t.seed, key)
	return &t.known[hash%shards], hash
}

// applyEntry sets or removes a key. It copies the entry.
func (t *table) applyEntry(e sinks.StateEntry) {
	switch {
	case len(e.Key) == 0:
	case e.Key[0] == keyKnown:
		in, hash := t.shardOf(e.Key)
		t.size -= in.len()
		if e.Value == nil {
			in.delete(hash, e.Key)
		} else {
			in.set(hash, e.Key, e.Value)
		}
		t.size += in.len()
	case e.Value == nil:
		delete(t.others, string(e.Key))
	default:
		t.others[string(e.Key)] = string(e.Value)
	}
}

// entryValue returns the value of a key. It is valid until the next change of the table.
func (t *table) entryValue(key []byte) (value []byte, ok bool) {
	if key[0] == keyKnown {
		in, hash := t.shardOf(key)
		return in.get(hash, key)
	}
	other, ok := t.others[string(key)]
	return []byte(other), ok
}

// containsEntry reports whether applying the entry would change nothing.
func (t *table) containsEntry(e sinks.StateEntry) bool {
	value, ok := t.entryValue(e.Key)
	if e.Value == nil {
		return !ok
	}
	return ok && bytes.Equal(value, e.Value)
}

// entriesOfPart returns all entries of one of as many disjoint parts as there are shards.
func (t *table) entriesOfPart(part int) (entries []sinks.StateEntry) {
	if part == 0 {
		entries = t.otherEntries(nil)
	}
	return append(entries, t.knownEntries(part, nil)...)
}

// otherEntries returns the selected entries that are not known objects; nil selects all. hash is always 0.
func (t *table) otherEntries(which func(hash uint64, key []byte) bool) (entries []sinks.StateEntry) {
	for key, value := range t.others {
		if e := (sinks.StateEntry{Key: []byte(key), Value: []byte(value)}); which == nil || which(0, e.Key) {
			entries = append(entries, e)
		}
	}
	return entries
}

// knownEntries returns copies of the selected known objects of a shard; nil selects all.
func (t *table) knownEntries(shard int, which func(hash uint64, key []byte) bool) (entries []sinks.StateEntry) {
	t.known[shard].eachEntry(func(hash uint64, e entry) {
		if which == nil || which(hash, e.key()) {
			entries = append(entries, sinks.StateEntry{Key: bytes.Clone(e.key()), Value: bytes.Clone(e.value())})
		}
	})
	return entries
}

// eachOther calls each for the entries with this first byte, which is not keyKnown.
func (t *table) eachOther(first byte, each func(number uint64, rest, value string) error) error {
	for key, value := range t.others {
		if key[0] != first {
			continue
		}
		n, rest, err := decodeKey(key)
		if err == nil {
			err = each(n, rest, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachKnown calls each for all known objects, sorted by key, with the number of their resource. The journal loads sorted
// input far faster.
func (t *table) eachKnown(each func(number uint64, k event.Known) error) error {
	return t.mergeShards(func(e entry) error {
		n, rest, err := decodeKey(string(e.key()))
		if err != nil {
			return err
		}
		k := event.Known{Key: rest}
		if err := form.DecodeValue("known object", e.value(), event.CodeKnown, &k); err != nil {
			return err
		}
		return each(n, k)
	})
}

// mergeShards calls each for the entries of all shards, sorted by key.
func (t *table) mergeShards(each func(entry) error) error {
	var (
		all     = make(runs, shards)
		sorting sync.WaitGroup
	)
	for i := range all {
		sorting.Go(func() { all[i] = t.known[i].sortedRun() })
	}
	sorting.Wait()
	all = slices.DeleteFunc(all, func(r run) bool { return len(r.order) == 0 })
	heap.Init(&all)
	for len(all) > 0 {
		first := &all[0]
		if err := each(first.firstEntry()); err != nil {
			return err
		}
		if first.order = first.order[1:]; len(first.order) == 0 {
			heap.Pop(&all)
		} else {
			heap.Fix(&all, 0)
		}
	}
	return nil
}

// knownObject returns the known identity of an object, with an empty UID if there is none.
func (t *table) knownObject(number uint64, key string) (event.Known, error) {
	k := event.Known{Key: key}
	value, ok := t.entryValue(encodeKey(keyKnown, number, key))
	if !ok {
		return k, nil
	}
	return k, form.DecodeValue("known object", value, event.CodeKnown, &k)
}

// stateContent is a decoded state without the known objects. Its maps are keyed by the numbers of resources and lanes.
type stateContent struct {
	meta       meta             // version 0: there is no state
	checkpoint checkpointRecord // of the owner in meta
	deployment deploymentRecord
	name       *string          // of the cluster in records, "" for its UID; nil if not known
	members    *journal.Members // of the newest checkpoint; nil if not known
	resources  map[uint64]event.Resource
	scopes     map[uint64][]event.StoredScope
	lanes      map[uint64]storedLane
	carried    map[string][]carriedChunk // by sink
}

// storedLane is a lane with what it holds behind the state.
type storedLane struct {
	sinkLane
	tail sinks.Tail // 0: not known
}

// decodeContent decodes everything but the known objects. Of a newer format it decodes the version only.
func (t *table) decodeContent() (c stateContent, err error) {
	c = stateContent{
		resources: map[uint64]event.Resource{}, scopes: map[uint64][]event.StoredScope{}, lanes: map[uint64]storedLane{},
		carried: map[string][]carriedChunk{},
	}
	if _, err = decodeSingle(t, keyMeta, "owner", codeMeta, &c.meta); err != nil || c.meta.version > Version {
		return c, err
	}
	var name string
	if named, err := decodeSingle(t, keyName, "name of the cluster", (*form.Coder).CodeText, &name); err != nil {
		return c, err
	} else if named {
		c.name = &name
	}
	if _, err = decodeSingle(t, keyDeployment, "deployment", codeDeployment, &c.deployment); err != nil {
		return c, err
	}
	if _, err = decodeSingle(t, keyCheckpoint, "checkpoint", codeCheckpoint, &c.checkpoint); err != nil {
		return c, err
	}
	if c.members, err = t.decodeMembers(c.checkpoint); err != nil {
		return c, err
	}
	if m := c.meta; c.checkpoint.generation != m.owner.Generation {
		c.checkpoint = checkpointRecord{generation: m.owner.Generation, offset: m.offset, takenAt: m.owner.Since}
	}
	return c, cmp.Or( // one after the other
		t.eachOther(keyResource, func(n uint64, _, value string) error {
			c.resources[n], err = codec.DecodeResource([]byte(value))
			return err
		}),
		t.eachOther(keyCarried, func(n uint64, rest, value string) error {
			if resource, ok := c.resources[n]; ok {
				sink, _, _ := strings.Cut(rest, "/")
				c.carried[sink] = append(c.carried[sink], carriedChunk{resource.String(), value})
			}
			return nil
		}),
		t.eachOther(keyScope, func(n uint64, id, value string) error {
			scope, err := codec.DecodeScope(id, []byte(value))
			c.scopes[n] = append(c.scopes[n], scope)
			return err
		}),
		t.eachOther(keyLane, func(n uint64, _, value string) error {
			l := c.lanes[n]
			err := form.DecodeValue("lane", value, codeLane, &l.sinkLane)
			c.lanes[n] = l
			return err
		}),
		t.eachOther(keyProgress, func(n uint64, _, value string) error {
			l, ok := c.lanes[n]
			if !ok {
				return nil
			}
			err := form.DecodeValue("lane position", value, codeProgress, &l.tail)
			c.lanes[n] = l
			return err
		}),
	)
}

// decodeSingle decodes the value of a key without a number, and reports whether there is one.
func decodeSingle[T any](t *table, key byte, what string, code func(*form.Coder, *T), into *T) (found bool, err error) {
	value, found := t.others[string(key)]
	if found {
		err = form.DecodeValue(what, value, code, into)
	}
	return found, err
}
