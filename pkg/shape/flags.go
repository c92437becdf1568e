package shape

import (
	"hash/maphash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// flags are what distinguishes a known object from one that was last emitted, and is stored, as the rule has it now.
type flags uint8

const (
	otherRedaction flags = 1 << iota // last emitted under another redaction
	otherBody                        // its stored body is of another redaction or form
	otherShape                       // last emitted in another form, or under other keys of its rule than redaction and filter
	notEmitted                       // a filter has left it out: no destination has it
)

// outdated are the flags of an object that destinations have as its rule was before an edit.
const outdated = otherRedaction | otherShape

// objectFlags holds the flags of the objects of one resource that have some. It holds hashes of keys; a collision only sets
// RedactionChanged, or leaves out a state before, unnecessarily. Safe for concurrent use.
type objectFlags struct {
	mu       sync.Mutex
	byKey    map[uint64]flags
	outdated int // objects with a flag of outdated
}

var flagsSeed = maphash.MakeSeed()

// has reports whether an object has one of the flags.
func (f *objectFlags) has(key string, one flags) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byKey) > 0 && f.byKey[maphash.String(flagsSeed, key)]&one != 0
}

// isEmpty reports whether no object has a flag.
func (f *objectFlags) isEmpty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byKey) == 0
}

// mayBeEmitted reports whether a destination may have the object of a change from before.
func (f *objectFlags) mayBeEmitted(c *event.Change) bool {
	return (c.Previous != "" || c.FinalStateUnknown) && (f.isEmpty() || !f.has(objectKey(c), notEmitted))
}

// change sets some flags of an object and clears others.
func (f *objectFlags) change(key string, set, clear flags) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.byKey) == 0 && set == 0 {
		return
	}
	hash := maphash.String(flagsSeed, key)
	now := f.byKey[hash]&^clear | set
	f.outdated += countOutdated(now) - countOutdated(f.byKey[hash])
	if now != 0 {
		if f.byKey == nil {
			f.byKey = map[uint64]flags{}
		}
		f.byKey[hash] = now
	} else {
		delete(f.byKey, hash)
	}
}

func countOutdated(of flags) int {
	if of&outdated != 0 && of&notEmitted == 0 {
		return 1
	}
	return 0
}

// recordEmitted clears the flags of an object whose change is emitted, and sets RedactionChanged on the first one under the
// current redaction.
func (f *objectFlags) recordEmitted(c *event.Change) {
	if c.Type.IsControl() || f.isEmpty() && !c.Left {
		return
	}
	key := objectKey(c)
	c.RedactionChanged = c.RedactionChanged || f.has(key, otherRedaction) && claimsDifference(c.Type)
	f.change(key, 0, outdated|otherBody|notEmitted)
	if c.Left { // an object that is gone is removed with what is known of it
		f.change(key, notEmitted, 0)
	}
}

// recordFiltered records that a change is not emitted. If it would have been the first of the object, no destination has it.
func (f *objectFlags) recordFiltered(c *event.Change) {
	if c.Previous == "" || c.Type == event.Snapshot && c.OnlySink == "" {
		f.change(objectKey(c), notEmitted, 0)
	}
}

// claimsDifference reports whether consumers compare a change of this type with their state of the object.
func claimsDifference(t event.Type) bool {
	return t == event.Updated || t == event.Deleted || t == event.Sync
}
