package state

import (
	"hash/maphash"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// shards is how many maps the known objects are in: what a store asks for at a time is found without going through all.
const shards = 256

// table is a state in memory, as it is stored: the newest value of each key. One goroutine at a time uses it.
type table struct {
	seed  maphash.Seed
	known [shards]map[string]string // keys with keyKnown
	few   map[string]string         // all others
	size  int                       // of known
}

func newTable() *table {
	t := &table{seed: maphash.MakeSeed(), few: map[string]string{}}
	for i := range t.known {
		t.known[i] = map[string]string{}
	}
	return t
}

func (t *table) shard(key []byte) map[string]string {
	return t.known[maphash.Bytes(t.seed, key)%shards]
}

// in is the map of a key, which is not empty.
func (t *table) in(key []byte) map[string]string {
	if key[0] == keyKnown {
		return t.shard(key)
	}
	return t.few
}

// put takes an entry, and returns the value that it replaces. It keeps nothing of it.
func (t *table) put(e sinks.StateEntry) (before string, existed bool) {
	if len(e.Key) == 0 {
		return "", false
	}
	m := t.in(e.Key)
	before, existed = m[string(e.Key)]
	if e.Key[0] == keyKnown {
		t.size -= len(m)
	}
	if e.Value == nil {
		delete(m, string(e.Key))
	} else {
		m[string(e.Key)] = string(e.Value)
	}
	if e.Key[0] == keyKnown {
		t.size += len(m)
	}
	return before, existed
}

// has says that an entry would change nothing.
func (t *table) has(e sinks.StateEntry) bool {
	value, ok := t.in(e.Key)[string(e.Key)]
	if e.Value == nil {
		return !ok
	}
	return ok && value == string(e.Value)
}

// part are all entries of one part of the keys.
func (t *table) part(part, parts int) (entries []sinks.StateEntry) {
	add := func(key, value string) {
		entries = append(entries, sinks.StateEntry{Key: []byte(key), Value: []byte(value)})
	}
	for i := range t.known {
		switch {
		case parts <= shards && i%parts != part, parts > shards && i != part%shards:
			continue
		case parts <= shards:
			for key, value := range t.known[i] {
				add(key, value)
			}
		default: // a part of a shard: the parts that share it go through it one after the other
			for key, value := range t.known[i] {
				if maphash.String(t.seed, key)/shards%uint64((parts-part%shards+shards-1)/shards) == uint64(part/shards) {
					add(key, value)
				}
			}
		}
	}
	if part == 0 {
		for key, value := range t.few {
			add(key, value)
		}
	}
	return entries
}

// eachFew calls each for the entries under a first byte, but not for known objects.
func (t *table) eachFew(first byte, each func(number uint64, rest, value string) error) error {
	for key, value := range t.few {
		if key[0] != first {
			continue
		}
		n, rest, err := cutKey(key)
		if err == nil {
			err = each(n, rest, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachKnown calls each for all known objects, by the number of their resource.
func (t *table) eachKnown(each func(number uint64, k event.Known) error) error {
	for _, m := range t.known {
		for key, value := range m {
			n, rest, err := cutKey(key)
			if err != nil {
				return err
			}
			k, err := decodeKnown(rest, value)
			if err == nil {
				err = each(n, k)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// get returns what is known of an object; its UID is empty where nothing is.
func (t *table) get(number uint64, key string) (event.Known, error) {
	name := keyOf(keyKnown, number, key)
	value, ok := t.shard(name)[string(name)]
	if !ok {
		return event.Known{Key: key}, nil
	}
	return decodeKnown(key, value)
}

// content is what a state says, but for the known objects and who owns it.
type content struct {
	meta      meta // version 0: there is none
	mark      mark
	resources map[uint64]event.Resource
	scopes    map[uint64][]event.StoredScope // by resource
	lanes     map[uint64]noted
}

// noted is a lane as it is stored.
type noted struct {
	sink  string
	lane  sinks.Lane
	place sinks.Place // 0: not known
}

// content decodes everything but the known objects. Of a newer format it decodes no more than that it is one.
func (t *table) content() (c content, err error) {
	c = content{resources: map[uint64]event.Resource{}, scopes: map[uint64][]event.StoredScope{}, lanes: map[uint64]noted{}}
	if value, ok := t.few[string(keyMeta)]; ok {
		if c.meta, err = decodeMeta(value); err != nil || c.meta.version > Version {
			return c, err
		}
	}
	if value, ok := t.few[string(keyMark)]; ok {
		if c.mark, err = decodeMark(value); err != nil {
			return c, err
		}
	}
	if m := c.meta; c.mark.generation != m.owner.Generation {
		c.mark = mark{generation: m.owner.Generation, offset: m.offset, at: m.owner.Since}
	}
	err = t.eachFew(keyResource, func(n uint64, _, value string) error {
		c.resources[n], err = decodeResource(value)
		return err
	})
	if err != nil {
		return c, err
	}
	err = t.eachFew(keyScope, func(n uint64, id, value string) error {
		scope, err := decodeScope(id, value)
		c.scopes[n] = append(c.scopes[n], scope)
		return err
	})
	if err != nil {
		return c, err
	}
	err = t.eachFew(keyLane, func(n uint64, _, value string) error {
		l := c.lanes[n]
		l.sink, l.lane, err = decodeLane(value)
		c.lanes[n] = l
		return err
	})
	if err != nil {
		return c, err
	}
	return c, t.eachFew(keyPlace, func(n uint64, _, value string) error {
		if l, ok := c.lanes[n]; ok {
			l.place, err = decodePlace(value)
			c.lanes[n] = l
		}
		return err
	})
}
