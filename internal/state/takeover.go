package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// fenceTimeout bounds how long a take-over waits for one sink.
const fenceTimeout = 5 * time.Second

// TakeOverOptions is what TakeOver needs besides the state.
type TakeOverOptions struct {
	// Cluster is the UID of the cluster that is watched, "" where it is not known (yet): the journal then remembers that of
	// the state, and the source compares.
	Cluster string
	// Sinks are all configured sinks by name, nil for one that is not [sinks.Fenced]. None of them publishes yet, and none
	// has a pipeline: how far it got is in the journal afterwards.
	Sinks map[string]sinks.Fenced
}

// TakeOverResult is what a process has taken over.
type TakeOverResult struct {
	Previous Owner // who worked before; zero where nobody did
	Fresh    bool  // there was no state to take over
	Resumed  bool  // the journal had something and goes on as it is; else it is empty, or was emptied and seeded
	Duration time.Duration
	Objects  int // known
	// TailSize is how many messages the tails had: each of them may be passed over.
	TailSize int
	// Waiting are the sinks that could not be fenced, and why. Nothing may be published to them before [Writer.AddSink] has
	// succeeded; the others do not wait for them.
	Waiting map[string]error

	keeper *Writer
}

// ResumedFrom says in words where what this process knows comes from.
func (t *TakeOverResult) ResumedFrom() string {
	switch {
	case t.Resumed:
		return "its journal"
	case t.Fresh:
		return "nothing: there is no whole state yet"
	}
	return "the replicated state"
}

// Delivered is that of the keeper.
func (t *TakeOverResult) Delivered(sink string) func(sinks.Lane, *event.Change) bool {
	return t.keeper.Delivered(sink)
}

// TakeOver makes this process the owner: it claims the state and reads it to its end, fences all sinks, reads the tails of
// their lanes, and begins the journal from all that, unless the state is of this very journal, which then goes on as it is.
// It may be called again after an error. A *RefusedError stays until somebody acts; a *sinks.DeposedError says that another
// process took over meanwhile; anything else passes by itself.
func (k *Writer) TakeOver(ctx context.Context, t TakeOverOptions) (*TakeOverResult, error) {
	began := time.Now()
	taken, err := k.takeOver(ctx, t)
	if err != nil {
		if ctx.Err() == nil {
			k.reportProblem(err)
		}
		return nil, err
	}
	taken.keeper, taken.Duration = k, time.Since(began)
	k.updateStats(func(s *Stats) {
		s.LastTakeOver, s.Active, s.TakeOvers = taken.Duration, true, s.TakeOvers+1
		taken.Objects, taken.TailSize = s.Objects, s.TailSize
	})
	return taken, nil
}

func (k *Writer) takeOver(ctx context.Context, t TakeOverOptions) (*TakeOverResult, error) {
	c, err := k.readCurrent(ctx, t.Cluster) // before anybody is turned away
	if err != nil {
		return nil, err
	}
	c, tails, waiting, err := k.fencePredecessors(ctx, t, c)
	if err != nil {
		return nil, err
	}
	taken := &TakeOverResult{Previous: c.meta.owner, Waiting: waiting}
	begin, err := k.resolveStartPlan(ctx, c)
	if err != nil {
		return nil, err
	}
	taken.Fresh, taken.Resumed = begin.fresh, begin.resumed
	m := meta{lease: k.opts.Lease, cluster: c.meta.cluster, complete: !begin.base, offset: begin.offset, owner: Owner{
		Identity: k.opts.Owner, Journal: begin.id, Generation: begin.generation, Since: time.Now().UTC(),
	}}
	if t.Cluster != "" {
		m.cluster = t.Cluster
	}
	at := checkpointRecord{generation: begin.generation, offset: begin.offset, takenAt: time.Now().UTC()}
	k.checkpoints = newCheckpointer(m, at, begin.base, c)
	if err := k.storeLostLanes(ctx); err != nil {
		return nil, err
	}
	if err := k.applyEntries(ctx, []sinks.StateEntry{{Key: []byte{keyMeta}, Value: m.encode()}}); err != nil {
		return nil, err
	}
	if begin.seeds { // the state names the journal before the journal is that, so one that is not whole is nobody's
		if err := k.seedJournal(ctx, begin, c, tails); err != nil {
			return nil, err
		}
	}
	if err := k.opts.Journal.Settle(ctx, Sink, event.Cursor{Low: max(begin.offset, k.opts.Journal.Oldest()-1)}, nil); err != nil {
		return nil, err
	}
	k.admitSinks(t.Sinks, tails, waiting)
	k.updateStats(func(s *Stats) { s.Owner = m.owner })
	k.updateLag()
	return taken, nil
}

// fencePredecessors claims the state, and fences all sinks meanwhile: neither waits for the other. The lanes are those that the state
// named before. A process that still worked may have noted another one until the claim: that sink is fenced once more. What
// is read of tails from places that have moved since is more than it has to be.
func (k *Writer) fencePredecessors(ctx context.Context, t TakeOverOptions, before stateContent) (c stateContent, tails map[string]*tail, waiting map[string]error, err error) {
	fencing, cancel := context.WithCancel(ctx)
	defer cancel()
	lanes := map[string]map[sinks.Lane]sinks.LanePosition{}
	for name := range t.Sinks {
		lanes[name] = k.lanesToFence(name, before)
	}
	claimed := make(chan error, 1)
	go func() {
		err := k.store.Claim(ctx, k.newClaim(""))
		if err != nil {
			err = fmt.Errorf("claim the replicated state: %w", err)
		} else {
			c, err = k.readCurrent(ctx, t.Cluster)
		}
		if err != nil {
			cancel()
		}
		claimed <- err
	}()
	tails, waiting, failed := k.fenceSinks(fencing, t.Sinks, lanes)
	if err := cmp.Or(<-claimed, failed); err != nil {
		return c, nil, nil, err
	}
	again := map[string]sinks.Fenced{}
	for name, sink := range t.Sinks {
		now := k.lanesToFence(name, c)
		for lane := range now {
			if _, ok := lanes[name][lane]; !ok {
				again[name], lanes[name] = sink, now
			}
		}
	}
	more, away, err := k.fenceSinks(ctx, again, lanes)
	for name := range again {
		delete(tails, name)
		delete(waiting, name)
	}
	maps.Copy(tails, more)
	maps.Copy(waiting, away)
	return c, tails, waiting, err
}

// readCurrent reads the state to its end, and refuses one that cannot be used.
func (k *Writer) readCurrent(ctx context.Context, cluster string) (stateContent, error) {
	if err := k.readStored(ctx); err != nil {
		return stateContent{}, err
	}
	c, err := k.table.decodeContent()
	if err != nil {
		return c, malformedState(err)
	}
	return c, k.validateOwner(c, cluster)
}

// newClaim is the right to publish; sink is whose lanes are noted, "" for the store.
func (k *Writer) newClaim(sink string) sinks.Claim {
	note := func(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
		return k.callInRun(ctx, func(ctx context.Context) error { return k.storeNewLanes(ctx, sink, lanes) })
	}
	return sinks.Claim{Group: k.opts.Group, Sink: sink, Owner: k.opts.Owner, RecordLanes: note}
}

// admitSinks makes sinks members.
func (k *Writer) admitSinks(all map[string]sinks.Fenced, tails map[string]*tail, waiting map[string]error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Fenced, k.stats.TailSize = 0, 0
	for name, sink := range all {
		if sink == nil || waiting[name] != nil {
			delete(k.members, name)
			continue
		}
		k.members[name] = newFencedSink(sink, tails[name])
		k.stats.Fenced += len(tails[name].ends)
		k.stats.TailSize += tails[name].size
	}
}

func newFencedSink(sink sinks.Fenced, t *tail) *fencedSink {
	m := &fencedSink{sink: sink, tailEnds: t.ends, highest: t.highest}
	if t.size > 0 {
		m.delivered.Store(t.deliveredSet)
	}
	return m
}

// fenceSinks fences sinks at the same time, and reads their tails. One that is away keeps the others waiting for a moment.
func (k *Writer) fenceSinks(ctx context.Context, all map[string]sinks.Fenced, lanes map[string]map[sinks.Lane]sinks.LanePosition) (map[string]*tail, map[string]error, error) {
	var (
		mu      sync.Mutex
		fencing sync.WaitGroup
	)
	tails, waiting := map[string]*tail{}, map[string]error{}
	for name, sink := range all {
		if sink == nil {
			continue
		}
		fencing.Go(func() {
			t, err := k.fenceSink(ctx, name, sink, lanes[name])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				waiting[name] = err
				return
			}
			tails[name] = t
		})
	}
	fencing.Wait()
	for _, name := range slices.Sorted(maps.Keys(waiting)) {
		var deposed *sinks.DeposedError
		if err := waiting[name]; ctx.Err() != nil || errors.As(err, &deposed) {
			return nil, nil, err
		}
		k.log.Warn("a sink could not be fenced; the others go on without it", "sink", name, "error", waiting[name])
	}
	return tails, waiting, nil
}

// fenceSink fences a sink and reads its tails. A sink that cannot be reached is given up after a while; reading takes its time.
func (k *Writer) fenceSink(ctx context.Context, name string, sink sinks.Fenced, lanes map[sinks.Lane]sinks.LanePosition) (*tail, error) {
	limited, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	if err := sink.Fence(limited, k.newClaim(name), slices.Sorted(maps.Keys(lanes))); err != nil {
		return nil, fmt.Errorf("sink %s: fence: %w", name, err)
	}
	t, err := readTail(ctx, sink, lanes)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	return t, nil
}

// lanesToFence are the lanes of a sink, with the place from which each has to be read.
func (k *Writer) lanesToFence(name string, c stateContent) map[sinks.Lane]sinks.LanePosition {
	lanes := map[sinks.Lane]sinks.LanePosition{}
	for l, place := range k.lostLanes {
		if l.sink == name {
			lanes[l.lane] = place
		}
	}
	for l, number := range k.lanes {
		if l.sink == name {
			lanes[l.lane] = c.lanes[number].place
		}
	}
	return lanes
}

// storeLostLanes notes the lanes of a state that was purged or replaced.
func (k *Writer) storeLostLanes(ctx context.Context) error {
	for l, place := range k.lostLanes {
		if err := k.storeNewLanes(ctx, l.sink, map[sinks.Lane]sinks.LanePosition{l.lane: place}); err != nil {
			return err
		}
	}
	k.lostLanes = map[sinkLane]sinks.LanePosition{}
	return nil
}

// AddSink takes a sink in that was made while this process works, or that was Waiting: after Fence and the tails of its lanes.
// It takes the place of one of the same name, which is closed. Run runs. A nil sink is one that is not fenced.
func (k *Writer) AddSink(ctx context.Context, name string, sink sinks.Fenced) error {
	if sink == nil {
		k.RemoveSink(name)
		return nil
	}
	var lanes map[sinks.Lane]sinks.LanePosition
	err := k.callInRun(ctx, func(context.Context) error {
		c, err := k.table.decodeContent()
		lanes = k.lanesToFence(name, c)
		return err
	})
	if err != nil {
		return err
	}
	t, err := k.fenceSink(ctx, name, sink, lanes)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.members[name] = newFencedSink(sink, t)
	return nil
}

// startPlan is how the journal begins.
type startPlan struct {
	id         string
	generation uint64
	offset     uint64 // everything up to here is in the state
	base       bool   // the state is begun from the journal: nothing of it is in the state yet
	fresh      bool   // there is no state that counts
	resumed    bool   // the journal goes on
	seeds      bool   // the journal is emptied and seeded; with base by nothing
}

// resolveStartPlan decides what the journal begins with.
func (k *Writer) resolveStartPlan(ctx context.Context, c stateContent) (b startPlan, err error) {
	j := k.opts.Journal
	if b.id, err = j.ID(); err != nil {
		return b, err
	}
	own := parseGeneration(b.id)
	b.generation = max(c.meta.owner.Generation, own) + 1
	exists, newest := c.meta.version != 0 && c.meta.complete, j.Newest()
	switch {
	case b.id != "" && b.id == c.meta.owner.Journal && exists && c.mark.offset > newest:
		k.log.Warn("the journal is an older copy of itself: it is seeded with the replicated state")
	case b.id != "" && b.id == c.meta.owner.Journal && exists && c.mark.offset+1 >= j.Oldest():
		b.resumed, b.offset = true, c.mark.offset
		return b, nil
	case b.id != "" && own > c.meta.owner.Generation, b.id != "" && b.id == c.meta.owner.Journal:
		if c.meta.version != 0 && exists {
			k.log.Warn("the replicated state is older than the journal, which was written after it: it is begun again from the journal")
		}
		b.resumed, b.base, b.fresh = true, true, !exists
		return b, nil
	case exists:
	case b.id == "" && c.meta.version == 0:
		b.base, b.fresh, b.resumed = true, true, newest > 0
		b.id = newJournalID(b.generation)
		return b, j.SetID(ctx, b.id)
	}
	b.fresh, b.base, b.seeds = !exists, !exists, true
	b.id, b.offset = newJournalID(b.generation), newest
	return b, nil
}

// newJournalID is the ID of a journal that begins with a take-over.
func newJournalID(generation uint64) string {
	return strconv.FormatUint(generation, 10) + "." + rand.Text()
}

func parseGeneration(id string) uint64 {
	text, _, _ := strings.Cut(id, ".")
	n, _ := strconv.ParseUint(text, 10, 64) // an ID that is none is of no generation
	return n
}

// seedJournal empties the journal and fills it with the state, and what the tails know beyond it.
func (k *Writer) seedJournal(ctx context.Context, b startPlan, c stateContent, tails map[string]*tail) error {
	lost := ""
	if b.base {
		c, tails, lost = stateContent{}, nil, "the replicated state did not hold the first snapshot of whoever worked before"
	}
	numbers := map[string]uint64{}
	s := journal.Seed{ID: b.id, Cluster: c.meta.cluster, Lost: lost}
	for n, r := range c.resources {
		numbers[r.String()] = n
		s.Resources = append(s.Resources, event.StoredResource{Resource: r, Scopes: c.scopes[n]})
	}
	beyond, err := emittedBeyond(tails, func(p objectRef) (event.Known, error) {
		if n, ok := numbers[p.resource]; ok {
			return k.table.knownObject(n, p.key)
		}
		return event.Known{}, nil
	})
	if err != nil {
		return malformedState(err)
	}
	s.Known = func(each func(string, event.Known) error) error {
		if len(c.resources) == 0 {
			return nil
		}
		err := k.table.eachKnown(func(n uint64, known event.Known) error {
			name := c.resources[n].String()
			place := objectRef{name, known.Key}
			known.EmittedElsewhere = beyond[place]
			delete(beyond, place)
			return each(name, known)
		})
		if err != nil {
			return err
		}
		for place, told := range beyond {
			// A resource that the state does not have begins with a snapshot, which says what is gone by not naming it.
			if _, ok := numbers[place.resource]; !ok {
				continue
			}
			if err := each(place.resource, event.Known{Key: place.key, EmittedElsewhere: told}); err != nil {
				return err
			}
		}
		return nil
	}
	return k.opts.Journal.Seed(ctx, s)
}
