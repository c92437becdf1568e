package workload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Plan returns what to write.
type Plan struct {
	Namespace string // must exist
	Prefix    string // of the names
	Kinds     []Kind // objects are spread over them evenly
	Objects   int
	Updates   int // of each object
	Clients   int // writes at once
	Rate      int // writes a second at most; 0 is no bound
}

// Operations returns how many writes the plan makes.
func (p Plan) Operations() int { return p.Objects*(1+p.Updates) + p.Objects/2 }

// Load is a plan that runs.
type Load struct {
	cluster *Cluster
	plan    Plan

	operations, deletes atomic.Int64
	limit               *rate.Limiter
	cancel              context.CancelFunc // of the wait for the next writes
	requests            context.Context    // of the writes under way
	cancelRequests      context.CancelFunc
	done                chan struct{}
	once                sync.Once
	err                 error // of the first client that failed; read after done
}

// Start begins to write. It ends by itself; Wait or Stop must be called.
func (c *Cluster) Start(ctx context.Context, plan Plan) *Load {
	l := &Load{cluster: c, plan: plan, limit: rate.NewLimiter(rate.Inf, 0), done: make(chan struct{})}
	l.requests, l.cancelRequests = context.WithCancel(ctx)
	ctx, l.cancel = context.WithCancel(ctx)
	if plan.Rate > 0 {
		l.limit = rate.NewLimiter(rate.Limit(plan.Rate), plan.Clients)
	}
	numbers := make(chan int)
	var clients sync.WaitGroup
	for range plan.Clients {
		clients.Go(func() { l.client(ctx, numbers) })
	}
	go func() {
		defer close(l.done)
		defer l.cancelRequests()
		defer l.cancel()
		l.hand(ctx, numbers)
		clients.Wait()
	}()
	return l
}

// hand gives each object to a client.
func (l *Load) hand(ctx context.Context, numbers chan<- int) {
	defer close(numbers)
	for i := range l.plan.Objects {
		select {
		case numbers <- i:
		case <-ctx.Done():
			return
		}
	}
}

func (l *Load) client(ctx context.Context, numbers <-chan int) {
	for i := range numbers {
		if err := l.live(ctx, i); err != nil {
			l.once.Do(func() { l.err = err })
			l.cancel()
			return
		}
	}
}

// live lets one object live.
func (l *Load) live(ctx context.Context, i int) error {
	kind := l.plan.Kinds[i%len(l.plan.Kinds)]
	namespace, name := l.plan.Namespace, fmt.Sprintf("%s-%04d", l.plan.Prefix, i)
	if err := l.write(ctx, func() error { return l.cluster.Create(l.requests, kind, namespace, name) }); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	for step := range l.plan.Updates {
		if err := l.write(ctx, func() error { return l.cluster.Change(l.requests, kind, namespace, name, step+1) }); err != nil {
			return fmt.Errorf("update %s: %w", name, err)
		}
	}
	if i/len(l.plan.Kinds)%2 == 0 { // every second of each kind
		return nil
	}
	if err := l.write(ctx, func() error { return l.cluster.Delete(l.requests, kind, namespace, name) }); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	l.deletes.Add(1)
	return nil
}

// write makes one write when it is due.
func (l *Load) write(ctx context.Context, do func() error) error {
	if err := l.limit.Wait(ctx); err != nil {
		return err
	}
	err := do()
	if err == nil {
		l.operations.Add(1)
	}
	return err
}

// Wait returns when all is written, or with the error that ended it.
func (l *Load) Wait() error {
	<-l.done
	return l.err
}

// finishWithin is how long the writes that are under way at a Stop may take; the API server may be away.
const finishWithin = 30 * time.Second

// Stop ends the writing where it is, and waits for the writes under way: the API server carries out a request that its
// client has given up, at some time after that.
func (l *Load) Stop() {
	l.cancel()
	limit := time.AfterFunc(finishWithin, l.cancelRequests)
	defer limit.Stop()
	<-l.done
}

// Operations returns how many writes are done.
func (l *Load) Operations() int { return int(l.operations.Load()) }

// Deletes returns how many of them were deletes.
func (l *Load) Deletes() int { return int(l.deletes.Load()) }

// AwaitOperations returns when n writes are done, or the load has ended.
func (l *Load) AwaitOperations(n int) { l.await(func() bool { return l.Operations() >= n }) }

// AwaitDeletes returns when n deletes are done, or the load has ended.
func (l *Load) AwaitDeletes(n int) { l.await(func() bool { return l.Deletes() >= n }) }

func (l *Load) await(reached func() bool) {
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !reached() {
		select {
		case <-l.done:
			return
		case <-poll.C:
		}
	}
}
