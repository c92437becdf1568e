package stamp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

const (
	checkEvery   = 10 * time.Second       // while no change waits for a check
	minPause     = 250 * time.Millisecond // between two checks
	checkTimeout = 30 * time.Second
	maxIntervals = 16 // older ones are forgotten: changes that old have been resolved
)

// Options configure a [Guard]. All are required.
type Options struct {
	// Grace is how long policy and binding have to stay as they are before they count as known to every API server, and
	// before every write that one admitted without them has ended.
	Grace time.Duration
	// List lists a resource of a group and version from storage, never from an older state; with a name, that object alone.
	List func(ctx context.Context, group, version, resource, name string) ([]byte, error)
	// IsNotServed reports whether an error of List means that the API server that answered does not have the resource.
	IsNotServed func(error) bool
	// Selected returns the resources that stamps are needed for.
	Selected func() ([]event.Resource, error)
	// Stored and Store keep the state over restarts.
	Stored func() (string, error)
	Store  func(ctx context.Context, state string) error
	// RecordGap records that authors are not known from stamps, since a time.
	RecordGap func(ctx context.Context, since time.Time, reason string) error
	// ClockSkew is by how much this machine's clock is ahead of the API server's.
	ClockSkew func() time.Duration
	Logger    *slog.Logger
}

// Guard finds out for which versions the policy was in force. It lists policy and binding again and again: as long as both
// have the generation that they had before, they have not changed in between, and nothing was missed.
//
// An API server notices a new policy after a moment, and a write that it admitted before may be stored later. So a policy
// counts only after Options.Grace, and only for versions after the list that found it so. It counts until the last list that
// found it unchanged: a write that was stored before that was admitted before that.
//
// If one of several API servers answers that it does not have such policies, as one of an older version does, its writes are
// not stamped, and copies of stamps or forged ones are stored. So nothing is proven from the last list that found the policy
// until none has answered so for Options.Grace.
type Guard struct {
	options   Options
	condition *condition.Condition
	proof     atomic.Pointer[Proof]
	requested chan struct{}

	// Owned by Run.
	state     guardState
	intervals []interval // closed ones
	rules     []resourceRule
	unproven  map[string]string // groups, see unprovenGroups
	firstSeen time.Time         // of state.Identity
	lastCheck time.Time
	lastSlow  time.Time // last check of what changes rarely
	brokenAt  time.Time // since when the policy proves nothing, having proved something before
}

type guardState struct {
	Identity string `json:"identity"`        // of policy and binding
	Since    string `json:"since,omitempty"` // version after which they are in force; "": not yet
	Until    string `json:"until,omitempty"` // newest version up to which that is known
	// NotServed is when an API server last answered that it does not have such policies, by our clock; zero: never.
	NotServed time.Time `json:"notServed,omitzero"`
}

// NewGuard returns a Guard, which checks nothing before Run.
func NewGuard(options Options) *Guard {
	pending := condition.Problem{
		Code: condition.StampsUnchecked, Cause: "it has not been read yet", Remedy: "wait for the first answer",
	}
	g := &Guard{
		options: options, condition: condition.New(options.Logger, "stamps", pending),
		requested: make(chan struct{}, 1), unproven: map[string]string{},
	}
	g.proof.Store(&Proof{})
	return g
}

// Proof returns what is known now. It never waits.
func (g *Guard) Proof() *Proof { return g.proof.Load() }

// Condition returns whether stamps name authors.
func (g *Guard) Condition() condition.Status { return g.condition.Status() }

// RequestCheck makes the next check come soon. It never waits.
func (g *Guard) RequestCheck() {
	ratelimit.Wake(g.requested)
}

// Run checks until ctx ends or the state cannot be stored.
func (g *Guard) Run(ctx context.Context) error {
	defer g.condition.Close()
	if err := g.loadState(); err != nil {
		return err
	}
	for {
		if err := g.check(ctx); err != nil {
			return err
		}
		if ratelimit.Sleep(ctx, minPause) != nil {
			return context.Cause(ctx)
		}
		idle := time.NewTimer(checkEvery)
		select {
		case <-idle.C:
		case <-g.requested:
		case <-ctx.Done():
		}
		if idle.Stop(); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (g *Guard) loadState() error {
	text, err := g.options.Stored()
	if err != nil || text == "" {
		return err
	}
	if err := json.Unmarshal([]byte(text), &g.state); err != nil {
		return fmt.Errorf("stored state of the stamps: %w", err)
	}
	return nil
}

// check lists policy and binding once. A failure of the API server is a condition; one of the journal is an error.
func (g *Guard) check(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	now := time.Now()
	o, err := g.observe(asking, now)
	if err != nil {
		if ctx.Err() == nil {
			g.condition.Update(condition.Problem{Code: condition.StampsUnchecked, Cause: err.Error()})
		}
		return nil
	}
	return g.applyObservation(ctx, o, now)
}

func (g *Guard) observe(ctx context.Context, now time.Time) (observation, error) {
	if now.Sub(g.lastSlow) >= checkEvery {
		if err := g.observeSlow(ctx); err != nil {
			return observation{}, err
		}
		g.lastSlow = now
	}
	var lists [2][]byte
	for i, resource := range []string{policies, bindings} {
		text, err := g.options.List(ctx, admissionGroup, admissionVersion, resource, PolicyName)
		if err != nil && g.options.IsNotServed(err) {
			return g.observeNotServed(ctx, resource)
		}
		if err != nil {
			return observation{}, fmt.Errorf("list %s: %w", resource, err)
		}
		lists[i] = text
	}
	return observe(lists[0], lists[1])
}

// observeNotServed returns that an API server has no resource of the policy, as of the present version.
func (g *Guard) observeNotServed(ctx context.Context, resource string) (observation, error) {
	text, err := g.options.List(ctx, aggregationGroup, "v1", apiServices, "")
	if err != nil {
		return observation{}, fmt.Errorf("list %s: %w", apiServices, err)
	}
	l, err := parseList(text)
	if err != nil {
		return observation{}, fmt.Errorf("list %s: %w", apiServices, err)
	}
	return observation{version: l.Metadata.ResourceVersion, notServed: true, problem: "an API server does not have " + resource + "." +
		admissionGroup + "/" + admissionVersion + ", so that it stamps nothing: it is older than Kubernetes 1.36, or they are disabled there"}, nil
}

// observeSlow finds out which groups the policy proves nothing about. One that was among them once is not believed again.
func (g *Guard) observeSlow(ctx context.Context) error {
	services, err := g.options.List(ctx, aggregationGroup, "v1", apiServices, "")
	if err != nil {
		return fmt.Errorf("list %s: %w", apiServices, err)
	}
	groups, err := unprovenGroups(services)
	if err != nil {
		return err
	}
	all := maps.Clone(g.unproven) // a Proof has the former one
	maps.Copy(all, groups)
	g.unproven = all
	return nil
}

// applyObservation updates the state with what was observed by requests that began at now.
func (g *Guard) applyObservation(ctx context.Context, o observation, now time.Time) error {
	before := g.state
	if o.problem != "" || o.identity != g.state.Identity || isNewer(g.state.Until, o.version) {
		if err := g.endInterval(ctx, o, now); err != nil {
			return err
		}
	}
	if o.notServed || g.state.NotServed.After(now) { // after now: the clock was set back
		g.state.NotServed = now
	}
	var waits time.Duration
	if o.problem == "" {
		g.rules = o.rules
		if g.state.Identity = o.identity; g.firstSeen.IsZero() {
			g.firstSeen = now
		}
		if waits = g.remainingGrace(o, now); g.state.Since == "" && waits <= 0 {
			if err := g.beginInterval(ctx, o); err != nil {
				return err
			}
		}
		if g.state.Since != "" && (g.state.Until == "" || isNewer(o.version, g.state.Until)) {
			g.state.Until = o.version
		}
	}
	if before.Identity != g.state.Identity || before.Since != g.state.Since || !before.NotServed.Equal(g.state.NotServed) || now.Sub(g.lastSlow) <= 0 {
		text, err := json.Marshal(g.state)
		if err == nil {
			err = g.options.Store(ctx, string(text))
		}
		if err != nil {
			return err
		}
	}
	g.lastCheck = now
	p := &Proof{intervals: slices.Clone(g.intervals), unproven: g.unproven, checked: o.version}
	if g.state.Since != "" {
		p.intervals = append(p.intervals, interval{g.state.Since, g.state.Until, g.rules})
	}
	g.proof.Store(p)
	return g.updateCondition(o, waits)
}

// remainingGrace returns how long policy and binding have to stay as they are before they count.
func (g *Guard) remainingGrace(o observation, now time.Time) time.Duration {
	age := now.Sub(g.firstSeen)
	if !o.writtenAt.IsZero() {
		age = max(age, now.Add(-g.options.ClockSkew()).Sub(o.writtenAt))
	}
	if !g.state.NotServed.IsZero() {
		age = min(age, now.Sub(g.state.NotServed))
	}
	return g.options.Grace - age
}

// endInterval records that policy or binding are not what they were.
func (g *Guard) endInterval(ctx context.Context, o observation, now time.Time) error {
	ended, rules := g.state, g.rules
	g.state, g.rules, g.firstSeen = guardState{NotServed: ended.NotServed}, nil, time.Time{}
	if ended.Since == "" {
		return nil
	}
	what := o.problem
	switch {
	case what != "":
	case o.identity == ended.Identity:
		what = "the API server went back to version " + o.version + ", as after a backup was restored"
	default:
		what = "the policy or its binding was changed"
	}
	since := g.lastCheck
	if since.IsZero() { // it happened while no exporter was running
		since = now
	} else {
		g.intervals = append(g.intervals, interval{ended.Since, ended.Until, rules})
	}
	if isNewer(ended.Until, o.version) { // versions are used again
		g.intervals = nil
	}
	g.intervals = g.intervals[max(0, len(g.intervals)-maxIntervals):]
	g.brokenAt = since
	return g.options.RecordGap(ctx, since, fmt.Sprintf("stamps prove nothing after version %s: %s", ended.Until, what))
}

// beginInterval records that policy and binding are in force from now on.
func (g *Guard) beginInterval(ctx context.Context, o observation) error {
	g.state.Since = o.version
	if g.brokenAt.IsZero() {
		return nil
	}
	since := g.brokenAt
	g.brokenAt = time.Time{}
	return g.options.RecordGap(ctx, since, "stamps proved nothing until version "+o.version)
}

// updateCondition sets whether stamps name authors.
func (g *Guard) updateCondition(o observation, waits time.Duration) error {
	switch {
	case o.problem != "":
		g.condition.Update(condition.Problem{Code: condition.StampsUnproven, Cause: o.problem})
		return nil
	case g.state.Since == "":
		g.condition.Update(condition.Problem{Code: condition.StampsUnproven,
			Cause: fmt.Sprintf("policy and binding count %v after they were written, or an API server did not have them (audit.stamps.grace), in %v",
				g.options.Grace, waits.Truncate(time.Second)+time.Second)})
		return nil
	}
	selected, err := g.options.Selected()
	if err != nil {
		return err
	}
	if gaps := g.describeUncovered(selected); gaps != "" {
		g.condition.Update(condition.Problem{Code: condition.StampsUnproven, Cause: gaps})
		return nil
	}
	g.condition.Clear()
	return nil
}

// describeUncovered names the resources that are not stamped, with the reasons; "" if there are none. It leaves out those of
// other servers.
func (g *Guard) describeUncovered(selected []event.Resource) string {
	var reasons, unselected []string
	for _, r := range selected {
		version, unproven := g.unproven[r.Group]
		switch why := WhyUnstamped(r); {
		case why != "":
			reasons = append(reasons, r.String()+" is not stamped: "+why)
		case version != "":
			reasons = append(reasons, r.String()+" is not proven: the API server serves "+r.Group+"/"+version+", which this program does not know")
		case !unproven && !covers(g.rules, r):
			unselected = append(unselected, r.String())
		}
	}
	slices.Sort(reasons)
	if slices.Sort(unselected); len(unselected) > 0 {
		reasons = append(reasons, "the policy does not select "+strings.Join(unselected, ", "))
	}
	return strings.Join(reasons, "; ")
}

// A mutating policy does more than its patch: the API server converts the object to the version of the request and, after
// the patch, back into the object that it already has, which may add to lists instead of replacing them. So the policy
// selects only what a test has written through each version, with and without it.

// builtInVersions are the versions of the groups of Kubernetes in which the policy stamps. A later version is not selected,
// so that no write through it can be refused, and no stamp is believed while it is served.
var builtInVersions = map[string][]string{
	"": {"v1"}, "apps": {"v1"}, "batch": {"v1"}, "policy": {"v1"}, "autoscaling": {"v1", "v2"},
	"admissionregistration.k8s.io": {"v1", "v1alpha1", "v1beta1"}, "apiextensions.k8s.io": {"v1"}, "apiregistration.k8s.io": {"v1"},
	"certificates.k8s.io": {"v1", "v1alpha1", "v1beta1"}, "coordination.k8s.io": {"v1", "v1alpha2", "v1beta1"},
	"discovery.k8s.io": {"v1"}, "events.k8s.io": {"v1"}, "flowcontrol.apiserver.k8s.io": {"v1"},
	"internal.apiserver.k8s.io": {"v1alpha1"}, "lifecycle.k8s.io": {"v1alpha1"}, "networking.k8s.io": {"v1", "v1beta1"},
	"node.k8s.io": {"v1"}, "rbac.authorization.k8s.io": {"v1"}, "resource.k8s.io": {"v1", "v1alpha3", "v1beta1", "v1beta2"},
	"scheduling.k8s.io": {"v1", "v1alpha3", "v1beta1"}, "storage.k8s.io": {"v1", "v1beta1"}, "storagemigration.k8s.io": {"v1", "v1beta1"},
}

// Why types of Kubernetes are not stamped.
const (
	lossyVersions = "autoscaling/v1 has no metrics: the API server would refuse a write through it, because it would keep them twice"
	twoGroups     = "an Event is served in two groups, and each would take the other's stamp for that of another object"
	noPolicies    = "the API server applies no such policy to admission policies"
)

var unstamped = map[string]string{
	"horizontalpodautoscalers.autoscaling": lossyVersions,
	"events":                               twoGroups,
	"events.events.k8s.io":                 twoGroups,
	"mutatingadmissionpolicies.admissionregistration.k8s.io":         noPolicies,
	"mutatingadmissionpolicybindings.admissionregistration.k8s.io":   noPolicies,
	"validatingadmissionpolicies.admissionregistration.k8s.io":       noPolicies,
	"validatingadmissionpolicybindings.admissionregistration.k8s.io": noPolicies,
}

// WhyUnstamped returns why the policy leaves a resource out; "" if it stamps it.
func WhyUnstamped(resource event.Resource) string {
	return unstamped[event.Resource{Group: resource.Group, Resource: resource.Resource}.String()]
}

// stampedVersions returns the versions of a group in which the policy stamps. Custom resources have all: the API server
// patches them as they are in the request, and converts nothing.
func stampedVersions(group string) []string {
	if versions, builtIn := builtInVersions[group]; builtIn {
		return versions
	}
	return []string{"*"}
}
