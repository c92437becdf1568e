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
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	maxWriteBytes = 512 << 10 // of entries in one write
	chunkEntries  = 4096      // in one write of a whole state
)

// entryWriter applies entries to the mirror and writes them to the store. The goroutine that owns the mirror uses it.
type entryWriter struct {
	mirror    *mirror
	condition *condition.Condition
	log       *slog.Logger
	meta      meta   // the owner record of this process, once it has taken over
	onRetry   func() // called before each wait for a store that is away

	written atomic.Uint64 // bytes
}

// applyEntries makes entries part of the state. It retries while the store is away. The mirror has the entries before the
// store does, because a store that compacts during the write asks for the current content.
func (w *entryWriter) applyEntries(ctx context.Context, entries []sinks.StateEntry) error {
	table := w.mirror.table
	undo := make([]sinks.StateEntry, len(entries))
	for i, e := range entries {
		undo[i].Key = e.Key
		if value, ok := table.entryValue(e.Key); ok {
			undo[i].Value = bytes.Clone(value)
		}
		table.applyEntry(e)
	}
	err := w.writeEntries(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) { // the write did not happen; the mirror follows the new owner from here on
		for _, e := range slices.Backward(undo) {
			table.applyEntry(e)
		}
		return err
	}
	var lost *sinks.StateLostError
	for errors.As(err, &lost) {
		w.log.Warn("the replicated state was lost in the bus, and is written again", "reason", lost.Reason)
		err = w.rewriteState(ctx)
	}
	return err
}

// writeEntries writes entries to the store until it has them, ctx ends, or the store reports that this process was deposed
// or that its content is lost.
func (w *entryWriter) writeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		w.written.Add(uint64(len(e.Key) + len(e.Value)))
	}
	for {
		err := w.mirror.store.Write(ctx, entries)
		var deposed *sinks.DeposedError
		var lost *sinks.StateLostError
		switch {
		case err == nil:
			w.condition.Update(conditionWritten, "", "")
			return nil
		case errors.As(err, &deposed), errors.As(err, &lost), ctx.Err() != nil:
			return err
		}
		recordProblem(w.condition, fmt.Errorf("write the replicated state: %w", err))
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
	first := []sinks.StateEntry{{Key: []byte{keyMeta}, Value: incomplete.encode()}}
	table.applyEntry(first[0]) // the store may ask for the content in the middle, and must not see a complete state
	defer table.applyEntry(owner)
	var rest []sinks.StateEntry
	for key, value := range table.others {
		e := sinks.StateEntry{Key: []byte(key), Value: []byte(value)}
		switch key[0] {
		case keyMeta:
		case keyLane, keyProgress:
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
		for chunk := range slices.Chunk(entries, chunkEntries) {
			if err := w.writeEntries(ctx, chunk); err != nil {
				return err
			}
		}
	}
	table.applyEntry(owner)
	return w.writeEntries(ctx, append(rest, owner))
}

// entryBatch collects entries on their way to the store. A key that is set several times is written once, with its last
// value.
type entryBatch struct {
	writer  *entryWriter
	entries []sinks.StateEntry
	index   map[string]int // of entries, by key
	bytes   int
}

// addIfChanged adds an entry unless the state has it already.
func (b *entryBatch) addIfChanged(ctx context.Context, key, value []byte) error {
	if _, ok := b.index[string(key)]; !ok && b.writer.mirror.table.containsEntry(sinks.StateEntry{Key: key, Value: value}) {
		return nil
	}
	return b.setEntry(ctx, key, value)
}

// setEntry adds an entry; a nil value removes the key. It flushes a batch that has reached maxWriteBytes.
func (b *entryBatch) setEntry(ctx context.Context, key, value []byte) error {
	if at, ok := b.index[string(key)]; ok {
		b.entries[at].Value = value
		return nil
	}
	if b.index == nil {
		b.index = map[string]int{}
	}
	b.index[string(key)] = len(b.entries)
	b.entries = append(b.entries, sinks.StateEntry{Key: key, Value: value})
	if b.bytes += len(key) + len(value); b.bytes < maxWriteBytes {
		return nil
	}
	return b.flush(ctx)
}

// removeEntries adds the removal of entries.
func (b *entryBatch) removeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		if err := b.addIfChanged(ctx, e.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

// removeMatching adds the removal of the entries under a prefix if the rest of their keys matches.
func (b *entryBatch) removeMatching(ctx context.Context, prefix []byte, matches func(rest string) bool) error {
	table := b.writer.mirror.table
	selected := func(_ uint64, key []byte) bool {
		return bytes.HasPrefix(key, prefix) && matches(string(key[len(prefix):]))
	}
	if prefix[0] != keyKnown {
		return b.removeEntries(ctx, table.otherEntries(selected))
	}
	for i := range shards {
		if err := b.removeEntries(ctx, table.knownEntries(i, selected)); err != nil {
			return err
		}
	}
	return nil
}

// flush writes what the batch has collected.
func (b *entryBatch) flush(ctx context.Context) error {
	entries := b.entries
	b.entries, b.bytes = nil, 0
	clear(b.index)
	if len(entries) == 0 {
		return nil
	}
	return b.writer.applyEntries(ctx, entries)
}
