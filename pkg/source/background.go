package source

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

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

// startBackgroundReads starts the readings beside the watch, which they do not delay: the resync, and the reading of missing
// bodies. stop ends them and waits until they have ended.
func (f *follower) startBackgroundReads(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	if f.scope.Resync > 0 {
		running.Go(func() { f.resyncPeriodically(ctx) })
	}
	if f.bodiesMissing {
		running.Go(func() { f.fillBodies(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// newBackgroundReader returns a reader whose failures do not affect the state of the scope, but have a condition of their
// own. It ends only with its context.
func (f *follower) newBackgroundReader(slots chan struct{}, most int64) *reader {
	var retry backoff
	r := &reader{api: f.api, slots: slots, most: most, recordFailure: f.health.recordReread}
	r.handleFailure = func(ctx context.Context, err error) error {
		if retry.failures >= quietFailures {
			r.recordFailure(err)
		}
		return sleep(ctx, retry.nextWait(err))
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
		if sleep(ctx, time.Until(began.Add(f.scope.Resync))) != nil {
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
	return sleep(ctx, r.follower.scope.Resync*time.Duration(objects)/time.Duration(known))
}

// fillBodies reads the bodies of known objects that were loaded without, once: at the position that the known objects are
// at, or as they are now if the API server no longer has that state.
func (f *follower) fillBodies(ctx context.Context) {
	if f.watcher.runBetweenBatches(ctx, func(context.Context) error { return nil }) != nil { // wait for the first watch
		return
	}
	env := f.runner.env
	r := f.newBackgroundReader(env.fillSlots, maxPage)
	b := &bodyFiller{out: f.out, watcher: f.watcher, flush: env.cfg.Flush}
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

// bodyFiller is the visitor that stores the bodies of objects that are still in the known version. An object that has
// changed in the meantime gets its body with its next change, which is emitted without the state before. Only the closure
// of storeBatch runs on the follower's goroutine.
type bodyFiller struct {
	out     *emitter
	watcher *watcher
	flush   func(context.Context) error // nil if appending already waits
	batch   []*deltas.Object
	bytes   int
	found   int // bodies stored
}

func (b *bodyFiller) begin(string) error { return nil }

// visit adds an object to the batch and stores a full batch.
func (b *bodyFiller) visit(ctx context.Context, o *deltas.Object) error {
	b.batch = append(b.batch, o)
	if b.bytes += len(o.Raw); len(b.batch) < fillObjects && b.bytes < fillBytes {
		return nil
	}
	return b.storeBatch(ctx)
}

func (b *bodyFiller) endPage(ctx context.Context, _ int, _ bool) error { return b.storeBatch(ctx) }

// storeBatch hands the batch to the follower's goroutine and waits until it is stored, so that one batch at a time is in
// memory.
func (b *bodyFiller) storeBatch(ctx context.Context) error {
	batch, done := b.batch, make(chan struct{})
	if b.batch, b.bytes = nil, 0; len(batch) == 0 {
		return nil
	}
	err := b.watcher.runBetweenBatches(ctx, func(ctx context.Context) error {
		defer close(done)
		n, err := b.out.storeBodies(ctx, batch)
		b.found += n
		return err
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if b.flush != nil {
		return b.flush(ctx)
	}
	return nil
}
