package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// scopeClient is a scope's access to the API server: the endpoint, the back-off between requests, and the check that the
// same cluster still answers. Exported state is in health. Except for endpoint and requestReconnect it belongs to the
// goroutine of follower.run.
type scopeClient struct {
	identity         *clusterIdentity
	guard            Guard // nil if everything may be emitted
	rule             int
	health           *health
	confirmedMissing *atomic.Bool                       // of the runner: discovery lacks the resource
	endpoint         atomic.Pointer[apiserver.Endpoint] // nil until follower.loadState
	reconnect        chan struct{}                      // capacity 1; a receive means to reconnect at once

	backoff backoff
	recheck clusterRecheck // since the last failure; another cluster may answer next
}

// errVanished means that the resource is gone: discovery lacks it, and its own address answers 404.
var errVanished = errors.New("the resource is no longer served")

// requestReconnect makes the follower send its next request at once, on a new connection. Safe for concurrent use.
func (c *scopeClient) requestReconnect() { ratelimit.Wake(c.reconnect) }

// confirmCluster returns nil if the same cluster still answers, see clusterIdentity.confirmCluster.
func (c *scopeClient) confirmCluster(ctx context.Context) error {
	return c.identity.confirmCluster(ctx, c.recheck)
}

// awaitAdmission waits until what is read of the scope may be emitted. It calls waiting with each reason to wait. revoked
// changes when it may no longer be emitted. A receive from signaled, which may be nil, looks again.
func (c *scopeClient) awaitAdmission(
	ctx context.Context, waiting func(condition.Problem), signaled <-chan struct{},
) (revoked Changed, err error) {
	for c.guard != nil {
		held, changed := c.guard.Held(c.rule)
		switch {
		case held.Code == "":
			return changed, nil
		case held.Code == condition.RedactionHeld && c.confirmedMissing.Load():
			return changed, nil // the next request decides whether the resource is gone; a response would not be emitted
		}
		waiting(held)
		select {
		case <-changed[0]:
		case <-changed[1]:
		case <-signaled:
		case <-ctx.Done():
			return Changed{}, ctx.Err()
		}
	}
	return Changed{}, nil
}

// admit is awaitAdmission on the goroutine of the follower, with the reason in the state of the scope.
func (c *scopeClient) admit(ctx context.Context) (revoked Changed, err error) {
	waited := false
	revoked, err = c.awaitAdmission(ctx, func(p condition.Problem) { waited = true; c.health.recordProblem(p) }, c.reconnect)
	if waited && err == nil {
		c.health.recordProblem(condition.Problem{Code: condition.ResourceSyncing})
	}
	return revoked, err
}

// beginTurn begins to emit something of the scope, until end is called. Its error is a *HeldError.
func (c *scopeClient) beginTurn() (end func(), err error) {
	if c.guard == nil {
		return func() {}, nil
	}
	return c.guard.BeginTurn(c.rule)
}

// awaitTurn is beginTurn, which waits while the rule is paused. It returns only the error of ctx.
func (c *scopeClient) awaitTurn(ctx context.Context) (end func(), err error) {
	for {
		if end, err = c.beginTurn(); err == nil {
			return end, nil
		}
		if _, err := c.admit(ctx); err != nil {
			return nil, err
		}
	}
}

// newSlot returns a slot of pool for one reading of the scope; without a pool it only reports slow answers.
func (c *scopeClient) newSlot(pool chan struct{}) *apiserver.Slot {
	return &apiserver.Slot{Pool: pool, OnSlow: func() { c.health.recordFailure(apiserver.ErrSlow) }}
}

// newestPosition returns etcd's current resourceVersion, by a LIST of one object.
func (c *scopeClient) newestPosition(ctx context.Context) (string, error) {
	c.health.updateCounters(func(s *Status) { s.Lists++ })
	return c.endpoint.Load().Newest(ctx)
}

// handleFailure reports a failed request and waits before the next one. It returns errVanished if the resource is gone.
func (c *scopeClient) handleFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if apiserver.Classify(err) == apiserver.NotServed && c.confirmedMissing.Load() {
		return errVanished
	}
	if errors.Is(err, ErrRedefined) {
		return c.waitFor(ctx, minWait)
	}
	if apiserver.IsUnanswered(err) {
		c.endpoint.Load().Ways.Forget() // it may be replaced
	}
	c.recheck = recheckAfter(err)
	c.health.recordFailure(err)
	return c.waitAfter(ctx, err)
}

// waitAfter waits for the back-off after err.
func (c *scopeClient) waitAfter(ctx context.Context, err error) error {
	return c.waitFor(ctx, c.backoff.nextWait(err))
}

// waitFor waits for d, or until a reconnect is requested.
func (c *scopeClient) waitFor(ctx context.Context, d time.Duration) error {
	return ratelimit.SleepUnlessWoken(ctx, d, c.reconnect)
}

// followCredentials has everything use changed credentials at once: what waits after a failure tries again, and watches are
// opened with them. It returns when ctx ends.
func (s *Source) followCredentials(ctx context.Context) {
	known, _ := s.cfg.Client.Refresh()
	for ratelimit.Sleep(ctx, apiserver.LookInterval) == nil {
		loaded, err := s.cfg.Client.Refresh()
		problem := condition.Problem{}
		if err != nil {
			problem = condition.Problem{Code: condition.CredentialsUnread, Cause: err.Error()}
		}
		s.credentials.Update(problem)
		if loaded == known {
			continue
		}
		known = loaded
		s.cfg.Log.Info("the credentials for the API server have changed; using them")
		ratelimit.Wake(s.poller.requested)
		for _, r := range s.runners.allRunners() {
			for _, f := range r.followers {
				f.api.requestReconnect()
			}
		}
	}
}

// Selected is a part of what is watched.
type Selected struct {
	Names     []string // of resources, as rules name them; nil for all
	Namespace string   // the only one; "" for all
	Objects   []string // keys of the only objects, "namespace/name", or "name" of cluster-scoped ones; nil for all
}

// SelectedScope is a watched scope of which something is selected.
type SelectedScope struct {
	Resource, ID string
	Objects      []string // those that it can have; nil for all
}

// SelectScopes returns the watched scopes that can have what is selected. unknown are the names that select nothing. It is
// complete once the source has found what is served, which discovered reports.
func (s *Source) SelectScopes(of Selected) (scopes []SelectedScope, unknown []string, discovered bool) {
	discovered = s.runners.isDiscovered()
	all := s.runners.allRunners()
	if len(of.Names) == 0 {
		of.Names = []string{"*"}
		scopes, _, discovered = s.SelectScopes(of)
		return scopes, nil, discovered
	}
	found := map[string]bool{} // IDs
	for _, name := range of.Names {
		isSelected, known := selection.Rule{Select: []string{name}}.Matcher(), false
		for _, r := range all {
			if !isSelected(r.resource) {
				continue
			}
			known = true
			for _, f := range r.followers {
				if objects, has := of.partIn(f.scope); has && !found[f.scope.ID] {
					found[f.scope.ID] = true
					scopes = append(scopes, SelectedScope{r.resource.String(), f.scope.ID, objects})
				}
			}
		}
		if !known {
			unknown = append(unknown, name)
		}
	}
	return scopes, unknown, discovered
}

// partIn returns the selected objects that a scope can have, nil for all, and whether it can have any.
func (of Selected) partIn(scope selection.Scope) (objects []string, has bool) {
	covers := func(namespace string) bool { return scope.Namespace == "" || scope.Namespace == namespace }
	if of.Namespace != "" && (!scope.Namespaced || !covers(of.Namespace)) {
		return nil, false
	}
	for _, key := range of.Objects {
		namespace, _, namespaced := strings.Cut(key, "/")
		if namespaced == scope.Namespaced && (!namespaced || covers(namespace)) {
			objects = append(objects, key)
		}
	}
	return objects, of.Objects == nil || len(objects) > 0
}

// EmitWatermarks has each watched scope emit a watermark now, also where nothing has changed since the last one.
func (s *Source) EmitWatermarks() {
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			f.out.watermarks.request()
		}
	}
}

// EmitRequested looks for snapshots that the store has new requests for, and emits them.
func (s *Source) EmitRequested() {
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			ratelimit.Wake(f.requested)
		}
	}
}

// backoff computes the waits after consecutive failures. The zero value is ready. It is used by one goroutine.
type backoff struct {
	failures      int
	needsOperator bool // the failures are such that only an operator can resolve them
}

const (
	minWait = 100 * time.Millisecond
	maxWait = 15 * time.Second
	// minDeniedWait and maxDeniedWait bound the wait, before jitter, after failures that only an operator can resolve. More
	// frequent retries would fill the API server's audit log. The first waits are short because an API server that has just
	// started denies what it allows a moment later.
	minDeniedWait = time.Second
	maxDeniedWait = 15 * time.Second
	// maxStartingWait bounds the wait for an API server that is starting, unless it asks for a longer one.
	maxStartingWait = time.Second
	// maxRetryAfter bounds a Retry-After. The maintenance page of a proxy may ask for hours, and nothing would be read until
	// long after the maintenance.
	maxRetryAfter = time.Minute
)

func (p *backoff) reset() { p.failures = 0 }

// countFailure counts a failure. A refusal at the end of an outage is the first of its kind, so the waits start over: an API
// server that has just started refuses for a moment, and history must not be lost over a long wait.
func (p *backoff) countFailure(needsOperator bool) {
	if needsOperator != p.needsOperator {
		p.failures, p.needsOperator = 0, needsOperator
	}
	p.failures++
}

// nextWait returns the wait after err: an exponential back-off with jitter, so that scopes do not retry in step, and not
// less than the Retry-After of the API server, up to maxRetryAfter.
func (p *backoff) nextWait(err error) time.Duration {
	longest := maxWait
	v := apiserver.Classify(err)
	p.countFailure(v == apiserver.Forbidden || v == apiserver.NotServed)
	switch v {
	case apiserver.Forbidden, apiserver.NotServed:
		return ratelimit.WaitAfter(p.failures-1, minDeniedWait, 2*maxDeniedWait, rand.Float64())
	case apiserver.Starting:
		longest = maxStartingWait
	default: // an ordinary failure
	}
	d := ratelimit.WaitAfter(p.failures-1, minWait/2, longest, rand.Float64())
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		d = max(d, min(maxRetryAfter, time.Duration(seconds)*time.Second))
	}
	return d
}
