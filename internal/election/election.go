package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
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
	self      holder
	duration  time.Duration
	condition *condition.Condition

	// Used by Run only.
	held        *coordination.Lease // as last written here; nil if another candidate may have written since
	lastVersion string              // resourceVersion of the Lease as last read
	lastHolder  holder              // in that version
	isRenewed   bool                // that version followed an older one of the same holder
	expiresAt   time.Time           // when the holder's Lease expires without a renewal, by the local clock: clocks are not compared
	changedAt   time.Time           // when lastVersion was first read
	lastAnswer  time.Time           // when the API server last answered

	retry chan struct{} // makes Run try again at once; capacity 1

	mu        sync.Mutex
	holder    holder        // when the Lease was last seen
	unrenewed time.Duration // see Unrenewed
	renewed   time.Time     // when the last successful write of the Lease by this process began
	yields    string        // see SetYielding
	accepts   bool          // see AcceptYielded
	changed   chan struct{}
}

// New returns a candidate. It makes no request.
func New(o Options) (*Election, error) {
	config := rest.CopyConfig(o.Client)
	config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/apis", &coordination.SchemeGroupVersion, codecs
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return &Election{
		leases: leaseClient{client, o.Namespace, o.Name, max(time.Second, o.Duration*3/10)},
		self:   holder{identity: o.Identity, instance: uuid.NewString()}, duration: o.Duration,
		condition: condition.New(o.Log, "replica", condition.Problem{}),
		retry:     make(chan struct{}, 1), changed: make(chan struct{}),
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
		case <-e.retry:
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
		e.lastVersion, e.lastHolder = "", holder{} // the holder may have been unable to renew, too: its duration starts again
		e.reportFailure(ctx, "read", err)
		return
	}
	e.acquireIfFree(ctx, found)
}

// acquireIfFree acquires the Lease if this version of it is free, expired, or ours.
func (e *Election) acquireIfFree(ctx context.Context, found *coordination.Lease) {
	by := holderOf(found)
	if found.ResourceVersion != e.lastVersion {
		e.isRenewed = by.isSameProcess(e.lastHolder)
		e.changedAt = time.Now()
		e.lastVersion, e.lastHolder, e.expiresAt = found.ResourceVersion, by, e.changedAt
		if seconds := found.Spec.LeaseDurationSeconds; seconds != nil {
			e.expiresAt = e.changedAt.Add(time.Duration(*seconds) * time.Second)
		}
	}
	e.recordHolder(by)
	if by != (holder{}) && !by.isSameProcess(e.self) && time.Until(e.expiresAt) > 0 && !e.consumeAcceptance() {
		return
	}
	_ = e.writeLease(ctx, found) // reported there; the next attempt retries
}

// writeLease makes this process the holder if the Lease has not changed since it was found.
func (e *Election) writeLease(ctx context.Context, found *coordination.Lease) error {
	self := e.self
	e.mu.Lock()
	if holderOf(found).isSameProcess(self) {
		self.yields = e.yields
	}
	e.mu.Unlock()
	began := time.Now()
	written, err := e.leases.putLease(ctx, withHolder(found, self, e.duration, time.Now()))
	e.held = written
	if err == nil {
		e.mu.Lock()
		e.renewed = began
		e.mu.Unlock()
		e.recordHolder(self)
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
	if found == nil && e.IsHolder() {
		found, _ = e.leases.getLease(ctx) // if it cannot be read, it expires by itself
	}
	if found == nil || !holderOf(found).isSameProcess(e.self) {
		return
	}
	if _, err := e.leases.putLease(ctx, withHolder(found, holder{}, time.Second, time.Now())); err == nil {
		e.recordHolder(holder{})
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
	p := condition.Problem{
		Code: condition.LeaseUnknown, Cause: fmt.Sprintf("%s the Lease %s/%s: %v", what, e.leases.namespace, e.leases.name, err),
	}
	if e.Holder() == "" {
		p.Severity, p.Effect = condition.NotReady, "this exporter cannot become active, and knows of no other one that is: nothing is watched"
	}
	if forbidden {
		p.Remedy = "grant get, create, update and watch of Leases there: exporter rbac prints the rights"
	}
	e.condition.Update(p)
}

// AwaitLease returns nil once this process holds the Lease, or the cause of ctx.
func (e *Election) AwaitLease(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return e.holder.isSameProcess(e.self) })
}

// AwaitOtherHolder returns nil once another process was seen to hold the Lease, or the cause of ctx.
func (e *Election) AwaitOtherHolder(ctx context.Context) error {
	return e.awaitHolder(ctx, func() bool { return e.holder.identity != "" && !e.holder.isSameProcess(e.self) })
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

// Holder returns the identity of the holder when the Lease was last seen; "" if there was none.
func (e *Election) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder.identity
}

// Unrenewed returns for how long another holder had not renewed the Lease when that was last seen. It does not grow
// while the API server does not answer.
func (e *Election) Unrenewed() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unrenewed
}

// IsHolder reports whether this process held the Lease when that was last seen.
func (e *Election) IsHolder() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder.isSameProcess(e.self)
}

// ProvesHolder reports whether this process holds the Lease and has renewed it within its duration. Otherwise another
// process may hold it, although this one has not seen that.
func (e *Election) ProvesHolder() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder.isSameProcess(e.self) && time.Since(e.renewed) < e.duration
}

// SetYielding sets whether this process, while it holds the Lease, yields it to a candidate that accepts it: what such a
// candidate has to surpass, in terms of the caller, or "" for no candidate. The process continues to
// renew the Lease, so that nothing changes if there is no such candidate.
func (e *Election) SetYielding(yields string) {
	e.mu.Lock()
	changed := e.yields != yields
	e.yields = yields
	e.mu.Unlock()
	if changed {
		e.retryNow()
	}
}

// Yielded returns the value of [Election.SetYielding] of another process that held the Lease when it was last seen; "" if
// none yields it.
func (e *Election) Yielded() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.holder.isSameProcess(e.self) {
		return ""
	}
	return e.holder.yields
}

// AcceptYielded makes this process acquire the Lease if the next attempt, which follows at once, finds it yielded.
func (e *Election) AcceptYielded() {
	e.mu.Lock()
	e.accepts = true
	e.mu.Unlock()
	e.retryNow()
}

// consumeAcceptance reports whether the Lease is yielded and this process accepts that, once for each AcceptYielded.
func (e *Election) consumeAcceptance() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	accepts := e.accepts && e.holder.yields != ""
	e.accepts = false
	return accepts
}

func (e *Election) retryNow() {
	ratelimit.Wake(e.retry)
}

// Status returns whether the Lease can be read and written.
func (e *Election) Status() condition.Status { return e.condition.Status() }

// ForgetHolder makes this process not the holder until the next attempt, which follows at once, has renewed the Lease: it
// has learned otherwise that another process acts as the holder.
func (e *Election) ForgetHolder() {
	e.setHolder(holder{})
	e.retryNow()
}

// recordHolder records an answer of the API server: the holder of the Lease.
func (e *Election) recordHolder(by holder) {
	e.lastAnswer = time.Now()
	e.mu.Lock()
	if e.unrenewed = 0; !by.isSameProcess(e.self) {
		e.unrenewed = e.lastAnswer.Sub(e.changedAt)
	}
	e.mu.Unlock()
	if by.identity == e.self.identity && !by.isSameProcess(e.self) && e.isRenewed {
		e.condition.Update(condition.Problem{
			Code:  condition.IdentityShared,
			Cause: fmt.Sprintf("another process has the identity %q, too, and holds the Lease %s/%s", by.identity, e.leases.namespace, e.leases.name),
		})
	} else {
		e.condition.Clear()
	}
	e.setHolder(by)
}

func (e *Election) setHolder(by holder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if by == e.holder {
		return
	}
	e.holder = by
	close(e.changed)
	e.changed = make(chan struct{})
}
