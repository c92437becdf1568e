package source

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

// resuming is the ListerWatcher of one scope. It lets client-go's Reflector start at a stored position and keeps from it
// every failure that loses no history, because the Reflector answers most of them with a new list.
//
// The Reflector always begins with everything there is: with a WatchList (KEP-3157), or a LIST where that is refused. So
// the first WatchList is refused, and the LIST that follows is answered here, with nothing but the stored position; the
// queue knows by its Origin that this list is none. From there on the Reflector watches. What it watches is a stream
// (see there) that goes from connection to connection and ends only where history does.
type resuming struct {
	endpoint func() *endpoint
	health   *health
	slots    chan struct{} // bounds how many scopes read all their objects at once; shared
	// stage takes an object of a list that is being read and returns what goes on in its place, see deltas.Queue.Stage.
	// It is set before the Reflector runs; without it objects go on as they are.
	stage func(*deltas.Object) (*deltas.Object, error)
	// moved is sent to when another endpoint is to be tried at once. It may be nil.
	moved <-chan struct{}
	// confirm makes sure that the cluster is still the same as before a doubt. It is set before the Reflector runs.
	confirm func(context.Context, doubt) error

	mu       sync.Mutex
	resume   string        // stored position that the Reflector does not have yet
	origin   deltas.Origin // of the next list
	newest   bool          // the Reflector's position is not one of this API server: list what is newest
	listOnly bool          // WatchList does not work here
	endless  int           // WatchLists in a row that ended before the mark that all was sent
	unasked  int           // questions in a row that ended without an answer; owned by the stream, see reached
	closed   bool
	inside   sync.WaitGroup // calls and streams that run
}

// maxEndless is how many WatchLists may end early before LIST is used. A connection that breaks now and then is no
// reason to; an API server that never marks the end is.
const maxEndless = 3

var (
	errResume   = errors.New("the watch goes on from a stored position")
	errListOnly = errors.New("the API server offers no WatchList for this resource")
	errClosed   = errors.New("the scope is stopped")
)

// newResuming returns a ListerWatcher that starts at position, or with everything there is when position is empty. In
// that case lost says why history before it is missing; "" means that there was none.
func newResuming(e func() *endpoint, h *health, slots chan struct{}, position, lost string) *resuming {
	r := &resuming{endpoint: e, health: h, slots: slots, resume: position}
	if position == "" {
		r.origin = deltas.Origin{Kind: deltas.First, Reason: lost}
	} else {
		r.origin = deltas.Origin{Kind: deltas.Resumed, From: position}
	}
	return r
}

// Origin says where the list comes from that the Reflector is about to hand to the queue.
func (r *resuming) Origin() deltas.Origin {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origin
}

// close waits until no call and no stream runs. Their contexts must have ended. Later calls fail.
func (r *resuming) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.inside.Wait()
}

// enter says that a call or stream begins to run; it must then say r.inside.Done.
func (r *resuming) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	r.inside.Add(1)
	return nil
}

// lose notes that history ends at position: what the Reflector reads next is a new list.
func (r *resuming) lose(position, why string, newest bool) {
	r.mu.Lock()
	r.origin = deltas.Origin{Kind: deltas.Relisted, From: position, Reason: why}
	r.newest = newest
	r.mu.Unlock()
	r.health.lost(position, why)
}

// List and Watch are never called by a Reflector that knows contexts.

func (r *resuming) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

func (r *resuming) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

// ListWithContext answers with the stored position the first time, if there is one. Else it reads a page from the API
// server, and tries until it has it: an error would make the Reflector begin again with the first page.
func (r *resuming) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.inside.Done()
	r.mu.Lock()
	position := r.resume
	r.resume = ""
	// The Reflector's first list asks for "0": whatever a cache happens to hold, which may be older than what was told
	// before and would make deletes of objects that exist.
	if o.ResourceVersion == "0" || r.newest {
		o.ResourceVersion = ""
	}
	r.mu.Unlock()
	if position != "" {
		return &list{ListMeta: metav1.ListMeta{ResourceVersion: position}}, nil
	}
	var p patience
	var unsure doubt
	for {
		l, err := r.page(ctx, o, unsure)
		if err == nil {
			if l.Continue == "" {
				r.listed()
			}
			return l, r.stageAll(l.Items)
		}
		if v := judge(err); v == expired || v == tooLarge {
			return nil, err // the Reflector and its pager know what to do
		}
		unsure = doubtAfter(err)
		r.health.failed(err)
		if err := r.pause(ctx, p.wait(err)); err != nil {
			return nil, err
		}
	}
}

func (r *resuming) page(ctx context.Context, o metav1.ListOptions, unsure doubt) (*list, error) {
	if err := r.acquire(ctx); err != nil {
		return nil, err
	}
	defer r.release()
	if err := r.confirm(ctx, unsure); err != nil {
		return nil, err
	}
	r.health.note(func(s *Status) { s.Lists++ })
	return r.endpoint().list(ctx, o)
}

// WatchWithContext returns a stream. For a WatchList it opens the first connection before it returns, because only an
// error makes the Reflector use LIST.
func (r *resuming) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents == nil || !*o.SendInitialEvents {
		return r.startStream(ctx, o.ResourceVersion, nil)
	}
	r.mu.Lock()
	resume, listOnly := r.resume != "", r.listOnly
	if r.newest {
		o.ResourceVersion = ""
	}
	r.mu.Unlock()
	switch {
	case resume:
		return nil, errResume
	case listOnly:
		return nil, errListOnly
	}
	return r.openWatchList(ctx, o)
}

func (r *resuming) openWatchList(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	var p patience
	var unsure doubt
	for {
		if err := r.acquire(ctx); err != nil {
			return nil, err
		}
		w, err := r.confirmedWatch(ctx, o, unsure)
		if err == nil {
			return r.startStream(ctx, "", w)
		}
		r.release()
		unsure = doubtAfter(err)
		switch judge(err) {
		case expired, tooLarge:
			o.ResourceVersion = ""
		case refused:
			r.useList()
			return nil, err
		default:
			r.health.failed(err)
		}
		if err := r.pause(ctx, p.wait(err)); err != nil {
			return nil, err
		}
	}
}

// confirmedWatch opens a watch of the same cluster as before.
func (r *resuming) confirmedWatch(ctx context.Context, o metav1.ListOptions, unsure doubt) (watch.Interface, error) {
	if err := r.confirm(ctx, unsure); err != nil {
		return nil, err
	}
	return r.endpoint().watch(ctx, o)
}

// listed notes that the Reflector has been given all there is.
func (r *resuming) listed() {
	r.health.note(func(s *Status) { s.Synced = true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endless, r.newest = 0, false
}

// stageAll puts what goes on in the place of each object, so that pages do not pile up with their bodies.
func (r *resuming) stageAll(objects []*deltas.Object) error {
	for i, o := range objects {
		staged, err := r.stageOne(o)
		if err != nil {
			return err
		}
		objects[i] = staged
	}
	return nil
}

func (r *resuming) stageOne(o *deltas.Object) (*deltas.Object, error) {
	if r.stage == nil {
		return o, nil
	}
	return r.stage(o)
}

func (r *resuming) useList() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listOnly = true
}

// acquire takes a slot to read all objects of the scope; release gives it back.
func (r *resuming) acquire(ctx context.Context) error {
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *resuming) release() { <-r.slots }

// pause waits before the next try, shorter if there is another endpoint to try.
func (r *resuming) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.moved:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
