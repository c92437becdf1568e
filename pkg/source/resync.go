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

// resync reads all objects of a scope again and again, spread over a period, so that they are emitted again: a consumer
// that began late, or lost something, has everything after one period. It hands the objects to the follower, which
// emits those that are still in the version that was emitted last.
type resync struct {
	period time.Duration
	read   chan again
}

// again is an object that was read to be emitted again.
type again struct {
	object *deltas.Object
	pass   string // names the reading of all objects
}

// resyncPageSize is how many objects are asked for at a time.
const resyncPageSize = 100

func newResync(period time.Duration) *resync {
	if period == 0 {
		return nil
	}
	return &resync{period: period, read: make(chan again)}
}

// objects brings what is to be emitted again; nothing where no rule asks for it.
func (r *resync) objects() <-chan again {
	if r == nil {
		return nil
	}
	return r.read
}

// start reads until ctx ends or stop is called, which waits for the end.
func (r *resync) start(ctx context.Context, f *follower) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for r.readAll(ctx, f) == nil { //nolint:revive // until ctx ends
		}
	})
	return func() { cancel(); done.Wait() }
}

// readAll reads everything once, which takes the period.
func (r *resync) readAll(ctx context.Context, f *follower) error {
	pass := rand.Text()
	began := time.Now()
	o := metav1.ListOptions{Limit: resyncPageSize}
	var b backoff
	for {
		meta, err := f.endpoint.Load().List(ctx, nil, o, r.hand(ctx, pass))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			b.reset()
			o.Continue = meta.Continue
		case apiserver.Classify(err) == apiserver.Expired:
			// The token is older than the API server's history. With the error comes one that goes on behind the same object,
			// in the present (KEP-365); without, this reading ends.
			o.Continue = goOn(err)
		default:
			if err := sleep(ctx, b.wait(err)); err != nil {
				return err
			}
			continue
		}
		if o.Continue == "" {
			return sleep(ctx, time.Until(began.Add(r.period)))
		}
		if err := sleep(ctx, r.period*resyncPageSize/time.Duration(max(f.tracker.Load().Stats().Known, resyncPageSize))); err != nil {
			return err
		}
	}
}

// hand returns a function that gives objects to the follower, which takes them when it watches.
func (r *resync) hand(ctx context.Context, pass string) func(*deltas.Object) error {
	return func(o *deltas.Object) error {
		select {
		case r.read <- again{o, pass}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// goOn is the token that comes with the error that another one has expired; "" if there is none.
func goOn(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// takeAgain emits what resync has read.
func (f *follower) takeAgain(ctx context.Context, a again) error {
	o, err := f.tracker.Load().Synced(a.object, a.pass)
	if err != nil {
		return err
	}
	return f.put(ctx, o)
}
