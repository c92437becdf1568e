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
	c        *composition
	writer   *state.Writer
	bus      *configuredSink       // of the state; a connection of its own, so that the state does not wait for changes
	failover *state.TakeOverResult // set before anything is published

	clusterUID string            // the UID of the cluster, asked for while standing by; "" where that is not known
	discovered *source.Discovery // what the API server served while this process took over; nil where it has not said

	role       atomic.Pointer[role]
	condition  *condition.Condition // of the last attempt to take over
	writerTask *task
}

type role struct {
	name  string
	since time.Time
}

// The conditions of an attempt to take over.
var (
	failoverPossible = condition.State{Name: "possible", Message: "the state can be taken over"}
	failoverRefused  = condition.State{
		Name: "refused", Severity: condition.NotReady, Level: slog.LevelError, Message: "the replicated state cannot be taken over",
	}
	failoverFailing = condition.State{
		Name: "hindered", Severity: condition.NotReady, Level: slog.LevelWarn, Message: "taking over does not succeed yet; it is tried again",
	}
)

// newReplica makes what follows, takes over and writes the state. It contacts nothing.
func newReplica(c *composition) (*replica, error) {
	s, err := sinkConfigByName(c.cfg, c.cfg.State.Sink)
	if err != nil {
		return nil, err
	}
	log := c.log.With("state", c.cfg.State.Name)
	r := &replica{c: c, condition: condition.New(log, failoverPossible)}
	if r.bus, err = newSink(s, log); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	r.setRole(admin.RoleStandby)
	options := state.Options{
		Group: c.cfg.State.Name, Lease: c.cfg.Election.Lease, Owner: c.terms.identity, Journal: c.journal, Unsettled: []string{attribution.Sink}, Logger: log,
	}
	r.writer, err = state.New(options, func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error) {
		bus, ok := r.bus.sink.(sinks.StateOpener)
		if !ok {
			return nil, fmt.Errorf("state.sink: sink %s keeps no state", s.Name)
		}
		return bus.OpenState(c.cfg.State.Name, contents)
	})
	return r, err
}

func (r *replica) setRole(name string) { r.role.Store(&role{name, time.Now()}) }

// runStandby stands by until it is our turn and the state is ours, and makes the rest of the composition. It returns nil then,
// or the cause of ctx's end, or what cannot pass.
func (r *replica) runStandby(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // the journal may fail meanwhile
		select {
		case <-r.c.failed.occurred:
			cancel(r.c.failed.err)
		case <-ctx.Done():
		}
	}()
	backoff := ratelimit.NewBackoff[struct{}](minFailoverBackoff, maxFailoverBackoff, rand.Float64)
	for {
		if err := r.awaitTerm(ctx); err != nil {
			return err
		}
		r.setRole(admin.RoleTakingOver)
		began := time.Now()
		err := r.attemptFailover(ctx)
		if err == nil {
			r.c.terms.failovers.Add(1)
			r.c.terms.lastFailoverNanos.Store(int64(time.Since(began)))
			return r.c.openSourceAndSinks()
		}
		r.setRole(admin.RoleStandby)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.recordFailoverError(err)
		if err := ratelimit.Sleep(ctx, backoff.When(struct{}{})); err != nil {
			return err
		}
	}
}

const (
	minFailoverBackoff = 100 * time.Millisecond
	maxFailoverBackoff = 5 * time.Second
	clusterUIDTimeout  = time.Second // how long a take-over waits for the UID of the cluster, where it is not known
	clusterUIDInterval = 10 * time.Second
)

// awaitTerm follows the state until it is our turn, and asks meanwhile which cluster is watched.
func (r *replica) awaitTerm(ctx context.Context) error {
	e := r.c.terms.election
	if e == nil {
		return ctx.Err()
	}
	following, stop := context.WithCancel(ctx)
	done, asked := make(chan error, 1), make(chan struct{})
	go func() { done <- r.writer.Follow(following) }()
	go func() {
		defer close(asked)
		for following.Err() == nil {
			if uid := r.queryClusterUID(following); following.Err() == nil {
				r.clusterUID = uid
			}
			_ = ratelimit.Sleep(following, clusterUIDInterval)
		}
	}()
	err := e.AwaitLease(ctx)
	stop()
	<-asked
	return errors.Join(err, <-done)
}

// attemptFailover takes the state over, unless it becomes somebody else's turn meanwhile.
func (r *replica) attemptFailover(ctx context.Context) (err error) {
	ctx, release := r.c.terms.contextWhileActive(ctx)
	defer release()
	if r.clusterUID == "" {
		r.clusterUID = r.queryClusterUID(ctx)
	}
	found := r.startDiscovery(ctx)
	r.failover, err = r.writer.TakeOver(ctx, state.TakeOverOptions{Cluster: r.clusterUID, Sinks: r.c.fencedSinksByName()})
	r.discovered = found()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		r.condition.Update(failoverPossible, "", "")
		r.c.log.Info("this exporter works now", "identity", r.c.terms.identity, "before", cmp.Or(r.failover.Previous.Identity, "nobody"),
			"knowsFrom", r.failover.ResumedFrom(), "objects", r.failover.Objects, "inTails", r.failover.TailSize, "took", r.failover.Duration)
	}
	return err
}

// startDiscovery asks what the API server serves. The returned function ends that, and returns what was found; nil where that was
// not found until then, and the source asks.
func (r *replica) startDiscovery(ctx context.Context) func() *source.Discovery {
	ctx, stop := context.WithCancel(ctx)
	asked := make(chan *source.Discovery, 1)
	go func() {
		var found *source.Discovery
		if catalog, failed, err := r.c.client.Discover(ctx, nil); err == nil && ctx.Err() == nil {
			found = &source.Discovery{Catalog: catalog, Failed: failed}
		}
		asked <- found
	}()
	return func() *source.Discovery {
		stop()
		return <-asked
	}
}

// queryClusterUID asks for the UID of the cluster that is watched, "" where the API server does not say so at once: the source
// compares it later in any case. To know it before a take-over keeps an exporter of another cluster from turning away the
// one that the state belongs to. Who asked to begin anew in another cluster is not kept away.
func (r *replica) queryClusterUID(ctx context.Context) string {
	if r.c.cfg.Cluster.OnReplaced == config.Fresh {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, clusterUIDTimeout)
	defer cancel()
	uid, err := r.c.client.ClusterUID(ctx)
	if err != nil {
		r.c.log.Debug("which cluster this is could not be asked before the take-over", "error", err)
	}
	return uid
}

// discoveredResources is what the API server was found to serve during the take-over; nil where that is not known.
func (r *replica) discoveredResources() *source.Discovery {
	if r == nil {
		return nil
	}
	return r.discovered
}

// fencedSinksByName are all sinks by name, nil for one that cannot be fenced.
func (c *composition) fencedSinksByName() map[string]sinks.Fenced {
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

// recordFailoverError says why the state could not be taken over.
func (r *replica) recordFailoverError(err error) {
	var refused *state.RefusedError
	var other *sinks.DeposedError
	switch {
	case errors.As(err, &refused):
		r.condition.Update(failoverRefused, refused.Reason, refused.Remedy)
	case errors.As(err, &other): // somebody was faster
		r.condition.Update(failoverPossible, "", "")
	default:
		r.condition.Update(failoverFailing, err.Error(), "")
	}
}

// deliveredFilter says which changes a sink has already; nil for none.
func (r *replica) deliveredFilter(sink string) func(sinks.Lane, *event.Change) bool {
	if r == nil {
		return nil
	}
	if r.failover.Waiting[sink] == nil {
		return r.failover.Delivered(sink)
	}
	joined := sync.OnceValue(func() func(sinks.Lane, *event.Change) bool { return r.failover.Delivered(sink) })
	return func(lane sinks.Lane, c *event.Change) bool { // asked for the first time when it has joined
		has := joined()
		return has != nil && has(lane, c)
	}
}

// fencingWaiter returns what waits until a sink is fenced that could not be when this process took over; nil where it could. The
// other sinks go on meanwhile.
func (r *replica) fencingWaiter(name string, sink sinks.Sink) func(context.Context) error {
	if r == nil || r.failover.Waiting[name] == nil {
		return nil
	}
	return func(ctx context.Context) error {
		backoff := ratelimit.NewBackoff[struct{}](minFailoverBackoff, maxFailoverBackoff, rand.Float64)
		for {
			err := r.writer.AddSink(ctx, name, sink.(sinks.Fenced))
			var other *sinks.DeposedError
			switch {
			case err == nil:
				r.condition.Update(failoverPossible, "", "")
				return nil
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.As(err, &other):
				return err
			}
			r.condition.Update(failoverFailing, err.Error(), "")
			if err := ratelimit.Sleep(ctx, backoff.When(struct{}{})); err != nil {
				return err
			}
		}
	}
}

// startWriting writes the state from now on, and watches whose turn it is.
func (r *replica) startWriting(failed func(error)) {
	if r == nil {
		return
	}
	r.setRole(admin.RoleActive)
	r.writerTask = startTask("state", r.runWriter, failed)
}

// runWriter keeps the state until ctx ends, or another process takes over.
func (r *replica) runWriter(ctx context.Context) error {
	ctx, release := r.c.terms.contextWhileActive(ctx)
	defer release()
	err := r.writer.Run(ctx)
	var other *sinks.DeposedError
	if errors.As(context.Cause(ctx), &other) {
		return other
	}
	return err
}

// stopWriting waits until the state covers what the journal holds, for as long as ctx allows, and stops writing it.
func (r *replica) stopWriting(ctx context.Context) {
	if r == nil {
		return
	}
	if r.writerTask != nil && ctx.Err() == nil {
		if err := r.writer.Flush(ctx); err != nil {
			r.c.log.Warn("the replicated state does not cover everything that was delivered; the next exporter looks back for it", "error", err)
		}
	}
	r.writerTask.stop()
	r.setRole(admin.RoleStandby)
}

// closeState releases the state.
func (r *replica) closeState() error {
	if r == nil {
		return nil
	}
	r.condition.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if r.writer != nil {
		err = r.writer.Close(ctx)
	}
	if r.bus != nil {
		err = errors.Join(err, r.bus.sink.Close(ctx))
	}
	return err
}

// replicaStatus is what is shown of the replica.
func (r *replica) replicaStatus() *admin.ReplicaStatus {
	if r == nil {
		return nil
	}
	stats, role, turns := r.writer.Stats(), r.role.Load(), &r.c.terms
	attempt, store := r.condition.Status(), r.writer.Status()
	s := &admin.ReplicaStatus{
		Identity: turns.identity, Role: role.name, Since: role.since, Holder: stats.Owner.Identity,
		NotReady:  cmp.Or(attempt.NotReady(), store.NotReady()),
		Degraded:  cmp.Or(attempt.Degraded(), store.Degraded()),
		TakeOvers: turns.failovers.Load(), TookOver: time.Duration(turns.lastFailoverNanos.Load()), Fenced: turns.deposals.Load(),
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
