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
	// Found is what the API server was found to serve a moment ago, if that is known: reading begins with that, and it is
	// asked soon after.
	Found *Found
	// Interval is how often the API server is asked what it serves; 0 means every five seconds. Where Triggers announce
	// changes it is asked when they do, and otherwise at least every 30 seconds.
	Interval time.Duration

	// Load returns what is stored of a resource, and gives each object that is known of it to known, if that is not nil. It
	// is called for a resource before Append is. Nothing stored is a zero event.StoredResource.
	Load func(resource string, known func(event.Known)) (event.StoredResource, error)
	// Stored returns the names of all resources of which something is stored: their objects are announced as deleted if the
	// resource has vanished or is not selected any more.
	Stored func() ([]string, error)
	// SetScopes stores what the scopes of a resource begin with, in place of all that was stored of scopes of that resource.
	// It is durable when it returns.
	SetScopes func(ctx context.Context, r event.Resource, scopes []event.StoredScope) error
	// Append takes observations, concurrently for different scopes.
	Append event.Append
	// Shape, if it is not nil, is asked once for each scope what takes its observations in front of Append; rule is the
	// index in Rules of the rule that made the scope.
	Shape func(rule int, to event.Append) event.Append
	// Drop forgets a resource that is served or selected no more, after everything appended before.
	Drop func(ctx context.Context, resource string) error
	// Filled notes that the bodies of a resource that was loaded as bodiless were given to Append, as far as they were
	// found. It is needed where Load says so of any.
	Filled func(ctx context.Context, resource string) error
	// Flush waits until everything appended before it is what Load returns. Nil where Append does.
	Flush func(ctx context.Context) error
	// Lost is why stored positions are missing, if they should not be ("the journal was damaged"): what is served now then
	// begins with a gap record; what is served later does not. Empty where nothing was lost.
	Lost string
	// Announced is called once it is stored of every such scope that it begins with the gap. It is needed where Lost, or
	// BeginAnew, is given.
	Announced func(ctx context.Context) error

	// StoredCluster is the UID of the cluster that what is stored was read from, "" if nobody knows, and Remember stores
	// it. Remember may be nil.
	StoredCluster string
	Remember      func(ctx context.Context, uid string) error
	// BeginAnew forgets everything that is stored of scopes, because the cluster is now another, and remembers that one
	// and the reason. Nil: another cluster ends Run.
	BeginAnew func(ctx context.Context, uid, reason string) error

	Log *slog.Logger
}

// Found is what an API server serves, and the groups that could not be asked.
type Found struct {
	Catalog selection.Catalog
	Failed  []string
}

// Source finds, watches and follows what the rules select.
type Source struct {
	cfg      Config
	slots    chan struct{} // see concurrentLists
	fills    chan struct{} // see concurrentFills
	identity *identity
	// namespaces are those that the rules name.
	namespaces *namespaces
	// conditions are those of all that is read, discovery among them, and triggers are those of the triggers: the log joins
	// them.
	conditions, triggers *condition.Set
	discovery            *condition.Condition

	pace *pace

	mu         sync.Mutex
	edit       *Edit // not taken up yet; nil when there is none
	cluster    string
	discovered bool                            // the API server has said once what it serves
	runners    map[string]*runner              // by the name of the resource
	waiting    map[string]*condition.Condition // of selected names that nothing serves

	// Owned by Run.
	catalog     selection.Catalog
	failing     []string               // groups that could not be asked in the last poll
	counted     time.Time              // the last poll that counted what is missing, see pollsUntilGone
	remembered  map[string]*remembered // resources of which something is stored, and that nothing follows
	lost        lostGroups
	typeWatches []*trigger
	running     sync.WaitGroup
	failed      context.CancelCauseFunc
}

const (
	// concurrentLists bounds how many scopes read all their objects at the same time, and so the memory that takes.
	concurrentLists = 8
	// pollsUntilGone is in how many polls in a row, each an interval after the one before, discovery must lack a resource
	// before a 404 of its own address means that it is gone. Polls that triggers ask for come closer and do not count: an
	// API server that starts may say for a moment that it serves less.
	pollsUntilGone = 2

	// triesToIdentify is how often an API server may refuse to show kube-system; it does so for a moment when it starts.
	triesToIdentify = 4

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
		cfg: cfg, cluster: cfg.Cluster, slots: make(chan struct{}, concurrentLists),
		fills: make(chan struct{}, concurrentFills),
		pace:  newPace(cfg.Interval), runners: map[string]*runner{}, waiting: map[string]*condition.Condition{}, remembered: map[string]*remembered{},
		conditions: condition.NewSet(cfg.Log, "scopes"), triggers: condition.NewSet(cfg.Log, "resources"),
	}
	s.discovery = s.conditions.Add("discovery", Syncing.condition())
	s.become(s.discovery, Syncing, "the API server has not been asked yet")
	s.identity, s.namespaces = newIdentity(&s.cfg), newNamespaces(&s.cfg)
	return s, nil
}

// Run watches until ctx ends, and then returns nil when everything has stopped. It waits for an API server that does not
// answer, for rights, and for resources, as long as it takes. Errors are those of the functions in Config, a *StartError,
// a *ReplacedError where another cluster takes the place of the one that is being watched, and a *ForbiddenError where a
// rule asks for it.
func (s *Source) Run(ctx context.Context) error {
	// What client-go has to say about its retries is said by the states of scopes, once instead of each time.
	ctx = klog.NewContext(ctx, klog.Logger{})
	ctx, s.failed = context.WithCancelCause(ctx)
	defer s.conditions.Close()
	defer s.triggers.Close()
	defer s.running.Wait()
	defer s.failed(nil)
	if err := s.identify(ctx); err != nil {
		return endOf(ctx, err)
	}
	if err := s.remember(); err != nil {
		return err
	}
	s.running.Go(func() { s.namespaces.run(ctx) })
	if err := s.watchTypes(ctx); err != nil {
		return err
	}
	return endOf(ctx, s.follow(ctx))
}

// watchTypes starts the triggers, if the rules ask for them and they do not run. Those that an earlier rule asked for stay.
func (s *Source) watchTypes(ctx context.Context) error {
	if len(s.typeWatches) > 0 {
		return nil
	}
	for _, r := range selection.Triggers(s.cfg.Rules) {
		t, err := newTrigger(s.cfg.Client, r, s.triggers, s.pace.ring)
		if err != nil {
			return err
		}
		s.typeWatches = append(s.typeWatches, t)
	}
	for _, t := range s.typeWatches {
		s.running.Go(func() { t.run(ctx) })
	}
	return nil
}

// follow polls until ctx ends.
func (s *Source) follow(ctx context.Context) error {
	var p backoff
	asked := false
	for {
		before := s.catalog
		err := s.poll(ctx)
		if err != nil && ctx.Err() == nil {
			if err := sleep(ctx, p.wait(err)); err != nil {
				return err
			}
			continue
		}
		p.reset()
		s.pace.note(asked, !s.catalog.Equal(before))
		if asked, err = s.pace.wait(ctx, s.settled()); err != nil {
			return err
		}
	}
}

// settled says that only a trigger can announce something new: all are watched, and no poll has left a question open.
func (s *Source) settled() bool {
	for _, t := range s.typeWatches {
		if !t.live.Load() {
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		if r.polls > 0 {
			return false
		}
	}
	return len(s.typeWatches) > 0 && len(s.failing) == 0 && len(s.remembered) == 0
}

// endOf is nil for an ordered end, and what failed otherwise.
func endOf(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// identify finds the cluster's name, which changes carry in their ID, and sees that it is the cluster that what is stored
// was read from. Nothing can be read before.
func (s *Source) identify(ctx context.Context) error {
	var p backoff
	for {
		err := s.identity.ask(ctx)
		var replaced *ReplacedError
		switch v := apiserver.Classify(err); {
		case err == nil:
			s.named()
			return nil
		case errors.As(err, &replaced):
			return s.replace(ctx, replaced)
		case ctx.Err() != nil:
			return ctx.Err()
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && s.cfg.Cluster != "":
			s.identity.skip(err)
			return nil
		case (v == apiserver.Forbidden || v == apiserver.NotServed) && p.failures >= triesToIdentify:
			return &StartError{fmt.Errorf("the cluster's name is the UID of the namespace kube-system, which cannot be read: %w; set cluster.name, or allow get on that namespace", err)}
		}
		s.become(s.discovery, Unreachable, apiserver.Reason(err))
		if err := sleep(ctx, p.wait(err)); err != nil {
			return err
		}
	}
}

// named gives the cluster its UID for a name, where it has no other.
func (s *Source) named() {
	uid, _ := s.identity.status()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Cluster == "" {
		s.cluster = uid
	}
}

// replace forgets the cluster that was known in favour of another, if that is wanted. Nothing is being read.
func (s *Source) replace(ctx context.Context, r *ReplacedError) error {
	if s.cfg.BeginAnew == nil {
		return &StartError{r}
	}
	s.cfg.Lost = fmt.Sprintf("the cluster was replaced: the UID of its namespace kube-system was %s and is %s", r.Stored, r.Now)
	if err := s.cfg.BeginAnew(ctx, r.Now, s.cfg.Lost); err != nil {
		return fmt.Errorf("begin anew for another cluster: %w", err)
	}
	s.cfg.Log.Warn("another cluster answers: what was known is forgotten, and every resource begins with a gap", "before", r.Stored, "now", r.Now)
	s.identity.uid.Store(&r.Now)
	s.named()
	return nil
}

// confirm makes sure, as identity.confirm does, that the cluster is still the same, and ends the Source if it is not.
func (s *Source) confirm(ctx context.Context, d doubt) error {
	err := s.identity.confirm(ctx, d)
	var replaced *ReplacedError
	if errors.As(err, &replaced) {
		s.failed(replaced)
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

// poll asks what is served and starts and stops runners accordingly.
func (s *Source) poll(ctx context.Context) error {
	c, failed, err := s.discover(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.become(s.discovery, Unreachable, apiserver.Reason(err))
		}
		return err
	}
	s.catalog, s.failing = c, failed
	s.forgetEnded()
	all, err := s.withMissing(c)
	if err != nil {
		s.failed(err)
		return err
	}
	edit, err := s.takeEdit(ctx)
	if err != nil {
		s.failed(err)
		return err
	}
	found := selection.Resolve(s.cfg.Rules, all)
	wanted := byResource(found.Scopes())
	if err := s.changeOver(ctx, edit, wanted); err != nil {
		s.failed(err)
		return err
	}
	s.await(found.Unserved)
	s.namespaces.follow(found.NamedNamespaces(s.cfg.Rules))
	for name, scopes := range wanted {
		s.want(ctx, name, scopes)
	}
	s.leave(ctx)
	s.mu.Lock()
	s.discovered = true // only now is there something that may not be ready yet
	s.mu.Unlock()
	s.become(s.discovery, Live, "")
	s.announce(ctx)
	return nil
}

// discover asks what is served, but for the first time where that is known.
func (s *Source) discover(ctx context.Context) (selection.Catalog, []string, error) {
	if found := s.cfg.Found; found != nil {
		s.cfg.Found = nil
		s.pace.ring()
		return found.Catalog, found.Failed, nil
	}
	return s.cfg.Client.Discover(ctx, s.catalog)
}

// await notes the names that nothing serves. A wildcard waits for nothing in particular.
func (s *Source) await(unserved []selection.Unserved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := map[string]*condition.Condition{}
	for _, u := range unserved {
		if selection.Wildcard(u.Name) || waiting[u.Name] != nil {
			continue
		}
		c := s.waiting[u.Name]
		if c == nil {
			c = s.conditions.Add(u.Name, Live.condition())
		}
		s.become(c, Waiting, u.Reason)
		waiting[u.Name] = c
	}
	for name := range s.waiting {
		if waiting[name] == nil {
			s.conditions.Remove(name)
		}
	}
	s.waiting = waiting
}

// want makes sure that a resource is followed.
func (s *Source) want(ctx context.Context, name string, scopes []selection.Scope) {
	r, ok := s.runners[name]
	if !ok {
		s.start(ctx, s.newRunner(scopes[0].Resource, scopes))
		return
	}
	if now := scopes[0].Resource; now != r.current && s.catalog.Serves(now) && !s.catalog.Serves(r.current) {
		r.moveTo(now)
	}
}

func (s *Source) start(ctx context.Context, r *runner) {
	name := r.resource.String()
	delete(s.remembered, name)
	s.mu.Lock()
	s.runners[name] = r
	r.initial = !s.discovered
	cluster := s.cluster
	s.mu.Unlock()
	lost := s.lost.of(r.resource.Group, s.cfg.Lost)
	running, stop := context.WithCancel(ctx)
	r.stop = stop
	s.running.Go(func() {
		defer close(r.done)
		defer stop()
		if err := r.run(running, cluster, lost); err != nil && running.Err() == nil {
			s.failed(fmt.Errorf("resource %s: %w", name, err))
		}
	})
}

// forgetEnded forgets the runners whose resource is served no more and announced as such.
func (s *Source) forgetEnded() {
	s.forget(func(_ string, r *runner) bool { return r.ended() })
}

// forget forgets runners, and how their scopes are doing.
func (s *Source) forget(which func(string, *runner) bool) {
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

func byResource(scopes []selection.Scope) map[string][]selection.Scope {
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
	for name, c := range s.waiting {
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
	ready, reasons := s.discovered, []string(nil)
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
