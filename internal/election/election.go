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
	Identity        string        // of this process, unique among the candidates
	Duration        time.Duration // without a renewal for this long, the Lease is free; whole seconds
	Log             *slog.Logger
}

// Election is one candidate. Its methods are safe for concurrent use; Run may be called once.
type Election struct {
	leases    leaseClient
	identity  string
	duration  time.Duration
	condition *condition.Condition

	// Used by Run only.
	held        *coordination.Lease // as last written here; nil if another candidate may have written since
	lastVersion string              // resourceVersion of the Lease as last read
	expiresAt   time.Time           // when the holder's Lease expires without a renewal, by the local clock: clocks are not compared
	lastAnswer  time.Time           // when the API server last answered

	mu       sync.Mutex
	isHolder bool   // this process held the Lease when it was last seen
	holder   string // holder when the Lease was last seen; "" if none
	changed  chan struct{}
}

// The conditions of an election.
var (
	conditionKnown   = condition.State{Name: "answered", Message: "the Lease can be read and written again"}
	conditionUnknown = condition.State{
		Name: "unknown", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "the Lease cannot be read or written; the active exporter continues, standbys wait",
	}
)

// New returns a candidate. It makes no request.
func New(o Options) (*Election, error) {
	client, err := newLeaseClient(rest.CopyConfig(o.Client), o.Namespace, o.Name)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	client.requestTimeout = max(time.Second, o.Duration*3/10)
	return &Election{
		leases: client, identity: o.Identity, duration: o.Duration, condition: condition.New(o.Log, conditionKnown),
		changed: make(chan struct{}),
	}, nil
}

// Run competes for the Lease until ctx ends, then releases it and returns nil.
func (e *Election) Run(ctx context.Context) error {
	defer e.condition.Close()
	news, watched := make(chan *coordination.Lease), make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			e.leases.watchLease(ctx, news)
			_ = ratelimit.Sleep(ctx, e.duration) // bounds the rate if the watch is not allowed or ends at once
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

// waitForAttempt returns true when it is time for the next attempt, and false when ctx ends. A standby acquires the Lease
// as soon as the watch shows it free, and tries again when it expires. It also tries more often than that, to notice an API
// server that does not answer: a watch may be silent for many reasons.
func (e *Election) waitForAttempt(ctx context.Context, news <-chan *coordination.Lease) bool {
	wait := e.duration / 5
	if e.held == nil {
		wait += rand.N(wait) // candidates spread their attempts
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
			if e.held == nil { // a holder learns of conflicts from its own writes
				e.acquireIfFree(ctx, lease)
			}
		case <-ctx.Done():
			return false
		}
	}
}

// renewOrAcquire renews the Lease, or acquires it if it is free or has expired.
func (e *Election) renewOrAcquire(ctx context.Context) {
	if e.held != nil && !isConflict(e.writeLease(ctx, e.held)) {
		return
	}
	found, err := e.leases.getLease(ctx)
	if err != nil {
		e.lastVersion = "" // the holder may have been unable to renew, too: its duration starts again
		e.reportFailure(ctx, "read", err)
		return
	}
	e.acquireIfFree(ctx, found)
}

// acquireIfFree acquires the Lease if this version of it is free, expired, or ours.
func (e *Election) acquireIfFree(ctx context.Context, found *coordination.Lease) {
	if found.ResourceVersion != e.lastVersion {
		e.lastVersion, e.expiresAt = found.ResourceVersion, time.Now().Add(durationOf(found))
	}
	if holder := holderOf(found); holder != e.identity { // our own Lease of an earlier run counts once it is renewed
		e.recordHolder(holder)
		if holder != "" && time.Until(e.expiresAt) > 0 {
			return
		}
	}
	_ = e.writeLease(ctx, found) // reported there; the next attempt retries
}

// writeLease makes this process the holder if the Lease has not changed since it was found.
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

// isConflict reports whether another candidate has written the Lease.
func isConflict(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// releaseLease frees the Lease if it is still ours, so that another candidate can acquire it at once. It also does so if the
// result of the last renewal is unknown.
func (e *Election) releaseLease(ctx context.Context) {
	found := e.held
	if found == nil && e.isHolder {
		found, _ = e.leases.getLease(ctx) // if it cannot be read, it expires by itself
	}
	if found == nil || holderOf(found) != e.identity {
		return
	}
	if _, err := e.leases.putLease(ctx, withHolder(found, "", time.Second, time.Now())); err == nil {
		e.recordHolder("")
	}
	e.held = nil
}

// reportFailure updates the condition after a failed request. A slow answer is retried for one duration before it is
// reported, because it has no consequences until then.
func (e *Election) reportFailure(ctx context.Context, what string, err error) {
	forbidden := apierrors.IsForbidden(err)
	if errors.Is(ctx.Err(), context.Canceled) || !forbidden && time.Since(e.lastAnswer) < e.duration {
		return
	}
	remedy := "check that the API server can be reached"
	if forbidden {
		remedy = "grant get, create, update and watch of Leases there: exporter rbac prints the rights"
	}
	e.condition.Update(conditionUnknown, fmt.Sprintf("%s the Lease %s/%s: %v", what, e.leases.namespace, e.leases.name, err), remedy)
}

// AwaitLease returns nil once this process holds the Lease, or the cause of ctx.
func (e *Election) AwaitLease(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return e.isHolder })
}

// AwaitOtherHolder returns nil once another process was seen to hold the Lease, or the cause of ctx.
func (e *Election) AwaitOtherHolder(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return !e.isHolder && e.holder != "" })
}

// awaitHolder waits until met returns true. It calls met with mu held.
func (e *Election) awaitHolder(ctx context.Context, met func() bool) error {
	for {
		e.mu.Lock()
		is, changed := met(), e.changed
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

// Holder returns the holder when the Lease was last seen; "" if there was none.
func (e *Election) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// Status returns whether the Lease can be read and written.
func (e *Election) Status() condition.Status { return e.condition.Status() }

// recordHolder records an answer of the API server: the holder of the Lease.
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
