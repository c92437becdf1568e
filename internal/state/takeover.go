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
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// fenceTimeout bounds how long a take-over waits for the first of its sinks to be fenced, and waitForOthers how much longer
	// it waits for the others: the sinks that are fenced deliver nothing meanwhile.
	fenceTimeout, waitForOthers = 5 * time.Second, 2 * time.Second
)

// maxFenceTimeout bounds an attempt to fence a sink that no other sink waits for.
const maxFenceTimeout = time.Minute

// TakeOverOptions are the inputs of [Writer.TakeOver].
type TakeOverOptions struct {
	// Cluster is the UID of the watched cluster. "" if it is not known yet: the journal then takes the UID of the state,
	// and the source compares it later.
	Cluster string
	// Sinks are all configured sinks by name, nil for one that is not [sinks.Fenced]. None of them has published or has a
	// pipeline yet: the take-over sets their cursors in the journal.
	Sinks map[string]sinks.Fenced
}

// TakeOverResult describes a finished take-over.
type TakeOverResult struct {
	Previous Owner // zero if there was none
	Fresh    bool  // there was no complete state to continue from
	Resumed  bool  // the journal was not empty and continues as it is; otherwise it is empty, or was cleared and seeded
	Duration time.Duration
	Objects  int // known objects
	TailSize int // messages in the tails, each of which may be skipped
	// Waiting are the sinks that could not be fenced, with the reason. Nothing may be published to them before
	// [Writer.AddSink] has succeeded; the others do not wait for them.
	Waiting map[string]error

	writer *Writer
}

// ResumedFrom names the source of what this process knows, for a log line.
func (r *TakeOverResult) ResumedFrom() string {
	switch {
	case r.Resumed:
		return "its journal"
	case r.Fresh:
		return "nothing: there is no complete state yet"
	}
	return "the replicated state"
}

// Delivered is [Writer.Delivered] of the Writer that took over.
func (r *TakeOverResult) Delivered(sink string) func(sinks.Lane, *event.Change) bool {
	return r.writer.Delivered(sink)
}

// TakeOver makes this process the owner. It claims the state, reads it to its end, fences all sinks and reads the tails of
// their lanes. It then seeds the journal from all that, unless the state was written from this very journal, which continues
// as it is.
//
// A process that is the owner already, see [Writer.IsOwner], has only its sinks fenced: their configuration has changed.
//
// It may be called again after an error. A *RefusedError persists until an operator acts. A *sinks.DeposedError means that
// another process took over in the meantime. Other errors are transient.
func (w *Writer) TakeOver(ctx context.Context, o TakeOverOptions) (*TakeOverResult, error) {
	began := time.Now()
	t := takeOver{w: w, opts: o}
	run, claims := t.run, uint64(1)
	if w.owner {
		run, claims = t.fenceAgain, 0
	}
	if err := run(ctx); err != nil {
		w.resignIfDeposed(err)
		if ctx.Err() == nil {
			w.condition.Update(problemOf(err))
		}
		return nil, err
	}
	w.owner = true
	r := &TakeOverResult{
		Previous: t.content.meta.owner, Fresh: t.plan.fresh, Resumed: t.plan.resumed, Waiting: t.waiting,
		Duration: time.Since(began), writer: w,
	}
	w.stats.update(func(s *Stats) {
		s.LastTakeOver, s.Active, s.TakeOvers = r.Duration, true, s.TakeOvers+claims
		r.Objects, r.TailSize = s.Objects, s.TailSize
	})
	return r, nil
}

type takeOver struct {
	w    *Writer
	opts TakeOverOptions

	content stateContent     // as claimed
	tails   map[string]*tail // of the fenced sinks
	waiting map[string]error // of the others
	plan    startPlan
}

func (t *takeOver) run(ctx context.Context) error {
	t.w.entries.abandonCommits()
	t.w.deployment.claimed = ""     // an attempt that failed proves nothing
	before, err := t.readValid(ctx) // a state that is refused must not cost its owner the claim
	if err != nil {
		return err
	}
	if err := t.awaitAbandoned(ctx, before); err != nil {
		return err
	}
	w := t.w
	// This process's own identity, else that of the state, else a new one.
	w.deployment.claimed = cmp.Or(w.deployment.id, before.deployment.id, newDeploymentID())
	if err := t.claimAndFence(ctx, before); err != nil {
		return err
	}
	if t.plan, err = w.planStart(ctx, t.content); err != nil {
		return err
	}
	owner := t.ownerRecord()
	w.entries.meta = owner
	record := checkpointRecord{generation: t.plan.generation, offset: t.plan.offset, takenAt: time.Now().UTC()}
	w.checkpoints = w.newCheckpointer(record, t.plan.journal.rebuildsState(), t.content)
	w.entries.onRetry = w.checkpoints.updateLag
	if err := w.entries.completeRedo(ctx); err != nil {
		return err
	}
	if err := w.checkpoints.storeLostLanes(ctx); err != nil {
		return err
	}
	if err := w.deployment.storeIdentity(ctx, w.deployment.claimed, t.plan.generation); err != nil {
		return err
	}
	records := []sinks.StateEntry{
		w.deployment.heartbeatEntry(), {Key: []byte{keyName}, Value: form.AppendText(nil, w.opts.ClusterName)}, {Key: []byte{keyMeta}, Value: form.EncodeValue(nil, codeMeta, &owner)},
	}
	if err := w.entries.commitEntries(ctx, records); err != nil {
		return err
	}
	// The state gets the new journal ID before the journal does. If the process ends in between, the two differ, and the
	// next take-over does not resume a journal that is only partly seeded.
	if t.plan.journal == seedJournal || t.plan.journal == clearJournal {
		if err := t.seedJournal(ctx); err != nil {
			return err
		}
	}
	if err := w.opts.Journal.Settle(ctx, Sink, event.Cursor{Low: t.plan.offset}, nil); err != nil {
		return err
	}
	t.publishSinks()
	w.stats.update(func(s *Stats) { s.Owner = owner.owner })
	w.checkpoints.updateLag()
	return nil
}

// fenceAgain fences the sinks of an owner whose previous ones are closed. The state stays claimed, and the journal as it is.
func (t *takeOver) fenceAgain(ctx context.Context) (err error) {
	if err := t.confirmOwner(ctx); err != nil {
		return err
	}
	if t.content, err = t.w.mirror.table.decodeContent(); err != nil {
		return err
	}
	from := map[string]tailStart{}
	for name := range t.opts.Sinks {
		from[name] = t.w.mirror.tailStart(name, t.content)
	}
	if t.tails, t.waiting, err = t.w.fenceSinks(ctx, t.opts.Sinks, from); err != nil {
		return err
	}
	t.publishSinks()
	return nil
}

// confirmOwner writes to the state, which refuses a process that has been replaced. A bus that is away confirms nothing, and
// is no reason to stop delivery: what is written then follows when it is back.
func (t *takeOver) confirmOwner(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	err := t.w.entries.commitEntries(limited, []sinks.StateEntry{t.w.deployment.heartbeatEntry()})
	if limited.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// readValid reads the state to its end and refuses one that this process must not use.
func (t *takeOver) readValid(ctx context.Context) (stateContent, error) {
	c, err := t.w.mirror.readContent(ctx)
	if err != nil {
		return c, err
	}
	return c, t.w.opts.validate(&c, cmp.Or(t.w.deployment.id, t.w.deployment.claimed), t.opts.Cluster)
}

// claimAndFence claims the state and fences all sinks at the same time. The lanes to fence are those that the state named
// before the claim. The previous owner may have recorded more of them until the claim: a sink with a new lane is fenced once
// more. A tail that is read from an outdated position is only longer than it has to be.
func (t *takeOver) claimAndFence(ctx context.Context, before stateContent) error {
	fencing, cancel := context.WithCancel(ctx)
	defer cancel()
	mirror := t.w.mirror
	from := map[string]tailStart{}
	for name := range t.opts.Sinks {
		from[name] = mirror.tailStart(name, before)
	}
	claimed := make(chan error, 1)
	go func() { // it alone uses the mirror until it has sent
		err := mirror.store.Claim(ctx, t.w.newClaim(""))
		if err != nil {
			err = fmt.Errorf("claim the replicated state: %w", err)
		} else {
			t.content, err = t.readValid(ctx)
		}
		if err != nil {
			cancel()
		}
		claimed <- err
	}()
	var failed error
	t.tails, t.waiting, failed = t.w.fenceSinks(fencing, t.opts.Sinks, from)
	if err := cmp.Or(<-claimed, failed); err != nil {
		return err
	}
	again := map[string]sinks.Fenced{}
	for name, sink := range t.opts.Sinks {
		now := mirror.tailStart(name, t.content)
		for lane := range now.lanes {
			if _, ok := from[name].lanes[lane]; !ok {
				again[name], from[name] = sink, now
			}
		}
	}
	tails, waiting, err := t.w.fenceSinks(ctx, again, from)
	for name := range again {
		delete(t.tails, name)
		delete(t.waiting, name)
	}
	maps.Copy(t.tails, tails)
	maps.Copy(t.waiting, waiting)
	return err
}

// newClaim returns the claim of this process on the lanes of a sink, or on the store if sink is "".
func (w *Writer) newClaim(sink string) sinks.Claim {
	record := func(ctx context.Context, lanes map[sinks.Lane]sinks.LanePosition) error {
		return w.callInRun(ctx, func(ctx context.Context) error { return w.checkpoints.storeNewLanes(ctx, sink, lanes) })
	}
	return sinks.Claim{
		Group: w.opts.Group, Sink: sink, Owner: w.opts.Owner, Deployment: w.deployment.claimed, Elected: w.opts.Lease != "",
		RecordLanes: record,
	}
}

// fenceSinks fences sinks concurrently and reads their tails. One that fails is returned in waiting and delays the others by
// at most waitForOthers. It returns an error only if this process was deposed or ctx ended.
func (w *Writer) fenceSinks(
	ctx context.Context, all map[string]sinks.Fenced, from map[string]tailStart,
) (tails map[string]*tail, waiting map[string]error, err error) {
	var (
		mu      sync.Mutex
		fencing sync.WaitGroup
	)
	limited, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	tails, waiting = map[string]*tail{}, map[string]error{}
	for name, sink := range all {
		if sink == nil {
			continue
		}
		fencing.Go(func() {
			t, err := w.fenceSink(ctx, limited, name, sink, from[name], func() { time.AfterFunc(waitForOthers, cancel) })
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
		if err := waiting[name]; ctx.Err() != nil || errors.As(err, new(*sinks.DeposedError)) {
			return nil, nil, err
		}
		w.log.Warn("a sink could not be fenced; the others go on without it", "sink", name, "error", waiting[name])
	}
	return tails, waiting, nil
}

// fenceSink fences a sink before limited ends, which is part of ctx, and reads its tails: a long tail takes as long as it
// takes. fenced is called in between.
func (w *Writer) fenceSink(
	ctx, limited context.Context, name string, sink sinks.Fenced, from tailStart, fenced func(),
) (*tail, error) {
	began := time.Now()
	waiting, err := sink.Fence(limited, w.newClaim(name), slices.Sorted(maps.Keys(from.lanes)))
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("sink %s: not fenced within %v: %w", name, time.Since(began).Round(time.Millisecond), err)
	case err != nil:
		return nil, fmt.Errorf("sink %s: fence: %w", name, err)
	}
	fenced()
	t, err := readTail(ctx, sink, from, waiting)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", name, err)
	}
	if len(t.waiting) > 0 {
		w.log.Warn("lanes could not be fenced or read back; the others go on without them", "sink", name, "lanes", len(t.waiting),
			"of", len(from.lanes), "error", firstReason(t.waiting))
	}
	return t, nil
}

// publishSinks makes the fenced sinks those that the checkpointer asks for their progress.
func (t *takeOver) publishSinks() {
	fenced, tailSize := 0, 0
	t.w.sinks.removeAll()
	for name, sink := range t.opts.Sinks {
		if sink == nil || t.waiting[name] != nil {
			continue
		}
		t.w.sinks.addSink(name, sink, t.tails[name])
		fenced += len(t.tails[name].ends)
		tailSize += t.tails[name].size
	}
	t.w.stats.update(func(s *Stats) { s.Fenced, s.TailSize = fenced, tailSize })
}

// ownerRecord is the owner record that this process writes.
func (t *takeOver) ownerRecord() meta {
	m := meta{
		lease: t.w.opts.Lease, cluster: t.content.meta.cluster, complete: !t.plan.journal.rebuildsState(), offset: t.plan.offset,
		owner: Owner{
			Identity: t.w.opts.Owner, Journal: t.plan.id, Generation: t.plan.generation, Since: time.Now().UTC(),
		},
	}
	if t.opts.Cluster != "" {
		m.cluster = t.opts.Cluster
	}
	return m
}

// journalStart is what a take-over does with the journal.
type journalStart uint8

const (
	// resumeJournal continues a journal that the state was written from.
	resumeJournal journalStart = iota
	// rebuildState continues the journal and builds the state from it: there is no complete state, or the journal is newer.
	rebuildState
	// seedJournal replaces the journal's content by the state.
	seedJournal
	// clearJournal replaces the journal's content by nothing: it is of another history than the state, which is incomplete.
	clearJournal
)

// rebuildsState reports whether the state is built from the journal, so that nothing in it counts until that is done.
func (s journalStart) rebuildsState() bool { return s == rebuildState || s == clearJournal }

// startPlan is how state and journal start after a take-over.
type startPlan struct {
	journal    journalStart
	id         string // of the journal, from now on
	generation uint64
	offset     uint64 // of the journal: everything up to here is in the state
	fresh      bool   // there is no complete state
	resumed    bool   // the journal holds something and continues
	lost       string // why the journal is cleared; "" if it is not
}

// planStart compares the state with the journal. internal/state/FORMAT.md has the cases in a table.
func (w *Writer) planStart(ctx context.Context, c stateContent) (p startPlan, err error) {
	j := w.opts.Journal
	if p.id, err = j.ID(); err != nil {
		return p, err
	}
	owner, lost := c.meta.owner, false
	if c.meta.version == 0 {
		owner, lost = w.lostOwner()
	}
	text, _, _ := strings.Cut(p.id, ".")
	generation, _ := strconv.ParseUint(text, 10, 64) // 0 if the ID has none
	p.generation = max(owner.Generation, generation) + 1
	complete, newest := c.meta.version != 0 && c.meta.complete, j.Newest()
	ofThisJournal := p.id != "" && p.id == owner.Journal
	p.fresh = !complete
	switch {
	case ofThisJournal && complete && c.checkpoint.offset > newest:
		w.log.Warn("the journal is an older copy of itself; it is seeded from the replicated state")
	case ofThisJournal && complete && c.checkpoint.offset+1 >= j.Oldest():
		p.journal, p.resumed, p.offset = resumeJournal, true, c.checkpoint.offset
		return p, nil
	case p.id != "" && generation > owner.Generation, ofThisJournal:
		if complete {
			w.log.Warn("the replicated state is older than the journal; it is built again from the journal")
		}
		p.journal, p.resumed, p.offset = rebuildState, true, j.Oldest()-1
		return p, nil
	case complete:
	case lost:
		p.lost = "the replicated state was lost"
	case p.id == "" && c.meta.version == 0: // the journal and the state have both never been part of a replicated state
		p.journal, p.resumed, p.id, p.offset = rebuildState, newest > 0, newJournalID(p.generation), j.Oldest()-1
		return p, j.SetID(ctx, p.id)
	default:
		p.lost = "the replicated state did not hold the first snapshot of the previous exporter"
	}
	p.journal = seedJournal
	if !complete {
		p.journal = clearJournal
	}
	p.id, p.offset = newJournalID(p.generation), newest
	return p, nil
}

// lostOwner returns the last owner of a state that was there and is gone, as far as it is known, and whether there was a
// state. A state that this process must not use was never its own.
func (w *Writer) lostOwner() (Owner, bool) {
	d, seen := &w.deployment, &w.mirror.seen
	if seen.meta.version != 0 && w.opts.validate(seen, d.claimed, "") == nil {
		return seen.meta.owner, true
	}
	return d.lastOwner, d.lastOwner.Generation > 0 || d.lastGeneration > 0
}

// newJournalID returns an ID for a journal that starts with a take-over.
func newJournalID(generation uint64) string {
	return strconv.FormatUint(generation, 10) + "." + rand.Text()
}

// seedJournal empties the journal and fills it with the state and with what the tails hold beyond the state.
func (t *takeOver) seedJournal(ctx context.Context) error {
	c, tails := t.content, t.tails
	if t.plan.journal == clearJournal {
		all := func(string) bool { return true } // those that are configured get the gap that all get
		c, tails = stateContent{members: withoutPositions(t.w.mirror.seen.members, all)}, nil
	}
	numbers := map[string]uint64{}
	s := journal.Seed{ID: t.plan.id, Cluster: c.meta.cluster, Lost: t.plan.lost}
	for n, r := range c.resources {
		numbers[r.String()] = n
		s.Resources = append(s.Resources, event.StoredResource{Resource: r, Scopes: c.scopes[n]})
	}
	if c.members != nil {
		s.Members = *c.members
	}
	table := t.w.mirror.table
	beyond, err := emittedBeyond(tails, func(p objectRef) (event.Known, error) {
		if n, ok := numbers[p.resource]; ok {
			return table.knownObject(n, p.key)
		}
		return event.Known{}, nil
	})
	if err != nil {
		return malformedState(err)
	}
	// A resource that the state lacks has no scope with a position: its first list is compared with what the lanes hold.
	for _, t := range tails {
		for name, r := range t.resources {
			if _, ok := numbers[name]; !ok {
				numbers[name] = 0
				s.Resources = append(s.Resources, event.StoredResource{Resource: r})
			}
		}
	}
	s.Known = func(each func(string, event.Known) error) error {
		if len(s.Resources) == 0 {
			return nil
		}
		err := table.eachKnown(func(n uint64, known event.Known) error {
			ref := objectRef{c.resources[n].String(), known.Key}
			known.EmittedElsewhere = beyond[ref]
			delete(beyond, ref)
			return each(ref.resource, known)
		})
		if err != nil {
			return err
		}
		for ref, emitted := range beyond {
			if err := each(ref.resource, event.Known{Key: ref.key, EmittedElsewhere: emitted}); err != nil {
				return err
			}
		}
		return nil
	}
	return t.w.opts.Journal.Seed(ctx, s)
}
