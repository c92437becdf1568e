package source

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// LoadFunc returns the stored state of a resource and passes each known object of it to known, unless known is nil. resource
// has the version in which it will be read, if that is known. A resource without stored state is a zero
// event.StoredResource.
type LoadFunc = func(resource event.Resource, known func(event.Known)) (event.StoredResource, error)

// ShapeFunc wraps the append function of one scope; rule is the index of the rule that made the scope.
type ShapeFunc = func(rule int, to event.AppendFunc) event.AppendFunc

// Config holds the dependencies of a Source. Client, Rules, Load, StoredResources, SetScopes, Append, DropResource and Log
// are required. The Source keeps a copy and never changes it. Every function may be called from any goroutine.
type Config struct {
	Client *apiserver.Client
	// Cluster is the cluster name in every change. If empty, it is the UID of the namespace kube-system.
	Cluster string
	// Rules select the resources. They must be valid.
	Rules []selection.Rule
	// Discovery is the result of a recent discovery, or nil. With it the first poll sends no request; the next poll follows
	// soon after.
	Discovery *Discovery
	// Applied, if not nil, is called once: when the rules have been applied to what the API server serves.
	Applied func()
	// Listed, if not nil, is called when the list of a scope is complete, with the time of its first request and how many
	// objects it had. It does not block.
	Listed func(scope string, began time.Time, objects int)
	// Interval is the time between discovery polls; 0 means three seconds.
	Interval time.Duration

	// Load is called for a resource before the first Append for that resource.
	Load LoadFunc
	// StoredResources returns the names of all resources with stored state. The known objects of those that are no longer
	// served or selected are emitted as deleted.
	StoredResources func() ([]string, error)
	// SetScopes replaces the stored scopes of a resource. The result is durable when it returns.
	SetScopes func(ctx context.Context, r event.Resource, scopes []event.StoredScope) error
	// Append stores observations. It is called concurrently for different scopes, and in order for one scope.
	Append event.AppendFunc
	// Shape, if not nil, is called once for each scope and wraps Append for that scope.
	Shape ShapeFunc
	// Guard, if not nil, decides when what is read may be emitted.
	Guard Guard
	// DropResource removes the stored state of a resource that is no longer served or selected. It takes effect after
	// everything appended before it.
	DropResource func(ctx context.Context, resource string) error
	// BodiesFilled records that the missing bodies of a resource have been appended, as far as the API server still has
	// them. It is required if Load can return BodiesMissing.
	BodiesFilled func(ctx context.Context, resource string) error
	// Watermarks are the series of watermarks that each scope emits from its first complete state on. Shape sees them too.
	Watermarks []WatermarkSeries
	// PaceSnapshot, if not nil, waits until more of a snapshot for one sink may be appended. It returns only the error of ctx.
	PaceSnapshot func(ctx context.Context, sink string) error
	// AwaitDelivered, if not nil, waits until a sink has received everything that Flush has made durable. It returns only the
	// error of ctx. The end of a snapshot for the sink is appended after that.
	AwaitDelivered func(ctx context.Context, sink string) error
	// Flush waits until Load returns everything that was appended before the call. Nil if Append already waits.
	Flush func(ctx context.Context) error
	// LostReason is the reason why stored positions are missing ("the journal was damaged"); empty if none are. Every
	// resource that is served at the start then begins with a gap record. Resources served later were not watched before
	// and begin without one.
	LostReason string
	// GapsRecorded is called once every such scope has durably stored that it begins with a gap (I5). It is required with
	// LostReason or ResetCluster.
	GapsRecorded func(ctx context.Context) error

	// StoredClusterUID is the UID of the cluster that the stored state was read from; empty if unknown.
	StoredClusterUID string
	// RecordCluster stores that UID, the first time it is known. It may be nil.
	RecordCluster func(ctx context.Context, uid string) error
	// ResetCluster removes the stored state of all scopes because the API server now belongs to another cluster, and stores
	// the new UID and the reason. If nil, another cluster ends Run.
	ResetCluster func(ctx context.Context, uid, reason string) error

	Log *slog.Logger
}

// Discovery is the result of a discovery request.
type Discovery struct {
	Catalog selection.Catalog // what the API server serves
	Failed  []string          // groups without an answer; the catalog has their previous state
}

// StartError reports that a Source could not start because of the cluster it found. Nothing has been observed.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Source discovers, lists and watches the resources that the rules select. New wires its parts; Run starts them.
// All methods but Run are safe for concurrent use, before, during and after Run.
type Source struct {
	cfg         Config // not changed after New
	identity    *clusterIdentity
	namespaces  *namespaceChecker
	states      *stateReporter
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

	defaultInterval = 3 * time.Second // a new type is read within five, its first list included
)

// New returns a Source. It starts nothing and connects to nothing.
func New(cfg Config) (*Source, error) {
	if err := selection.Validate(cfg.Rules); err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	s := &Source{cfg: cfg}
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
func (s *Source) Identity() string { return *s.identity.uid.Load() }

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
		for _, status := range []condition.Status{scope.Condition, scope.Reread, scope.Listing, scope.Snapshot} {
			if status.Of = len(scopes); status.Component != "" { // a name that is not served has no readings
				all = append(all, status)
			}
		}
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
