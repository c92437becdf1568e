package source

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// poller asks the API server what it serves, resolves the rules against that, and starts and stops runners. Its own fields
// belong to the goroutine of Source.Run.
type poller struct {
	*Source
	env       *environment
	requested chan struct{} // capacity 1; a receive means to poll at once

	given       *Discovery // replaces the first request; nil afterwards
	found       Discovery  // result of the last poll
	lastCounted time.Time  // last poll that counted missing resources, see missingPollsUntilGone
	stored      *storedResources
	gaps        initialGaps
}

func newPoller(s *Source, env *environment) *poller {
	return &poller{
		Source: s, env: env, requested: make(chan struct{}, 1), given: s.cfg.Discovery,
		stored: &storedResources{cfg: &s.cfg, byName: map[string]*storedResource{}},
		gaps:   initialGaps{reason: s.cfg.LostReason},
	}
}

// run polls until ctx ends.
func (p *poller) run(ctx context.Context) error {
	var retry backoff
	for {
		err := p.pollOnce(ctx)
		if err != nil && ctx.Err() == nil {
			if err := ratelimit.Sleep(ctx, retry.nextWait(err)); err != nil {
				return err
			}
			continue
		}
		retry.reset()
		if err := ratelimit.SleepUnlessWoken(ctx, p.cfg.Interval, p.requested); err != nil {
			return err
		}
	}
}

// pollOnce asks what is served and starts and stops runners accordingly. Errors of applying the result end the Source; an
// error of the request is for the caller to retry.
func (p *poller) pollOnce(ctx context.Context) error {
	found, err := p.discoverServed(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.discovery.Update(p.states.problemOfAll(err))
		}
		return err
	}
	p.found = found
	if err := p.applyDiscovery(ctx); err != nil {
		p.env.fail(err)
		return err
	}
	p.discovery.Clear()
	if p.runners.setDiscovered() && p.cfg.Applied != nil {
		p.cfg.Applied()
	}
	p.recordGaps(ctx)
	return nil
}

// discoverServed asks the API server what it serves. The first call returns the given result, if there is one, and requests
// another poll soon.
func (p *poller) discoverServed(ctx context.Context) (Discovery, error) {
	if given := p.given; given != nil {
		p.given = nil
		ratelimit.Wake(p.requested)
		return *given, nil
	}
	catalog, failed, err := p.cfg.Client.Discover(ctx, p.found.Catalog)
	return Discovery{catalog, failed}, err
}

// applyDiscovery brings runners in line with the rules and the last discovery.
func (p *poller) applyDiscovery(ctx context.Context) error {
	p.runners.removeRunners(func(_ string, r *runner) bool { return r.hasEnded() })
	hidden, err := p.hiddenResources()
	if err != nil {
		return err
	}
	resolved := selection.Resolve(p.cfg.Rules, p.found.Catalog.With(hidden))
	wanted := map[string][]selection.Scope{} // by resource
	for _, s := range resolved.Scopes() {
		wanted[s.Resource.String()] = append(wanted[s.Resource.String()], s)
	}
	if err := p.stopChangedRunners(ctx, wanted); err != nil {
		return err
	}
	p.setUnserved(resolved.Unserved)
	p.namespaces.setChecked(resolved.NamedNamespaces(p.cfg.Rules), resolved.NamespaceGlobs(p.cfg.Rules))
	for name, scopes := range wanted {
		if p.runners.findRunner(name) == nil {
			p.startRunner(ctx, scopes[0].Resource, scopes)
		}
	}
	p.dropUnselected(ctx)
	p.guardTypes(wanted)
	return nil
}

// hiddenResources returns the resources that discovery no longer names but that may still exist: a starting API server, or a
// proxy, may hide a resource for a while. Their runners continue. A resource is gone only if its own address answers 404 as
// well (see scopeClient.handleFailure).
func (p *poller) hiddenResources() ([]selection.Served, error) {
	counts := time.Since(p.lastCounted) >= p.cfg.Interval
	if counts {
		p.lastCounted = time.Now()
	}
	var hidden []selection.Served
	for _, r := range p.runners.allRunners() {
		if r.absence.recordPoll(p.found, r.resource, counts) && len(r.followers) > 0 {
			hidden = append(hidden, r.asServed())
		}
		r.setConfirmedMissing(r.absence.polls >= missingPollsUntilGone)
	}
	stored, err := p.stored.hiddenResources(p.found, counts)
	return append(hidden, stored...), err
}

// stopChangedRunners stops the runners of resources that were recreated for the whole cluster instead of namespaces, or the
// other way round, that no rule selects in their present form, or that are read in another version from now on, and waits
// until Load returns what they appended. The caller starts the wanted ones again: positions are the same in all versions.
// No other runner is stopped: a version that discovery hides for a moment is no reason.
func (p *poller) stopChangedRunners(ctx context.Context, wanted map[string][]selection.Scope) error {
	stopped := false
	for _, r := range p.runners.allRunners() {
		name := r.resource.String()
		if len(r.followers) == 0 || len(wanted[name]) > 0 && wanted[name][0].Namespaced == r.followers[0].scope.Namespaced &&
			!p.changesVersion(r, wanted[name][0]) {
			continue
		}
		r.stopAndWait()
		if len(wanted[name]) == 0 {
			p.stored.byName[name] = &storedResource{Served: r.asServed()}
		}
		p.runners.removeRunners(func(other string, _ *runner) bool { return other == name })
		stopped = true
	}
	if !stopped || p.cfg.Flush == nil {
		return nil
	}
	if err := p.cfg.Flush(ctx); err != nil {
		return fmt.Errorf("wait for the observations of the previous selection: %w", err)
	}
	return nil
}

// changesVersion reports, and logs, whether a resource is read in another version from now on: the API server has stopped
// serving the one that is watched, or that is not watched because it is held.
func (p *poller) changesVersion(r *runner, wanted selection.Scope) bool {
	c, now := p.found.Catalog, wanted.Resource
	if now == r.resource || !c.Serves(now) || c.Serves(r.resource) && !isHeld(p.cfg.Guard, wanted.Rule) {
		return false
	}
	p.cfg.Log.Info("resource is served in another version; watching that version", "resource", now.String(), "version", now.Version)
	return true
}

func (p *poller) guardTypes(wanted map[string][]selection.Scope) {
	if p.cfg.Guard == nil {
		return
	}
	var types []GuardedType
	for name, scopes := range wanted {
		current := p.runners.findRunner(name).resource
		for _, s := range scopes {
			next := s.Resource
			s.Resource = current
			types = append(types, GuardedType{Scope: s, Next: next})
		}
	}
	slices.SortFunc(types, func(a, b GuardedType) int { return strings.Compare(a.Scope.ID, b.Scope.ID) })
	p.cfg.Guard.SetTypes(types)
}

// dropUnselected starts runners that emit the stored objects of unselected resources as deleted. A resource that a rule
// waits for, because it is pinned to a version that is not served, is still selected.
func (p *poller) dropUnselected(ctx context.Context) {
	for name, s := range p.stored.byName {
		if slices.Contains(p.found.Failed, s.Resource.Group) || p.found.Catalog.Awaits(p.cfg.Rules, s.Resource) {
			continue
		}
		p.startRunner(ctx, s.Resource, nil)
		p.cfg.Log.Info("resource is no longer selected by any rule; emitting its objects as deleted", "resource", name)
	}
}

func (p *poller) startRunner(ctx context.Context, resource event.Resource, scopes []selection.Scope) {
	delete(p.stored.byName, resource.String())
	r := newRunner(p.env, resource, scopes)
	p.runners.startRunner(ctx, r, p.gaps.reasonFor(resource.Group))
}

// recordGaps reports to the store that the initial gaps are recorded, once every scope concerned has stored that it begins
// with one (I5). Until then another start begins with the gaps again.
func (p *poller) recordGaps(ctx context.Context) {
	if !p.gaps.recordPoll(p.found.Failed) {
		return
	}
	runners := p.runners.allRunners()
	p.running.Go(func() {
		for _, r := range runners {
			select {
			case <-r.planned:
			case <-ctx.Done():
				return
			}
		}
		if err := p.cfg.GapsRecorded(ctx); err != nil && ctx.Err() == nil {
			p.env.fail(fmt.Errorf("record that the initial gaps are stored: %w", err))
		}
	})
}

// setUnserved replaces what the rules select and the API server does not serve: names, wildcards without a match, and groups
// of which it is not known what they have.
func (p *poller) setUnserved(unserved []selection.Unserved) {
	now := map[string]condition.Problem{}
	for _, one := range unserved {
		problem := condition.Problem{Code: condition.ResourceNotServed, Cause: one.Reason}
		group, _, named := selection.LiteralName(one.Name)
		switch {
		case one.Unwatchable:
			problem.Code = condition.ResourceUnwatchable
		case one.Name == "*":
			continue // nothing at all is served
		case !named:
			problem.Code = condition.WildcardUnmatched
		case slices.Contains(p.found.Failed, group):
			problem.Cause, problem.Remedy = groupUnanswered, condition.GroupUnanswered.Kind().Remedy
		}
		now[one.Name] = problem
	}
	for _, group := range p.found.Failed {
		if selection.MaySelect(p.cfg.Rules, group) {
			now["*."+cmp.Or(group, "core")] = condition.Problem{Code: condition.GroupUnanswered, Cause: groupUnanswered}
		}
	}
	for name, problem := range now {
		p.unserved.Update(name, problem)
	}
	for _, s := range p.unserved.Statuses() {
		if _, still := now[s.Members[0]]; !still {
			p.unserved.Remove(s.Members[0]) // without a line: the scope has one when it is watched
		}
	}
}

const groupUnanswered = "the server of the group does not answer discovery"
