package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/form"
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
		var deposed *sinks.DeposedError
		if errors.As(err, &deposed) {
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
		var deposed *sinks.DeposedError
		var lost *sinks.StateLostError
		switch {
		case err == nil:
			w.condition.Clear()
			return nil
		case errors.As(err, &deposed), errors.As(err, &lost), ctx.Err() != nil:
			return err
		}
		w.condition.Update(problemOf(fmt.Errorf("write the replicated state: %w", err)))
		w.onRetry()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
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

// removeEntries removes the keys of entries.
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
