package source

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Source discovers, lists and watches the resources that the rules select. New wires its parts; Run starts them.
// All methods but Run are safe for concurrent use, before, during and after Run.
type Source struct {
	cfg         Config // not changed after New
	identity    *clusterIdentity
	namespaces  *namespaceChecker
	states      *stateReporter
	triggers    *condition.Set
	discovery   *condition.Condition
	credentials *condition.Condition
	runners     *runnerSet
	unserved    *condition.Set // of selected names that the API server does not serve
	poller      *poller

	running sync.WaitGroup          // every goroutine that Run has started
	cancel  context.CancelCauseFunc // set by Run before anything else starts
}

const (
	// concurrentLists bounds how many scopes list their objects at once, and thereby the memory of the lists.
	concurrentLists = 8
	// concurrentFills bounds how many scopes read missing bodies at once.
	concurrentFills = 4

	defaultInterval = 5 * time.Second
)

// New returns a Source. It starts nothing and connects to nothing.
func New(cfg Config) (*Source, error) {
	if err := selection.Validate(cfg.Rules); err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	s := &Source{cfg: cfg, triggers: condition.NewSet(cfg.Log, "types", "resources")}
	s.states = &stateReporter{set: condition.NewSet(cfg.Log, "resource", "scopes"), client: cfg.Client}
	s.discovery = s.states.set.Add("discovery", condition.Problem{Code: condition.DiscoveryPending})
	s.credentials = condition.New(cfg.Log, "credentials", condition.Problem{})
	s.identity, s.namespaces = newClusterIdentity(&s.cfg, s.failRun), newNamespaceChecker(&s.cfg)
	env := &environment{
		cfg: &s.cfg, states: s.states, identity: s.identity, fail: s.failRun,
		listSlots: make(chan struct{}, concurrentLists), fillSlots: make(chan struct{}, concurrentFills),
		clock: &deltas.Clock{},
	}
	s.runners = &runnerSet{env: env, running: &s.running, byName: map[string]*runner{}}
	s.unserved = condition.NewSet(cfg.Log, "resource", "scopes")
	s.poller = newPoller(s, env)
	return s, nil
}

// failRun ends Run with an error.
func (s *Source) failRun(err error) { s.cancel(err) }

// Run blocks until ctx ends and everything has stopped; it then returns nil. It is called once. An API server that does not
// answer, missing rights and missing resources are waited for without a limit. Errors are those of the functions in Config,
// a *StartError, a *ReplacedError if another cluster answers while this one is being watched, and a *ForbiddenError if a
// rule requires it.
func (s *Source) Run(ctx context.Context) error {
	// The states of scopes report failures once; client-go would log each retry.
	ctx = klog.NewContext(ctx, klog.Logger{})
	ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.states.set.Close()
	defer s.credentials.Close()
	defer s.triggers.Close()
	defer s.unserved.Close()
	defer s.running.Wait()
	defer s.cancel(nil)
	s.running.Go(func() { s.followCredentials(ctx) })
	replaced, err := s.identity.identifyCluster(ctx, func(err error) {
		s.discovery.Update(s.states.problemOfAll(err))
	})
	if err != nil {
		return endError(ctx, err)
	}
	if replaced != "" {
		s.poller.gaps.reason = replaced
	}
	if err := s.poller.stored.loadNames(); err != nil {
		return err
	}
	s.running.Go(func() { s.namespaces.run(ctx) })
	if err := s.poller.startTriggers(ctx); err != nil {
		return err
	}
	return endError(ctx, s.poller.run(ctx))
}

// endError returns nil for an orderly end, and otherwise the cause of the end.
func endError(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// Identity returns the UID of the cluster's namespace kube-system; empty if unknown.
func (s *Source) Identity() string { return s.identity.knownUID() }

// Cluster is the cluster name in changes; empty until it is known.
func (s *Source) Cluster() string { return s.identity.clusterName() }

// Conditions returns what is wrong, and what is not: the status of the discovery, of the credentials, of the cluster's
// identity, of each namespace that rules name literally, and of each scope, in that order.
func (s *Source) Conditions() []condition.Status {
	scopes := s.Status()
	discovery := s.discovery.Status()
	discovery.Component, discovery.Members = "discovery", nil
	if s.runners.isDiscovered() { // the scopes show the same fault
		discovery = selectionStatus(scopes)
	}
	all := append([]condition.Status{discovery, s.credentials.Status(), s.identity.condition.Status()}, s.namespaces.conditions.Statuses()...)
	for _, scope := range scopes {
		all = append(all, scope.Condition, scope.Reread, scope.Listing, scope.Snapshot)
	}
	return all
}

// Status describes every scope and every selected name that is not served, in order.
func (s *Source) Status() []Status {
	var all, unserved []Status
	for _, c := range s.unserved.Statuses() {
		unserved = append(unserved, Status{Scope: c.Members[0], State: Waiting, Condition: c})
	}
	for _, r := range s.runners.allRunners() {
		for _, f := range r.followers {
			all = append(all, f.status())
		}
	}
	all = append(all, unserved...)
	slices.SortStableFunc(all, func(a, b Status) int { return strings.Compare(a.Scope, b.Scope) })
	// A name that was served between the two reads is in both.
	return slices.CompactFunc(all, func(a, b Status) bool { return a.Scope == b.Scope })
}

// Ready reports whether changes are being read. A forbidden or unserved type does not make the Source unready, because it
// must not take the others out of service; it is unready if there are no others.
func (s *Source) Ready() bool {
	return !slices.ContainsFunc(s.Conditions(), func(c condition.Status) bool { return c.Severity == condition.NotReady })
}
