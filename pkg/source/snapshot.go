package source

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

const (
	// snapshotPage bounds the objects per page of a snapshot for one sink.
	snapshotPage = 500
	// concurrentSnapshots bounds how many scopes are read at once for one sink. A sink that is away delays no other.
	concurrentSnapshots = 4
	// snapshotReread is how long after a reading the objects are read again that neither it nor the watch has brought.
	snapshotReread = 30 * time.Second
)

// requestedSnapshots are the snapshots for single sinks that a scope is still to emit. It belongs to the goroutine that
// appends, once that runs.
type requestedSnapshots struct {
	pending []event.SnapshotRequest // the first one may be in progress
	attempt *snapshotAttempt        // of the first one; nil if it is not in progress
}

// isIncomplete reports whether a sink is new and still gets a snapshot.
func (r *requestedSnapshots) isIncomplete(sink string) bool {
	return slices.ContainsFunc(r.pending, func(p event.SnapshotRequest) bool { return p.Sink == sink && !p.Signal })
}

// endAttempt ends the reading of the snapshot in progress, if there is one. If it is not complete, it starts again.
func (r *requestedSnapshots) endAttempt() {
	if r.attempt != nil {
		r.attempt.stop()
		r.attempt = nil
	}
}

// snapshotAttempt is one attempt to emit a snapshot for one sink. A restart, and lost history, make another one, whose ID
// begins in the same way: what was deleted in between is in the first one only.
type snapshotAttempt struct {
	request     event.SnapshotRequest
	known       int             // objects at its start
	ctx         context.Context // ends with the attempt
	stop        func()
	reading     context.Context // ends with the attempt, or when the snapshot has every known object
	stopReading func()
}

// startSnapshot starts the first pending snapshot and appends its begin record. The attempt ends with ctx.
func (e *emitter) startSnapshot(ctx, appending context.Context) (*snapshotAttempt, error) {
	r := &e.requested
	r.endAttempt()
	a := &snapshotAttempt{request: r.pending[0]}
	a.ctx, a.stop = context.WithCancel(ctx)
	a.reading, a.stopReading = context.WithCancel(a.ctx)
	r.attempt = a
	id := a.request.ID + "." + rand.Text()[:8]
	if err := e.appendObservation(appending, e.tracker.Load().StartSnapshot(a.request, id, e.currentPosition())); err != nil {
		return a, err
	}
	a.known, _ = e.tracker.Load().MissingInSnapshot()
	e.checkSnapshot()
	return a, nil
}

// emitExisting emits objects that were read for an attempt, unless that has ended.
func (e *emitter) emitExisting(ctx context.Context, a *snapshotAttempt, objects []*deltas.Object, listVersion string) error {
	if e.requested.attempt != a {
		return nil
	}
	o, err := e.tracker.Load().ObserveExisting(objects, listVersion)
	return e.appendObserved(ctx, o, err)
}

// checkSnapshot ends the reading for the snapshot in progress if that has every known object.
func (e *emitter) checkSnapshot() {
	if a := e.requested.attempt; a != nil {
		if missing, _ := e.tracker.Load().MissingInSnapshot(); missing == 0 {
			a.stopReading()
		}
	}
}

// finishSnapshot emits the end of a snapshot that has every known object, unless its attempt has ended. The request ends in
// the same observation.
func (e *emitter) finishSnapshot(ctx context.Context, a *snapshotAttempt) error {
	r := &e.requested
	if r.attempt != a {
		return nil
	}
	if err := e.appendObservation(ctx, e.tracker.Load().FinishSnapshot()); err != nil {
		return err
	}
	r.pending = r.pending[1:]
	r.endAttempt()
	return nil
}

// cancelSnapshot ends a snapshot in progress, if there is one: its request was removed.
func (e *emitter) cancelSnapshot(ctx context.Context) error {
	if e.requested.attempt == nil {
		return nil
	}
	err := e.appendObservation(ctx, e.tracker.Load().CancelSnapshot())
	e.requested.endAttempt()
	return err
}

// emitRequestedSnapshots emits the snapshots that the store has requests for, one after the other, until ctx ends. It looks
// again when f.requested is signaled.
func (f *follower) emitRequestedSnapshots(ctx context.Context) {
	for {
		next, err := f.loadRequests()
		if err != nil {
			if ctx.Err() == nil {
				f.runner.env.fail(fmt.Errorf("load the requests for snapshots of %s: %w", f.scope.ID, err))
			}
			return
		}
		if len(next) == 0 {
			f.health.snapshot.Clear()
			select {
			case <-f.requested:
				continue
			case <-ctx.Done():
				return
			}
		}
		f.recordSnapshot("it follows when " + f.scope.ID + " is watched")
		begun := false
		removed := f.whileRequested(ctx, next[0], func(ctx context.Context) { begun = f.emitFirst(ctx, next) })
		if removed && begun {
			f.health.snapshot.Clear()
			_ = f.runAndWait(ctx, f.out.cancelSnapshot) // fails with ctx only
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// whileRequested runs do, and ends its context when the store has no request with this ID any more. removed reports whether
// it has ended for that reason.
func (f *follower) whileRequested(ctx context.Context, r event.SnapshotRequest, do func(context.Context)) (removed bool) {
	ctx, stop := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-f.requested:
			case <-ctx.Done():
				return
			}
			pending, err := f.loadRequests()
			isIt := func(o event.SnapshotRequest) bool { return o.ID == r.ID && o.Sink == r.Sink }
			if err == nil && !slices.ContainsFunc(pending, isIt) {
				removed = true
				stop()
			}
		}
	})
	do(ctx)
	stop()
	looking.Wait()
	return removed
}

// emitFirst emits the first of the pending snapshots, once the scope is watched and has its turn. It returns whether the
// snapshot has begun.
func (f *follower) emitFirst(ctx context.Context, pending []event.SnapshotRequest) (begun bool) {
	setPending := func(context.Context) error { f.out.requested.pending = pending; return nil }
	if f.runAndWait(ctx, setPending) != nil {
		return false
	}
	r := f.newBackgroundReader(f.runner.env.snapshots.slotsOf(pending[0].Sink), snapshotPage)
	if r.slot.Acquire(ctx) != nil {
		return false
	}
	defer r.slot.Release()
	return f.emitSnapshot(ctx, r)
}

// loadRequests returns what the store has requests for. Only the goroutine that calls it ends requests of the scope.
func (f *follower) loadRequests() ([]event.SnapshotRequest, error) {
	stored, err := f.runner.env.cfg.Load(f.runner.resource, nil)
	for _, s := range stored.Scopes {
		if s.ID == f.scope.ID {
			return s.PendingSnapshots(), err
		}
	}
	return nil, err
}

func (f *follower) recordSnapshot(cause string) {
	f.health.snapshot.Update(condition.Problem{Code: condition.SnapshotPending, Cause: cause})
}

// runAndWait waits for the watch, runs do on the follower's goroutine between two batches, and waits until it has ended.
func (f *follower) runAndWait(ctx context.Context, do func(context.Context) error) error {
	done := make(chan struct{})
	err := f.watcher.runBetweenBatches(ctx, func(ctx context.Context) error {
		defer close(done)
		return do(ctx)
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-f.watcher.ended:
		return context.Canceled
	}
}

// emitSnapshot emits the first pending snapshot until it is complete, or its attempt ends. It returns whether it has begun.
func (f *follower) emitSnapshot(ctx context.Context, r *reader) (begun bool) {
	var a *snapshotAttempt
	err := r.slot.Await(func() error {
		return f.runAndWait(ctx, func(appending context.Context) (err error) {
			a, err = f.out.startSnapshot(ctx, appending)
			return err
		})
	})
	if err != nil {
		return false
	}
	f.readSnapshot(a, r)
	f.recordSnapshot(fmt.Sprintf("sink %s receives what was read of %s", a.request.Sink, f.scope.ID))
	if f.awaitDelivered(a) == nil {
		_ = r.slot.Await(func() error {
			return f.runAndWait(a.ctx, func(appending context.Context) error { return f.out.finishSnapshot(appending, a) })
		})
		if flush := f.runner.env.cfg.Flush; flush != nil { // the store is read next
			_ = flush(ctx)
		}
	}
	return true
}

// awaitDelivered waits until the sink has received all records of a snapshot, so that its end never stands alone: after a
// failover, which may begin another attempt, the records before it are there.
func (f *follower) awaitDelivered(a *snapshotAttempt) error {
	cfg := f.runner.env.cfg
	if cfg.Flush != nil {
		if err := cfg.Flush(a.ctx); err != nil {
			return err
		}
	}
	if cfg.AwaitDelivered != nil {
		return cfg.AwaitDelivered(a.ctx, a.request.Sink)
	}
	return a.ctx.Err()
}

// readSnapshot reads the objects of a snapshot until it has all of them, or its attempt ends.
func (f *follower) readSnapshot(a *snapshotAttempt, r *reader) {
	f.recordSnapshot(fmt.Sprintf("sink %s gets %d objects of %s", a.request.Sink, a.known, f.scope.ID))
	for a.reading.Err() == nil {
		v := &snapshotReading{attempt: a, batch: objectBatch{follower: f, slot: r.slot}}
		v.batch.store = func(ctx context.Context, objects []*deltas.Object) error {
			return f.out.emitExisting(ctx, a, objects, v.position)
		}
		if _, _, err := r.read(a.reading, "", v); err == nil {
			_ = ratelimit.Sleep(a.reading, snapshotReread) // the watch brings what has changed since
		}
	}
}

// snapshotReading is the visitor of a snapshot for one sink.
type snapshotReading struct {
	attempt  *snapshotAttempt
	batch    objectBatch
	position string
}

func (s *snapshotReading) begin(position string) error {
	s.position = position
	return nil
}

func (s *snapshotReading) visit(ctx context.Context, o *deltas.Object) error {
	stored, err := s.batch.add(ctx, o)
	if err != nil || !stored {
		return err
	}
	return s.awaitSink(ctx)
}

func (s *snapshotReading) endPage(ctx context.Context, _ int, _ bool) error {
	if err := s.batch.storeAll(ctx); err != nil {
		return err
	}
	return s.awaitSink(ctx)
}

// awaitSink waits until the sink has received enough of what was appended.
func (s *snapshotReading) awaitSink(ctx context.Context) error {
	if pace := s.batch.follower.runner.env.cfg.PaceSnapshot; pace != nil {
		return pace(ctx, s.attempt.request.Sink)
	}
	return nil
}

// snapshotSlots bounds how many scopes are read at once for each sink. Safe for concurrent use.
type snapshotSlots struct {
	mu     sync.Mutex
	bySink map[string]chan struct{}
}

func (s *snapshotSlots) slotsOf(sink string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySink == nil {
		s.bySink = map[string]chan struct{}{}
	}
	if s.bySink[sink] == nil {
		s.bySink[sink] = make(chan struct{}, concurrentSnapshots)
	}
	return s.bySink[sink]
}

// missingPollsUntilGone is the number of consecutive polls, each at least an interval after the previous one, that must lack
// a resource before a 404 of its own address means that it is gone. Polls that are asked for are closer together and do
// not count: a starting API server may briefly serve less.
const missingPollsUntilGone = 2

// absence counts the consecutive polls that lacked one resource.
type absence struct{ polls int }

// recordPoll reports whether discovery lacks r although its group has answered. counts is whether this poll counts, see
// missingPollsUntilGone.
func (a *absence) recordPoll(found Discovery, r event.Resource, counts bool) (missing bool) {
	if found.Catalog.Has(r) || slices.Contains(found.Failed, r.Group) {
		a.polls = 0
		return false
	}
	if counts {
		a.polls++
	}
	return true
}

// storedResources are the resources with stored state that have no runner. It is used by the goroutine of Source.Run.
type storedResources struct {
	cfg    *Config
	byName map[string]*storedResource
}

type storedResource struct {
	selection.Served
	absence absence
}

// loadNames reads the names and the versions of all stored resources.
func (s *storedResources) loadNames() error {
	names, err := s.cfg.StoredResources()
	if err != nil {
		return err
	}
	for _, name := range names {
		stored, err := s.cfg.Load(event.ParseResourceName(name), nil)
		if err != nil {
			return err
		}
		one := &storedResource{}
		if one.Resource = stored.Resource; one.Resource.Version == "" {
			one.Resource = event.ParseResourceName(name)
		}
		s.byName[name] = one
	}
	return nil
}

// hiddenResources returns the stored resources that discovery lacks. One without a stored version cannot be watched before
// discovery names it, so it is included only when it is to be dropped.
func (s *storedResources) hiddenResources(found Discovery, counts bool) (hidden []selection.Served, err error) {
	for _, one := range s.byName {
		missing := one.absence.recordPoll(found, one.Resource, counts)
		if !missing || one.Resource.Version == "" && one.absence.polls < missingPollsUntilGone {
			continue
		}
		if err := one.loadNamespaced(s.cfg.Load); err != nil {
			return nil, err
		}
		hidden = append(hidden, one.Served)
	}
	return hidden, nil
}

// loadNamespaced determines whether a resource is namespaced: it is if its scopes name namespaces, or its known objects do.
func (one *storedResource) loadNamespaced(load LoadFunc) error {
	stored, err := load(event.ParseResourceName(one.Resource.String()), func(k event.Known) { one.Namespaced = strings.Contains(k.Key, "/") })
	hasNamespace := func(s event.StoredScope) bool { return selection.IsNamespacedID(s.ID) }
	one.Namespaced = one.Namespaced || slices.ContainsFunc(stored.Scopes, hasNamespace)
	return err
}

// initialGaps decides which resources begin with a gap because stored positions were lost: those served at the first poll,
// and those of groups that did not answer then. Resources served later were not watched before the loss. It is used by the
// goroutine of Source.Run.
type initialGaps struct {
	reason     string   // empty if nothing was lost, or once the gaps are recorded
	polled     bool     // the first poll has succeeded
	unanswered []string // groups that have not answered since
}

func (g *initialGaps) reasonFor(group string) string {
	if g.polled && !slices.Contains(g.unanswered, group) {
		return ""
	}
	return g.reason
}

// recordPoll takes the groups that did not answer in a poll. It returns true once: when all runners that begin with a gap
// have been started.
func (g *initialGaps) recordPoll(failed []string) (complete bool) {
	if g.reason == "" {
		return false
	}
	if !g.polled {
		g.polled, g.unanswered = true, slices.Clone(failed)
	}
	g.unanswered = slices.DeleteFunc(g.unanswered, func(group string) bool { return !slices.Contains(failed, group) })
	if len(g.unanswered) > 0 {
		return false
	}
	g.reason = ""
	return true
}
