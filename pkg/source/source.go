package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Config is what a Source needs. Client, Rules, Load, Append, Drop and Log are required.
type Config struct {
	Client *apiserver.Client
	// Cluster is the name that every change carries. Empty: the UID of the namespace kube-system.
	Cluster string
	// Rules must be valid.
	Rules []selection.Rule
	// Discovery is what the API server was found to serve a moment ago, if that is known: reading begins with that, and it is
	// asked soon after.
	Discovery *Discovery
	// Interval is how often the API server is asked what it serves; 0 means every five seconds. Where Triggers announce
	// changes it is asked when they do, and otherwise at least every 30 seconds.
	Interval time.Duration

	// Load returns what is stored of a resource, and gives each object that is known of it to known, if that is not nil. It
	// is called for a resource before Append is. Nothing stored is a zero event.StoredResource.
	Load func(resource string, known func(event.Known)) (event.StoredResource, error)
	// StoredResources returns the names of all resources of which something is stored: their objects are announced as deleted if the
	// resource has vanished or is not selected any more.
	StoredResources func() ([]string, error)
	// SetScopes stores what the scopes of a resource begin with, in place of all that was stored of scopes of that resource.
	// It is durable when it returns.
	SetScopes func(ctx context.Context, r event.Resource, scopes []event.StoredScope) error
	// Append takes observations, concurrently for different scopes.
	Append event.AppendFunc
	// Shape, if it is not nil, is asked once for each scope what takes its observations in front of Append; rule is the
	// index in Rules of the rule that made the scope.
	Shape func(rule int, to event.AppendFunc) event.AppendFunc
	// DropResource forgets a resource that is served or selected no more, after everything appended before.
	DropResource func(ctx context.Context, resource string) error
	// BodiesFilled notes that the bodies of a resource that was loaded as bodiless were given to Append, as far as they were
	// found. It is needed where Load says so of any.
	BodiesFilled func(ctx context.Context, resource string) error
	// Flush waits until everything appended before it is what Load returns. Nil where Append does.
	Flush func(ctx context.Context) error
	// LostReason is why stored positions are missing, if they should not be ("the journal was damaged"): what is served now then
	// begins with a gap record; what is served later does not. Empty where nothing was lost.
	LostReason string
	// GapsRecorded is called once it is stored of every such scope that it begins with the gap. It is needed where Lost, or
	// ResetCluster, is given.
	GapsRecorded func(ctx context.Context) error

	// StoredClusterUID is the UID of the cluster that what is stored was read from, "" if nobody knows, and Remember stores
	// it. Remember may be nil.
	StoredClusterUID string
	RecordCluster    func(ctx context.Context, uid string) error
	// ResetCluster forgets everything that is stored of scopes, because the cluster is now another, and remembers that one
	// and the reason. Nil: another cluster ends Run.
	ResetCluster func(ctx context.Context, uid, reason string) error

	Log *slog.Logger
}

// Discovery is what an API server serves, and the groups that could not be asked.
type Discovery struct {
	Catalog selection.Catalog
	Failed  []string
}

// Source finds, watches and follows what the rules select.
type Source struct {
	cfg       Config
	listSlots chan struct{} // see concurrentLists
	fillSlots chan struct{} // see concurrentFills
	identity  *clusterIdentity
	// namespaces are those that the rules name.
	namespaces *namespaceChecker
	// conditions are those of all that is read, discovery among them, and triggers are those of the triggers: the log joins
	// them.
	conditions, triggers *condition.Set
	discovery            *condition.Condition

	scheduler *pollScheduler

	mu             sync.Mutex
	edit           *Edit // not taken up yet; nil when there is none
	cluster        string
	discoveredOnce bool                            // the API server has said once what it serves
	runners        map[string]*runner              // by the name of the resource
	unserved       map[string]*condition.Condition // of selected names that nothing serves

	// Owned by Run.
	catalog      selection.Catalog
	failedGroups []string                   // groups that could not be asked in the last poll
	lastCounted  time.Time                  // the last poll that counted what is missing, see missingPollsUntilGone
	unfollowed   map[string]*storedResource // resources of which something is stored, and that nothing follows
	lostGroups   lostGroups
	typeTriggers []*trigger
	running      sync.WaitGroup
	fail         context.CancelCauseFunc
}

const (
	// concurrentLists bounds how many scopes read all their objects at the same time, and so the memory that takes.
	concurrentLists = 8
	// missingPollsUntilGone is in how many polls in a row, each an interval after the one before, discovery must lack a resource
	// before a 404 of its own address means that it is gone. Polls that triggers ask for come closer and do not count: an
	// API server that starts may say for a moment that it serves less.
	missingPollsUntilGone = 2

	// maxIdentifyAttempts is how often an API server may refuse to show kube-system; it does so for a moment when it starts.
	maxIdentifyAttempts = 4

	defaultInterval = 5 * time.Second
)

// StartError says that a Source could not begin because of what it found: nothing has been observed.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// New returns a Source. It starts nothing and connects to nothing.
func New(cfg Config) (*Source, error) {
	if err := selection.Validate(cfg.Rules); err != nil {
		return nil, err
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	s := &Source{
		cfg: cfg, cluster: cfg.Cluster, listSlots: make(chan struct{}, concurrentLists),
		fillSlots: make(chan struct{}, concurrentFills),
		scheduler: newPollScheduler(cfg.Interval), runners: map[string]*runner{}, unserved: map[string]*condition.Condition{}, unfollowed: map[string]*storedResource{},
		conditions: condition.NewSet(cfg.Log, "scopes"), triggers: condition.NewSet(cfg.Log, "resources"),
	}
	s.discovery = s.conditions.Add("discovery", Syncing.condition())
	s.updateCondition(s.discovery, Syncing, "the API server has not been asked yet")
	s.identity, s.namespaces = newClusterIdentity(&s.cfg), newNamespaceChecker(&s.cfg)
	return s, nil
}

// Run watches until ctx ends, and then returns nil when everything has stopped. It waits for an API server that does not
// answer, for rights, and for resources, as long as it takes. Errors are those of the functions in Config, a *StartError,
// a *ReplacedError where another cluster takes the place of the one that is being watched, and a *ForbiddenError where a
// rule asks for it.
func (s *Source) Run(ctx context.Context) error {
	// What client-go has to say about its retries is said by the states of scopes, once instead of each time.
	ctx = klog.NewContext(ctx, klog.Logger{})
	ctx, s.fail = context.WithCancelCause(ctx)
	defer s.conditions.Close()
	defer s.triggers.Close()
	defer s.running.Wait()
	defer s.fail(nil)
	if err := s.identifyCluster(ctx); err != nil {
		return endError(ctx, err)
	}
	if err := s.loadStoredResources(); err != nil {
		return err
	}
	s.running.Go(func() { s.namespaces.run(ctx) })
	if err := s.startTriggers(ctx); err != nil {
		return err
	}
	return endError(ctx, s.pollUntilDone(ctx))
}

// startTriggers starts the triggers, if the rules ask for them and they do not run. Those that an earlier rule asked for stay.
func (s *Source) startTriggers(ctx context.Context) error {
	if len(s.typeTriggers) > 0 {
		return nil
	}
	for _, r := range selection.Triggers(s.cfg.Rules) {
		t, err := newTrigger(s.cfg.Client, r, s.triggers, s.scheduler.requestPoll)
		if err != nil {
			return err
		}
		s.typeTriggers = append(s.typeTriggers, t)
	}
	for _, t := range s.typeTriggers {
		s.running.Go(func() { t.run(ctx) })
	}
	return nil
}

// pollUntilDone polls until ctx ends.
func (s *Source) pollUntilDone(ctx context.Context) error {
	var p backoff
	asked := false
	for {
		before := s.catalog
		err := s.pollOnce(ctx)
		if err != nil && ctx.Err() == nil {
			if err := sleep(ctx, p.nextWait(err)); err != nil {
				return err
			}
			continue
		}
		p.reset()
		s.scheduler.recordPoll(asked, !s.catalog.Equal(before))
		if asked, err = s.scheduler.waitForPoll(ctx, s.isSettled()); err != nil {
			return err
		}
	}
}

// isSettled says that only a trigger can announce something new: all are watched, and no poll has left a question open.
func (s *Source) isSettled() bool {
	for _, t := range s.typeTriggers {
		if !t.live.Load() {
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		if r.missingPolls > 0 {
			return false
		}
	}
	return len(s.typeTriggers) > 0 && len(s.failedGroups) == 0 && len(s.unfollowed) == 0
}

// endError is nil for an ordered end, and what failed otherwise.
func endError(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// identifyCluster finds the cluster's name, which changes carry in their ID, and sees that it is the cluster that what is stored
// was read from. Nothing can be read before.
func (s *Source) identifyCluster(ctx context.Context) error {
	var p backoff
	for {
		err := s.identity.queryUID(ctx)
		var replaced *ReplacedError
		switch v := apiserver.Classify(err); {
		case err == nil:
			s.adoptClusterUID()
			return nil
		case errors.As(err, &replaced):
			return s.resetForReplacement(ctx, replaced)
		case ctx.Err() != nil:
			return ctx.Err()
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && s.cfg.Cluster != "":
			s.identity.recordDenied(err)
			return nil
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && p.failures >= maxIdentifyAttempts:
			return &StartError{fmt.Errorf("the cluster's name is the UID of the namespace kube-system, which cannot be read: %w; set cluster.name, or allow get on that namespace", err)}
		}
		s.updateCondition(s.discovery, Unreachable, apiserver.Reason(err))
		if err := sleep(ctx, p.nextWait(err)); err != nil {
			return err
		}
	}
}

// adoptClusterUID gives the cluster its UID for a name, where it has no other.
func (s *Source) adoptClusterUID() {
	uid, _ := s.identity.status()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Cluster == "" {
		s.cluster = uid
	}
}

// resetForReplacement forgets the cluster that was known in favour of another, if that is wanted. Nothing is being read.
func (s *Source) resetForReplacement(ctx context.Context, r *ReplacedError) error {
	if s.cfg.ResetCluster == nil {
		return &StartError{r}
	}
	s.cfg.LostReason = fmt.Sprintf("the cluster was replaced: the UID of its namespace kube-system was %s and is %s", r.Stored, r.Now)
	if err := s.cfg.ResetCluster(ctx, r.Now, s.cfg.LostReason); err != nil {
		return fmt.Errorf("begin anew for another cluster: %w", err)
	}
	s.cfg.Log.Warn("another cluster answers: what was known is forgotten, and every resource begins with a gap", "before", r.Stored, "now", r.Now)
	s.identity.uid.Store(&r.Now)
	s.adoptClusterUID()
	return nil
}

// confirmCluster makes sure, as identity.confirm does, that the cluster is still the same, and ends the Source if it is not.
func (s *Source) confirmCluster(ctx context.Context, d clusterRecheck) error {
	err := s.identity.confirmUnchanged(ctx, d)
	var replaced *ReplacedError
	if errors.As(err, &replaced) {
		s.fail(replaced)
	}
	return err
}

// Identity returns the UID of the cluster's namespace kube-system, "" if it is not known, and why it cannot be compared
// with the one of the cluster that what is stored was read from, "" if it can.
func (s *Source) Identity() (uid, unchecked string) { return s.identity.status() }

// Cluster is the name that changes carry; "" until it is known.
func (s *Source) Cluster() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}

// pollOnce asks what is served and starts and stops runners accordingly.
func (s *Source) pollOnce(ctx context.Context) error {
	c, failed, err := s.discoverServed(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.updateCondition(s.discovery, Unreachable, apiserver.Reason(err))
		}
		return err
	}
	s.catalog, s.failedGroups = c, failed
	s.removeEndedRunners()
	all, err := s.addHiddenResources(c)
	if err != nil {
		s.fail(err)
		return err
	}
	edit, err := s.applyEdit(ctx)
	if err != nil {
		s.fail(err)
		return err
	}
	found := selection.Resolve(s.cfg.Rules, all)
	wanted := groupByResource(found.Scopes())
	if err := s.stopChangedRunners(ctx, edit, wanted); err != nil {
		s.fail(err)
		return err
	}
	s.updateUnserved(found.Unserved)
	s.namespaces.setNames(found.NamedNamespaces(s.cfg.Rules))
	for name, scopes := range wanted {
		s.ensureRunner(ctx, name, scopes)
	}
	s.announceUnselected(ctx)
	s.mu.Lock()
	s.discoveredOnce = true // only now is there something that may not be ready yet
	s.mu.Unlock()
	s.updateCondition(s.discovery, Live, "")
	s.recordGapsWhenPlanned(ctx)
	return nil
}

// discoverServed asks what is served, but for the first time where that is known.
func (s *Source) discoverServed(ctx context.Context) (selection.Catalog, []string, error) {
	if found := s.cfg.Discovery; found != nil {
		s.cfg.Discovery = nil
		s.scheduler.requestPoll()
		return found.Catalog, found.Failed, nil
	}
	return s.cfg.Client.Discover(ctx, s.catalog)
}

// updateUnserved notes the names that nothing serves. A wildcard waits for nothing in particular.
func (s *Source) updateUnserved(unserved []selection.Unserved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := map[string]*condition.Condition{}
	for _, u := range unserved {
		if selection.IsWildcard(u.Name) || waiting[u.Name] != nil {
			continue
		}
		c := s.unserved[u.Name]
		if c == nil {
			c = s.conditions.Add(u.Name, Live.condition())
		}
		s.updateCondition(c, Waiting, u.Reason)
		waiting[u.Name] = c
	}
	for name := range s.unserved {
		if waiting[name] == nil {
			s.conditions.Remove(name)
		}
	}
	s.unserved = waiting
}

// ensureRunner makes sure that a resource is followed.
func (s *Source) ensureRunner(ctx context.Context, name string, scopes []selection.Scope) {
	r, ok := s.runners[name]
	if !ok {
		s.startRunner(ctx, s.newRunner(scopes[0].Resource, scopes))
		return
	}
	if now := scopes[0].Resource; now != r.current && s.catalog.Serves(now) && !s.catalog.Serves(r.current) {
		r.switchVersion(now)
	}
}

func (s *Source) startRunner(ctx context.Context, r *runner) {
	name := r.resource.String()
	delete(s.unfollowed, name)
	s.mu.Lock()
	s.runners[name] = r
	r.foundAtStart = !s.discoveredOnce
	cluster := s.cluster
	s.mu.Unlock()
	lost := s.lostGroups.reasonForGroup(r.resource.Group, s.cfg.LostReason)
	running, stop := context.WithCancel(ctx)
	r.stop = stop
	s.running.Go(func() {
		defer close(r.done)
		defer stop()
		if err := r.run(running, cluster, lost); err != nil && running.Err() == nil {
			s.fail(fmt.Errorf("resource %s: %w", name, err))
		}
	})
}

// removeEndedRunners forgets the runners whose resource is served no more and announced as such.
func (s *Source) removeEndedRunners() {
	s.removeRunners(func(_ string, r *runner) bool { return r.hasEnded() })
}

// removeRunners forgets runners, and how their scopes are doing.
func (s *Source) removeRunners(which func(string, *runner) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.runners, func(name string, r *runner) bool {
		if !which(name, r) {
			return false
		}
		for _, f := range r.followers {
			s.conditions.Remove(f.scope.ID)
		}
		return true
	})
}

func groupByResource(scopes []selection.Scope) map[string][]selection.Scope {
	m := map[string][]selection.Scope{}
	for _, s := range scopes {
		m[s.Resource.String()] = append(m[s.Resource.String()], s)
	}
	return m
}

// Status describes every scope and every selected name that nothing serves, in order.
func (s *Source) Status() []Status {
	s.mu.Lock()
	runners := make([]*runner, 0, len(s.runners))
	for _, r := range s.runners {
		runners = append(runners, r)
	}
	var all []Status
	for name, c := range s.unserved {
		now := c.Status()
		all = append(all, Status{Scope: name, State: Waiting, Reason: now.Reason, Since: now.Since})
	}
	s.mu.Unlock()
	for _, r := range runners {
		for _, f := range r.followers {
			all = append(all, f.status())
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Scope, b.Scope) })
	return all
}

// Ready says whether changes are being read, and what is missing. Types that may not be read or that nothing serves are
// named and do not count: one of them must not take the others out of service.
func (s *Source) Ready() (bool, []string) {
	s.mu.Lock()
	ready, reasons := s.discoveredOnce, []string(nil)
	s.mu.Unlock()
	if why := s.discovery.Status().Explanation(); why != "" {
		reasons = append(reasons, "discovery: "+why)
	}
	for _, st := range s.Status() {
		if st.State == Live {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("%s: %s: %s", st.Scope, st.State, st.Reason))
		if st.State == Syncing || st.State == Unreachable || st.State == Stale {
			ready = false
		}
	}
	return ready, reasons
}
