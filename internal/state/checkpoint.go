package state

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// checkpointInterval separates two checkpoints while taking them is cheap. A step that takes longer than one
	// checkpointShare-th of the interval stretches it, up to maxCheckpointInterval. Changes of one object within an
	// interval are written once.
	checkpointInterval    = 200 * time.Millisecond
	checkpointShare       = 20
	maxCheckpointInterval = 2 * time.Second
	maxPendingCheckpoints = 16          // that wait for the sinks; beyond it every other one is dropped
	maxChangesPerStep     = 50_000      // so that a request of Run, such as a new lane, does not wait long
	settleInterval        = time.Second // between two updates of the journal's cursor
)

// checkpoint is a consistent view of sinks and journal. It is written once every sink has settled its newest offset.
//
// The lane progress is collected before the journal's part. Messages published later lie behind that progress and are read
// from the tails by the next owner; changes journaled earlier are in the state once all sinks have settled them. The
// progress when the checkpoint is written stands beside it: a lane that ends before that has lost something.
type checkpoint struct {
	progress map[sinkLane]sinks.LanePosition
	gone     []sinkLane // leave the state with this checkpoint
	journal.Checkpoint
	takenAt time.Time
}

// checkpointer writes the state behind what all sinks have settled. It belongs to the goroutine of TakeOver, then Run.
type checkpointer struct {
	journal   *journal.Journal
	isEmitted func(summary string) bool // see Options
	unsettled []string                  // cursors that are not waited for
	mirror    *mirror
	entries   *entryWriter
	sinks     *sinkSet
	stats     *statsBoard

	stored    checkpointRecord
	members   *journal.Members // as stored; nil if not known
	rebuild   bool             // the state still has to be built from the journal
	rebuilt   bool             // it was, or has to be
	pending   []checkpoint     // oldest first
	settledAt time.Time        // when the journal's cursor was last updated

	target    *checkpoint // is to be committed next, and is no longer pending; nil: none
	batch     *entryBatch // of the changes up to collected
	collected uint64      // offset; at most that of target

	resources resourceNumbers
	lanes     map[sinkLane]numberedLane // as stored
	lastLane  uint64                    // highest number of a lane
}

// newCheckpointer returns the checkpointer of an owner that continues from a state with this content.
func (w *Writer) newCheckpointer(stored checkpointRecord, rebuild bool, c stateContent) *checkpointer {
	p := &checkpointer{
		journal: w.opts.Journal, isEmitted: w.opts.IsEmitted, unsettled: append([]string{Sink}, w.opts.Unsettled...),
		mirror: w.mirror, entries: w.entries, sinks: w.sinks, stats: w.stats,
		stored: stored, members: c.members, collected: stored.offset, rebuild: rebuild, rebuilt: rebuild,
		resources: resourceNumbers{byName: map[string]numberedResource{}},
		lanes:     map[sinkLane]numberedLane{},
	}
	for n, r := range c.resources {
		p.resources.byName[r.String()] = numberedResource{n, r}
		p.resources.last = max(p.resources.last, n)
	}
	p.batch = p.newBatch()
	for n, l := range c.lanes {
		p.lanes[sinkLane{l.sink, l.lane}] = numberedLane{n, l.tail.From}
		p.lastLane = max(p.lastLane, n)
	}
	return p
}

// numberedLane is a lane of the state.
type numberedLane struct {
	number uint64
	from   sinks.LanePosition // see sinks.Tail
}

// resourceNumbers are the numbers that keys of the state use for resources.
type resourceNumbers struct {
	byName map[string]numberedResource // by event.Resource.String
	last   uint64
}

type numberedResource struct {
	number   uint64
	resource event.Resource
}

// assignNumber returns the number of a resource. changed is true if the state does not have the resource in this form yet.
func (r *resourceNumbers) assignNumber(resource event.Resource) (number uint64, changed bool) {
	name := resource.String()
	known, ok := r.byName[name]
	if ok && known.resource == resource {
		return known.number, false
	}
	if !ok {
		r.last++
		known.number = r.last
	}
	r.byName[name] = numberedResource{known.number, resource}
	return known.number, true
}

func (p *checkpointer) newBatch() *entryBatch { return &entryBatch{writer: p.entries} }

// advanceState brings the state up to what all sinks have settled, in bounded steps.
func (p *checkpointer) advanceState(ctx context.Context) error {
	if p.rebuild {
		if err := p.rebuildFromJournal(ctx); err != nil {
			return err
		}
	}
	p.takeCheckpoint()
	if err := p.commitSettled(ctx); err != nil {
		return err
	}
	p.updateLag()
	return p.settleJournal(ctx)
}

// commitSettled commits the newest checkpoint that all sinks have settled, or collects a part of its changes. Objects,
// positions and lane progress become visible together: a process that saw objects newer than their position would take what
// happened in between for the present, and report living objects as deleted.
func (p *checkpointer) commitSettled(ctx context.Context) error {
	if p.target == nil {
		low, due := p.journal.LowestCursor(p.unsettled...), -1
		for i, c := range p.pending {
			if c.Newest <= low {
				due = i
			}
		}
		if due < 0 {
			return nil
		}
		target := p.pending[due]
		p.target, p.pending = &target, slices.Delete(p.pending, 0, due+1)
	}
	if err := p.collectChanges(ctx, min(p.target.Newest, p.collected+maxChangesPerStep)); err != nil {
		return err
	}
	if p.collected < p.target.Newest {
		return nil
	}
	return p.commitTarget(ctx)
}

// takeCheckpoint adds a checkpoint to the pending ones if anything has changed since the last.
func (p *checkpointer) takeCheckpoint() {
	c := checkpoint{progress: p.sinks.laneProgress(), takenAt: time.Now().UTC()}
	c.Checkpoint = p.journal.Checkpoint()
	if newest := p.newestTaken(); newest != nil {
		if newest.Newest == c.Newest && sameResources(newest.Resources, c.Resources) && sameMembers(&newest.Members, &c.Members) {
			return
		}
	} else if p.stored.offset == c.Newest && p.isStored(c.Resources) && sameMembers(p.members, &c.Members) &&
		(p.rebuilt || !p.sinks.hasUncovered()) {
		return
	}
	if len(p.pending) == maxPendingCheckpoints {
		for i := range maxPendingCheckpoints / 2 {
			p.pending[i] = p.pending[2*i]
		}
		clear(p.pending[maxPendingCheckpoints/2:])
		p.pending = p.pending[:maxPendingCheckpoints/2]
	}
	p.pending = append(p.pending, c)
}

// newestTaken returns the newest checkpoint that is not stored; nil if there is none.
func (p *checkpointer) newestTaken() *checkpoint {
	if n := len(p.pending); n > 0 {
		return &p.pending[n-1]
	}
	return p.target
}

func sameResources(a, b []event.StoredResource) bool {
	return slices.EqualFunc(a, b, func(a, b event.StoredResource) bool {
		return a.Resource == b.Resource && slices.Equal(a.Scopes, b.Scopes)
	})
}

// isStored reports whether the state has exactly these resources with these scopes.
func (p *checkpointer) isStored(resources []event.StoredResource) bool {
	if len(resources) != len(p.resources.byName) {
		return false
	}
	for _, r := range resources {
		known, ok := p.resources.byName[r.Resource.String()]
		if !ok || known.resource != r.Resource {
			return false
		}
		for _, s := range r.Scopes {
			if !p.mirror.table.containsEntry(sinks.StateEntry{Key: encodeKey(keyScope, known.number, s.ID), Value: codec.EncodeScope(s)}) {
				return false
			}
		}
	}
	return true
}

// resourceNumber returns the number of a resource, and adds the resource to the batch if the state does not have it.
func (p *checkpointer) resourceNumber(b *entryBatch, r event.Resource) uint64 {
	n, changed := p.resources.assignNumber(r)
	if changed {
		b.setIfChanged(encodeKey(keyResource, n), codec.EncodeResource(r))
	}
	return n
}

// collectChanges collects the objects of the changes up to an offset that all sinks have settled.
func (p *checkpointer) collectChanges(ctx context.Context, upTo uint64) error {
	for p.collected < upTo {
		records, err := p.journal.ReadWithoutBodies(ctx, p.collected)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset > upTo {
				break
			}
			p.addChange(p.batch, r.Change)
			p.collected = r.Offset
		}
	}
	return nil
}

// addChange adds the object of a change to the batch: its identity, or its removal.
func (p *checkpointer) addChange(b *entryBatch, c *event.Change) {
	if c.Held != nil && c.Held.Released { // newer versions may stand before this copy
		return
	}
	switch c.Type {
	case event.Added, event.Updated, event.Snapshot, event.Sync, event.Deleted:
	default:
		return
	}
	p.sinks.recordSettled(c)
	n := p.resourceNumber(b, c.Resource)
	key := encodeKey(keyKnown, n, c.Name)
	if c.Namespace != "" {
		key = encodeKey(keyKnown, n, c.Namespace, "/", c.Name)
	}
	if c.Type == event.Deleted && c.OnlySink != "" { // what stood there and was an orphan: the object may exist
		return
	}
	if c.Type == event.Deleted {
		b.setEntry(key, nil)
		return
	}
	b.setEntry(key, form.EncodeValue(make([]byte, 0, 24), event.CodeKnown, &event.Known{UID: c.UID, ResourceVersion: c.ResourceVersion}))
}

// commitTarget commits the collected changes with the positions, the lane progress and the record of their checkpoint.
func (p *checkpointer) commitTarget(ctx context.Context) error {
	c, owner := p.target, &p.entries.meta
	p.addResources(p.batch, c.Resources)
	p.coverTails(c)
	reached := p.sinks.laneProgress()
	for lane, position := range c.progress {
		p.addLane(p.batch, lane, sinks.Tail{From: position, Reached: cmp.Or(reached[lane], position)})
	}
	for lane, position := range reached {
		stored, isStored := p.lanes[lane]
		if _, covers := c.progress[lane]; !covers && isStored {
			p.addLane(p.batch, lane, sinks.Tail{From: stored.from, Reached: position})
		}
	}
	p.removeLanes(p.batch, c.gone)
	p.addMembers(p.batch, &c.Members, owner.owner.Generation)
	record := checkpointRecord{generation: owner.owner.Generation, offset: c.Newest, takenAt: c.takenAt}
	p.batch.setIfChanged([]byte{keyCheckpoint}, form.EncodeValue(nil, codeCheckpoint, &record))
	if cluster, err := p.journal.Cluster(); err == nil && cluster != "" {
		owner.cluster = cluster
	}
	owner.complete = true
	p.batch.setIfChanged([]byte{keyMeta}, form.EncodeValue(nil, codeMeta, owner))
	if err := p.batch.commit(ctx); err != nil {
		return err
	}
	p.stored, p.members, p.target = record, &c.Members, nil
	return nil
}

// coverTails lets the lanes of a checkpoint advance behind the tails. A state that was built from the journal carries none:
// what the journal had settled before then was not removed from the tails.
func (p *checkpointer) coverTails(c *checkpoint) {
	if p.rebuilt {
		p.sinks.coverTails(c, nil)
		return
	}
	p.sinks.coverTails(c, p.carryRecords)
}

// addResources adds the scopes of a checkpoint, and the removal of resources and scopes that the journal no longer has.
func (p *checkpointer) addResources(b *entryBatch, resources []event.StoredResource) {
	current := map[string]bool{}
	for _, r := range resources {
		current[r.Resource.String()] = true
		n := p.resourceNumber(b, r.Resource)
		scopes := map[string]bool{}
		for _, s := range r.Scopes {
			scopes[s.ID] = true
			b.setIfChanged(encodeKey(keyScope, n, s.ID), codec.EncodeScope(s))
		}
		b.removeMatching(encodeKey(keyScope, n), func(id string) bool { return !scopes[id] })
	}
	for name, known := range p.resources.byName {
		if current[name] {
			continue
		}
		for _, first := range []byte{keyKnown, keyScope, keyCarried, keyResource} {
			b.removeMatching(encodeKey(first, known.number), func(string) bool { return true })
		}
		delete(p.resources.byName, name)
	}
}

func (p *checkpointer) removeLanes(b *entryBatch, gone []sinkLane) {
	for _, lane := range gone {
		stored, isStored := p.lanes[lane]
		if !isStored {
			continue
		}
		b.setEntry(encodeKey(keyLane, stored.number), nil)
		b.setEntry(encodeKey(keyProgress, stored.number), nil)
		delete(p.lanes, lane)
	}
}

// addLane adds the progress of a lane, and the lane itself if the state does not have it.
func (p *checkpointer) addLane(b *entryBatch, lane sinkLane, tail sinks.Tail) {
	n := p.lanes[lane].number
	if n == 0 {
		p.lastLane++
		n = p.lastLane
		b.setIfChanged(encodeKey(keyLane, n), form.EncodeValue(nil, codeLane, &lane))
	}
	p.lanes[lane] = numberedLane{n, tail.From}
	b.setIfChanged(encodeKey(keyProgress, n), form.EncodeValue(nil, codeProgress, &tail))
}

// storeNewLanes commits the lanes of a sink that the state lacks, or that were gone, each with its position. A sink calls
// it, through [sinks.Claim.RecordLanes], before its first message to a lane.
func (p *checkpointer) storeNewLanes(ctx context.Context, sink string, lanes map[sinks.Lane]sinks.LanePosition) error {
	b := p.newBatch()
	for lane, position := range lanes {
		l := sinkLane{sink, lane}
		if _, stored := p.lanes[l]; p.sinks.keepLane(l) || !stored {
			p.addLane(b, l, sinks.Tail{From: position, Reached: position})
		}
	}
	return b.commit(ctx)
}

// storeLoss commits that a sink has missed something. The next checkpoint that all sinks settle ends that.
func (p *checkpointer) storeLoss(ctx context.Context, sink string) error {
	if p.members == nil {
		return nil
	}
	members, b := withoutPositions(p.members, func(name string) bool { return name == sink }), p.newBatch()
	p.addMembers(b, members, p.stored.generation)
	p.members, p.target, p.pending = members, nil, nil // those were settled before the loss
	return b.commit(ctx)
}

// storeLostLanes commits the lanes of a state that was purged or replaced.
func (p *checkpointer) storeLostLanes(ctx context.Context) error {
	for l, tail := range p.mirror.lostLanes {
		if err := p.storeNewLanes(ctx, l.sink, map[sinks.Lane]sinks.LanePosition{l.lane: tail.From}); err != nil {
			return err
		}
	}
	p.mirror.lostLanes = map[sinkLane]sinks.Tail{}
	return nil
}

// rebuildFromJournal builds the state from everything that the journal knows and destinations may have. The state is
// complete once all sinks have settled what the journal holds at this moment.
func (p *checkpointer) rebuildFromJournal(ctx context.Context) error {
	c, b, seen := checkpoint{progress: p.sinks.laneProgress(), takenAt: time.Now().UTC()}, p.newBatch(), map[string]struct{}{}
	var err error
	c.Checkpoint, err = p.journal.ForEachKnown(ctx, func(resource string, known event.Known) error {
		if known.UID == "" || p.isEmitted != nil && !p.isEmitted(known.Summary) {
			return nil // as if it had been built from the changes
		}
		r := p.resources.byName[resource].resource
		if r.Resource == "" {
			r = p.journalResource(resource)
		}
		key := encodeKey(keyKnown, p.resourceNumber(b, r), known.Key)
		seen[string(key)] = struct{}{}
		b.setIfChanged(key, form.EncodeValue(nil, event.CodeKnown, &event.Known{UID: known.UID, ResourceVersion: known.ResourceVersion}))
		return b.writeBulkIfLarge(ctx)
	})
	if err != nil {
		return err
	}
	b.removeMatching([]byte{keyCarried}, func(string) bool { return true })
	unseen := func(_ uint64, key []byte) bool {
		_, ok := seen[string(key)]
		return !ok
	}
	for i := range shards {
		b.removeEntries(p.mirror.table.knownEntries(i, unseen))
		if err := b.writeBulkIfLarge(ctx); err != nil {
			return err
		}
	}
	if err := p.entries.writeBulk(ctx, b.takeEntries()); err != nil {
		return err
	}
	p.rebuild, p.target, p.batch, p.collected, p.pending = false, nil, p.newBatch(), c.Newest, []checkpoint{c}
	return nil
}

func (p *checkpointer) journalResource(name string) event.Resource {
	for _, r := range p.journal.Checkpoint().Resources {
		if r.Resource.String() == name {
			return r.Resource
		}
	}
	return event.Resource{Resource: name}
}

// settleJournal moves the journal's cursor of the state, so that the journal can trim what the state covers.
func (p *checkpointer) settleJournal(ctx context.Context) error {
	if p.rebuild || time.Since(p.settledAt) < settleInterval {
		return nil
	}
	p.settledAt = time.Now()
	return p.journal.Settle(ctx, Sink, event.Cursor{Low: p.stored.offset}, nil)
}

// updateLag publishes the facts from which Stats computes the lag. A state that still has to be built covers nothing.
func (p *checkpointer) updateLag() {
	p.stats.update(func(s *Stats) {
		s.Objects, s.covered, s.since, s.waiting = p.mirror.table.size, p.stored.offset, time.Now(), p.rebuild || p.newestTaken() != nil
		switch {
		case p.rebuild:
			s.since = p.entries.meta.owner.Since
		case p.target != nil:
			s.since = p.target.takenAt
		case s.waiting:
			s.since = p.pending[0].takenAt
		}
		if since := p.sinks.uncoveredSince(); !since.IsZero() && (!s.waiting || since.Before(s.since)) {
			s.waiting, s.since = true, since
		}
	})
}

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
	var record commitRecord
	if found, err := decodeSingle(t, keyCommit, "commit", codeCommit, &record); !found || err != nil || record.generation != t.generation() {
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

// generation returns the generation of the owner in the state, 0 if there is none.
func (t *table) generation() uint64 {
	var m meta
	if _, err := decodeSingle(t, keyMeta, "owner", codeMeta, &m); err != nil {
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
