package source

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// environment is what the runners of a Source share. It is not changed after New.
type environment struct {
	cfg       *Config
	states    *stateReporter
	identity  *clusterIdentity
	fail      func(error)   // ends the Source
	listSlots chan struct{} // see concurrentLists
	fillSlots chan struct{} // see concurrentFills
	snapshots snapshotSlots
	clock     *deltas.Clock // of the API server
}

// runnerSet holds the runners, one for each resource. Safe for concurrent use; only the goroutine of Source.Run changes it.
type runnerSet struct {
	env     *environment
	running *sync.WaitGroup

	mu         sync.Mutex
	byName     map[string]*runner // by the name of the resource
	discovered bool               // a poll has succeeded, so every selected resource that is served has a runner
}

// startRunner adds a runner and runs it. lost is the reason of the gap that new scopes begin with; empty if there is none.
func (s *runnerSet) startRunner(ctx context.Context, r *runner, lost string) {
	name := r.resource.String()
	s.mu.Lock()
	s.byName[name] = r
	r.foundAtStart = !s.discovered
	s.mu.Unlock()
	ctx, r.stop = context.WithCancel(ctx)
	s.running.Go(func() {
		defer close(r.done)
		defer r.stop()
		if err := r.run(ctx, lost); err != nil && ctx.Err() == nil {
			s.env.fail(fmt.Errorf("resource %s: %w", name, err))
		}
	})
}

// findRunner returns the runner of a resource, or nil.
func (s *runnerSet) findRunner(name string) *runner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
}

// allRunners returns a copy of the set, in no order.
func (s *runnerSet) allRunners() []*runner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.byName))
}

// removeRunners removes the chosen runners, which have ended, and the conditions of their scopes.
func (s *runnerSet) removeRunners(chosen func(name string, r *runner) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byName, func(name string, r *runner) bool {
		if !chosen(name, r) {
			return false
		}
		for _, f := range r.followers {
			s.env.states.set.Remove(f.scope.ID)
			s.env.states.set.Remove(rereadName(f.scope.ID))
			s.env.states.set.Remove(listingName(f.scope.ID))
			s.env.states.set.Remove(snapshotName(f.scope.ID))
		}
		return true
	})
}

// setDiscovered records a successful poll, and reports whether it was the first.
func (s *runnerSet) setDiscovered() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, s.discovered = !s.discovered, true
	return first
}

func (s *runnerSet) isDiscovered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.discovered
}

// runner runs one resource: a follower for each scope, and the deletes of known objects that no scope selects any more.
type runner struct {
	env              *environment
	resource         event.Resource // in the version that is read
	followers        []*follower
	foundAtStart     bool          // started by the first successful poll
	confirmedMissing atomic.Bool   // missingPollsUntilGone polls lacked the resource
	bodilessScopes   atomic.Int32  // scopes that have yet to read their bodies
	stop             func()        // ends the runner; nothing is emitted
	planned          chan struct{} // closed when the store has what each scope begins with
	done             chan struct{} // closed when the runner has ended

	absence absence // owned by the goroutine of Source.Run
}

func newRunner(env *environment, resource event.Resource, scopes []selection.Scope) *runner {
	r := &runner{
		env: env, resource: resource,
		planned: make(chan struct{}), done: make(chan struct{}),
	}
	for _, scope := range scopes {
		to := env.cfg.Append
		if env.cfg.Shape != nil {
			to = env.cfg.Shape(scope.Rule, to)
		}
		r.followers = append(r.followers, newFollower(r, scope, to))
	}
	return r
}

func (r *runner) hasEnded() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// stopAndWait ends the runner. It first waits until the store has the gap that a scope may begin with, because
// poller.recordGaps waits for that.
func (r *runner) stopAndWait() {
	select {
	case <-r.planned:
	case <-r.done:
	}
	r.stop()
	<-r.done
}

// asServed describes the resource as it is being watched. The runner has followers.
func (r *runner) asServed() selection.Served {
	return selection.Served{Resource: r.resource, Namespaced: r.followers[0].scope.Namespaced}
}

// setConfirmedMissing updates confirmedMissing. When it becomes true the followers reconnect, so that their next request can
// be answered with 404.
func (r *runner) setConfirmedMissing(confirmed bool) {
	if confirmed == r.confirmedMissing.Swap(confirmed) || !confirmed {
		return
	}
	for _, f := range r.followers {
		f.api.requestReconnect()
	}
}

// run follows the resource until ctx ends or the resource is gone.
func (r *runner) run(ctx context.Context, lost string) error {
	unselected, err := r.loadFollowers(ctx, lost)
	if err != nil {
		return err
	}
	close(r.planned)
	if unselected != nil {
		if err := unselected.emitAllDeletes(ctx, rand.Text()); err != nil {
			return err
		}
	}
	if len(r.followers) == 0 {
		return r.env.cfg.DropResource(ctx, r.resource.String())
	}
	if r.resource.Version != "" { // a resource without a stored version is not served in any
		if err := r.runFollowers(ctx); !errors.Is(err, errVanished) {
			return err
		}
	}
	for _, f := range r.followers {
		if err := f.emitVanished(ctx); err != nil {
			return err
		}
	}
	return r.env.cfg.DropResource(ctx, r.resource.String())
}

// runFollowers runs the followers until ctx ends or one of them fails, and returns the cause.
func (r *runner) runFollowers(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, f := range r.followers {
		all.Go(func() { cancel(f.run(ctx)) })
	}
	all.Wait()
	return context.Cause(ctx)
}

// loadFollowers gives each follower its stored scope and known objects, and stores what each scope begins with. It returns
// an emitter for the known objects that no scope selects any more; nil if there are none.
func (r *runner) loadFollowers(ctx context.Context, lost string) (unselected *emitter, err error) {
	sets := knownSets{byNamespace: map[string]*deltas.KnownSet{}, unselected: deltas.NewKnownSet()}
	for _, f := range r.followers {
		sets.byNamespace[f.scope.Namespace] = deltas.NewKnownSet()
	}
	stored, err := r.env.cfg.Load(r.resource, sets.addKnown)
	if err != nil {
		return nil, err
	}
	plan, changed := r.planScopes(stored, lost)
	if changed {
		if err := r.env.cfg.SetScopes(ctx, r.resource, plan); err != nil {
			return nil, err
		}
		carried, err := r.env.cfg.Load(r.resource, nil) // with what is requested of scopes that are no more
		if err != nil {
			return nil, err
		}
		plan, _ = r.planScopes(carried, lost)
	}
	if stored.BodiesMissing {
		r.bodilessScopes.Store(int32(len(r.followers)))
	}
	cluster := r.env.identity.clusterName()
	for i, f := range r.followers {
		f.bodiesMissing = stored.BodiesMissing
		if err := f.loadState(cluster, plan[i], sets.byNamespace[f.scope.Namespace]); err != nil {
			return nil, err
		}
	}
	if sets.unselected.Len() == 0 {
		return nil, nil
	}
	scope := selection.Scope{ID: r.resource.String(), Resource: stored.Resource}
	to := r.env.cfg.Append
	if len(r.followers) > 0 && r.env.cfg.Shape != nil {
		to = r.env.cfg.Shape(r.followers[0].scope.Rule, to)
	}
	unselected = &emitter{scope: scope, clock: r.env.clock, append: to, watermarks: newWatermarks(scope, nil)}
	unselected.loadState(cluster, event.StoredScope{}, sets.unselected)
	return unselected, nil
}

// recordBodiesFilled reports that a scope has read its missing bodies. The last scope of the resource informs the store.
func (r *runner) recordBodiesFilled(ctx context.Context) {
	if r.bodilessScopes.Add(-1) > 0 {
		return
	}
	if err := r.env.cfg.BodiesFilled(ctx, r.resource.String()); err != nil && ctx.Err() == nil {
		r.env.fail(fmt.Errorf("record that the bodies of %s were read: %w", r.resource, err))
	}
}

// knownSets distributes the known objects of a resource to its scopes.
type knownSets struct {
	byNamespace map[string]*deltas.KnownSet // by the namespace of the scope; "" takes every object
	unselected  *deltas.KnownSet            // objects of no scope
}

func (s *knownSets) addKnown(k event.Known) {
	set := s.byNamespace[""]
	if set == nil {
		namespace, _, _ := strings.Cut(k.Key, "/")
		set = s.byNamespace[namespace]
	}
	if set == nil {
		set = s.unselected
	}
	set.Add(k)
}

// selectionChanged is the reason in the gap record before the differences between two selections.
const selectionChanged = "the rules were edited, or the resource is served differently: the new selection is " +
	"compared with the previous one, and changes in between may be coalesced"

// firstListLost is the reason in the gap record before the differences to what destinations have of a resource of which no
// scope is stored.
const firstListLost = "how far the previous exporter had come with this resource is not known: changes since may be coalesced"

// planScopes returns what each scope begins with, and whether that differs from the stored scopes. A scope without stored
// state begins with an empty one; if the resource was selected differently before, it begins with a comparison.
func (r *runner) planScopes(stored event.StoredResource, lost string) (plan []event.StoredScope, changed bool) {
	known := map[string]event.StoredScope{}
	for _, s := range stored.Scopes {
		known[s.ID] = s
	}
	pass := rand.Text()
	wasFiltered := func(s event.StoredScope) bool { return selection.IsFilteredID(s.ID) }
	isUnfinished := func(s event.StoredScope) bool { return s.Position == "" && s.Snapshot != "" }
	isFiltered := func(f *follower) bool { return f.scope.ChangeFilter != "" }
	if slices.ContainsFunc(stored.Scopes, wasFiltered) || slices.ContainsFunc(r.followers, isFiltered) {
		pass = filterCompared + pass
	}
	if slices.ContainsFunc(stored.Scopes, isUnfinished) {
		pass = snapshotAgain + pass
	}
	for _, f := range r.followers {
		s, ok := known[f.scope.ID]
		switch {
		case ok:
		case stored.Resource.Resource != "" && len(stored.Scopes) == 0:
			s = event.StoredScope{ID: f.scope.ID, LostReason: firstListLost, Pass: snapshotAgain}
		case stored.Resource.Resource != "":
			s = event.StoredScope{ID: f.scope.ID, LostReason: selectionChanged, Pass: pass}
		default:
			s = event.StoredScope{ID: f.scope.ID, LostReason: lost}
		}
		plan, changed = append(plan, s), changed || !ok
	}
	return plan, changed || len(plan) != len(stored.Scopes)
}

// snapshotAgain is how the ID of a comparison begins that is also a snapshot of everything, known objects included. The
// rules were edited during the first lists: a consumer waits for the ends of their snapshots, each of a part of the new
// selection, and drops at an end what the snapshot lacked. An end for the whole selection needs records of the whole
// selection. Alone it is no comparison: the selection is the same, and only how far its first list had come is not known.
const snapshotAgain = "snapshot:"

// filterCompared is how the ID of a comparison begins that also compares what a filter leaves out, now or before.
const filterCompared = "filter:"
