package source

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

const (
	// readTimeout bounds one page of a background read, so that an API server that hangs within an answer is asked again.
	readTimeout = time.Minute
	// resyncPageSize is the number of objects per page of a resync.
	resyncPageSize = 100
	// fillObjects and fillBytes bound a batch of bodies. A batch is stored between two batches of the watch, which waits for
	// no more than that.
	fillObjects, fillBytes = 128, 512 << 10
)

// startBackgroundReads starts the reads beside the watch: the resync, and the read of missing bodies. stop ends them and
// waits until they have ended.
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

// pageReader reads all objects of a scope page by page, without delaying the watch. The pages need not be consistent with
// each other. It is used by one goroutine.
type pageReader struct {
	api           *scopeClient
	slots         chan struct{} // bounds how many scopes read at once; nil for no bound
	pageSize      int64
	handle        func(context.Context, *deltas.Object) error // fails only when its context ends
	continueToken string                                      // of the next page
	backoff       backoff
}

// readPage reads the next page, with retries, and reports whether there is another one. It fails when ctx ends, and when the
// token has expired without a replacement.
func (r *pageReader) readPage(ctx context.Context) (more bool, err error) {
	for {
		meta, err := r.requestPage(ctx)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil:
			r.backoff.reset()
			r.continueToken = meta.Continue
			return r.continueToken != "", nil
		case apiserver.Classify(err) == apiserver.Expired:
			// The token is older than the API server's history. The error contains a token that continues after the same
			// object, in the current state (KEP-365).
			if r.continueToken = continueTokenOf(err); r.continueToken == "" {
				return false, err
			}
		}
		if err := sleep(ctx, r.backoff.nextWait(err)); err != nil {
			return false, err
		}
	}
}

// requestPage requests a page once.
func (r *pageReader) requestPage(ctx context.Context) (metav1.ListMeta, error) {
	s := &apiserver.Slot{Pool: r.slots, OnSlow: func() {}}
	if err := s.Acquire(ctx); err != nil {
		return metav1.ListMeta{}, err
	}
	defer s.Release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	o := metav1.ListOptions{Limit: r.pageSize, Continue: r.continueToken}
	return r.api.endpoint.Load().List(ctx, s, o, func(o *deltas.Object) error { return r.handle(ctx, o) })
}

// continueTokenOf returns the token in the error that reports an expired one; "" if there is none.
func continueTokenOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// resyncPeriodically emits all objects again, spread over each period, so that a consumer that started late or lost data has
// everything after one period. An object is emitted only if it is still in the version that was emitted last. It returns
// when ctx ends.
func (f *follower) resyncPeriodically(ctx context.Context) {
	for ctx.Err() == nil {
		began, pass := time.Now(), rand.Text()
		r := pageReader{api: f.api, pageSize: resyncPageSize, handle: func(ctx context.Context, o *deltas.Object) error {
			return f.watcher.runBetweenBatches(ctx, func(ctx context.Context) error { return f.out.emitSync(ctx, o, pass) })
		}}
		for {
			if more, err := r.readPage(ctx); err != nil || !more {
				break
			}
			known := max(f.out.tracker.Load().Stats().Known, resyncPageSize)
			if sleep(ctx, f.scope.Resync*resyncPageSize/time.Duration(known)) != nil {
				return
			}
		}
		if sleep(ctx, time.Until(began.Add(f.scope.Resync))) != nil {
			return
		}
	}
}

// fillBodies reads the bodies of known objects that were loaded without, once. It starts over if its token expires.
func (f *follower) fillBodies(ctx context.Context) {
	if f.watcher.runBetweenBatches(ctx, func(context.Context) error { return nil }) != nil { // wait for the first watch
		return
	}
	env := f.runner.env
	var retry backoff
	for {
		b := &bodyFiller{out: f.out, watcher: f.watcher, flush: env.cfg.Flush}
		r := &pageReader{api: f.api, slots: env.fillSlots, pageSize: pageSize, handle: b.collectObject}
		err := b.readAllPages(ctx, r, f.health)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			env.cfg.Log.Info("the states of known objects were read; changes can now include the state before",
				"scope", f.scope.ID, "objects", b.found)
			f.runner.recordBodiesFilled(ctx)
			return
		}
		if sleep(ctx, retry.nextWait(err)) != nil {
			return
		}
	}
}

// bodyFiller stores the bodies of objects that are still in the known version. An object that has changed in the meantime
// gets its body with its next change, which is emitted without the state before. It is used by one goroutine; only
// storeBatch's closure runs on the follower's.
type bodyFiller struct {
	out     *emitter
	watcher *watcher
	flush   func(context.Context) error // nil if appending already waits
	batch   []*deltas.Object
	bytes   int
	found   int // bodies stored
}

func (b *bodyFiller) readAllPages(ctx context.Context, r *pageReader, h *health) error {
	for {
		h.updateCounters(func(s *Status) { s.Lists++ })
		more, err := r.readPage(ctx)
		if err == nil {
			err = b.storeBatch(ctx)
		}
		if err != nil || !more {
			return err
		}
	}
}

// collectObject adds an object to the batch and stores a full batch.
func (b *bodyFiller) collectObject(ctx context.Context, o *deltas.Object) error {
	b.batch = append(b.batch, o)
	if b.bytes += len(o.Raw); len(b.batch) < fillObjects && b.bytes < fillBytes {
		return nil
	}
	return b.storeBatch(ctx)
}

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
