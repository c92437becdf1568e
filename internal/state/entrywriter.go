package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	maxWriteBytes = 512 << 10 // of entries in one write, by sinks.StateEntry.Size
	// minPartCost is the minimum, in bytes, that storing a part again counts, so that a small state is not stored again all the
	// time.
	minPartCost = 256
)

// round is the progress in storing everything again, a part at a time, where the bus does not compact by key.
type round struct {
	nextPart int  // of the table
	complete bool // all parts are stored again: the next entries begin another round
	credit   int  // bytes that may be stored again: about as many as are new
}

// entryWriter applies entries to the mirror and writes them to the store. The goroutine that owns the mirror uses it.
type entryWriter struct {
	mirror    *mirror
	condition *condition.Condition
	log       *slog.Logger
	meta      meta   // the owner record of this process, once it has taken over
	onRetry   func() // called before each wait for a store that is away

	unfinished [][]sinks.StateEntry // writes of the commits that have begun, in order; the first one may be stored already
	undo       []sinks.StateEntry   // what the mirror had before the first of them; nil if the mirror does not have that one yet
	lost       bool                 // the store lacks what it had, and still has to get the whole state
	round      round                // since the claim

	written atomic.Uint64 // bytes
}

// commitEntries makes entries part of the state, for every reader all of them at once. It retries while the store is away.
// A commit that ctx interrupts is completed before the next one.
func (w *entryWriter) commitEntries(ctx context.Context, entries []sinks.StateEntry) error {
	if len(entries) > 0 {
		w.unfinished = append(w.unfinished, planCommit(entries, w.mirror.store.AtomicBytes(), w.mirror.table.generation())...)
	}
	return w.finishCommits(ctx)
}

// writeBulk is commitEntries for entries that nothing depends on before a later commit.
func (w *entryWriter) writeBulk(ctx context.Context, entries []sinks.StateEntry) error {
	w.unfinished = append(w.unfinished, splitBySize(entries, maxWriteBytes)...)
	return w.finishCommits(ctx)
}

// finishCommits does the writes of all commits that have begun.
func (w *entryWriter) finishCommits(ctx context.Context) error {
	for len(w.unfinished) > 0 {
		err := w.applyEntries(ctx, w.unfinished[0])
		if errors.As(err, new(*sinks.DeposedError)) {
			w.abandonCommits()
		}
		if err != nil {
			return err
		}
		w.unfinished[0], w.undo = nil, nil
		w.unfinished = w.unfinished[1:]
	}
	return nil
}

// abandonCommits makes the mirror follow the store again. If the store has the write that is undone, it is read again.
func (w *entryWriter) abandonCommits() {
	for _, e := range slices.Backward(w.undo) {
		w.mirror.table.applyEntry(e)
	}
	w.unfinished, w.undo, w.lost, w.round = nil, nil, false, round{}
}

// applyEntries applies one write to the mirror and to the store. The mirror has the entries before the store does: what is
// stored again with them is read from there, and later commits are compared with it.
func (w *entryWriter) applyEntries(ctx context.Context, entries []sinks.StateEntry) error {
	table := w.mirror.table
	if w.undo == nil {
		w.undo = make([]sinks.StateEntry, len(entries))
		for i, e := range entries {
			w.undo[i].Key = e.Key
			if value, ok := table.entryValue(e.Key); ok {
				w.undo[i].Value = bytes.Clone(value)
			}
			table.applyEntry(e)
		}
	}
	var err error
	if !w.lost {
		err = w.writeEntries(ctx, entries)
	}
	var lost *sinks.StateLostError
	for w.lost || errors.As(err, &lost) {
		if lost != nil {
			w.log.Warn("the replicated state was lost in the bus, and is written again", "reason", lost.Reason)
		}
		w.lost, lost = true, nil
		if err = w.rewriteState(ctx); err == nil {
			w.lost = false
		} else if !errors.As(err, &lost) {
			break
		}
	}
	return err
}

// writeEntries writes entries to the store, and parts of the state that are due to be stored again.
func (w *entryWriter) writeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	begins := w.round.complete
	if begins {
		w.round = round{credit: w.round.credit}
	}
	for _, some := range splitBySize(slices.Concat(entries, w.dueAgain(entries)), w.mirror.store.AtomicBytes()) {
		if err := w.appendEntries(ctx, some, begins); err != nil {
			w.round = round{} // from the first part again
			return err
		}
		begins = false
	}
	w.round.complete = w.round.nextPart == shards
	return nil
}

// dueAgain returns parts of the state to store again, for about as many bytes as entries have, and advances the round. A
// state that is not complete yet is being built, and has little that is older.
func (w *entryWriter) dueAgain(entries []sinks.StateEntry) (again []sinks.StateEntry) {
	if w.mirror.store.Compacts() || !w.meta.complete {
		return nil
	}
	w.round.credit += bytesOf(entries)
	for w.round.credit > 0 && w.round.nextPart < shards {
		part := w.mirror.table.entriesOfPart(w.round.nextPart)
		again = append(again, part...)
		w.round.credit -= max(minPartCost, bytesOf(part))
		w.round.nextPart++
	}
	return again
}

func bytesOf(entries []sinks.StateEntry) (n int) {
	for _, e := range entries {
		n += len(e.Key) + len(e.Value)
	}
	return n
}

// appendEntries appends entries to the store until it has them, ctx ends, or the store reports that this process was deposed
// or that its content is lost.
func (w *entryWriter) appendEntries(ctx context.Context, entries []sinks.StateEntry, begins bool) error {
	w.written.Add(uint64(bytesOf(entries)))
	for {
		err := w.mirror.store.Append(ctx, entries, begins)
		switch {
		case err == nil:
			w.condition.Clear()
			return nil
		case errors.As(err, new(*sinks.DeposedError)), errors.As(err, new(*sinks.StateLostError)), ctx.Err() != nil:
			return err
		}
		w.condition.Update(problemOf(fmt.Errorf("write the replicated state: %w", err)))
		w.onRetry()
		if ratelimit.Sleep(ctx, retryInterval) != nil {
			return context.Cause(ctx)
		}
	}
}

// rewriteState writes the whole state. The owner record comes first with the state marked incomplete, together with the
// lanes and their progress: a process that takes over in the middle must fence the lanes and must not trust the rest. The
// complete owner record comes last.
func (w *entryWriter) rewriteState(ctx context.Context) error {
	table := w.mirror.table
	incomplete := w.meta
	incomplete.complete = false
	owner := sinks.StateEntry{Key: []byte{keyMeta}, Value: []byte(table.others[string([]byte{keyMeta})])}
	first := []sinks.StateEntry{{Key: []byte{keyMeta}, Value: form.EncodeValue(nil, codeMeta, &incomplete)}}
	table.applyEntry(first[0]) // what is stored again in the middle must not be a complete state
	defer table.applyEntry(owner)
	var rest []sinks.StateEntry
	for key, value := range table.others {
		e := sinks.StateEntry{Key: []byte(key), Value: []byte(value)}
		switch key[0] {
		case keyMeta:
		case keyLane, keyProgress, keyDeployment:
			first = append(first, e)
		default:
			rest = append(rest, e)
		}
	}
	for part := range shards + 1 {
		entries := first
		if part > 0 {
			entries = table.knownEntries(part-1, nil)
		}
		if err := w.writeAll(ctx, entries); err != nil {
			return err
		}
	}
	table.applyEntry(owner)
	if err := w.writeAll(ctx, rest); err != nil {
		return err
	}
	return w.writeEntries(ctx, []sinks.StateEntry{owner})
}

// writeAll writes entries that are part of the mirror already, in several writes.
func (w *entryWriter) writeAll(ctx context.Context, entries []sinks.StateEntry) error {
	for _, some := range splitBySize(entries, maxWriteBytes) {
		if err := w.writeEntries(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// entryBatch collects the entries of a commit. A key that is set several times is written once, with its last value.
type entryBatch struct {
	writer  *entryWriter
	entries []sinks.StateEntry
	index   map[string]int // of entries, by key
	size    int            // of entries, as of their first values
}

// setIfChanged sets a key unless the state has this value already.
func (b *entryBatch) setIfChanged(key, value []byte) {
	if _, ok := b.index[string(key)]; ok || !b.writer.mirror.table.containsEntry(sinks.StateEntry{Key: key, Value: value}) {
		b.setEntry(key, value)
	}
}

// setEntry sets a key; a nil value removes it.
func (b *entryBatch) setEntry(key, value []byte) {
	e := sinks.StateEntry{Key: key, Value: value}
	if at, ok := b.index[string(key)]; ok {
		b.entries[at] = e
		return
	}
	if b.index == nil {
		b.index = map[string]int{}
	}
	b.index[string(key)] = len(b.entries)
	b.entries = append(b.entries, e)
	b.size += e.Size()
}

func (b *entryBatch) removeEntries(entries []sinks.StateEntry) {
	for _, e := range entries {
		b.setIfChanged(e.Key, nil)
	}
}

// removeMatching removes the keys under a prefix if the rest of them matches.
func (b *entryBatch) removeMatching(prefix []byte, matches func(rest string) bool) {
	selected := func(_ uint64, key []byte) bool {
		return bytes.HasPrefix(key, prefix) && matches(string(key[len(prefix):]))
	}
	for i, e := range b.entries {
		if selected(0, e.Key) {
			b.entries[i].Value = nil
		}
	}
	table := b.writer.mirror.table
	if prefix[0] != keyKnown {
		b.removeEntries(table.otherEntries(selected))
		return
	}
	for i := range shards {
		b.removeEntries(table.knownEntries(i, selected))
	}
}

// takeEntries returns what the batch has collected and empties it.
func (b *entryBatch) takeEntries() []sinks.StateEntry {
	entries := b.entries
	b.entries, b.index, b.size = nil, nil, 0
	return entries
}

// commit writes what the batch has collected as one commit.
func (b *entryBatch) commit(ctx context.Context) error {
	return b.writer.commitEntries(ctx, b.takeEntries())
}

// writeBulkIfLarge writes what the batch has collected if that is enough for a write. Only an incomplete state may be
// written that way.
func (b *entryBatch) writeBulkIfLarge(ctx context.Context) error {
	if b.size < maxWriteBytes {
		return nil
	}
	return b.writer.writeBulk(ctx, b.takeEntries())
}

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
