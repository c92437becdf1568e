package state

import (
	"context"
	"slices"

	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A commit that is larger than what a store writes as a whole goes through a redo log in the state itself: chunks under
// keyRedo hold the entries, then one entry under keyCommit makes the chunks count, then the entries are written one by one,
// and then both are removed. A reader applies the chunks at the end of what it reads, so it sees all of them or none,
// wherever the writer has ended. The log survives compaction by key, because no commit overwrites a chunk that counts.

const (
	redoChunkBytes = 32 << 10 // of the entries in a chunk, which is one entry itself and has to fit into a message
	chunkMargin    = 32       // for the key of a chunk
)

// commitRecord makes the chunks 1 to chunks of the redo log count, the value of keyCommit. It is void if its generation is
// not that of the owner: the process that took over has completed the commit, or does not know redo logs.
type commitRecord struct {
	generation uint64
	chunks     uint64
}

func codeCommit(f *form.Coder, c *commitRecord) {
	f.CodeUvarint(&c.generation)
	f.CodeUvarint(&c.chunks)
}

// splitBySize divides entries into runs of at most size bytes each, and of at least one entry.
func splitBySize(entries []sinks.StateEntry, size int) (runs [][]sinks.StateEntry) {
	first, bytes := 0, 0
	for i, e := range entries {
		if bytes += e.Size(); bytes > size && i > first {
			runs = append(runs, entries[first:i])
			first, bytes = i, e.Size()
		}
	}
	if first < len(entries) {
		runs = append(runs, entries[first:])
	}
	return runs
}

// planCommit returns the writes that make entries visible together.
func planCommit(entries []sinks.StateEntry, atomicBytes int, generation uint64) [][]sinks.StateEntry {
	if len(splitBySize(entries, atomicBytes)) == 1 {
		return [][]sinks.StateEntry{entries}
	}
	var redo []sinks.StateEntry
	for i, chunk := range splitBySize(entries, min(redoChunkBytes, atomicBytes-chunkMargin)) {
		redo = append(redo, sinks.StateEntry{Key: encodeKey(keyRedo, uint64(i)+1), Value: sinks.AppendEntries(nil, chunk)})
	}
	record := commitRecord{generation, uint64(len(redo))}
	plan := append(splitBySize(redo, maxWriteBytes), []sinks.StateEntry{{Key: []byte{keyCommit}, Value: form.EncodeValue(nil, codeCommit, &record)}})
	return append(plan, planRedo(entries, redo)...)
}

// planRedo returns the writes that complete a commit whose chunks count.
func planRedo(entries, chunks []sinks.StateEntry) [][]sinks.StateEntry {
	plan := append(splitBySize(entries, maxWriteBytes), []sinks.StateEntry{{Key: []byte{keyCommit}}})
	removals := make([]sinks.StateEntry, len(chunks))
	for i, e := range chunks {
		removals[i].Key = e.Key
	}
	return append(plan, splitBySize(removals, maxWriteBytes)...)
}

// committedRedo returns the entries of a commit that counts and may not be completed; nil if there is none.
func (t *table) committedRedo() (entries []sinks.StateEntry, err error) {
	value, ok := t.others[string(keyCommit)]
	if !ok {
		return nil, nil
	}
	var record commitRecord
	if err := form.DecodeValue("commit", value, codeCommit, &record); err != nil || record.generation != t.generation() {
		return nil, err
	}
	for n := range record.chunks {
		chunk, ok := t.others[string(encodeKey(keyRedo, n+1))]
		if !ok { // a state that is being written again, and is incomplete
			return nil, nil
		}
		err := sinks.DecodeEntries([]byte(chunk), func(e sinks.StateEntry) error {
			entries = append(entries, e)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// applyRedo applies a commit that counts and may not be completed.
func (t *table) applyRedo() error {
	entries, err := t.committedRedo()
	for _, e := range entries {
		t.applyEntry(e)
	}
	return err
}

// generation returns the generation of the owner in the state, 0 if there is none.
func (t *table) generation() uint64 {
	var m meta
	if form.DecodeValue("owner", t.others[string(keyMeta)], codeMeta, &m) != nil {
		return 0
	}
	return m.owner.Generation
}

// completeRedo completes the last commit of the previous owner, and removes what an unfinished one has left. It comes before
// the first write of this process: with another owner in the state the commit would be void.
func (w *entryWriter) completeRedo(ctx context.Context) error {
	table := w.mirror.table
	entries, err := table.committedRedo()
	if err != nil {
		return malformedState(err)
	}
	chunks := table.otherEntries(func(_ uint64, key []byte) bool { return key[0] == keyRedo })
	if _, ok := table.others[string(keyCommit)]; !ok && len(chunks) == 0 {
		return nil
	}
	w.unfinished = slices.Concat(w.unfinished, planRedo(entries, chunks))
	return w.finishCommits(ctx)
}
