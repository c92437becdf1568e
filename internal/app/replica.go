package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// replica is the part of a composition that makes it one of several: the state that they share, and whose turn it is.
type replica struct {
	c      *composition
	keeper *state.Keeper
	bus    *configuredSink // of the state; a connection of its own, so that the state does not wait for changes
	taken  *state.Taken    // set before anything is published

	identified string        // the UID of the cluster, asked for while standing by; "" where that is not known
	found      *source.Found // what the API server served while this process took over; nil where it has not said

	role      atomic.Pointer[role]
	condition *condition.Condition // of the last attempt to take over
	writing   *task
}

type role struct {
	name  string
	since time.Time
}

// The conditions of an attempt to take over.
var (
	takes  = condition.State{Name: "possible", Message: "the state can be taken over"}
	denied = condition.State{
		Name: "refused", Severity: condition.NotReady, Level: slog.LevelError, Message: "the replicated state cannot be taken over",
	}
	hindered = condition.State{
		Name: "hindered", Severity: condition.NotReady, Level: slog.LevelWarn, Message: "taking over does not succeed yet; it is tried again",
	}
)

// newReplica makes what follows, takes over and writes the state. It contacts nothing.
func newReplica(c *composition) (*replica, error) {
	s, err := sinkConfig(c.cfg, c.cfg.State.Sink)
	if err != nil {
		return nil, err
	}
	log := c.log.With("state", c.cfg.State.Name)
	r := &replica{c: c, condition: condition.New(log, takes)}
	if r.bus, err = newSink(s, log); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	r.become(admin.RoleStandby)
	options := state.Options{
		Group: c.cfg.State.Name, Lease: c.cfg.Election.Lease, Owner: c.turns.identity, Journal: c.journal, Unsettled: []string{attribution.Sink}, Logger: log,
	}
	r.keeper, err = state.New(options, func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
		bus, ok := r.bus.sink.(sinks.StateKeeper)
		if !ok {
			return nil, fmt.Errorf("state.sink: sink %s keeps no state", s.Name)
		}
		return bus.OpenState(c.cfg.State.Name, contents)
	})
	return r, err
}

func (r *replica) become(name string) { r.role.Store(&role{name, time.Now()}) }

// takeOver stands by until it is our turn and the state is ours, and makes the rest of the composition. It returns nil then,
// or the cause of ctx's end, or what cannot pass.
func (r *replica) takeOver(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // the journal may fail meanwhile
		select {
		case <-r.c.failed.c:
			cancel(r.c.failed.err)
		case <-ctx.Done():
		}
	}()
	backoff := ratelimit.NewBackoff[struct{}](minTakeOverPause, maxTakeOverPause, rand.Float64)
	for {
		if err := r.awaitTurn(ctx); err != nil {
			return err
		}
		r.become(admin.RoleTakingOver)
		began := time.Now()
		err := r.attempt(ctx)
		if err == nil {
			r.c.turns.takeOvers.Add(1)
			r.c.turns.took.Store(int64(time.Since(began)))
			return r.c.openRest()
		}
		r.become(admin.RoleStandby)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.explain(err)
		if err := ratelimit.Sleep(ctx, backoff.When(struct{}{})); err != nil {
			return err
		}
	}
}

const (
	minTakeOverPause = 100 * time.Millisecond
	maxTakeOverPause = 5 * time.Second
	identifyFor      = time.Second // how long a take-over waits for the UID of the cluster, where it is not known
	identifyEvery    = 10 * time.Second
)

// awaitTurn follows the state until it is our turn, and asks meanwhile which cluster is watched.
func (r *replica) awaitTurn(ctx context.Context) error {
	e := r.c.turns.election
	if e == nil {
		return ctx.Err()
	}
	following, stop := context.WithCancel(ctx)
	done, asked := make(chan error, 1), make(chan struct{})
	go func() { done <- r.keeper.Follow(following) }()
	go func() {
		defer close(asked)
		for following.Err() == nil {
			if uid := r.identify(following); following.Err() == nil {
				r.identified = uid
			}
			_ = ratelimit.Sleep(following, identifyEvery)
		}
	}()
	err := e.Await(ctx)
	stop()
	<-asked
	return errors.Join(err, <-done)
}

// attempt takes the state over, unless it becomes somebody else's turn meanwhile.
func (r *replica) attempt(ctx context.Context) (err error) {
	ctx, release := r.c.turns.whileOurs(ctx)
	defer release()
	if r.identified == "" {
		r.identified = r.identify(ctx)
	}
	found := r.discover(ctx)
	r.taken, err = r.keeper.TakeOver(ctx, state.Takeover{Cluster: r.identified, Sinks: r.c.fencedSinks()})
	r.found = found()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		r.condition.Become(takes, "", "")
		r.c.log.Info("this exporter works now", "identity", r.c.turns.identity, "before", cmp.Or(r.taken.Before.Identity, "nobody"),
			"knowsFrom", r.taken.From(), "objects", r.taken.Objects, "inTails", r.taken.TailSize, "took", r.taken.Took)
	}
	return err
}

// discover asks what the API server serves. The returned function ends that, and returns what was found; nil where that was
// not found until then, and the source asks.
func (r *replica) discover(ctx context.Context) func() *source.Found {
	ctx, stop := context.WithCancel(ctx)
	asked := make(chan *source.Found, 1)
	go func() {
		var found *source.Found
		if catalog, failed, err := r.c.client.Discover(ctx, nil); err == nil && ctx.Err() == nil {
			found = &source.Found{Catalog: catalog, Failed: failed}
		}
		asked <- found
	}()
	return func() *source.Found {
		stop()
		return <-asked
	}
}

// identify asks for the UID of the cluster that is watched, "" where the API server does not say so at once: the source
// compares it later in any case. To know it before a take-over keeps an exporter of another cluster from turning away the
// one that the state belongs to. Who asked to begin anew in another cluster is not kept away.
func (r *replica) identify(ctx context.Context) string {
	if r.c.cfg.Cluster.OnReplaced == config.Fresh {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, identifyFor)
	defer cancel()
	uid, err := r.c.client.ClusterUID(ctx)
	if err != nil {
		r.c.log.Debug("which cluster this is could not be asked before the take-over", "error", err)
	}
	return uid
}

// served is what the API server was found to serve during the take-over; nil where that is not known.
func (r *replica) served() *source.Found {
	if r == nil {
		return nil
	}
	return r.found
}

// fencedSinks are all sinks by name, nil for one that cannot be fenced.
func (c *composition) fencedSinks() map[string]sinks.Fenced {
	all := map[string]sinks.Fenced{}
	for i, s := range c.cfg.Sinks {
		all[s.Name] = nil
		if r := c.runners[i]; r != nil {
			if fenced, ok := r.sink.(sinks.Fenced); ok {
				all[s.Name] = fenced
			}
		}
	}
	return all
}

// explain says why the state could not be taken over.
func (r *replica) explain(err error) {
	var refused *state.RefusedError
	var other *sinks.DeposedError
	switch {
	case errors.As(err, &refused):
		r.condition.Become(denied, refused.Reason, refused.Remedy)
	case errors.As(err, &other): // somebody was faster
		r.condition.Become(takes, "", "")
	default:
		r.condition.Become(hindered, err.Error(), "")
	}
}

// delivered says which changes a sink has already; nil for none.
func (r *replica) delivered(sink string) func(sinks.Lane, *event.Change) bool {
	if r == nil {
		return nil
	}
	if r.taken.Waiting[sink] == nil {
		return r.taken.Delivered(sink)
	}
	joined := sync.OnceValue(func() func(sinks.Lane, *event.Change) bool { return r.taken.Delivered(sink) })
	return func(lane sinks.Lane, c *event.Change) bool { // asked for the first time when it has joined
		has := joined()
		return has != nil && has(lane, c)
	}
}

// awaiting returns what waits until a sink is fenced that could not be when this process took over; nil where it could. The
// other sinks go on meanwhile.
func (r *replica) awaiting(name string, sink sinks.Sink) func(context.Context) error {
	if r == nil || r.taken.Waiting[name] == nil {
		return nil
	}
	return func(ctx context.Context) error {
		backoff := ratelimit.NewBackoff[struct{}](minTakeOverPause, maxTakeOverPause, rand.Float64)
		for {
			err := r.keeper.Join(ctx, name, sink.(sinks.Fenced))
			var other *sinks.DeposedError
			switch {
			case err == nil:
				r.condition.Become(takes, "", "")
				return nil
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.As(err, &other):
				return err
			}
			r.condition.Become(hindered, err.Error(), "")
			if err := ratelimit.Sleep(ctx, backoff.When(struct{}{})); err != nil {
				return err
			}
		}
	}
}

// start writes the state from now on, and watches whose turn it is.
func (r *replica) start(failed func(error)) {
	if r == nil {
		return
	}
	r.become(admin.RoleActive)
	r.writing = start("state", r.write, failed)
}

// write keeps the state until ctx ends, or another process takes over.
func (r *replica) write(ctx context.Context) error {
	ctx, release := r.c.turns.whileOurs(ctx)
	defer release()
	err := r.keeper.Run(ctx)
	var other *sinks.DeposedError
	if errors.As(context.Cause(ctx), &other) {
		return other
	}
	return err
}

// stop waits until the state covers what the journal holds, for as long as ctx allows, and stops writing it.
func (r *replica) stop(ctx context.Context) {
	if r == nil {
		return
	}
	if r.writing != nil && ctx.Err() == nil {
		if err := r.keeper.Flush(ctx); err != nil {
			r.c.log.Warn("the replicated state does not cover everything that was delivered; the next exporter looks back for it", "error", err)
		}
	}
	r.writing.stop()
	r.become(admin.RoleStandby)
}

// close releases the state.
func (r *replica) close() error {
	if r == nil {
		return nil
	}
	r.condition.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if r.keeper != nil {
		err = r.keeper.Close(ctx)
	}
	if r.bus != nil {
		err = errors.Join(err, r.bus.sink.Close(ctx))
	}
	return err
}

// status is what is shown of the replica.
func (r *replica) status() *admin.ReplicaStatus {
	if r == nil {
		return nil
	}
	stats, role, turns := r.keeper.Stats(), r.role.Load(), &r.c.turns
	attempt, store := r.condition.Status(), r.keeper.Status()
	s := &admin.ReplicaStatus{
		Identity: turns.identity, Role: role.name, Since: role.since, Holder: stats.Owner.Identity,
		NotReady:  cmp.Or(attempt.NotReady(), store.NotReady()),
		Degraded:  cmp.Or(attempt.Degraded(), store.Degraded()),
		TakeOvers: turns.takeOvers.Load(), TookOver: time.Duration(turns.took.Load()), Fenced: turns.fenced.Load(),
		StateLag: stats.Lag, Known: stats.Objects,
	}
	if turns.election != nil {
		s.Holder = turns.election.Holder()
		s.Degraded = cmp.Or(s.Degraded, turns.election.Status().Degraded())
	}
	if role.name == admin.RoleActive {
		s.Holder = turns.identity
	}
	return s
}
