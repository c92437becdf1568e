package state

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
)

// entryMap is a map of texts without a pointer to each of them: a million entries are nothing to look through for the garbage
// collector, and take little more memory than their bytes. The caller hashes keys, always in the same way.
type entryMap struct {
	offsets    map[uint64]uint32 // by hash of the key: where its entry begins
	arena      []byte            // entries, and what entries that are gone have left behind
	deadBytes  int               // bytes that belong to no entry any more
	collisions map[string]string // of keys that have the hash of another key: hardly ever one
}

// entry is a key and its value, each behind its length. It is valid until the next change of the map.
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

// keySize and size are in bytes, with lengths.
func (e entry) keySize() int {
	length, n := binary.Uvarint(e)
	return n + int(length)
}

func (e entry) size() int { return e.keySize() + e[e.keySize():].keySize() }

func newEntryMap() entryMap {
	return entryMap{offsets: map[uint64]uint32{}, collisions: map[string]string{}}
}

func (p *entryMap) len() int { return len(p.offsets) + len(p.collisions) }

// findEntry is the entry of a key, or nil; taken says that a key has its hash.
func (p *entryMap) findEntry(hash uint64, key []byte) (e entry, taken bool) {
	at, taken := p.offsets[hash]
	if taken && bytes.Equal(entry(p.arena[at:]).key(), key) {
		return p.arena[at:], true
	}
	return nil, taken
}

// get returns the value of a key, which is valid until the next change.
func (p *entryMap) get(hash uint64, key []byte) (value []byte, ok bool) {
	if e, _ := p.findEntry(hash, key); e != nil {
		return e.value(), true
	}
	other, ok := p.collisions[string(key)]
	return []byte(other), ok
}

// set gives a key a value, which is copied.
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

// delete takes a key out.
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

// compactIfSparse packs anew when more than half is gone.
func (p *entryMap) compactIfSparse() {
	if p.deadBytes <= 4096 || p.deadBytes <= len(p.arena)/2 {
		return
	}
	text := make([]byte, 0, len(p.arena)-p.deadBytes)
	for hash, at := range p.offsets {
		e := entry(p.arena[at:])
		p.offsets[hash] = uint32(len(text))
		text = append(text, e[:e.size()]...)
	}
	p.arena, p.deadBytes = text, 0
}

// eachEntry calls each for all entries.
func (p *entryMap) eachEntry(each func(hash uint64, e entry)) {
	for hash, at := range p.offsets {
		e := entry(p.arena[at:])
		each(hash, e[:e.size():e.size()])
	}
	for key, value := range p.collisions {
		each(0, appendEntry(nil, []byte(key), []byte(value)))
	}
}

// run is the entries of a map in the order of their keys.
type run struct {
	arena []byte
	order []uint32 // where those begin that are left
}

func (r run) firstEntry() entry { return r.arena[r.order[0]:] }

// sortedRun returns all entries. They are valid until the next change.
func (p *entryMap) sortedRun() run {
	r := run{arena: p.arena[:len(p.arena):len(p.arena)], order: slices.AppendSeq(make([]uint32, 0, p.len()), maps.Values(p.offsets))}
	for key, value := range p.collisions {
		r.order = append(r.order, uint32(len(r.arena)))
		r.arena = appendEntry(r.arena, []byte(key), []byte(value))
	}
	slices.SortFunc(r.order, func(a, b uint32) int { return bytes.Compare(entry(r.arena[a:]).key(), entry(r.arena[b:]).key()) })
	return r
}

// runs is a heap, the smallest key first.
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
