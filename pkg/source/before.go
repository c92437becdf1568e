package source

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

const (
	// concurrentStates bounds the single states of a scope that are requested at the same time.
	concurrentStates = 16
	// statesWithin bounds how long a batch of changes waits for the states before them.
	statesWithin = time.Second
)

// statesBefore reads the state of an object before its first change, while fillBodies reads those of all objects beside the
// watch. It is one request for each object that changes before its turn; the first failure ends it, and changes are then
// emitted without the state before until fillBodies has ended. Only end is safe for concurrent use.
type statesBefore struct {
	follower  *follower
	requested map[string]bool // keys
	ended     atomic.Bool
}

func (s *statesBefore) end() { s.ended.Store(true) }

// storeFor stores the states of the objects that change for the first time with a batch of events. s may be nil.
func (s *statesBefore) storeFor(ctx context.Context, events []deltas.Event) error {
	if s == nil {
		return nil
	}
	if s.ended.Load() {
		s.requested = nil
		return nil
	}
	out := s.follower.out
	tracker := out.tracker.Load()
	var changed []*deltas.Object
	for _, e := range events {
		if e.Type != watch.Modified || s.requested[e.Object.Key()] {
			continue
		}
		s.requested[e.Object.Key()] = true
		if tracker.Knows(e.Object) {
			changed = append(changed, e.Object)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	_, err := out.storeBodies(ctx, s.readAll(ctx, changed, out.currentPosition()))
	return err
}

// readAll reads the states of objects at a position of the scope, at which they are in the known version.
func (s *statesBefore) readAll(ctx context.Context, changed []*deltas.Object, position string) (found []*deltas.Object) {
	ctx, cancel := context.WithTimeout(ctx, statesWithin)
	defer cancel()
	endpoint, slots := s.follower.api.endpoint.Load(), make(chan struct{}, concurrentStates)
	s.follower.health.updateCounters(func(st *Status) { st.Lists += uint64(len(changed)) })
	var mu sync.Mutex
	var reading sync.WaitGroup
	for _, o := range changed {
		slots <- struct{}{}
		reading.Go(func() {
			defer func() { <-slots }()
			if s.ended.Load() {
				return
			}
			before, err := endpoint.ReadAt(ctx, o.Namespace, o.Name, position)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				s.end()
			case before != nil:
				found = append(found, before)
			}
		})
	}
	reading.Wait()
	return found
}

const (
	// resyncPage bounds the objects per page of a resync, and so those that are emitted at once.
	resyncPage = 100
	// fillObjects and fillBytes bound a batch of bodies. A batch is stored between two batches of the watch, which waits for
	// no more than that.
	fillObjects, fillBytes = 128, 512 << 10
	// quietFailures is the number of consecutive failures of a background reading that are not reported: the end of a
	// connection is ordinary.
	quietFailures = 2
)

// startBackgroundReads starts the readings beside the watch, which they do not delay: the resync, the reading of missing
// bodies, and snapshots for single sinks. stop ends them and waits until they have ended.
func (f *follower) startBackgroundReads(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	if f.scope.Resync > 0 {
		running.Go(func() { f.resyncPeriodically(ctx) })
	}
	if f.bodiesMissing {
		f.watcher.before = &statesBefore{follower: f, requested: map[string]bool{}}
		running.Go(func() { f.fillBodies(ctx) })
	}
	running.Go(func() { f.emitRequestedSnapshots(ctx) })
	return func() { cancel(); running.Wait() }
}

// newBackgroundReader returns a reader whose failures do not affect the state of the scope, but have a condition of their
// own. It ends only with its context.
func (f *follower) newBackgroundReader(slots chan struct{}, most int64) *reader {
	var retry backoff
	slot := &apiserver.Slot{Pool: slots, OnSlow: func() { f.health.recordReread(apiserver.ErrSlow) }}
	r := &reader{
		api: f.api, slot: slot, most: most, recordHeld: func(condition.Problem) {}, recordFailure: f.health.recordReread,
	}
	r.handleFailure = func(ctx context.Context, err error) error {
		if retry.failures >= quietFailures {
			r.recordFailure(err)
		}
		return ratelimit.Sleep(ctx, retry.nextWait(err))
	}
	r.recordSuccess = func() {
		retry.reset()
		f.health.recordReread(nil)
	}
	return r
}

// resyncPeriodically emits all objects again, spread over each period, so that a consumer that started late or lost data has
// everything after one period. It returns when ctx ends.
func (f *follower) resyncPeriodically(ctx context.Context) {
	r := f.newBackgroundReader(nil, resyncPage)
	for {
		began := time.Now()
		if _, _, err := r.read(ctx, "", &resync{follower: f, pass: rand.Text()}); err != nil {
			return
		}
		if ratelimit.Sleep(ctx, time.Until(began.Add(f.scope.Resync))) != nil {
			return
		}
	}
}

// resync is the visitor of one resync.
type resync struct {
	follower *follower
	pass     string // the ID
	position string // that it reads at
}

func (r *resync) begin(position string) error {
	r.position = position
	return nil
}

// visit emits an object if it is still in the version that was emitted last.
func (r *resync) visit(ctx context.Context, o *deltas.Object) error {
	return r.follower.watcher.runBetweenBatches(ctx, func(ctx context.Context) error {
		return r.follower.out.emitSync(ctx, o, r.pass, r.position)
	})
}

// endPage waits for the page's share of the period.
func (r *resync) endPage(ctx context.Context, objects int, more bool) error {
	if !more {
		return nil
	}
	known := max(r.follower.out.tracker.Load().Stats().Known, objects, 1)
	return ratelimit.Sleep(ctx, r.follower.scope.Resync*time.Duration(objects)/time.Duration(known))
}

// fillBodies reads the bodies of known objects that were loaded without, once: at the position that the known objects are
// at, or as they are now if the API server no longer has that state.
func (f *follower) fillBodies(ctx context.Context) {
	defer f.watcher.before.end()
	if f.watcher.runBetweenBatches(ctx, func(context.Context) error { return nil }) != nil { // wait for the first watch
		return
	}
	env := f.runner.env
	r := f.newBackgroundReader(env.fillSlots, maxPage)
	defer r.slot.Release()
	b := &bodyFiller{objectBatch: objectBatch{follower: f, slot: r.slot}}
	b.store = func(ctx context.Context, objects []*deltas.Object) error {
		n, err := f.out.storeBodies(ctx, objects)
		b.found += n
		return err
	}
	_, _, err := r.read(ctx, f.out.currentPosition(), b)
	if err != nil && ctx.Err() == nil {
		_, _, err = r.read(ctx, "", b)
	}
	if err != nil {
		return
	}
	env.cfg.Log.Info("the states of known objects were read; changes can now include the state before",
		"scope", f.scope.ID, "objects", b.found)
	f.runner.recordBodiesFilled(ctx)
}

// bodyFiller is the visitor that stores the bodies of objects that are still in the known version. For those that have
// changed in the meantime see statesBefore.
type bodyFiller struct {
	objectBatch
	found int // bodies stored
}

func (b *bodyFiller) begin(string) error { return nil }

func (b *bodyFiller) visit(ctx context.Context, o *deltas.Object) error {
	_, err := b.add(ctx, o)
	return err
}

func (b *bodyFiller) endPage(ctx context.Context, _ int, _ bool) error { return b.storeAll(ctx) }

// objectBatch collects objects that were read beside the watch and hands them over in batches. Only store runs on the
// follower's goroutine.
type objectBatch struct {
	follower *follower
	slot     *apiserver.Slot // of the reading
	store    func(context.Context, []*deltas.Object) error
	objects  []*deltas.Object
	bytes    int
}

// add adds an object, and stores a full batch.
func (b *objectBatch) add(ctx context.Context, o *deltas.Object) (stored bool, err error) {
	b.objects = append(b.objects, o)
	if b.bytes += len(o.Raw); len(b.objects) < fillObjects && b.bytes < fillBytes {
		return false, nil
	}
	return true, b.storeAll(ctx)
}

// storeAll hands the batch to the follower's goroutine and waits until it is stored, so that one batch at a time is in
// memory.
func (b *objectBatch) storeAll(ctx context.Context) error {
	objects := b.objects
	if b.objects, b.bytes = nil, 0; len(objects) == 0 {
		return nil
	}
	store := func(ctx context.Context) error { return b.store(ctx, objects) }
	if err := b.slot.Await(func() error { return b.follower.runAndWait(ctx, store) }); err != nil { // long without a watch
		return err
	}
	if err := b.slot.Acquire(ctx); err != nil {
		return err
	}
	if flush := b.follower.runner.env.cfg.Flush; flush != nil { // otherwise appending already waits
		return flush(ctx)
	}
	return nil
}
