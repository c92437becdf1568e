package source

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// runner follows one resource: its scopes, and what is known of objects that none of them selects any more.
type runner struct {
	source           *Source
	loadStored       func(resource string, known func(event.Known)) (event.StoredResource, error) // that of the rules it was made by
	resource         event.Resource                                                               // in the version it was found in
	followers        []*follower
	foundAtStart     bool          // found when the API server first said what it serves
	confirmedMissing atomic.Bool   // discovery does not name the resource, and has been asked more than once
	stop             func()        // ends it without a word
	bodilessScopes   atomic.Int32  // scopes that have yet to read the bodies of their objects
	planned          chan struct{} // closed when what each scope begins with is stored
	done             chan struct{}

	// Owned by Source.Run.
	current      event.Resource // in the version that is watched now
	missingPolls int            // in a row without the resource
}

func (s *Source) newRunner(resource event.Resource, scopes []selection.Scope) *runner {
	r := &runner{source: s, loadStored: s.cfg.Load, resource: resource, current: resource, planned: make(chan struct{}), done: make(chan struct{})}
	for _, scope := range scopes {
		f := &follower{
			runner: r, scope: scope,
			health: &health{source: s, condition: s.conditions.Add(scope.ID, Syncing.condition()), counters: Status{Scope: scope.ID}},
			append: s.cfg.appendForRule(scope.Rule), reconnectRequested: make(chan struct{}, 1), betweenBatches: make(chan func(context.Context) error),
		}
		if scope.Mandatory {
			f.health.onRepeatedRefusal = f.failIfMandatory
		}
		r.followers = append(r.followers, f)
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

// run follows the resource until ctx ends, or until it is served no more.
func (r *runner) run(ctx context.Context, cluster, lost string) error {
	others, err := r.loadFollowers(ctx, cluster, lost)
	if err != nil {
		return err
	}
	close(r.planned)
	if others != nil {
		if err := others.emitAllDeletes(ctx, rand.Text()); err != nil {
			return err
		}
	}
	if len(r.followers) == 0 {
		return r.source.cfg.DropResource(ctx, r.resource.String())
	}
	if r.resource.Version != "" { // else it comes from a journal that stored none, and is not served in any
		if err := r.runFollowers(ctx); !errors.Is(err, errVanished) {
			return err
		}
	}
	for _, f := range r.followers {
		f.health.setState(Gone, "the API server serves this resource no more; its objects are announced as deleted")
		r.source.conditions.ReportEvent(f.scope.ID, resourceVanished, "")
		if err := f.emitAllDeletes(ctx, ""); err != nil {
			return err
		}
	}
	return r.source.cfg.DropResource(ctx, r.resource.String())
}

// runFollowers runs the followers until ctx ends or one of them does.
func (r *runner) runFollowers(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, f := range r.followers {
		all.Go(func() {
			cancel(f.run(ctx))
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// loadFollowers gives each follower what is stored of its scope and its objects, and stores what each begins with. It returns a
// follower of the objects that no scope selects any more, nil where there are none.
func (r *runner) loadFollowers(ctx context.Context, cluster, lost string) (others *follower, err error) {
	sets := knownSets{unselected: deltas.NewKnownSet()}
	for _, f := range r.followers {
		sets.addNamespace(f.scope.Namespace)
	}
	stored, err := r.loadStored(r.resource.String(), sets.addKnown)
	if err != nil {
		return nil, err
	}
	plan, changed := r.planScopes(stored, lost)
	if changed {
		if err := r.source.cfg.SetScopes(ctx, r.resource, plan); err != nil {
			return nil, err
		}
	}
	if stored.BodiesMissing {
		r.bodilessScopes.Store(int32(len(r.followers)))
	}
	for i, f := range r.followers {
		f.bodiless = stored.BodiesMissing
		if err := f.loadState(cluster, plan[i], sets.byNamespace[f.scope.Namespace]); err != nil {
			return nil, err
		}
	}
	if sets.unselected.Len() == 0 {
		return nil, nil
	}
	s := selection.Scope{ID: r.resource.String(), Resource: stored.Resource}
	others = &follower{runner: r, scope: s, append: r.source.cfg.Append}
	return others, others.loadState(cluster, event.StoredScope{}, sets.unselected)
}

// knownSets gives the known objects of a resource to its scopes.
type knownSets struct {
	byNamespace map[string]*deltas.KnownSet // by the namespace of the scope; "" has all
	unselected  *deltas.KnownSet            // of no scope
}

func (s *knownSets) addNamespace(namespace string) {
	if s.byNamespace == nil {
		s.byNamespace = map[string]*deltas.KnownSet{}
	}
	s.byNamespace[namespace] = deltas.NewKnownSet()
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

// selectionChanged is the reason of the gap before what became of a selection.
const selectionChanged = "the rules were edited, or the resource is served otherwise: what they select now is compared with " +
	"what they selected before, and changes in between may be coalesced"

// planScopes says what each scope begins with: what is stored of it, or nothing yet. Where something else was selected of the
// resource before, the scope begins with a comparison. changed says that this is not what is stored.
func (r *runner) planScopes(stored event.StoredResource, lost string) (plan []event.StoredScope, changed bool) {
	known := map[string]event.StoredScope{}
	for _, s := range stored.Scopes {
		known[s.ID] = s
	}
	pass := rand.Text()
	for _, f := range r.followers {
		s, ok := known[f.scope.ID]
		switch {
		case ok:
		case stored.Resource.Resource != "":
			s = event.StoredScope{ID: f.scope.ID, LostReason: selectionChanged, Pass: pass, Snapshot: unfinishedSnapshot(stored)}
		default:
			s = event.StoredScope{ID: f.scope.ID, LostReason: lost}
		}
		plan, changed = append(plan, s), changed || !ok
	}
	return plan, changed || len(plan) != len(stored.Scopes)
}

// unfinishedSnapshot is the snapshot that an edit of the rules interrupts, "" if there is none. What was emitted of it is not
// emitted again, and it has to end; so it goes on in the new selection.
func unfinishedSnapshot(stored event.StoredResource) string {
	for _, s := range stored.Scopes {
		if s.Position == "" && s.Snapshot != "" {
			return s.Snapshot
		}
	}
	return ""
}

// loadState gives the follower what is stored of its scope. Nothing runs yet.
func (f *follower) loadState(cluster string, stored event.StoredScope, known *deltas.KnownSet) error {
	e, err := f.runner.source.cfg.Client.Endpoint(f.scope)
	if err != nil {
		return err
	}
	s := deltas.Scope{
		ID: f.scope.ID, Cluster: cluster, Resource: f.scope.Resource, Namespace: f.scope.Namespace,
		Selected: f.scope.LabelSelector != "" || f.scope.FieldSelector != "",
	}
	t := deltas.NewTracker(s, known, f.scope.Filter, func() time.Time { return time.Now().UTC() })
	f.tracker.Store(t)
	f.stored = stored
	if stored.Position != "" {
		f.stored = event.StoredScope{ID: stored.ID}
		f.position.Store(&stored.Position)
		f.health.updateCounters(func(s *Status) { s.Synced = true })
	}
	if !f.endpoint.CompareAndSwap(nil, e) { // switchVersion came first, and may have found no tracker
		t.SetResource(f.endpoint.Load().Scope.Resource)
	}
	return nil
}

// switchVersion goes on with another version of the resource.
func (r *runner) switchVersion(resource event.Resource) {
	r.current = resource
	for _, f := range r.followers {
		s := f.scope
		s.Resource = resource
		f.switchVersion(s)
	}
}

// appendForRule is what takes the observations of a scope.
func (c *Config) appendForRule(rule int) event.AppendFunc {
	if c.Shape == nil {
		return c.Append
	}
	return c.Shape(rule, c.Append)
}
