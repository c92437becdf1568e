package source

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// runner watches one scope.
type runner struct {
	source   *Source
	scope    Scope
	health   *health
	endpoint atomic.Pointer[endpoint]
	queue    atomic.Pointer[deltas.Queue]

	initial     bool // found when the API server first said what it serves; set before it runs
	stopReading context.CancelFunc
	vanished    atomic.Bool   // the resource is served no more
	moved       chan struct{} // see moveTo; capacity 1
	done        chan struct{}

	missing int // polls in a row without the resource; owned by Source.Run
}

func newRunner(s *Source, scope Scope) *runner {
	r := &runner{source: s, scope: scope, health: newHealth(s.cfg.Log, scope), moved: make(chan struct{}, 1), done: make(chan struct{})}
	if scope.Mandatory {
		r.health.insist = r.insist
	}
	return r
}

func (r *runner) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// vanish makes the runner announce all objects as deleted, forget the scope and end. It does not wait.
func (r *runner) vanish() {
	r.vanished.Store(true)
	r.stopReading()
}

// run watches until ctx ends, or until reading, which is a part of it, ends because the resource vanished.
func (r *runner) run(ctx, reading context.Context, cluster string) error {
	cfg := &r.source.cfg
	stored, err := cfg.Load(r.scope.ID)
	if err != nil {
		return err
	}
	e, err := cfg.Client.endpoint(r.scope)
	if err != nil {
		return err
	}
	r.health.note(func(s *Status) { s.Synced = stored.Position != "" })
	lw := newResuming(r.endpoint.Load, r.health, r.source.slots, stored.Position, cfg.Lost)
	queue := deltas.NewQueue(deltas.QueueConfig{
		Scope:  deltas.Scope{ID: r.scope.ID, Cluster: cluster, Resource: r.scope.Resource, Namespace: r.scope.Namespace},
		Stored: stored, Filter: r.scope.Filter, Origin: lw.Origin, Append: cfg.appendOf(r.scope),
		Now: func() time.Time { return time.Now().UTC() }, SnapshotID: rand.Text,
	})
	lw.stage, lw.confirm, lw.moved = queue.Stage, r.source.confirm, r.moved
	r.queue.Store(queue)
	r.endpoint.Store(e) // from now on there is something to move, see moveTo

	// The queue outlives the reading, so that a vanished resource can be told of.
	popping, stopPopping := context.WithCancel(ctx)
	popped := make(chan error, 1)
	go func() {
		err := queue.Run(popping)
		r.stopReading() // without the queue there is nobody to read for
		popped <- err
	}()
	if !r.vanished.Load() {
		r.reflect(reading, lw, queue)
	}
	var gone error
	if r.vanished.Load() {
		gone = r.bury(ctx, queue)
	}
	stopPopping()
	if err := errors.Join(<-popped, gone); ctx.Err() == nil {
		return err
	}
	return nil // what is not done will be done by the next process
}

// appendOf is what takes the observations of a scope.
func (c *Config) appendOf(s Scope) deltas.Append {
	if c.Shape == nil {
		return c.Append
	}
	return c.Shape(s.Rule, c.Append)
}

// reflect lists and watches until ctx ends.
func (r *runner) reflect(ctx context.Context, lw *resuming, queue *deltas.Queue) {
	reflector := cache.NewReflectorWithOptions(lw, &deltas.Object{}, queue, cache.ReflectorOptions{
		Name: r.scope.ID,
		// Failures are waited out by lw. What is left begins again with a list that lw has said is needed.
		Backoff: &wait.Backoff{Duration: firstWait, Cap: longestWait, Steps: 100, Factor: 2, Jitter: 1},
	})
	reflector.WatchListPageSize = 500
	reflector.RunWithContext(ctx)
	lw.close()
}

// bury announces what is left of a vanished resource as deleted and forgets the scope.
func (r *runner) bury(ctx context.Context, queue *deltas.Queue) error {
	r.health.become(Gone, "the API server serves this resource no more; its objects are announced as deleted")
	if err := queue.Vanish(); err != nil {
		return fmt.Errorf("announce that %s vanished: %w", r.scope.ID, err)
	}
	return r.source.cfg.Drop(ctx, r.scope.ID)
}

// moveTo goes on with another version of the resource: the one watched is served no more, and the history of an object
// is the same in all versions. What waits for the old version tries the new one at once.
func (r *runner) moveTo(scope Scope) {
	next, err := r.source.cfg.Client.endpoint(scope)
	if err != nil {
		return // it was possible for the version before
	}
	r.endpoint.Store(next)
	if q := r.queue.Load(); q != nil {
		q.MoveTo(scope.Resource)
	}
	r.health.note(func(s *Status) { s.Resource = scope.Resource })
	r.source.cfg.Log.Info("the resource is served in another version, watching that", "scope", scope.ID, "version", scope.Resource.Version)
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// watched is the resource in the version that is watched now; false before there is one.
func (r *runner) watched() (event.Resource, bool) {
	e := r.endpoint.Load()
	if e == nil {
		return event.Resource{}, false
	}
	return e.scope.Resource, true
}

func (r *runner) status() Status {
	s := r.health.status()
	if e := r.endpoint.Load(); e != nil {
		s.DecodeErrors, s.StockFraming = e.wire.failed.Load(), e.wire.stock.Load()
	}
	if q := r.queue.Load(); q != nil {
		stats := q.Stats()
		s.Position, s.Known, s.Queued, s.LastEvent, s.Changes = stats.Position, stats.Known, stats.Queued, stats.LastSeen, stats.Changes
	}
	return s
}
