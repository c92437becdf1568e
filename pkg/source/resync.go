package source

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// resyncPageSize is how many objects are asked for at a time.
const resyncPageSize = 100

// resyncPeriodically reads all objects of the scope again and again, spread over a period each time, so that they are emitted again: a
// consumer that began late, or lost something, has everything after one period. Those are emitted that are still in the
// version that was emitted last. It returns when ctx ends.
func (f *follower) resyncPeriodically(ctx context.Context) {
	for ctx.Err() == nil {
		began, pass := time.Now(), rand.Text()
		r := pageReader{f: f, pageSize: resyncPageSize, handle: func(ctx context.Context, o *deltas.Object) error {
			return f.runBetweenBatches(ctx, func(ctx context.Context) error { return f.emitSync(ctx, o, pass) })
		}}
		for {
			if more, err := r.readPage(ctx); err != nil || !more {
				break
			}
			if sleep(ctx, f.scope.Resync*resyncPageSize/time.Duration(max(f.tracker.Load().Stats().Known, resyncPageSize))) != nil {
				return
			}
		}
		if sleep(ctx, time.Until(began.Add(f.scope.Resync))) != nil {
			return
		}
	}
}

// emitSync emits what resync has read.
func (f *follower) emitSync(ctx context.Context, o *deltas.Object, pass string) error {
	again, err := f.tracker.Load().ObserveSynced(o, pass)
	if err != nil {
		return err
	}
	return f.appendObservation(ctx, again)
}
