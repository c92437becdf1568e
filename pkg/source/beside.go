package source

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// startBackgroundReads starts what reads objects beside the watch. stop ends it, and waits for the end.
func (f *follower) startBackgroundReads(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	if f.scope.Resync > 0 {
		running.Go(func() { f.resyncPeriodically(ctx) })
	}
	if f.bodiless {
		running.Go(func() { f.fillBodies(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// runBetweenBatches lets the follower do something between two batches of its watch. It waits while there is no watch, and returns
// when the follower begins with it, or when ctx ends, whose error it then returns.
func (f *follower) runBetweenBatches(ctx context.Context, do func(context.Context) error) error {
	select {
	case f.betweenBatches <- do:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readTimeout bounds one page of a reading, so that an API server that hangs within an answer is asked again.
const readTimeout = time.Minute

// pageReader reads all objects of a scope page by page beside the watch, which it never holds up. Pages need not be of one
// moment.
type pageReader struct {
	f             *follower
	slots         chan struct{} // bounds how many scopes read at once; nil where nothing does
	pageSize      int64
	handle        func(context.Context, *deltas.Object) error // fails only when its context ends
	continueToken string                                      // token of the next page
	backoff       backoff
}

// readPage reads the next page, as often as it takes, and says whether there is another one. It fails when ctx ends, and when
// the reading cannot be gone on with.
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
			// The token is older than the API server's history. With the error comes one that goes on behind the same
			// object, in the present (KEP-365).
			if r.continueToken = continueTokenOf(err); r.continueToken == "" {
				return false, err
			}
		}
		if err := sleep(ctx, r.backoff.nextWait(err)); err != nil {
			return false, err
		}
	}
}

// requestPage asks for a page once.
func (r *pageReader) requestPage(ctx context.Context) (metav1.ListMeta, error) {
	s := &apiserver.Slot{Pool: r.slots, OnSlow: func() {}}
	if err := s.Acquire(ctx); err != nil {
		return metav1.ListMeta{}, err
	}
	defer s.Release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return r.f.endpoint.Load().List(ctx, s, metav1.ListOptions{Limit: r.pageSize, Continue: r.continueToken}, func(o *deltas.Object) error {
		return r.handle(ctx, o)
	})
}

// continueTokenOf is the token that comes with the error that another one has expired; "" if there is none.
func continueTokenOf(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}
