package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/resourceversion"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/decode"
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
	e, err := f.runner.env.cfg.Client.Endpoint(f.scope)
	if err != nil {
		return err
	}
	if f.api.guard != nil {
		e.BeginRequest = f.api.guard.BeginRequest
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

// reachedQueryTimeout bounds one query. The API server itself waits three seconds for its cache.
const reachedQueryTimeout = 4 * time.Second

// positionCheck checks before each watch that the API server's history has reached the position to watch from. A restored
// etcd is behind it, and the API server accepts a watch from a future position but stays silent, bookmarks included, until
// the cluster has made as many writes again. Everything up to there would be missed unnoticed.
//
// The query is a WatchList (KEP-3157) for an object that does not exist, not older than the position. It costs the API
// server a look at its cache. Whatever else it answers, or does not, a LIST of one object follows at once, which etcd
// answers: a cache may lag behind, and not every server streams lists, or says so with the status that it should. A server
// that lists and does not stream is not asked for a stream again, see [apiserver.Ways].
type positionCheck struct{ api *scopeClient }

// checkReached returns nil if the API server has reached the position. If etcd was restored from a backup, the error is
// classified as apiserver.TooLarge.
func (c *positionCheck) checkReached(ctx context.Context, s *apiserver.Slot, position string) error {
	ways := c.api.endpoint.Load().Ways
	var refusal error
	if ways.Has(apiserver.StreamedList) {
		if refusal = queryReached(ctx, c.api.endpoint.Load(), s, position); refusal == nil || ctx.Err() != nil {
			return refusal
		}
	}
	newest, err := c.api.newestPosition(ctx)
	switch {
	case err != nil && apiserver.Classify(refusal) == apiserver.Forbidden:
		return refusal // which names the verb
	case err != nil:
		return err
	}
	if refusal != nil && apiserver.Classify(refusal) != apiserver.TooLarge {
		ways.Learn(apiserver.StreamedList, refusal)
	}
	return checkNotBefore(newest, position)
}

var errNoStream = errors.New("it ends the stream early, or leaves out its bookmark")

func queryReached(ctx context.Context, e *apiserver.Endpoint, s *apiserver.Slot, position string) error {
	ctx, cancel := context.WithTimeout(ctx, reachedQueryTimeout+2*time.Second)
	defer cancel()
	yes, seconds := true, int64(reachedQueryTimeout/time.Second)
	w, err := e.Watch(ctx, s, metav1.ListOptions{
		ResourceVersion: position, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		SendInitialEvents: &yes, TimeoutSeconds: &seconds, FieldSelector: noObjectSelector(e.Scope),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for limit := time.Now().Add(reachedQueryTimeout); ; {
		b, err := w.Next(ctx, time.Until(limit))
		switch {
		case errors.Is(err, apiserver.ErrQuiet), errors.Is(err, decode.ErrEnd):
			return errNoStream
		case err != nil:
			return err
		case b.Listed:
			e.Ways.Learn(apiserver.StreamedList, nil)
			return checkNotBefore(b.Position, position)
		}
	}
}

// AskWays asks the server of a scope what it can do, see [apiserver.Ways]. The error is why the scope cannot be followed.
func AskWays(ctx context.Context, client *apiserver.Client, scope selection.Scope) (*apiserver.Ways, error) {
	e, err := client.Endpoint(scope)
	if err != nil {
		return &apiserver.Ways{}, err
	}
	newest, err := e.Newest(ctx)
	if err == nil {
		err = checkWatchable(newest)
	}
	if err != nil {
		return e.Ways, err
	}
	if refusal := queryReached(ctx, e, nil, newest); refusal != nil {
		e.Ways.Learn(apiserver.StreamedList, refusal)
	}
	c, err := e.Watch(ctx, nil, metav1.ListOptions{ResourceVersion: newest})
	if err != nil {
		return e.Ways, fmt.Errorf("%w: %w", errUnwatchable, err)
	}
	c.Stop()
	return e.Ways, nil
}

// noObjectSelector returns a field selector that matches as little as the program's rights allow: the name of no object, or,
// if the scope selects one object by name, that name, because RBAC may allow nothing else.
func noObjectSelector(s selection.Scope) string {
	if s.ObjectName() != "" {
		return s.FieldSelector
	}
	return "metadata.name=kubecdc-no-such-object"
}

// checkNotBefore returns nil unless newest is older than position. Versions that cannot be compared count as reached: they
// are no evidence of a loss.
func checkNotBefore(newest, position string) error {
	if order, _ := resourceversion.Compare(position, newest); order <= 0 {
		return nil
	}
	ahead := apierrors.NewTimeoutError(fmt.Sprintf(
		"the stored position %s is ahead of the API server, which is at %s: etcd was restored from a backup", position, newest), 0)
	ahead.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return ahead
}
