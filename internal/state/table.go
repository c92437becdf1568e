package state

import (
	"bytes"
	"container/heap"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// shards is how many maps the known objects are in: what a store asks for at a time is found without going through all.
const shards = 256

// table is a state in memory, as it is stored: the newest value of each key. One goroutine at a time uses it.
type table struct {
	seed   maphash.Seed
	known  [shards]entryMap  // keys with keyKnown
	others map[string]string // all others
	size   int               // of known
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), others: map[string]string{}}
	for i := range t.known {
		t.known[i] = newEntryMap()
	}
	return t
}

// shardOf returns where a key of a known object belongs, and its hash.
func (t *table) shardOf(key []byte) (*entryMap, uint64) {
	hash := maphash.Bytes(t.seed, key)
	return &t.known[hash%shards], hash
}

// applyEntry takes an entry. It keeps nothing of it.
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

// entryValue returns the value of a key, which is valid until the next change.
func (t *table) entryValue(key []byte) (value []byte, ok bool) {
	if key[0] == keyKnown {
		in, hash := t.shardOf(key)
		return in.get(hash, key)
	}
	few, ok := t.others[string(key)]
	return []byte(few), ok
}

// containsEntry says that an entry would change nothing.
func (t *table) containsEntry(e sinks.StateEntry) bool {
	value, ok := t.entryValue(e.Key)
	if e.Value == nil {
		return !ok
	}
	return ok && bytes.Equal(value, e.Value)
}

// entriesOfPart are all entries of one part of the keys.
func (t *table) entriesOfPart(part, parts int) (entries []sinks.StateEntry) {
	for i := range t.known {
		switch {
		case parts <= shards && i%parts == part:
			entries = append(entries, t.knownEntries(i, nil)...)
		case parts > shards && i == part%shards: // some parts share it
			sharing := uint64((parts - i + shards - 1) / shards)
			entries = t.knownEntries(i, func(hash uint64, _ []byte) bool { return hash/shards%sharing == uint64(part/shards) })
		}
	}
	if part == 0 {
		entries = append(entries, t.otherEntries(nil)...)
	}
	return entries
}

// otherEntries are the other entries that are asked for, as of does.
func (t *table) otherEntries(which func(hash uint64, key []byte) bool) (entries []sinks.StateEntry) {
	for key, value := range t.others {
		if e := (sinks.StateEntry{Key: []byte(key), Value: []byte(value)}); which == nil || which(0, e.Key) {
			entries = append(entries, e)
		}
	}
	return entries
}

// knownEntries are the known objects of a shard that are asked for; nil asks for all.
func (t *table) knownEntries(shard int, which func(hash uint64, key []byte) bool) (entries []sinks.StateEntry) {
	t.known[shard].eachEntry(func(hash uint64, e entry) {
		if which == nil || which(hash, e.key()) {
			entries = append(entries, sinks.StateEntry{Key: bytes.Clone(e.key()), Value: bytes.Clone(e.value())})
		}
	})
	return entries
}

// eachOther calls each for the entries under a first byte, but not for known objects.
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

// eachKnown calls each for all known objects in the order of their keys, by the number of their resource.
func (t *table) eachKnown(each func(number uint64, k event.Known) error) error {
	return t.mergeShards(func(e entry) error {
		n, rest, err := decodeKey(string(e.key()))
		if err != nil {
			return err
		}
		k, err := decodeKnown(rest, string(e.value()))
		if err != nil {
			return err
		}
		return each(n, k)
	})
}

// mergeShards calls each for the entries of all shards in the order of their keys.
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

// knownObject returns what is known of an object; its UID is empty where nothing is.
func (t *table) knownObject(number uint64, key string) (event.Known, error) {
	value, ok := t.entryValue(encodeKey(keyKnown, number, key))
	if !ok {
		return event.Known{Key: key}, nil
	}
	return decodeKnown(key, string(value))
}

// stateContent is what a state says, but for the known objects and who owns it.
type stateContent struct {
	meta      meta // version 0: there is none
	mark      checkpointRecord
	resources map[uint64]event.Resource
	scopes    map[uint64][]event.StoredScope // by resource
	lanes     map[uint64]storedLane
}

// storedLane is a lane as it is stored.
type storedLane struct {
	sink  string
	lane  sinks.Lane
	place sinks.LanePosition // 0: not known
}

// decodeContent decodes everything but the known objects. Of a newer format it decodes no more than that it is one.
func (t *table) decodeContent() (c stateContent, err error) {
	c = stateContent{resources: map[uint64]event.Resource{}, scopes: map[uint64][]event.StoredScope{}, lanes: map[uint64]storedLane{}}
	if value, ok := t.others[string(keyMeta)]; ok {
		if c.meta, err = decodeMeta(value); err != nil || c.meta.version > Version {
			return c, err
		}
	}
	if value, ok := t.others[string(keyCheckpoint)]; ok {
		if c.mark, err = decodeCheckpoint(value); err != nil {
			return c, err
		}
	}
	if m := c.meta; c.mark.generation != m.owner.Generation {
		c.mark = checkpointRecord{generation: m.owner.Generation, offset: m.offset, takenAt: m.owner.Since}
	}
	err = t.eachOther(keyResource, func(n uint64, _, value string) error {
		c.resources[n], err = decodeResource(value)
		return err
	})
	if err != nil {
		return c, err
	}
	err = t.eachOther(keyScope, func(n uint64, id, value string) error {
		scope, err := decodeScope(id, value)
		c.scopes[n] = append(c.scopes[n], scope)
		return err
	})
	if err != nil {
		return c, err
	}
	err = t.eachOther(keyLane, func(n uint64, _, value string) error {
		l := c.lanes[n]
		l.sink, l.lane, err = decodeLane(value)
		c.lanes[n] = l
		return err
	})
	if err != nil {
		return c, err
	}
	return c, t.eachOther(keyProgress, func(n uint64, _, value string) error {
		if l, ok := c.lanes[n]; ok {
			l.place, err = decodeProgress(value)
			c.lanes[n] = l
		}
		return err
	})
}
