package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// Options configure an election. All are required.
type Options struct {
	Client          *rest.Config
	Namespace, Name string        // of the Lease
	Identity        string        // of this process, different for each candidate
	Duration        time.Duration // after so long without a sign of the holder another one may take its place: whole seconds
	Log             *slog.Logger
}

// Election is one candidate. Its methods may be called concurrently; Run once.
type Election struct {
	leases    leaseClient
	identity  string
	duration  time.Duration
	condition *condition.Condition

	held        *coordination.Lease // of Run: as it was last written here; nil where somebody else may have written since
	lastVersion string              // of Run: the resourceVersion of the Lease as it was last read
	expiresAt   time.Time           // of Run: when the holder's time is over without another one, by the clock here: clocks are not compared
	lastAnswer  time.Time           // of Run: when the API server last answered

	mu       sync.Mutex
	isHolder bool   // the Lease was last seen in our hands
	holder   string // who was last seen to hold it; "" for nobody
	changed  chan struct{}
}

// The conditions of an election.
var (
	conditionKnown   = condition.State{Name: "answered", Message: "the Lease can be read and written again"}
	conditionUnknown = condition.State{
		Name: "unknown", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "whose turn it is cannot be learnt; who works goes on, and who stands by waits",
	}
)

// New returns a candidate. It contacts nothing.
func New(o Options) (*Election, error) {
	client, err := newLeaseClient(rest.CopyConfig(o.Client), o.Namespace, o.Name)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	client.requestTimeout = max(time.Second, o.Duration*3/10)
	return &Election{
		leases: client, identity: o.Identity, duration: o.Duration, condition: condition.New(o.Log, conditionKnown), changed: make(chan struct{}),
	}, nil
}

// Run competes until ctx ends, and then gives the Lease up. It returns nil.
func (e *Election) Run(ctx context.Context) error {
	defer e.condition.Close()
	news, watched := make(chan *coordination.Lease), make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			e.leases.watchLease(ctx, news)
			_ = ratelimit.Sleep(ctx, e.duration) // one that is not allowed, or ends at once, is nobody's burden
		}
	}()
	defer func() { <-watched }()
	for {
		e.renewOrAcquire(ctx)
		if !e.waitForAttempt(ctx, news) {
			e.releaseLease(context.WithoutCancel(ctx))
			return nil
		}
	}
}

// waitForAttempt returns true when it is time for the next attempt, and false when ctx ends. Who stands by takes the Lease at once
// when it is given up, and looks again when the time of its holder is over. That it looks more often than that shows whether
// the API server answers: a watch may be silent for many reasons.
func (e *Election) waitForAttempt(ctx context.Context, news <-chan *coordination.Lease) bool {
	wait := e.duration / 5
	if e.held == nil {
		wait += rand.N(wait) // candidates do not come all at once
	}
	again := time.NewTimer(wait)
	defer again.Stop()
	for {
		over := (<-chan time.Time)(nil)
		if left := time.Until(e.expiresAt); e.held == nil && left > 0 {
			over = time.After(left)
		}
		select {
		case <-again.C:
			return true
		case <-over:
			return true
		case lease := <-news:
			if e.held == nil { // who holds it learns from its own writing
				e.acquireIfFree(ctx, lease)
			}
		case <-ctx.Done():
			return false
		}
	}
}

// renewOrAcquire renews the Lease, or takes it where nobody holds it or its holder has given no sign for as long as it said.
func (e *Election) renewOrAcquire(ctx context.Context) {
	if e.held != nil && !isConflict(e.writeLease(ctx, e.held)) {
		return
	}
	found, err := e.leases.getLease(ctx)
	if err != nil {
		e.lastVersion = "" // the holder could give no sign either: its time begins again
		e.reportFailure(ctx, "read", err)
		return
	}
	e.acquireIfFree(ctx, found)
}

// acquireIfFree takes the Lease as it was found, if it is to be had.
func (e *Election) acquireIfFree(ctx context.Context, found *coordination.Lease) {
	if found.ResourceVersion != e.lastVersion {
		e.lastVersion, e.expiresAt = found.ResourceVersion, time.Now().Add(durationOf(found))
	}
	if holder := holderOf(found); holder != e.identity { // what is ours is so only once it was renewed
		e.recordHolder(holder)
		if holder != "" && time.Until(e.expiresAt) > 0 {
			return
		}
	}
	_ = e.writeLease(ctx, found) // noted, and tried again
}

// writeLease puts the name of this process into the Lease, if it is still as it was found.
func (e *Election) writeLease(ctx context.Context, found *coordination.Lease) error {
	written, err := e.leases.putLease(ctx, withHolder(found, e.identity, e.duration, time.Now()))
	e.held = written
	if err == nil {
		e.recordHolder(e.identity)
	} else if !isConflict(err) {
		e.reportFailure(ctx, "write", err)
	}
	return err
}

// isConflict says that somebody else has written, which the next read shows.
func isConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// releaseLease lets another one begin at once, if the Lease is still ours, also where it is not known what became of the last
// renewal.
func (e *Election) releaseLease(ctx context.Context) {
	found := e.held
	if found == nil && e.isHolder {
		found, _ = e.leases.getLease(ctx) // nothing to release where it cannot be read
	}
	if found == nil || holderOf(found) != e.identity {
		return
	}
	if _, err := e.leases.putLease(ctx, withHolder(found, "", time.Second, time.Now())); err == nil {
		e.recordHolder("")
	}
	e.held = nil
}

// reportFailure notes why the Lease cannot be used. A slow answer is tried again before anybody is told: nobody has lost anything
// by it.
func (e *Election) reportFailure(ctx context.Context, what string, err error) {
	forbidden := apierrors.IsForbidden(err)
	if errors.Is(ctx.Err(), context.Canceled) || !forbidden && time.Since(e.lastAnswer) < e.duration { // stopping, or a moment
		return
	}
	remedy := "see that the API server can be reached"
	if forbidden {
		remedy = "grant get, create, update and watch of Leases there: exporter rbac prints the rights"
	}
	e.condition.Update(conditionUnknown, fmt.Sprintf("%s the Lease %s/%s: %v", what, e.leases.namespace, e.leases.name, err), remedy)
}

// AwaitLease returns nil once it is the turn of this process, or the cause of ctx's end.
func (e *Election) AwaitLease(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return e.isHolder })
}

// AwaitOtherHolder returns nil once another process was seen to hold the Lease, or the cause of ctx's end.
func (e *Election) AwaitOtherHolder(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return !e.isHolder && e.holder != "" })
}

func (e *Election) awaitHolder(ctx context.Context, fact func() bool) error {
	for {
		e.mu.Lock()
		is, changed := fact(), e.changed
		e.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Holder returns who was last seen to hold the Lease; "" for nobody.
func (e *Election) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// Status says whether the Lease can be read and written.
func (e *Election) Status() condition.Status { return e.condition.Status() }

// recordHolder takes note of what the API server said of the Lease.
func (e *Election) recordHolder(holder string) {
	e.lastAnswer = time.Now()
	e.condition.Update(conditionKnown, "", "")
	e.mu.Lock()
	defer e.mu.Unlock()
	mine := holder == e.identity
	if mine == e.isHolder && holder == e.holder {
		return
	}
	e.isHolder, e.holder = mine, holder
	close(e.changed)
	e.changed = make(chan struct{})
}
