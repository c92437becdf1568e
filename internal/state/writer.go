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
	// markEvery is how often a mark is taken, where that takes little time: at most one part of markShare of it, up to
	// markAtMost. An object that changes more often than that is written once.
	markEvery   = 200 * time.Millisecond
	markShare   = 20
	markAtMost  = 2 * time.Second
	maxMarks    = 16          // kept until all sinks have passed them; then every other one goes
	stepChanges = 50_000      // at most in one step, so that a new lane does not wait long
	writeBytes  = 512 << 10   // of entries in one write
	settleEvery = time.Second // how often the journal is told what the state has
)

// writer is what the process that works remembers of its writing.
type writer struct {
	meta    meta
	mark    mark   // stored
	at      uint64 // changes up to here are in the state
	base    bool   // the state has to be begun from the journal
	marks   []taken
	settled time.Time

	numbers   map[string]uint64 // of resources, by name
	resources map[string]event.Resource
	last      uint64 // number of a resource
	lastLane  uint64
}

// taken is a mark that is not written yet.
type taken struct {
	places map[sinkLane]sinks.Place
	journal.Marking
	at time.Time
}

func newWriter(m meta, at mark, base bool, c content) writer {
	w := writer{meta: m, mark: at, at: at.offset, base: base, numbers: map[string]uint64{}, resources: map[string]event.Resource{}}
	for n, r := range c.resources {
		w.numbers[r.String()], w.resources[r.String()] = n, r
		w.last = max(w.last, n)
	}
	for n := range c.lanes {
		w.lastLane = max(w.lastLane, n)
	}
	return w
}

// Run writes until ctx ends, and returns nil, or a *sinks.DeposedError when another process has taken over, or an error of
// the journal. A store that is away is waited for; see Status.
func (k *Keeper) Run(ctx context.Context) error {
	next := time.NewTimer(markEvery)
	defer next.Stop()
	defer k.show(func(s *Stats) { s.Active, s.since = false, time.Time{} })
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case do := <-k.asked:
			err = do(ctx)
		case <-next.C:
			began := time.Now()
			err = k.step(ctx)
			next.Reset(min(max(markEvery, markShare*time.Since(began)), markAtMost))
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ask lets Run do something, and returns what came of it. An error of Run's own ends Run as well.
func (k *Keeper) ask(ctx context.Context, do func(context.Context) error) error {
	answer := make(chan error, 1)
	asked := func(running context.Context) error {
		err := do(running)
		answer <- err
		return err
	}
	select {
	case k.asked <- asked:
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
func (k *Keeper) Flush(ctx context.Context) error {
	newest := k.opts.Journal.Newest()
	for {
		covered := false
		err := k.ask(ctx, func(ctx context.Context) error {
			err := k.step(ctx)
			covered = k.w.mark.offset >= newest && k.w.at >= newest && len(k.w.marks) == 0 && !k.w.base
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

// step brings the state up to what all sinks have settled.
func (k *Keeper) step(ctx context.Context) error {
	if k.w.base {
		if err := k.rebase(ctx); err != nil {
			return err
		}
	}
	k.takeMark()
	if due := k.due(); due >= 0 {
		m := k.w.marks[due]
		if err := k.announce(ctx, m.Resources); err != nil {
			return err
		}
		if err := k.takeChanges(ctx, min(m.Newest, k.w.at+stepChanges)); err != nil {
			return err
		}
		if k.w.at >= m.Newest {
			if err := k.writeMark(ctx, m); err != nil {
				return err
			}
			k.w.marks = slices.Delete(k.w.marks, 0, due+1)
		}
	}
	k.showLag()
	return k.settle(ctx)
}

// due is the index of the newest mark that all sinks have passed, -1 if there is none.
func (k *Keeper) due() int {
	low, due := k.opts.Journal.Settled(append([]string{Sink}, k.opts.Unsettled...)...), -1
	for i, m := range k.w.marks {
		if m.Newest <= low {
			due = i
		}
	}
	return due
}

// announce writes the scopes that the state has no position of yet, in front of their objects: as lists that go on, under
// the snapshot or the gap that these objects belong to. One who takes over in between would else tell the objects that the
// state lacks as new.
func (k *Keeper) announce(ctx context.Context, resources []event.StoredResource) error {
	b := batch{k: k}
	for _, r := range resources {
		n, err := b.resource(ctx, r.Resource)
		if err != nil {
			return err
		}
		for _, s := range r.Scopes {
			s.Position = ""
			key := keyOf(keyScope, n, s.ID)
			if there, err := decodeScope(s.ID, k.table.few[string(key)]); err == nil && there.Position != "" {
				continue
			}
			if err := b.add(ctx, key, encodeScope(s)); err != nil {
				return err
			}
		}
	}
	return b.flush(ctx)
}

// takeMark takes a mark, if anything has changed since the last one. First the places, then the rest: what is published
// after it lies behind the places.
func (k *Keeper) takeMark() {
	t := taken{places: k.places(), at: time.Now().UTC()}
	t.Marking = k.opts.Journal.Mark()
	w := &k.w
	if n := len(w.marks); n > 0 && w.marks[n-1].Newest == t.Newest || n == 0 && w.mark.offset == t.Newest {
		if n > 0 && sameResources(w.marks[n-1].Resources, t.Resources) || n == 0 && k.stored(t.Resources) {
			return
		}
	}
	if len(w.marks) == maxMarks {
		for i := range maxMarks / 2 {
			w.marks[i] = w.marks[2*i]
		}
		clear(w.marks[maxMarks/2:])
		w.marks = w.marks[:maxMarks/2]
	}
	w.marks = append(w.marks, t)
}

// places asks all sinks. They do not wait.
func (k *Keeper) places() map[sinkLane]sinks.Place {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[sinkLane]sinks.Place{}
	for name, m := range k.members {
		for lane, place := range m.sink.Places() {
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

// stored says that these resources are in the state as they are.
func (k *Keeper) stored(resources []event.StoredResource) bool {
	if len(resources) != len(k.w.numbers) {
		return false
	}
	for _, r := range resources {
		n, ok := k.w.numbers[r.Resource.String()]
		if !ok || k.w.resources[r.Resource.String()] != r.Resource {
			return false
		}
		for _, s := range r.Scopes {
			if !k.table.has(sinks.StateEntry{Key: keyOf(keyScope, n, s.ID), Value: encodeScope(s)}) {
				return false
			}
		}
	}
	return true
}

// takeChanges takes the objects of changes up to an offset that all sinks have settled into the state.
func (k *Keeper) takeChanges(ctx context.Context, upTo uint64) error {
	b := batch{k: k}
	for k.w.at < upTo {
		records, err := k.opts.Journal.ReadFacts(ctx, k.w.at)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset > upTo {
				break
			}
			if err := b.change(ctx, r.Change); err != nil {
				return err
			}
			k.w.at = r.Offset
		}
	}
	return b.flush(ctx)
}

// batch are entries on their way to the store. An object that changes several times is written once.
type batch struct {
	k       *Keeper
	entries []sinks.StateEntry
	index   map[string]int
	bytes   int
}

// add takes an entry, if it changes something.
func (b *batch) add(ctx context.Context, key, value []byte) error {
	if _, ok := b.index[string(key)]; !ok && b.k.table.has(sinks.StateEntry{Key: key, Value: value}) {
		return nil
	}
	return b.set(ctx, key, value)
}

// set takes an entry.
func (b *batch) set(ctx context.Context, key, value []byte) error {
	if at, ok := b.index[string(key)]; ok {
		b.entries[at].Value = value
		return nil
	}
	if b.index == nil {
		b.index = map[string]int{}
	}
	b.index[string(key)] = len(b.entries)
	b.entries = append(b.entries, sinks.StateEntry{Key: key, Value: value})
	if b.bytes += len(key) + len(value); b.bytes < writeBytes {
		return nil
	}
	return b.flush(ctx)
}

// remove takes entries out.
func (b *batch) remove(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		if err := b.add(ctx, e.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) flush(ctx context.Context) error {
	entries := b.entries
	b.entries, b.bytes = nil, 0
	clear(b.index)
	if len(entries) == 0 {
		return nil
	}
	return b.k.put(ctx, entries)
}

// change takes the object of a change.
func (b *batch) change(ctx context.Context, c *event.Change) error {
	switch c.Type {
	case event.Added, event.Updated, event.Snapshot, event.Sync, event.Deleted:
	default:
		return nil
	}
	n, err := b.resource(ctx, c.Resource)
	if err != nil {
		return err
	}
	key := keyOf(keyKnown, n, c.Name)
	if c.Namespace != "" {
		key = keyOf(keyKnown, n, c.Namespace, "/", c.Name)
	}
	if c.Type == event.Deleted {
		return b.set(ctx, key, nil)
	}
	return b.set(ctx, key, appendKnown(make([]byte, 0, 24), c.UID, c.ResourceVersion))
}

// resource returns the number of a resource, and writes what is new of it.
func (b *batch) resource(ctx context.Context, r event.Resource) (uint64, error) {
	w, name := &b.k.w, r.String()
	n, ok := w.numbers[name]
	if ok && w.resources[name] == r {
		return n, nil
	}
	if !ok {
		w.last++
		n = w.last
	}
	w.numbers[name], w.resources[name] = n, r
	return n, b.add(ctx, keyOf(keyResource, n), encodeResource(r))
}

// writeMark writes a mark whose objects are in the state.
func (k *Keeper) writeMark(ctx context.Context, m taken) error {
	w := &k.w
	k.release(&m)
	b := batch{k: k}
	if err := k.addResources(ctx, &b, m.Resources); err != nil {
		return err
	}
	if err := k.addPlaces(ctx, &b, m.places); err != nil {
		return err
	}
	written := mark{generation: w.meta.owner.Generation, offset: m.Newest, at: m.at}
	if err := b.add(ctx, []byte{keyMark}, written.encode()); err != nil {
		return err
	}
	if cluster, err := k.opts.Journal.Cluster(); err == nil && cluster != "" {
		w.meta.cluster = cluster
	}
	w.meta.complete = true
	if err := errors.Join(b.add(ctx, []byte{keyMeta}, w.meta.encode()), b.flush(ctx)); err != nil {
		return err
	}
	w.mark = written
	return nil
}

// addResources adds the positions of a mark, and takes out what the journal does not have any more.
func (k *Keeper) addResources(ctx context.Context, b *batch, resources []event.StoredResource) error {
	w, there := &k.w, map[string]bool{}
	for _, r := range resources {
		there[r.Resource.String()] = true
		n, err := b.resource(ctx, r.Resource)
		if err != nil {
			return err
		}
		scopes := map[string]bool{}
		for _, s := range r.Scopes {
			scopes[s.ID] = true
			if err := b.add(ctx, keyOf(keyScope, n, s.ID), encodeScope(s)); err != nil {
				return err
			}
		}
		if err := k.drop(ctx, b, keyScope, n, func(id string) bool { return !scopes[id] }); err != nil {
			return err
		}
	}
	for name, n := range w.numbers {
		if there[name] {
			continue
		}
		for _, first := range []byte{keyKnown, keyScope, keyResource} {
			if err := k.drop(ctx, b, first, n, func(string) bool { return true }); err != nil {
				return err
			}
		}
		delete(w.numbers, name)
		delete(w.resources, name)
	}
	return nil
}

// drop takes entries of a resource out.
func (k *Keeper) drop(ctx context.Context, b *batch, first byte, number uint64, gone func(rest string) bool) error {
	prefix := keyOf(first, number)
	asked := func(_ uint64, key []byte) bool {
		return bytes.HasPrefix(key, prefix) && gone(string(key[len(prefix):]))
	}
	if first != keyKnown {
		return b.remove(ctx, k.table.fewOf(asked))
	}
	for i := range shards {
		if err := b.remove(ctx, k.table.of(i, asked)); err != nil {
			return err
		}
	}
	return nil
}

// addPlaces adds the places of a mark.
func (k *Keeper) addPlaces(ctx context.Context, b *batch, places map[sinkLane]sinks.Place) error {
	for lane, place := range places {
		n, ok := k.lanes[lane]
		if !ok {
			var err error
			if n, err = k.addLane(ctx, b, lane); err != nil {
				return err
			}
		}
		if err := b.add(ctx, keyOf(keyPlace, n), binary.AppendUvarint(nil, uint64(place))); err != nil {
			return err
		}
	}
	return nil
}

// addLane gives a lane a number.
func (k *Keeper) addLane(ctx context.Context, b *batch, lane sinkLane) (uint64, error) {
	k.w.lastLane++
	k.lanes[lane] = k.w.lastLane
	return k.w.lastLane, b.add(ctx, keyOf(keyLane, k.w.lastLane), encodeLane(lane.sink, lane.lane))
}

// note stores new lanes of a sink, each with its place.
func (k *Keeper) note(ctx context.Context, sink string, lanes map[sinks.Lane]sinks.Place) error {
	b := batch{k: k}
	for lane, place := range lanes {
		if _, ok := k.lanes[sinkLane{sink, lane}]; ok {
			continue
		}
		n, err := k.addLane(ctx, &b, sinkLane{sink, lane})
		if err == nil {
			err = b.add(ctx, keyOf(keyPlace, n), binary.AppendUvarint(nil, uint64(place)))
		}
		if err != nil {
			return err
		}
	}
	return b.flush(ctx)
}

// release lets go of what sinks had delivered before the take-over, once the positions of a mark that all have settled are
// past it: nothing of it comes again. Their lanes are covered up to where they ended then. Until then their places stay as
// they are: what was passed over lies in front of what is published now, and is not in the state yet.
func (k *Keeper) release(m *taken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, member := range k.members {
		if member.ends == nil {
			continue
		}
		if !passed(m.Resources, member.highest) {
			maps.DeleteFunc(m.places, func(l sinkLane, _ sinks.Place) bool { return l.sink == name })
			continue
		}
		for lane, end := range member.ends {
			at := sinkLane{name, lane}
			m.places[at] = max(m.places[at], end)
		}
		member.delivered.Store(nil)
		member.ends, member.highest = nil, nil
	}
}

// passed says that nothing up to these versions will be told again.
func passed(resources []event.StoredResource, highest map[string]uint64) bool {
	for _, r := range resources {
		version, ok := highest[r.Resource.String()]
		if !ok {
			continue
		}
		if len(r.Scopes) == 0 {
			return false
		}
		for _, s := range r.Scopes {
			if position, ordered := number(s.Position); !ordered || position < version {
				return false
			}
		}
	}
	return true
}

// settle tells the journal what it need not keep for the state.
func (k *Keeper) settle(ctx context.Context) error {
	if k.w.base || time.Since(k.w.settled) < settleEvery {
		return nil
	}
	k.w.settled = time.Now()
	return k.opts.Journal.Settle(ctx, Sink, event.Cursor{Low: k.w.mark.offset}, nil)
}

// rebase begins the state from the journal: all that it knows goes into the state, which is complete when all sinks have
// settled what was there at that moment.
func (k *Keeper) rebase(ctx context.Context) error {
	places, at, b, seen := k.places(), time.Now().UTC(), batch{k: k}, map[string]struct{}{}
	m, err := k.opts.Journal.Inventory(ctx, func(resource string, known event.Known) error {
		if known.UID == "" {
			return nil
		}
		r := k.w.resources[resource]
		if r.Resource == "" {
			r = k.resourceOf(resource)
		}
		n, err := b.resource(ctx, r)
		if err != nil {
			return err
		}
		key := keyOf(keyKnown, n, known.Key)
		seen[string(key)] = struct{}{}
		return b.add(ctx, key, appendKnown(nil, known.UID, known.ResourceVersion))
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
		if err := b.remove(ctx, k.table.of(i, unseen)); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	k.w.base, k.w.at, k.w.marks = false, m.Newest, []taken{{places: places, Marking: m, at: at}}
	return nil
}

// resourceOf is the resource of this name as the journal stores it.
func (k *Keeper) resourceOf(name string) event.Resource {
	for _, r := range k.opts.Journal.Mark().Resources {
		if r.Resource.String() == name {
			return r.Resource
		}
	}
	return event.Resource{Resource: name}
}

// put makes entries part of the state. A store that is away is waited for.
func (k *Keeper) put(ctx context.Context, entries []sinks.StateEntry) error {
	undo := make([]sinks.StateEntry, len(entries))
	for i, e := range entries {
		undo[i].Key = e.Key
		if value, ok := k.table.value(e.Key); ok {
			undo[i].Value = bytes.Clone(value)
		}
		k.table.put(e)
	}
	err := k.write(ctx, entries)
	var deposed *sinks.DeposedError
	if errors.As(err, &deposed) { // it never came to be; from now on the table is what another process writes
		for _, e := range slices.Backward(undo) {
			k.table.put(e)
		}
		return err
	}
	var lost *sinks.StateLostError
	for errors.As(err, &lost) {
		k.log.Warn("the replicated state was lost in the bus, and is written again", "reason", lost.Reason)
		err = k.writeAll(ctx)
	}
	return err
}

// write hands entries to the store until it has them.
func (k *Keeper) write(ctx context.Context, entries []sinks.StateEntry) error {
	for _, e := range entries {
		k.written.Add(uint64(len(e.Key) + len(e.Value)))
	}
	for {
		err := k.store.Write(ctx, entries)
		var deposed *sinks.DeposedError
		var lost *sinks.StateLostError
		switch {
		case err == nil:
			k.condition.Become(stateWritten, "", "")
			return nil
		case errors.As(err, &deposed), errors.As(err, &lost), ctx.Err() != nil:
			return err
		}
		k.trouble(fmt.Errorf("write the replicated state: %w", err))
		k.showLag()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryEvery):
		}
	}
}

// writeAll writes the whole state: first that it is not complete, and the lanes that have to be fenced; last that it is.
func (k *Keeper) writeAll(ctx context.Context) error {
	incomplete := k.w.meta
	incomplete.complete = false
	whole := sinks.StateEntry{Key: []byte{keyMeta}, Value: []byte(k.table.few[string([]byte{keyMeta})])}
	first := []sinks.StateEntry{{Key: []byte{keyMeta}, Value: incomplete.encode()}}
	k.table.put(first[0]) // a store may write parts again meanwhile, and must not call the state complete
	defer k.table.put(whole)
	var rest []sinks.StateEntry
	for key, value := range k.table.few {
		e := sinks.StateEntry{Key: []byte(key), Value: []byte(value)}
		switch key[0] {
		case keyMeta:
		case keyLane, keyPlace:
			first = append(first, e)
		default:
			rest = append(rest, e)
		}
	}
	for part := range shards + 1 {
		entries := first
		if part > 0 {
			entries = k.table.of(part-1, nil)
		}
		for chunk := range slices.Chunk(entries, 4096) {
			if err := k.write(ctx, chunk); err != nil {
				return err
			}
		}
	}
	k.table.put(whole)
	return k.write(ctx, append(rest, whole))
}

// showLag updates what Stats says of the lag. A state that is to be begun covers nothing.
func (k *Keeper) showLag() {
	w := &k.w
	k.show(func(s *Stats) {
		s.Objects, s.covered, s.since, s.waiting = k.table.size, w.mark.offset, time.Now(), w.base || len(w.marks) > 0
		switch {
		case w.base:
			s.since = w.meta.owner.Since
		case s.waiting:
			s.since = w.marks[0].at
		}
	})
}
