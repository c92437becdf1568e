package state

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
)

// packed is a map of texts without a pointer to each of them: a million entries are nothing to look through for the garbage
// collector, and take little more memory than their bytes. The caller hashes keys, always in the same way.
type packed struct {
	places map[uint64]uint32 // by hash of the key: where its entry begins
	text   []byte            // entries, and what entries that are gone have left behind
	gone   int               // bytes that belong to no entry any more
	others map[string]string // of keys that have the hash of another key: hardly ever one
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

func newPacked() packed { return packed{places: map[uint64]uint32{}, others: map[string]string{}} }

func (p *packed) len() int { return len(p.places) + len(p.others) }

// own is the entry of a key, or nil; taken says that a key has its hash.
func (p *packed) own(hash uint64, key []byte) (e entry, taken bool) {
	at, taken := p.places[hash]
	if taken && bytes.Equal(entry(p.text[at:]).key(), key) {
		return p.text[at:], true
	}
	return nil, taken
}

// get returns the value of a key, which is valid until the next change.
func (p *packed) get(hash uint64, key []byte) (value []byte, ok bool) {
	if e, _ := p.own(hash, key); e != nil {
		return e.value(), true
	}
	other, ok := p.others[string(key)]
	return []byte(other), ok
}

// set gives a key a value, which is copied.
func (p *packed) set(hash uint64, key, value []byte) {
	e, taken := p.own(hash, key)
	switch {
	case e != nil:
		if now := e.value(); len(now) == len(value) {
			copy(now, value)
			return
		}
		p.gone += e.size()
	case taken:
		p.others[string(key)] = string(value)
		return
	default:
		delete(p.others, string(key))
	}
	p.places[hash] = uint32(len(p.text))
	p.text = appendEntry(p.text, key, value)
	p.tidy()
}

// delete takes a key out.
func (p *packed) delete(hash uint64, key []byte) {
	e, _ := p.own(hash, key)
	if e == nil {
		delete(p.others, string(key))
		return
	}
	p.gone += e.size()
	delete(p.places, hash)
	p.tidy()
}

// tidy packs anew when more than half is gone.
func (p *packed) tidy() {
	if p.gone <= 4096 || p.gone <= len(p.text)/2 {
		return
	}
	text := make([]byte, 0, len(p.text)-p.gone)
	for hash, at := range p.places {
		e := entry(p.text[at:])
		p.places[hash] = uint32(len(text))
		text = append(text, e[:e.size()]...)
	}
	p.text, p.gone = text, 0
}

// each calls each for all entries.
func (p *packed) each(each func(hash uint64, e entry)) {
	for hash, at := range p.places {
		e := entry(p.text[at:])
		each(hash, e[:e.size():e.size()])
	}
	for key, value := range p.others {
		each(0, appendEntry(nil, []byte(key), []byte(value)))
	}
}

// run is the entries of a map in the order of their keys.
type run struct {
	text  []byte
	order []uint32 // where those begin that are left
}

func (r run) head() entry { return r.text[r.order[0]:] }

// sorted returns all entries. They are valid until the next change.
func (p *packed) sorted() run {
	r := run{text: p.text[:len(p.text):len(p.text)], order: slices.AppendSeq(make([]uint32, 0, p.len()), maps.Values(p.places))}
	for key, value := range p.others {
		r.order = append(r.order, uint32(len(r.text)))
		r.text = appendEntry(r.text, []byte(key), []byte(value))
	}
	slices.SortFunc(r.order, func(a, b uint32) int { return bytes.Compare(entry(r.text[a:]).key(), entry(r.text[b:]).key()) })
	return r
}

// runs is a heap, the smallest key first.
type runs []run

func (h runs) Len() int           { return len(h) }
func (h runs) Less(i, j int) bool { return bytes.Compare(h[i].head().key(), h[j].head().key()) < 0 }
func (h runs) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runs) Push(x any)        { *h = append(*h, x.(run)) }

func (h *runs) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
