package state

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
)

// entryMap is a map from keys to values that holds all of them in one byte slice. A million entries cost the garbage
// collector no scan and take little more memory than their bytes. The caller hashes the keys, always with the same
// function. Offsets are 32 bits, so one map holds at most 4 GiB.
type entryMap struct {
	offsets    map[uint64]uint32 // of the entry in arena, by hash of its key
	arena      []byte            // entries, including replaced and removed ones
	deadBytes  int               // of replaced and removed entries
	collisions map[string]string // entries for which another key occupies the hash; rare
}

// entry is a key and its value, each preceded by its length as a uvarint. It is valid until the next change of the map.
type entry []byte

func appendEntry(b, key, value []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

func (e entry) key() []byte {
	length, n := binary.Uvarint(e)
	return e[n : n+int(length)]
}

func (e entry) value() []byte {
	return e[e.keySize():].key()
}

// keySize is the size of the key with its length prefix, in bytes.
func (e entry) keySize() int {
	length, n := binary.Uvarint(e)
	return n + int(length)
}

// size is the size of the whole entry, in bytes.
func (e entry) size() int { return e.keySize() + e[e.keySize():].keySize() }

func newEntryMap() entryMap {
	return entryMap{offsets: map[uint64]uint32{}, collisions: map[string]string{}}
}

func (p *entryMap) len() int { return len(p.offsets) + len(p.collisions) }

// findEntry returns the entry of a key in arena, or nil. taken reports whether any key occupies the hash.
func (p *entryMap) findEntry(hash uint64, key []byte) (e entry, taken bool) {
	at, taken := p.offsets[hash]
	if taken && bytes.Equal(entry(p.arena[at:]).key(), key) {
		return p.arena[at:], true
	}
	return nil, taken
}

// get returns the value of a key. It is valid until the next change.
func (p *entryMap) get(hash uint64, key []byte) (value []byte, ok bool) {
	if e, _ := p.findEntry(hash, key); e != nil {
		return e.value(), true
	}
	other, ok := p.collisions[string(key)]
	return []byte(other), ok
}

// set copies key and value into the map.
func (p *entryMap) set(hash uint64, key, value []byte) {
	e, taken := p.findEntry(hash, key)
	switch {
	case e != nil:
		if now := e.value(); len(now) == len(value) {
			copy(now, value)
			return
		}
		p.deadBytes += e.size()
	case taken:
		p.collisions[string(key)] = string(value)
		return
	default:
		delete(p.collisions, string(key))
	}
	p.offsets[hash] = uint32(len(p.arena))
	p.arena = appendEntry(p.arena, key, value)
	p.compactIfSparse()
}

// delete removes a key.
func (p *entryMap) delete(hash uint64, key []byte) {
	e, _ := p.findEntry(hash, key)
	if e == nil {
		delete(p.collisions, string(key))
		return
	}
	p.deadBytes += e.size()
	delete(p.offsets, hash)
	p.compactIfSparse()
}

// compactIfSparse copies the live entries into a new arena once more than half of it is dead.
func (p *entryMap) compactIfSparse() {
	if p.deadBytes <= 4096 || p.deadBytes <= len(p.arena)/2 {
		return
	}
	live := make([]byte, 0, len(p.arena)-p.deadBytes)
	for hash, at := range p.offsets {
		e := entry(p.arena[at:])
		p.offsets[hash] = uint32(len(live))
		live = append(live, e[:e.size()]...)
	}
	p.arena, p.deadBytes = live, 0
}

// eachEntry calls each for all entries, in no order. hash is 0 for a collision.
func (p *entryMap) eachEntry(each func(hash uint64, e entry)) {
	for hash, at := range p.offsets {
		e := entry(p.arena[at:])
		each(hash, e[:e.size():e.size()])
	}
	for key, value := range p.collisions {
		each(0, appendEntry(nil, []byte(key), []byte(value)))
	}
}

// run iterates over the entries of a map, sorted by key.
type run struct {
	arena []byte
	order []uint32 // offsets of the remaining entries
}

func (r run) firstEntry() entry { return r.arena[r.order[0]:] }

// sortedRun returns all entries sorted by key. They are valid until the next change.
func (p *entryMap) sortedRun() run {
	r := run{arena: p.arena[:len(p.arena):len(p.arena)], order: slices.AppendSeq(make([]uint32, 0, p.len()), maps.Values(p.offsets))}
	for key, value := range p.collisions {
		r.order = append(r.order, uint32(len(r.arena)))
		r.arena = appendEntry(r.arena, []byte(key), []byte(value))
	}
	slices.SortFunc(r.order, func(a, b uint32) int { return bytes.Compare(entry(r.arena[a:]).key(), entry(r.arena[b:]).key()) })
	return r
}

// runs implements [heap.Interface], the smallest key first.
type runs []run

func (h runs) Len() int { return len(h) }
func (h runs) Less(i, j int) bool {
	return bytes.Compare(h[i].firstEntry().key(), h[j].firstEntry().key()) < 0
}
func (h runs) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *runs) Push(x any)   { *h = append(*h, x.(run)) }

func (h *runs) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
