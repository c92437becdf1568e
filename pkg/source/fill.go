package source

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

const (
	// concurrentFills bounds how many scopes read the bodies of their objects at once, and so the memory that takes.
	concurrentFills = 4
	// A batch of bodies is handled between two batches of the watch, which waits for no more than that.
	fillObjects, fillBytes = 128, 512 << 10
)

// bodyFiller reads the bodies of a scope's known objects, which are known without them: all objects are read once,
// beside the watch, and those that are still in the version that is known have their body stored. Of the others the next
// change says that nothing is known of the state before it, and brings the body.
type bodyFiller struct {
	f     *follower
	batch []*deltas.Object
	bytes int
	found int
}

// fillBodies fills until the last page is read, or ctx ends. A reading whose token has expired begins again.
func (f *follower) fillBodies(ctx context.Context) {
	if f.runBetweenBatches(ctx, func(context.Context) error { return nil }) != nil { // not before the watch is there
		return
	}
	var pause backoff
	for {
		l := &bodyFiller{f: f}
		err := l.readAllPages(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			f.runner.source.cfg.Log.Info("the states of known objects were read, for what changes say of the state before",
				"scope", f.scope.ID, "objects", l.found)
			f.runner.recordBodiesFilled(ctx)
			return
		}
		if sleep(ctx, pause.nextWait(err)) != nil {
			return
		}
	}
}

func (l *bodyFiller) readAllPages(ctx context.Context) error {
	r := pageReader{f: l.f, slots: l.f.runner.source.fillSlots, pageSize: pageSize, handle: l.collectObject}
	for {
		l.f.health.updateCounters(func(s *Status) { s.Lists++ })
		more, err := r.readPage(ctx)
		if err == nil {
			err = l.storeBatch(ctx)
		}
		if err != nil || !more {
			return err
		}
	}
}

// collectObject takes an object that was read.
func (l *bodyFiller) collectObject(ctx context.Context, o *deltas.Object) error {
	l.batch = append(l.batch, o)
	if l.bytes += len(o.Raw); len(l.batch) < fillObjects && l.bytes < fillBytes {
		return nil
	}
	return l.storeBatch(ctx)
}

// storeBatch lets the follower store the bodies that were read, and waits until they are, so that few are in memory.
func (l *bodyFiller) storeBatch(ctx context.Context) error {
	batch, done := l.batch, make(chan struct{})
	if l.batch, l.bytes = nil, 0; len(batch) == 0 {
		return nil
	}
	err := l.f.runBetweenBatches(ctx, func(ctx context.Context) error {
		defer close(done)
		o := l.f.tracker.Load().ObserveBodies(batch)
		l.found += len(o.Bodies)
		return l.f.appendObservation(ctx, o)
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if flush := l.f.runner.source.cfg.Flush; flush != nil {
		return flush(ctx)
	}
	return nil
}

// recordBodiesFilled notes that a scope has the bodies of its objects.
func (r *runner) recordBodiesFilled(ctx context.Context) {
	if r.bodilessScopes.Add(-1) > 0 {
		return
	}
	if err := r.source.cfg.BodiesFilled(ctx, r.resource.String()); err != nil && ctx.Err() == nil {
		r.source.fail(fmt.Errorf("note that the bodies of %s were read: %w", r.resource, err))
	}
}
