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
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// replica makes the process one of several: it follows the replicated state on standby, takes it over, and writes it while
// active. Some methods accept a nil receiver, for a process without a replicated state.
type replica struct {
	*shared
	cfg    *config.Config    // of the current composition
	client *apiserver.Client // as well

	writer   *state.Writer
	bus      *configuredSink       // of the state; a connection of its own, so that the state does not wait behind changes
	failover *state.TakeOverResult // set before anything is published

	clusterUID string            // of the watched cluster, queried while on standby; "" if unknown
	discovered *source.Discovery // found during the failover; nil if discovery was not complete

	role       atomic.Pointer[role]
	condition  *condition.Condition // of the last failover attempt
	writerTask *task
}

type role struct {
	name  string
	since time.Time
}

const (
	minFailoverBackoff = 100 * time.Millisecond
	maxFailoverBackoff = 5 * time.Second
	clusterUIDTimeout  = time.Second // bounds the query of the cluster's UID, so that it does not delay a failover
	clusterUIDInterval = 10 * time.Second
)

// newReplica makes the writer of the state. It contacts nothing.
func newReplica(s *shared, cfg *config.Config, j *journal.Journal) (*replica, error) {
	sink, err := sinkConfigByName(cfg, cfg.State.Sink)
	if err != nil {
		return nil, err
	}
	log := s.log.With("state", cfg.State.Name)
	r := &replica{shared: s, cfg: cfg, condition: condition.New(log, "replica", condition.Problem{})}
	r.setRole(admin.RoleStandby)
	if r.bus, err = newSink(sink, log); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	r.writer, err = newStateWriter(cfg, r.bus, state.Options{
		Owner: s.membership.identity, Journal: j, Unsettled: []string{attribution.Sink}, IsEmitted: shape.IsEmitted, Logger: log,
	})
	return r, err
}

// newStateWriter completes the options of a state writer that keeps the state in bus.
func newStateWriter(cfg *config.Config, bus *configuredSink, options state.Options) (*state.Writer, error) {
	options.Group, options.Lease, options.ClusterName = cfg.State.Name, cfg.Election.Lease, cfg.Cluster.Name
	opener, ok := bus.sink.(sinks.StateOpener)
	if !ok {
		return nil, fmt.Errorf("state.sink: sink %s keeps no state", bus.name)
	}
	store, err := opener.OpenState(cfg.State.Name)
	if err != nil {
		return nil, err
	}
	return state.New(options, store)
}

// OpenState returns a reader of the configured state, for commands. It contacts nothing. The caller calls closed at the end.
func OpenState(cfg *config.Config) (w *state.Writer, closed func(context.Context) error, err error) {
	if !cfg.State.Enabled() {
		return nil, nil, errors.New("state.sink is not set: the state is in the journal only, see exporter journal stat")
	}
	s, err := sinkConfigByName(cfg, cfg.State.Sink)
	if err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.DiscardHandler)
	bus, err := newSink(s, log)
	if err != nil {
		return nil, nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	w, err = newStateWriter(cfg, bus, state.Options{Owner: "exporter state", Logger: log})
	if err != nil {
		return nil, nil, errors.Join(err, bus.sink.Close(context.Background()))
	}
	return w, func(ctx context.Context) error { return errors.Join(w.Close(ctx), bus.sink.Close(ctx)) }, nil
}

func (r *replica) setRole(name string) { r.role.Store(&role{name, time.Now()}) }

// keepsTurn reports whether this process is still the active one, as it was under the previous configuration.
func (r *replica) keepsTurn() bool {
	e := r.membership.election
	return r.writer.IsOwner() && (e == nil || e.IsHolder())
}

// runStandby follows the state until this process holds the Lease and has taken the state over; a process that keeps its
// turn only fences the sinks of its new configuration. fenced are the sinks by name, nil for those that cannot be fenced. It
// returns nil after the failover, the cause of the end of ctx, or a permanent error.
func (r *replica) runStandby(ctx context.Context, fenced map[string]sinks.Fenced) error {
	backoff := ratelimit.NewBackoff[struct{}](minFailoverBackoff, maxFailoverBackoff, rand.Float64)
	for {
		if err := r.awaitTerm(ctx); err != nil {
			return err
		}
		err := r.attemptFailover(ctx, fenced)
		if err == nil {
			return nil
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

// awaitTerm follows the state until this process holds the Lease, and queries meanwhile which cluster is watched. Without an
// election it returns at once.
func (r *replica) awaitTerm(ctx context.Context) error {
	e := r.membership.election
	if e == nil || r.keepsTurn() {
		return ctx.Err()
	}
	if !e.IsHolder() {
		r.condition.Clear() // it attempts nothing now
	}
	following, stop := context.WithCancel(ctx)
	done, queried := make(chan error, 1), make(chan struct{})
	go func() { done <- r.writer.Follow(following) }()
	go func() {
		defer close(queried)
		for following.Err() == nil {
			if uid := r.queryClusterUID(following); following.Err() == nil {
				r.clusterUID = uid
			}
			_ = ratelimit.Sleep(following, clusterUIDInterval)
		}
	}()
	err := e.AwaitLease(ctx)
	stop()
	<-queried
	return errors.Join(err, <-done)
}

// attemptFailover takes the state over, unless another process gets the Lease meanwhile. Discovery runs in parallel.
func (r *replica) attemptFailover(ctx context.Context, fenced map[string]sinks.Fenced) (err error) {
	ctx, release := r.membership.contextWhileActive(ctx)
	defer release()
	if r.discovered = nil; r.keepsTurn() {
		r.failover, err = r.writer.TakeOver(ctx, state.TakeOverOptions{Sinks: fenced})
	} else {
		err = r.takeOver(ctx, fenced)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// takeOver takes the state over for a process that is not the owner.
func (r *replica) takeOver(ctx context.Context, fenced map[string]sinks.Fenced) (err error) {
	r.setRole(admin.RoleTakingOver)
	began := time.Now()
	if r.clusterUID == "" {
		r.clusterUID = r.queryClusterUID(ctx)
	}
	finishDiscovery := r.startDiscovery(ctx)
	r.failover, err = r.writer.TakeOver(ctx, state.TakeOverOptions{Cluster: r.clusterUID, Sinks: fenced})
	r.discovered = finishDiscovery()
	if err != nil && ctx.Err() != nil {
		return err
	}
	r.telemetry.RecordSpan("failover", began, err)
	if err == nil {
		r.membership.failovers.Add(1)
		r.membership.lastFailoverNanos.Store(int64(time.Since(began)))
		r.condition.Clear()
		r.log.Info("this exporter is active", "identity", r.membership.identity, "before", cmp.Or(r.failover.Previous.Identity, "none"),
			"knowsFrom", r.failover.ResumedFrom(), "objects", r.failover.Objects, "inTails", r.failover.TailSize,
			"took", r.failover.Duration)
	}
	return err
}

// startDiscovery starts discovery. The returned function ends it and returns the result; nil if it was not complete, and the
// source discovers on its own.
func (r *replica) startDiscovery(ctx context.Context) (finish func() *source.Discovery) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan *source.Discovery, 1)
	go func() {
		var found *source.Discovery
		if catalog, failed, err := r.client.Discover(ctx, nil); err == nil && ctx.Err() == nil {
			found = &source.Discovery{Catalog: catalog, Failed: failed}
		}
		done <- found
	}()
	return func() *source.Discovery {
		stop()
		return <-done
	}
}

// queryClusterUID returns the UID of the watched cluster, "" if the API server does not answer in time: the source compares
// it later in any case. A comparison before the failover keeps an exporter of another cluster from deposing the exporter
// that the state belongs to. With onReplaced: fresh, which accepts another cluster, there is nothing to compare.
func (r *replica) queryClusterUID(ctx context.Context) string {
	if r.cfg.Cluster.OnReplaced == config.Fresh {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, clusterUIDTimeout)
	defer cancel()
	uid, err := r.client.ClusterUID(ctx)
	if err != nil {
		r.log.Debug("cannot query the UID of the cluster before the failover", "error", err)
	}
	return uid
}

func (r *replica) recordFailoverError(err error) {
	refused, isRefused := errors.AsType[*state.RefusedError](err)
	switch {
	case isRefused:
		r.condition.Update(refused.Problem())
	case errors.As(err, new(*sinks.DeposedError)): // another process was faster, which is no problem
		r.condition.Clear()
		r.membership.forgetHolder()
	default:
		r.condition.Update(condition.Caused(condition.FailoverFailing, err))
	}
}

// deliveredFilter returns a function that reports whether a sink has a change already; nil if it has none. r may be nil.
func (r *replica) deliveredFilter(sink string) func(sinks.Lane, *event.Change) bool {
	if r == nil {
		return nil
	}
	if r.failover.Waiting[sink] == nil {
		return r.failover.Delivered(sink)
	}
	// The tails of a sink that is fenced later are known only then; the pipeline does not start before, see recoverSink.
	filter := sync.OnceValue(func() func(sinks.Lane, *event.Change) bool { return r.failover.Delivered(sink) })
	return func(lane sinks.Lane, c *event.Change) bool {
		has := filter()
		return has != nil && has(lane, c)
	}
}

// recordLoss records that a sink is about to get again what it has lost. r may be nil.
func (r *replica) recordLoss(ctx context.Context, sink string) error {
	if r == nil {
		return nil
	}
	return r.writer.RecordLoss(ctx, sink)
}

// recoverSink fences a sink that could not be reached during the failover, calls ready once that is done, and goes on
// until all of its lanes are fenced and read back; unread reports the sink, and then its lanes, until they are. Other
// sinks deliver meanwhile, and other lanes from ready on. It returns nil, the cause of the end of ctx, or a
// *sinks.DeposedError. r may be nil.
func (r *replica) recoverSink(ctx context.Context, name string, sink sinks.Sink, unread *condition.Condition, ready func()) error {
	fenced, ok := sink.(sinks.Fenced)
	if r == nil || !ok {
		ready()
		return nil
	}
	backoff := ratelimit.NewBackoff[struct{}](minFailoverBackoff, maxFailoverBackoff, rand.Float64)
	for r.failover.Waiting[name] != nil {
		err := r.writer.AddSink(ctx, name, fenced)
		if err == nil {
			unread.Clear()
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.As(err, new(*sinks.DeposedError)) {
			return err
		}
		unread.Update(condition.ProblemOf(err, condition.SinkFailing))
		if ratelimit.Sleep(ctx, backoff.When(struct{}{})) != nil {
			return context.Cause(ctx)
		}
	}
	ready()
	backoff.Forget(struct{}{})
	for {
		count, reason := r.writer.WaitingLanes(name)
		if count == 0 {
			unread.Clear()
			return nil
		}
		unread.Update(condition.Problem{Code: condition.LaneUnread, Cause: fmt.Sprintf("%d lanes wait: %v", count, reason)})
		if ratelimit.Sleep(ctx, backoff.When(struct{}{})) != nil {
			return context.Cause(ctx)
		}
		if err := r.writer.ReadWaitingLanes(ctx, name, fenced); errors.As(err, new(*sinks.DeposedError)) {
			return err
		}
	}
}

// isActive reports whether this process delivers, as every process without a replicated state does. r may be nil.
func (r *replica) isActive() bool { return r == nil || r.role.Load().name == admin.RoleActive }

// runWriter writes the state until ctx ends or another process takes over, which it returns as a *sinks.DeposedError.
func (r *replica) runWriter(ctx context.Context) error {
	ctx, release := r.membership.contextWhileActive(ctx)
	defer release()
	err := r.writer.Run(ctx)
	if deposed, found := errors.AsType[*sinks.DeposedError](context.Cause(ctx)); found {
		return deposed
	}
	return err
}

// flushState waits until the state covers the journal or ctx ends. r may be nil.
func (r *replica) flushState(ctx context.Context) {
	if r == nil || r.writerTask == nil || ctx.Err() != nil {
		return
	}
	if err := r.writer.Flush(ctx); err != nil {
		r.log.Warn("the replicated state does not cover all delivered changes; the next exporter reads the rest from the sinks",
			"error", err)
	}
}

// closeState closes the writer and the bus. r may be nil.
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

// replicaStatus returns the status of the replica; nil if r is. It is safe for concurrent use.
func (r *replica) replicaStatus() *admin.ReplicaStatus {
	if r == nil {
		return nil
	}
	m := &r.membership
	stats, role := r.writer.Stats(), r.role.Load()
	s := &admin.ReplicaStatus{
		Identity: m.identity, Role: role.name, Since: role.since, Holder: stats.Owner.Identity,
		TakeOvers: m.failovers.Load(), TookOver: time.Duration(m.lastFailoverNanos.Load()), Fenced: m.deposals.Load(),
		StateLag: stats.Lag, Known: stats.Objects,
	}
	if m.election != nil {
		s.Holder, s.Unproven = m.election.Holder(), !m.election.ProvesHolder()
	}
	if role.name == admin.RoleActive {
		s.Holder = m.identity
	}
	return s
}

// failoverConditions returns the status of what a failover needs: the last attempt, the replicated state and the election. r
// may be nil.
func (r *replica) failoverConditions() []condition.Status {
	if r == nil {
		return nil
	}
	all := append([]condition.Status{r.condition.Status()}, r.writer.Conditions()...)
	if r.membership.election != nil {
		all = append(all, r.membership.election.Status())
	}
	return all
}

// conditions returns failoverConditions, and whether this process yields the Lease or another one holds it in vain. r may be
// nil.
func (r *replica) conditions() []condition.Status {
	all := r.failoverConditions()
	if r != nil && r.membership.election != nil {
		all = append(all, r.membership.yielding.Status(), r.membership.noneActive.Status())
	}
	return all
}
