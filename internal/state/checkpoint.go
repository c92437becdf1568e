package state

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
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
// from the tails by the next owner; changes journaled earlier are in the state once all sinks have settled them.
type checkpoint struct {
	progress map[sinkLane]sinks.LanePosition
	journal.Checkpoint
	takenAt time.Time
}

// checkpointer writes the state behind what all sinks have settled. It belongs to the goroutine of TakeOver, then Run.
type checkpointer struct {
	journal   *journal.Journal
	unsettled []string // cursors that are not waited for
	mirror    *mirror
	entries   *entryWriter
	sinks     *sinkSet
	stats     *statsBoard

	stored    checkpointRecord
	applied   uint64       // changes up to this offset are in the state
	rebuild   bool         // the state still has to be built from the journal
	pending   []checkpoint // oldest first
	settledAt time.Time    // when the journal's cursor was last updated

	resources resourceNumbers
	lastLane  uint64 // highest number of a lane
}

// newCheckpointer returns the checkpointer of an owner that continues from a state with this content.
func (w *Writer) newCheckpointer(stored checkpointRecord, rebuild bool, c stateContent) *checkpointer {
	p := &checkpointer{
		journal: w.opts.Journal, unsettled: append([]string{Sink}, w.opts.Unsettled...),
		mirror: w.mirror, entries: w.entries, sinks: w.sinks, stats: w.stats,
		stored: stored, applied: stored.offset, rebuild: rebuild, resources: newResourceNumbers(c.resources),
	}
	for n := range c.lanes {
		p.lastLane = max(p.lastLane, n)
	}
	return p
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

func newResourceNumbers(stored map[uint64]event.Resource) resourceNumbers {
	r := resourceNumbers{byName: map[string]numberedResource{}}
	for n, resource := range stored {
		r.byName[resource.String()] = numberedResource{n, resource}
		r.last = max(r.last, n)
	}
	return r
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
	if due := p.newestSettled(); due >= 0 {
		c := p.pending[due]
		if err := p.writeNewScopes(ctx, c.Resources); err != nil {
			return err
		}
		if err := p.applyChanges(ctx, min(c.Newest, p.applied+maxChangesPerStep)); err != nil {
			return err
		}
		if p.applied >= c.Newest {
			if err := p.writeCheckpoint(ctx, c); err != nil {
				return err
			}
			p.pending = slices.Delete(p.pending, 0, due+1)
		}
	}
	p.updateLag()
	return p.settleJournal(ctx)
}

// coversOffset reports whether the state has everything up to an offset and no checkpoint waits.
func (p *checkpointer) coversOffset(offset uint64) bool {
	return p.stored.offset >= offset && p.applied >= offset && len(p.pending) == 0 && !p.rebuild
}

// newestSettled returns the index of the newest pending checkpoint that all sinks have settled, or -1.
func (p *checkpointer) newestSettled() int {
	low, due := p.journal.LowestCursor(p.unsettled...), -1
	for i, c := range p.pending {
		if c.Newest <= low {
			due = i
		}
	}
	return due
}

// takeCheckpoint adds a checkpoint to the pending ones if anything has changed since the last.
func (p *checkpointer) takeCheckpoint() {
	c := checkpoint{progress: p.sinks.laneProgress(), takenAt: time.Now().UTC()}
	c.Checkpoint = p.journal.Checkpoint()
	if n := len(p.pending); n > 0 && p.pending[n-1].Newest == c.Newest || n == 0 && p.stored.offset == c.Newest {
		if n > 0 && sameResources(p.pending[n-1].Resources, c.Resources) || n == 0 && p.isStored(c.Resources) {
			return
		}
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
			if !p.mirror.table.containsEntry(sinks.StateEntry{Key: encodeKey(keyScope, known.number, s.ID), Value: encodeScope(s)}) {
				return false
			}
		}
	}
	return true
}

// writeNewScopes writes the scopes that have no position in the state yet, ahead of their objects: as lists in progress,
// with the snapshot or gap that these objects belong to. Otherwise a process that takes over in between would emit the
// objects that the state lacks as new.
func (p *checkpointer) writeNewScopes(ctx context.Context, resources []event.StoredResource) error {
	b := p.newBatch()
	for _, r := range resources {
		n, err := p.resourceNumber(ctx, b, r.Resource)
		if err != nil {
			return err
		}
		for _, s := range r.Scopes {
			s.Position = ""
			key := encodeKey(keyScope, n, s.ID)
			if stored, err := decodeScope(s.ID, p.mirror.table.others[string(key)]); err == nil && stored.Position != "" {
				continue
			}
			if err := b.addIfChanged(ctx, key, encodeScope(s)); err != nil {
				return err
			}
		}
	}
	return b.flush(ctx)
}

// resourceNumber returns the number of a resource, and adds the resource to the batch if the state does not have it.
func (p *checkpointer) resourceNumber(ctx context.Context, b *entryBatch, r event.Resource) (uint64, error) {
	n, changed := p.resources.assignNumber(r)
	if !changed {
		return n, nil
	}
	return n, b.addIfChanged(ctx, encodeKey(keyResource, n), encodeResource(r))
}

// applyChanges writes the objects of the changes up to an offset that all sinks have settled.
func (p *checkpointer) applyChanges(ctx context.Context, upTo uint64) error {
	b := p.newBatch()
	for p.applied < upTo {
		records, err := p.journal.ReadWithoutBodies(ctx, p.applied)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset > upTo {
				break
			}
			if err := p.addChange(ctx, b, r.Change); err != nil {
				return err
			}
			p.applied = r.Offset
		}
	}
	return b.flush(ctx)
}

// addChange adds the object of a change to the batch: its identity, or its removal.
func (p *checkpointer) addChange(ctx context.Context, b *entryBatch, c *event.Change) error {
	switch c.Type {
	case event.Added, event.Updated, event.Snapshot, event.Sync, event.Deleted:
	default:
		return nil
	}
	n, err := p.resourceNumber(ctx, b, c.Resource)
	if err != nil {
		return err
	}
	key := encodeKey(keyKnown, n, c.Name)
	if c.Namespace != "" {
		key = encodeKey(keyKnown, n, c.Namespace, "/", c.Name)
	}
	if c.Type == event.Deleted {
		return b.setEntry(ctx, key, nil)
	}
	return b.setEntry(ctx, key, appendKnown(make([]byte, 0, 24), c.UID, c.ResourceVersion))
}

// writeCheckpoint writes positions, lane progress and then the record of a checkpoint. Its objects are in the state already.
func (p *checkpointer) writeCheckpoint(ctx context.Context, c checkpoint) error {
	p.sinks.releaseDelivered(&c)
	b, owner := p.newBatch(), &p.entries.meta
	if err := p.addResources(ctx, b, c.Resources); err != nil {
		return err
	}
	if err := p.addProgress(ctx, b, c.progress); err != nil {
		return err
	}
	record := checkpointRecord{generation: owner.owner.Generation, offset: c.Newest, takenAt: c.takenAt}
	if err := b.addIfChanged(ctx, []byte{keyCheckpoint}, record.encode()); err != nil {
		return err
	}
	if cluster, err := p.journal.Cluster(); err == nil && cluster != "" {
		owner.cluster = cluster
	}
	owner.complete = true
	if err := errors.Join(b.addIfChanged(ctx, []byte{keyMeta}, owner.encode()), b.flush(ctx)); err != nil {
		return err
	}
	p.stored = record
	return nil
}

// addResources adds the scopes of a checkpoint, and the removal of resources and scopes that the journal no longer has.
func (p *checkpointer) addResources(ctx context.Context, b *entryBatch, resources []event.StoredResource) error {
	current := map[string]bool{}
	for _, r := range resources {
		current[r.Resource.String()] = true
		n, err := p.resourceNumber(ctx, b, r.Resource)
		if err != nil {
			return err
		}
		scopes := map[string]bool{}
		for _, s := range r.Scopes {
			scopes[s.ID] = true
			if err := b.addIfChanged(ctx, encodeKey(keyScope, n, s.ID), encodeScope(s)); err != nil {
				return err
			}
		}
		if err := b.removeMatching(ctx, encodeKey(keyScope, n), func(id string) bool { return !scopes[id] }); err != nil {
			return err
		}
	}
	for name, known := range p.resources.byName {
		if current[name] {
			continue
		}
		for _, first := range []byte{keyKnown, keyScope, keyResource} {
			if err := b.removeMatching(ctx, encodeKey(first, known.number), func(string) bool { return true }); err != nil {
				return err
			}
		}
		delete(p.resources.byName, name)
	}
	return nil
}

// addProgress adds the lane progress of a checkpoint.
func (p *checkpointer) addProgress(ctx context.Context, b *entryBatch, progress map[sinkLane]sinks.LanePosition) error {
	for lane, position := range progress {
		n, ok := p.mirror.lanes[lane]
		if !ok {
			var err error
			if n, err = p.addLane(ctx, b, lane); err != nil {
				return err
			}
		}
		if err := b.addIfChanged(ctx, encodeKey(keyProgress, n), encodeProgress(position)); err != nil {
			return err
		}
	}
	return nil
}

// addLane assigns a number to a lane and adds the lane to the batch.
func (p *checkpointer) addLane(ctx context.Context, b *entryBatch, lane sinkLane) (uint64, error) {
	p.lastLane++
	p.mirror.lanes[lane] = p.lastLane
	return p.lastLane, b.addIfChanged(ctx, encodeKey(keyLane, p.lastLane), encodeLane(lane.sink, lane.lane))
}

// storeNewLanes writes the lanes of a sink that the state lacks, each with its position. A sink calls it, through
// [sinks.Claim.RecordLanes], before its first message to a lane.
func (p *checkpointer) storeNewLanes(ctx context.Context, sink string, lanes map[sinks.Lane]sinks.LanePosition) error {
	b := p.newBatch()
	for lane, position := range lanes {
		if _, ok := p.mirror.lanes[sinkLane{sink, lane}]; ok {
			continue
		}
		n, err := p.addLane(ctx, b, sinkLane{sink, lane})
		if err == nil {
			err = b.addIfChanged(ctx, encodeKey(keyProgress, n), encodeProgress(position))
		}
		if err != nil {
			return err
		}
	}
	return b.flush(ctx)
}

// storeLostLanes writes the lanes of a state that was purged or replaced.
func (p *checkpointer) storeLostLanes(ctx context.Context) error {
	for l, position := range p.mirror.lostLanes {
		if err := p.storeNewLanes(ctx, l.sink, map[sinks.Lane]sinks.LanePosition{l.lane: position}); err != nil {
			return err
		}
	}
	p.mirror.lostLanes = map[sinkLane]sinks.LanePosition{}
	return nil
}

// rebuildFromJournal builds the state from everything that the journal knows. The state is complete once all sinks have
// settled what the journal holds at this moment.
func (p *checkpointer) rebuildFromJournal(ctx context.Context) error {
	c, b, seen := checkpoint{progress: p.sinks.laneProgress(), takenAt: time.Now().UTC()}, p.newBatch(), map[string]struct{}{}
	var err error
	c.Checkpoint, err = p.journal.ForEachKnown(ctx, func(resource string, known event.Known) error {
		if known.UID == "" {
			return nil
		}
		r := p.resources.byName[resource].resource
		if r.Resource == "" {
			r = p.journalResource(resource)
		}
		n, err := p.resourceNumber(ctx, b, r)
		if err != nil {
			return err
		}
		key := encodeKey(keyKnown, n, known.Key)
		seen[string(key)] = struct{}{}
		return b.addIfChanged(ctx, key, appendKnown(nil, known.UID, known.ResourceVersion))
	})
	if err == nil {
		err = b.flush(ctx)
	}
	if err != nil {
		return err
	}
	unseen := func(_ uint64, key []byte) bool {
		_, ok := seen[string(key)]
		return !ok
	}
	for i := range shards {
		if err := b.removeEntries(ctx, p.mirror.table.knownEntries(i, unseen)); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	p.rebuild, p.applied, p.pending = false, c.Newest, []checkpoint{c}
	return nil
}

// journalResource returns the resource of this name as the journal has it.
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
		s.Objects, s.covered, s.since, s.waiting = p.mirror.table.size, p.stored.offset, time.Now(), p.rebuild || len(p.pending) > 0
		switch {
		case p.rebuild:
			s.since = p.entries.meta.owner.Since
		case s.waiting:
			s.since = p.pending[0].takenAt
		}
	})
}
