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

// besides starts what reads objects beside the watch. stop ends it, and waits for the end.
func (f *follower) besides(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	if f.scope.Resync > 0 {
		running.Go(func() { f.resync(ctx) })
	}
	if f.bodiless {
		running.Go(func() { f.fill(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// interject lets the follower do something between two batches of its watch. It waits while there is no watch, and returns
// when the follower begins with it, or when ctx ends, whose error it then returns.
func (f *follower) interject(ctx context.Context, do func(context.Context) error) error {
	select {
	case f.between <- do:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readTimeout bounds one page of a reading, so that an API server that hangs within an answer is asked again.
const readTimeout = time.Minute

// reading reads all objects of a scope page by page beside the watch, which it never holds up. Pages need not be of one
// moment.
type reading struct {
	f       *follower
	slots   chan struct{} // bounds how many scopes read at once; nil where nothing does
	size    int64
	take    func(context.Context, *deltas.Object) error // fails only when its context ends
	more    string                                      // token of the next page
	backoff backoff
}

// page reads the next page, as often as it takes, and says whether there is another one. It fails when ctx ends, and when
// the reading cannot be gone on with.
func (r *reading) page(ctx context.Context) (more bool, err error) {
	for {
		meta, err := r.list(ctx)
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == nil:
			r.backoff.reset()
			r.more = meta.Continue
			return r.more != "", nil
		case apiserver.Classify(err) == apiserver.Expired:
			// The token is older than the API server's history. With the error comes one that goes on behind the same
			// object, in the present (KEP-365).
			if r.more = goOn(err); r.more == "" {
				return false, err
			}
		}
		if err := sleep(ctx, r.backoff.wait(err)); err != nil {
			return false, err
		}
	}
}

// list asks for a page once.
func (r *reading) list(ctx context.Context) (metav1.ListMeta, error) {
	s := &apiserver.Slot{All: r.slots, Slow: func() {}}
	if err := s.Acquire(ctx); err != nil {
		return metav1.ListMeta{}, err
	}
	defer s.Release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return r.f.endpoint.Load().List(ctx, s, metav1.ListOptions{Limit: r.size, Continue: r.more}, func(o *deltas.Object) error {
		return r.take(ctx, o)
	})
}

// goOn is the token that comes with the error that another one has expired; "" if there is none.
func goOn(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}
