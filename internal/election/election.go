package election

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kubecdc/kubecdc/internal/condition"
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
	lock      resourcelock.Interface
	duration  time.Duration
	condition *condition.Condition

	mu      sync.Mutex
	mine    bool   // the Lease was last seen in our hands
	holder  string // who was last seen to hold it; "" for nobody
	changed chan struct{}
}

// The conditions of an election.
var (
	answered = condition.State{Name: "answered", Message: "the Lease can be read and written again"}
	unknown  = condition.State{
		Name: "unknown", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "whose turn it is cannot be learnt; who works goes on, and who stands by waits",
	}
)

// New returns a candidate. It contacts nothing.
func New(o Options) (*Election, error) {
	e := &Election{duration: o.Duration, condition: condition.New(o.Log, answered), changed: make(chan struct{})}
	cfg := rest.CopyConfig(o.Client)
	cfg.Timeout = max(time.Second, renewDeadline(o.Duration)/2) // an API server that accepts and never answers
	client, err := coordination.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
	}
	e.lock = observedLock{lock, e}
	return e, nil
}

// client-go needs them in this order, with room between: a holder gives up before another one may begin.
func renewDeadline(d time.Duration) time.Duration { return d * 3 / 5 }
func retryPeriod(d time.Duration) time.Duration   { return d / 5 }

// Run competes until ctx ends, and then gives the Lease up. It returns nil.
func (e *Election) Run(ctx context.Context) error {
	defer e.condition.Close()
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: e.lock, LeaseDuration: e.duration, RenewDeadline: renewDeadline(e.duration), RetryPeriod: retryPeriod(e.duration),
			ReleaseOnCancel: true,
			Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
		})
		if err != nil {
			return fmt.Errorf("election: %w", err)
		}
		elector.Run(ctx) // ends when the Lease could not be renewed, too: then it competes again
	}
	return nil
}

// Await returns nil once it is the turn of this process, or the cause of ctx's end.
func (e *Election) Await(ctx context.Context) error {
	return e.await(ctx, func() bool { return e.mine })
}

// AwaitOther returns nil once another process was seen to hold the Lease, or the cause of ctx's end.
func (e *Election) AwaitOther(ctx context.Context) error {
	return e.await(ctx, func() bool { return !e.mine && e.holder != "" })
}

func (e *Election) await(ctx context.Context, fact func() bool) error {
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

// saw takes note of what the API server said of the Lease.
func (e *Election) saw(holder string) {
	e.condition.Become(answered, "", "")
	e.mu.Lock()
	defer e.mu.Unlock()
	mine := holder == e.lock.Identity()
	if mine == e.mine && holder == e.holder {
		return
	}
	e.mine, e.holder = mine, holder
	close(e.changed)
	e.changed = make(chan struct{})
}
