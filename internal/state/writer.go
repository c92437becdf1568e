package state

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// checkpointInterval is how often a mark is taken, where that takes little time: at most one part of checkpointShare of it, up to
	// maxCheckpointInterval. An object that changes more often than that is written once.
	checkpointInterval    = 200 * time.Millisecond
	checkpointShare       = 20
	maxCheckpointInterval = 2 * time.Second
	maxPendingCheckpoints = 16          // kept until all sinks have passed them; then every other one goes
	maxChangesPerStep     = 50_000      // at most in one step, so that a new lane does not wait long
	maxWriteBytes         = 512 << 10   // of entries in one write
	settleInterval        = time.Second // how often the journal is told what the state has
)

// checkpointer is what the process that works remembers of its writing.
type checkpointer struct {
	meta      meta
	stored    checkpointRecord // stored
	applied   uint64           // changes up to here are in the state
	rebuild   bool             // the state has to be begun from the journal
	pending   []checkpoint
	settledAt time.Time

	numbers      map[string]uint64 // of resources, by name
	resources    map[string]event.Resource
	lastResource uint64 // number of a resource
	lastLane     uint64
}

// checkpoint is a mark that is not written yet.
type checkpoint struct {
	progress map[sinkLane]sinks.LanePosition
	journal.Checkpoint
	takenAt time.Time
}

func newCheckpointer(m meta, at checkpointRecord, base bool, c stateContent) checkpointer {
	w := checkpointer{meta: m, stored: at, applied: at.offset, rebuild: base, numbers: map[string]uint64{}, resources: map[string]event.Resource{}}
	for n, r := range c.resources {
		w.numbers[r.String()], w.resources[r.String()] = n, r
		w.lastResource = max(w.lastResource, n)
	}
	for n := range c.lanes {
		w.lastLane = max(w.lastLane, n)
	}
	return w
}

// Run writes until ctx ends, and returns nil, or a *sinks.DeposedError when another process has taken over, or an error of
// the journal. A store that is away is waited for; see Status.
func (k *Writer) Run(ctx context.Context) error {
	next := time.NewTimer(checkpointInterval)
	defer next.Stop()
	defer k.updateStats(func(s *Stats) { s.Active, s.since = false, time.Time{} })
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case do := <-k.requests:
			err = do(ctx)
		case <-next.C:
			began := time.Now()
			err = k.advanceState(ctx)
			next.Reset(min(max(checkpointInterval, checkpointShare*time.Since(began)), maxCheckpointInterval))
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// callInRun lets Run do something, and returns what came of it. An error of Run's own ends Run as well.
func (k *Writer) callInRun(ctx context.Context, do func(context.Context) error) error {
	answer := make(chan error, 1)
	asked := func(running context.Context) error {
		err := do(running)
		answer <- err
		return err
	}
	select {
	case k.requests <- asked:
	case <-ctx.Done():
		return fmt.Errorf("the replicated state is not being written: %w", context.Cause(ctx))
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Flush waits until the state covers everything that the journal holds now. It is for a hand-over: the source has stopped,
// all sinks have settled everything, and Run still runs.
func (k *Writer) Flush(ctx context.Context) error {
	newest := k.opts.Journal.Newest()
	for {
		covered := false
		err := k.callInRun(ctx, func(ctx context.Context) error {
			err := k.advanceState(ctx)
			covered = k.checkpoints.stored.offset >= newest && k.checkpoints.applied >= newest && len(k.checkpoints.pending) == 0 && !k.checkpoints.rebuild
			return err
		})
		if err != nil || covered {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the replicated state does not cover everything yet: %w", context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// advanceState brings the state up to what all sinks have settled.
func (k *Writer) advanceState(ctx context.Context) error {
	if k.checkpoints.rebuild {
		if err := k.rebuildFromJournal(ctx); err != nil {
			return err
		}
	}
	k.takeCheckpoint()
	if due := k.newestSettled(); due >= 0 {
		m := k.checkpoints.pending[due]
		if err := k.writeNewScopes(ctx, m.Resources); err != nil {
			return err
		}
		if err := k.applyChanges(ctx, min(m.Newest, k.checkpoints.applied+maxChangesPerStep)); err != nil {
			return err
		}
		if k.checkpoints.applied >= m.Newest {
			if err := k.writeCheckpoint(ctx, m); err != nil {
				return err
			}
			k.checkpoints.pending = slices.Delete(k.checkpoints.pending, 0, due+1)
		}
	}
	k.updateLag()
	return k.settleJournal(ctx)
}

// newestSettled is the index of the newest mark that all sinks have passed, -1 if there is none.
func (k *Writer) newestSettled() int {
	low, due := k.opts.Journal.LowestCursor(append([]string{Sink}, k.opts.Unsettled...)...), -1
	for i, m := range k.checkpoints.pending {
		if m.Newest <= low {
			due = i
		}
	}
	return due
}

// writeNewScopes writes the scopes that the state has no position of yet, in front of their objects: as lists that go on, under
// the snapshot or the gap that these objects belong to. One who takes over in between would else tell the objects that the
// state lacks as new.
func (k *Writer) writeNewScopes(ctx context.Context, resources []event.StoredResource) error {
	b := entryBatch{k: k}
	for _, r := range resources {
		n, err := b.resourceNumber(ctx, r.Resource)
		if err != nil {
			return err
		}
		for _, s := range r.Scopes {
			s.Position = ""
			key := encodeKey(keyScope, n, s.ID)
			if there, err := decodeScope(s.ID, k.table.others[string(key)]); err == nil && there.Position != "" {
				continue
			}
			if err := b.addIfChanged(ctx, key, encodeScope(s)); err != nil {
				return err
			}
		}
	}
	return b.flush(ctx)
}

// takeCheckpoint takes a mark, if anything has changed since the last one. First the places, then the rest: what is published
// after it lies behind the places.
func (k *Writer) takeCheckpoint() {
	t := checkpoint{progress: k.collectProgress(), takenAt: time.Now().UTC()}
	t.Checkpoint = k.opts.Journal.Checkpoint()
	w := &k.checkpoints
	if n := len(w.pending); n > 0 && w.pending[n-1].Newest == t.Newest || n == 0 && w.stored.offset == t.Newest {
		if n > 0 && sameResources(w.pending[n-1].Resources, t.Resources) || n == 0 && k.isStored(t.Resources) {
			return
		}
	}
	if len(w.pending) == maxPendingCheckpoints {
		for i := range maxPendingCheckpoints / 2 {
			w.pending[i] = w.pending[2*i]
		}
		clear(w.pending[maxPendingCheckpoints/2:])
		w.pending = w.pending[:maxPendingCheckpoints/2]
	}
	w.pending = append(w.pending, t)
}

// collectProgress asks all sinks. They do not wait.
func (k *Writer) collectProgress() map[sinkLane]sinks.LanePosition {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[sinkLane]sinks.LanePosition{}
	for name, m := range k.members {
		for lane, place := range m.sink.LaneProgress() {
			all[sinkLane{name, lane}] = place
		}
	}
	return all
}

func sameResources(a, b []event.StoredResource) bool {
	return slices.EqualFunc(a, b, func(a, b event.StoredResource) bool {
		return a.Resource == b.Resource && slices.Equal(a.Scopes, b.Scopes)
	})
}

// isStored says that these resources are in the state as they are.
func (k *Writer) isStored(resources []event.StoredResource) bool {
	if len(resources) != len(k.checkpoints.numbers) {
		return false
	}
	for _, r := range resources {
		n, ok := k.checkpoints.numbers[r.Resource.String()]
		if !ok || k.checkpoints.resources[r.Resource.String()] != r.Resource {
			return false
		}
		for _, s := range r.Scopes {
			if !k.table.containsEntry(sinks.StateEntry{Key: encodeKey(keyScope, n, s.ID), Value: encodeScope(s)}) {
				return false
			}
		}
	}
	return true
}

// applyChanges takes the objects of changes up to an offset that all sinks have settled into the state.
func (k *Writer) applyChanges(ctx context.Context, upTo uint64) error {
	b := entryBatch{k: k}
	for k.checkpoints.applied < upTo {
		records, err := k.opts.Journal.ReadWithoutBodies(ctx, k.checkpoints.applied)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset > upTo {
				break
			}
			if err := b.addChange(ctx, r.Change); err != nil {
				return err
			}
			k.checkpoints.applied = r.Offset
		}
	}
	return b.flush(ctx)
}

// entryBatch are entries on their way to the store. An object that changes several times is written once.
type entryBatch struct {
	k       *Writer
	entries []sinks.StateEntry
	index   map[string]int
	bytes   int
}

// addIfChanged takes an entry, if it changes something.
func (b *entryBatch) addIfChanged(ctx context.Context, key, value []byte) error {
	if _, ok := b.index[string(key)]; !ok && b.k.table.containsEntry(sinks.StateEntry{Key: key, Value: value}) {
		return nil
	}
	return b.setEntry(ctx, key, value)
}

// setEntry takes an entry.
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

// removeEntries takes entries out.
func (b *entryBatch) removeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		if err := b.addIfChanged(ctx, e.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

func (b *entryBatch) flush(ctx context.Context) error {
	entries := b.entries
	b.entries, b.bytes = nil, 0
	clear(b.index)
	if len(entries) == 0 {
		return nil
	}
	return b.k.applyEntries(ctx, entries)
}

// addChange takes the object of a change.
func (b *entryBatch) addChange(ctx context.Context, c *event.Change) error {
	switch c.Type {
	case event.Added, event.Updated, event.Snapshot, event.Sync, event.Deleted:
	default:
		return nil
	}
	n, err := b.resourceNumber(ctx, c.Resource)
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

// resourceNumber returns the number of a resource, and writes what is new of it.
func (b *entryBatch) resourceNumber(ctx context.Context, r event.Resource) (uint64, error) {
	w, name := &b.k.checkpoints, r.String()
	n, ok := w.numbers[name]
	if ok && w.resources[name] == r {
		return n, nil
	}
	if !ok {
		w.lastResource++
		n = w.lastResource
	}
	w.numbers[name], w.resources[name] = n, r
	return n, b.addIfChanged(ctx, encodeKey(keyResource, n), encodeResource(r))
}

// writeCheckpoint writes a mark whose objects are in the state.
func (k *Writer) writeCheckpoint(ctx context.Context, m checkpoint) error {
	w := &k.checkpoints
	k.releaseDelivered(&m)
	b := entryBatch{k: k}
	if err := k.addResources(ctx, &b, m.Resources); err != nil {
		return err
	}
	if err := k.addProgress(ctx, &b, m.progress); err != nil {
		return err
	}
	written := checkpointRecord{generation: w.meta.owner.Generation, offset: m.Newest, takenAt: m.takenAt}
	if err := b.addIfChanged(ctx, []byte{keyCheckpoint}, written.encode()); err != nil {
		return err
	}
	if cluster, err := k.opts.Journal.Cluster(); err == nil && cluster != "" {
		w.meta.cluster = cluster
	}
	w.meta.complete = true
	if err := errors.Join(b.addIfChanged(ctx, []byte{keyMeta}, w.meta.encode()), b.flush(ctx)); err != nil {
		return err
	}
	w.stored = written
	return nil
}

// addResources adds the positions of a mark, and takes out what the journal does not have any more.
func (k *Writer) addResources(ctx context.Context, b *entryBatch, resources []event.StoredResource) error {
	w, there := &k.checkpoints, map[string]bool{}
	for _, r := range resources {
		there[r.Resource.String()] = true
		n, err := b.resourceNumber(ctx, r.Resource)
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
		if err := k.removeEntries(ctx, b, keyScope, n, func(id string) bool { return !scopes[id] }); err != nil {
			return err
		}
	}
	for name, n := range w.numbers {
		if there[name] {
			continue
		}
		for _, first := range []byte{keyKnown, keyScope, keyResource} {
			if err := k.removeEntries(ctx, b, first, n, func(string) bool { return true }); err != nil {
				return err
			}
		}
		delete(w.numbers, name)
		delete(w.resources, name)
	}
	return nil
}

// removeEntries takes entries of a resource out.
func (k *Writer) removeEntries(ctx context.Context, b *entryBatch, first byte, number uint64, gone func(rest string) bool) error {
	prefix := encodeKey(first, number)
	asked := func(_ uint64, key []byte) bool {
		return bytes.HasPrefix(key, prefix) && gone(string(key[len(prefix):]))
	}
	if first != keyKnown {
		return b.removeEntries(ctx, k.table.otherEntries(asked))
	}
	for i := range shards {
		if err := b.removeEntries(ctx, k.table.knownEntries(i, asked)); err != nil {
			return err
		}
	}
	return nil
}

// addProgress adds the places of a mark.
func (k *Writer) addProgress(ctx context.Context, b *entryBatch, places map[sinkLane]sinks.LanePosition) error {
	for lane, place := range places {
		n, ok := k.lanes[lane]
		if !ok {
			var err error
			if n, err = k.addLane(ctx, b, lane); err != nil {
				return err
			}
		}
		if err := b.addIfChanged(ctx, encodeKey(keyProgress, n), binary.AppendUvarint(nil, uint64(place))); err != nil {
			return err
		}
	}
	return nil
}

// addLane gives a lane a number.
func (k *Writer) addLane(ctx context.Context, b *entryBatch, lane sinkLane) (uint64, error) {
	k.checkpoints.lastLane++
	k.lanes[lane] = k.checkpoints.lastLane
	return k.checkpoints.lastLane, b.addIfChanged(ctx, encodeKey(keyLane, k.checkpoints.lastLane), encodeLane(lane.sink, lane.lane))
}

// storeNewLanes stores new lanes of a sink, each with its place.
func (k *Writer) storeNewLanes(ctx context.Context, sink string, lanes map[sinks.Lane]sinks.LanePosition) error {
	b := entryBatch{k: k}
	for lane, place := range lanes {
		if _, ok := k.lanes[sinkLane{sink, lane}]; ok {
			continue
		}
		n, err := k.addLane(ctx, &b, sinkLane{sink, lane})
		if err == nil {
			err = b.addIfChanged(ctx, encodeKey(keyProgress, n), binary.AppendUvarint(nil, uint64(place)))
		}
		if err != nil {
			return err
		}
	}
	return b.flush(ctx)
}

// releaseDelivered lets go of what sinks had delivered before the take-over, once the positions of a mark that all have settled are
// past it: nothing of it comes again. Their lanes are covered up to where they ended then. Until then their places stay as
// they are: what was passed over lies in front of what is published now, and is not in the state yet.
func (k *Writer) releaseDelivered(m *checkpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, member := range k.members {
		if member.tailEnds == nil {
			continue
		}
		if !positionsPassed(m.Resources, member.highest) {
			maps.DeleteFunc(m.progress, func(l sinkLane, _ sinks.LanePosition) bool { return l.sink == name })
			continue
		}
		for lane, end := range member.tailEnds {
			at := sinkLane{name, lane}
			m.progress[at] = max(m.progress[at], end)
		}
		member.delivered.Store(nil)
		member.tailEnds, member.highest = nil, nil
	}
}

// positionsPassed says that nothing up to these versions will be told again.
func positionsPassed(resources []event.StoredResource, highest map[string]uint64) bool {
	for _, r := range resources {
		version, ok := highest[r.Resource.String()]
		if !ok {
			continue
		}
		if len(r.Scopes) == 0 {
			return false
		}
		for _, s := range r.Scopes {
			if position, ordered := parseVersion(s.Position); !ordered || position < version {
				return false
			}
		}
	}
	return true
}

// settleJournal tells the journal what it need not keep for the state.
func (k *Writer) settleJournal(ctx context.Context) error {
	if k.checkpoints.rebuild || time.Since(k.checkpoints.settledAt) < settleInterval {
		return nil
	}
	k.checkpoints.settledAt = time.Now()
	return k.opts.Journal.Settle(ctx, Sink, event.Cursor{Low: k.checkpoints.stored.offset}, nil)
}

// rebuildFromJournal begins the state from the journal: all that it knows goes into the state, which is complete when all sinks have
// settled what was there at that moment.
func (k *Writer) rebuildFromJournal(ctx context.Context) error {
	places, at, b, seen := k.collectProgress(), time.Now().UTC(), entryBatch{k: k}, map[string]struct{}{}
	m, err := k.opts.Journal.ForEachKnown(ctx, func(resource string, known event.Known) error {
		if known.UID == "" {
			return nil
		}
		r := k.checkpoints.resources[resource]
		if r.Resource == "" {
			r = k.journalResource(resource)
		}
		n, err := b.resourceNumber(ctx, r)
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
		if err := b.removeEntries(ctx, k.table.knownEntries(i, unseen)); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	k.checkpoints.rebuild, k.checkpoints.applied, k.checkpoints.pending = false, m.Newest, []checkpoint{{progress: places, Checkpoint: m, takenAt: at}}
	return nil
}

// journalResource is the resource of this name as the journal stores it.
func (k *Writer) journalResource(name string) event.Resource {
	for _, r := range k.opts.Journal.Checkpoint().Resources {
		if r.Resource.String() == name {
			return r.Resource
		}
	}
	return event.Resource{Resource: name}
}

// applyEntries makes entries part of the state. A store that is away is waited for.
func (k *Writer) applyEntries(ctx context.Context, entries []sinks.StateEntry) error {
	undo := make([]sinks.StateEntry, len(entries))
	for i, e := range entries {
		undo[i].Key = e.Key
		if value, ok := k.table.entryValue(e.Key); ok {
			undo[i].Value = bytes.Clone(value)
		}
		k.table.applyEntry(e)
	}
	err := k.writeEntries(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) { // it never came to be; from now on the table is what another process writes
		for _, e := range slices.Backward(undo) {
			k.table.applyEntry(e)
		}
		return err
	}
	var lost *sinks.StateLostError
	for errors.As(err, &lost) {
		k.log.Warn("the replicated state was lost in the bus, and is written again", "reason", lost.Reason)
		err = k.rewriteState(ctx)
	}
	return err
}

// writeEntries hands entries to the store until it has them.
func (k *Writer) writeEntries(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		k.written.Add(uint64(len(e.Key) + len(e.Value)))
	}
	for {
		err := k.store.Write(ctx, entries)
		var deposed *sinks.DeposedError
		var lost *sinks.StateLostError
		switch {
		case err == nil:
			k.condition.Update(conditionWritten, "", "")
			return nil
		case errors.As(err, &deposed), errors.As(err, &lost), ctx.Err() != nil:
			return err
		}
		k.reportProblem(fmt.Errorf("write the replicated state: %w", err))
		k.updateLag()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

// rewriteState writes the whole state: first that it is not complete, and the lanes that have to be fenced; last that it is.
func (k *Writer) rewriteState(ctx context.Context) error {
	incomplete := k.checkpoints.meta
	incomplete.complete = false
	whole := sinks.StateEntry{Key: []byte{keyMeta}, Value: []byte(k.table.others[string([]byte{keyMeta})])}
	first := []sinks.StateEntry{{Key: []byte{keyMeta}, Value: incomplete.encode()}}
	k.table.applyEntry(first[0]) // a store may write parts again meanwhile, and must not call the state complete
	defer k.table.applyEntry(whole)
	var rest []sinks.StateEntry
	for key, value := range k.table.others {
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
			entries = k.table.knownEntries(part-1, nil)
		}
		for chunk := range slices.Chunk(entries, 4096) {
			if err := k.writeEntries(ctx, chunk); err != nil {
				return err
			}
		}
	}
	k.table.applyEntry(whole)
	return k.writeEntries(ctx, append(rest, whole))
}

// updateLag updates what Stats says of the lag. A state that is to be begun covers nothing.
func (k *Writer) updateLag() {
	w := &k.checkpoints
	k.updateStats(func(s *Stats) {
		s.Objects, s.covered, s.since, s.waiting = k.table.size, w.stored.offset, time.Now(), w.rebuild || len(w.pending) > 0
		switch {
		case w.rebuild:
			s.since = w.meta.owner.Since
		case s.waiting:
			s.since = w.pending[0].takenAt
		}
	})
}
