package source

import (
	"context"
	"errors"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// follower keeps up with one scope: it lists if there is no position to resume from, and then watches. Its parts share no
// lock: run and everything it calls is one goroutine, which alone appends observations. The background reads run beside it
// and hand their results to watcher.runBetweenBatches.
type follower struct {
	runner        *runner
	scope         selection.Scope
	health        *health
	out           *emitter
	api           *scopeClient
	lister        *lister
	watcher       *watcher
	bodiesMissing bool          // the known objects have no bodies, and a rule needs them; set before run
	requested     chan struct{} // the store may have new requests for snapshots; has room for one
}

func newFollower(r *runner, scope selection.Scope, to event.AppendFunc) *follower {
	f := &follower{runner: r, scope: scope, health: newHealth(r.env.states, scope), requested: make(chan struct{}, 1)}
	if scope.Mandatory {
		f.health.onRepeatedRefusal = f.failForbidden
	}
	f.out = &emitter{scope: scope, clock: r.env.clock, append: to, watermarks: newWatermarks(scope, r.env.cfg.Watermarks)}
	f.api = &scopeClient{
		identity: r.env.identity, guard: r.env.cfg.Guard, rule: scope.Rule, health: f.health,
		confirmedMissing: &r.confirmedMissing, reconnect: make(chan struct{}, 1),
	}
	f.lister = newLister(f, r.env.listSlots)
	f.watcher = &watcher{
		out: f.out, api: f.api, health: f.health, log: r.env.cfg.Log, between: make(chan func(context.Context) error), ended: make(chan struct{}),
		positions: positionCheck{api: f.api},
	}
	return f
}

// loadState gives the follower its stored state. It is called once, before run.
func (f *follower) loadState(cluster string, stored event.StoredScope, known *deltas.KnownSet) error {
	e, err := f.newEndpoint(f.scope)
	if err != nil {
		return err
	}
	f.out.loadState(cluster, stored, known)
	if stored.Position != "" {
		f.health.synced.Store(true)
	}
	f.api.endpoint.Store(e)
	return nil
}

// run follows the scope until ctx ends, and returns its error, errVanished, or an *appendError.
func (f *follower) run(ctx context.Context) error {
	stop := f.startBackgroundReads(ctx)
	defer stop()
	defer close(f.watcher.ended)
	for {
		if f.out.currentPosition() == "" {
			if f.watcher.listUnproven {
				if err := f.lister.awaitWatchable(ctx); err != nil {
					return err
				}
			}
			if err := f.lister.listUntilComplete(ctx); err != nil {
				return err
			}
			f.watcher.listed, f.watcher.listUnproven = true, true
		}
		if err := f.watcher.watchUntilLost(ctx); err != nil {
			return err
		}
	}
}

// emitVanished emits all objects as deleted, because the resource is no longer served.
func (f *follower) emitVanished(ctx context.Context) error {
	end, err := f.api.awaitTurn(ctx)
	if err != nil {
		return err
	}
	defer end()
	f.health.recordProblem(condition.Problem{Code: condition.ResourceGone, Cause: "the API server no longer serves this resource; its objects are emitted as deleted"})
	f.runner.env.states.set.ReportEvent(f.scope.ID, condition.ResourceVanished, "")
	return f.out.emitAllDeletes(ctx, "")
}

// newEndpoint returns the endpoint of the scope in a version.
func (f *follower) newEndpoint(scope selection.Scope) (*apiserver.Endpoint, error) {
	e, err := f.runner.env.cfg.Client.Endpoint(scope)
	if guard := f.runner.env.cfg.Guard; err == nil && guard != nil {
		e.BeginRequest = guard.BeginRequest
	}
	return e, err
}

func (f *follower) status() Status {
	s := f.health.status()
	s.Resource, s.Namespace = f.scope.Resource.String(), f.scope.Namespace
	if e := f.api.endpoint.Load(); e != nil {
		s.DecodeErrors, s.Ways = e.DecodeErrors(), e.Ways.String()
	}
	if t := f.out.tracker.Load(); t != nil {
		stats := t.Stats()
		s.Position, s.Known, s.LastEvent, s.Changes = f.out.currentPosition(), stats.Known, stats.LastSeen, stats.Changes
	}
	return s
}

// failForbidden ends the Source because a mandatory scope is refused repeatedly. everLive is whether it has been Live.
func (f *follower) failForbidden(err error, everLive bool) {
	verb := "watch"
	var d *apiserver.DeniedError
	if errors.As(err, &d) {
		verb, err = d.Verb, d.Err
	}
	f.runner.env.fail(&ForbiddenError{Scope: f.scope, Verb: verb, AtStart: f.runner.foundAtStart && !everLive, Err: err})
}

// sleep waits for d. It returns early with the error of ctx when ctx ends.
func sleep(ctx context.Context, d time.Duration) error { return sleepUnlessSignaled(ctx, d, nil) }

// sleepUnlessSignaled is sleep that also ends early, without an error, on a receive from signaled.
func sleepUnlessSignaled(ctx context.Context, d time.Duration, signaled <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-signaled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal sends to a channel of capacity 1 unless a signal is already pending. It never blocks.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
