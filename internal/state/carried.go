package state

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A take-over learns from the tails what the lanes hold beyond the state. Where a resource stays behind that, because it
// cannot be read, the state carries the identities of its records under keyCarried, so that the lanes do not have to be read
// from there again, however long that lasts. A record is removed once the state has the object in that version or a later
// one, and all of them once the positions of the resource have passed them.

// tailStart is where a take-over starts to read the tails of a sink, and what it knows of the messages before that.
type tailStart struct {
	lanes   map[sinks.Lane]sinks.LanePosition
	carried []carriedChunk
}

// carriedChunk is a part of what the state carries of a resource for a sink.
type carriedChunk struct{ resource, value string }

// carriedChunkBits is the number of bits of a digest that select the chunk. A chunk, which is one entry, is written again
// when a record of it changes.
const carriedChunkBits = 12

func carriedChunkOf(d digest) int {
	return int(binary.BigEndian.Uint16(d[:]) >> (16 - carriedChunkBits))
}

// Bits of the first byte of a carried object.
const (
	carriedDeleted = 1 << iota
	carriedNewest  // the destination holds no newer object under its key
)

// encodeCarried returns what a successor has to know of the records of a resource, in chunks by number: the number of IDs
// and their digests, and for each object flags, its destination, its key, and its identity in the form of a known object.
func (t *tail) encodeCarried(resource string) map[int][]byte {
	ids, objects := map[int][][]byte{}, map[int][][]byte{}
	for id, of := range t.exact {
		if of == resource {
			ids[carriedChunkOf(id)] = append(ids[carriedChunkOf(id)], slices.Clone(id[:]))
		}
	}
	for place, byUID := range t.objects {
		if place.resource != resource {
			continue
		}
		n := carriedChunkOf(keyDigest(place.resource, place.key))
		for uid, o := range byUID {
			objects[n] = append(objects[n], t.encodeCarriedObject(place, uid, o))
		}
	}
	chunks := map[int][]byte{}
	for _, part := range []map[int][][]byte{ids, objects} {
		for n := range part {
			slices.SortFunc(ids[n], bytes.Compare)
			slices.SortFunc(objects[n], bytes.Compare)
			b := binary.AppendUvarint(nil, uint64(len(ids[n])))
			chunks[n] = append(append(b, bytes.Join(ids[n], nil)...), bytes.Join(objects[n], nil)...)
		}
	}
	return chunks
}

func (t *tail) encodeCarriedObject(place emittedRef, uid string, o liveObject) []byte {
	var flags byte
	at := objectAtDestination{keyDigest(place.resource, place.key), t.destinations[place.destination]}
	if newest, ok := t.newest[at]; ok && newest.uid == digestOf(uid) {
		flags |= carriedNewest
		o.version, o.deleted = strconv.FormatUint(newest.version, 10), newest.deleted // versions of a restored cluster go back
	}
	if o.deleted {
		flags |= carriedDeleted
	}
	known := form.EncodeValue(nil, codeKnown, &event.Known{UID: uid, ResourceVersion: o.version})
	c := carriedObject{flags, place.destination, place.key, string(known)}
	return form.EncodeValue(nil, codeCarriedObject, &c)
}

// addCarried adds what a predecessor carried.
func (t *tail) addCarried(c carriedChunk) error {
	t.highest[c.resource] = max(t.highest[c.resource], 0) // IDs alone have no version, and are released all the same
	return form.DecodeValue("carried records", c.value, func(f *form.Coder, _ *carriedObject) {
		for range f.CodeCount(0, len(digest{})) {
			var id digest
			f.CodeFixed(id[:])
			t.exact[id] = c.resource
		}
		for f.In != "" {
			var o carriedObject
			var known event.Known
			codeCarriedObject(f, &o)
			if form.DecodeValue("known object", o.known, codeKnown, &known) != nil {
				f.Fail()
				return
			}
			t.addCarriedObject(c.resource, o, known)
		}
	}, &carriedObject{})
}

// carriedObject is the stored form of what a tail knows of an object.
type carriedObject struct {
	flags                   byte
	destination, key, known string
}

func codeCarriedObject(f *form.Coder, o *carriedObject) {
	f.CodeByte(&o.flags)
	f.CodeTexts(&o.destination, &o.key, &o.known)
}

func (t *tail) addCarriedObject(resource string, c carriedObject, known event.Known) {
	o := liveObject{known.UID, known.ResourceVersion, c.flags&carriedDeleted != 0, true}
	t.recordObject(emittedRef{c.destination, objectRef{resource, c.key}}, o)
	if version, ordered := parseVersion(o.version); ordered && c.flags&carriedNewest != 0 {
		at := objectAtDestination{keyDigest(resource, c.key), t.destinationNumber(c.destination)}
		t.newest[at] = emittedVersion{digestOf(o.uid), version, o.deleted, true}
	}
}

// copyResource adds the records of a resource to the tail of lanes that were read before.
func (t *tail) copyResource(to *tail, resource string) {
	for id, of := range t.exact {
		if of == resource {
			to.exact[id] = of
		}
	}
	for place, byUID := range t.objects {
		if place.resource != resource {
			continue
		}
		for _, o := range byUID {
			to.recordObject(place, o)
		}
		key := keyDigest(place.resource, place.key)
		newest, ok := t.newest[objectAtDestination{key, t.destinations[place.destination]}]
		at := objectAtDestination{key, to.destinationNumber(place.destination)}
		before, known := to.newest[at]
		if ok && (!known || before.carried && !newest.carried || before.carried == newest.carried && before.version <= newest.version) {
			to.newest[at] = newest
		}
	}
}

// removeUpTo removes the records of an object key that a change, which the state has from now on, contains, and reports
// whether there were any. A deletion that a list revealed has the version of the last state, so only a deletion contains it.
func (t *tail) removeUpTo(ref objectRef, version uint64, deleted bool) (removed bool) {
	for destination := range t.destinations {
		byUID := t.objects[emittedRef{destination, ref}]
		maps.DeleteFunc(byUID, func(_ string, o liveObject) bool {
			at, ordered := parseVersion(o.version)
			removes := ordered && (at < version || at == version && (deleted || !o.deleted))
			removed = removed || removes
			return removes
		})
	}
	return removed
}

// removeResource removes all records of a resource.
func (t *tail) removeResource(resource string) {
	maps.DeleteFunc(t.objects, func(place emittedRef, _ map[string]liveObject) bool { return place.resource == resource })
}

// carryRecords replaces what the state carries of a resource for a sink.
func (p *checkpointer) carryRecords(sink, resource string, chunks map[int][]byte) {
	known, ok := p.resources.byName[resource]
	if !ok {
		return // it was removed with all that the state had of it
	}
	keyOf := func(n int) []byte { return encodeKey(keyCarried, known.number, sink, "/", strconv.Itoa(n)) }
	p.batch.removeMatching(encodeKey(keyCarried, known.number, sink, "/"), func(rest string) bool {
		n, err := strconv.Atoi(rest)
		return err != nil || chunks[n] == nil
	})
	for n, chunk := range chunks {
		p.batch.setIfChanged(keyOf(n), chunk)
	}
}
