package journal

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

const (
	// The interval between groups and groupTargetBytes make groups under load large enough to compress well and to share an
	// fsync: see commitInterval.
	minCommitInterval = 3 * time.Millisecond
	maxCommitInterval = 10 * time.Millisecond
	groupTargetBytes  = 256 << 10

	maxGroupBytes = 4 << 20 // uncompressed size at which a group takes no more requests

	// lowPriorityDelay is how long a low-priority request waits for a group that is committed anyway.
	lowPriorityDelay = 20 * time.Millisecond
	// maxLowPriorityBytes bounds the low-priority requests of one group, because changes wait for that group too. One larger
	// request goes alone.
	maxLowPriorityBytes = 256 << 10
)

type request func(g *group) error

type queuedRequest struct {
	request
	bytes   int64      // counted against Options.PendingBytes
	size    int64      // of a low-priority request
	outcome chan error // receives the outcome, once; nil when no caller waits. Capacity 1.
}

// queue holds requests until the committer takes them. Requests of normal priority begin a group; those of low priority,
// which are evidence and conclusions from it, join one: however many there are, they cost changes no fsync, and each group a
// bounded number of bytes.
type queue struct {
	store        *store
	maxPending   int64
	syncInterval time.Duration

	wake chan struct{} // something was queued; capacity 1

	mu               sync.Mutex
	requests         []queuedRequest // in order of arrival
	pending          int64           // bytes queued or being committed
	trimDue          bool            // time has passed: check what can be trimmed
	lowPriority      []queuedRequest // in order of arrival
	lowPrioritySince time.Time       // when the committer began to wait for a group that they can join
}

// tryAppend queues an observation and returns true, unless PendingBytes are pending already or hasSpace returns false. An
// observation that is larger than what is left is admitted whole: it could never be admitted otherwise. bodies records the
// bodies of the observation in the order of the queue.
func (q *queue) tryAppend(o *event.Observation, bodies *bodyIndex, hasSpace func() bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending >= q.maxPending || !hasSpace() {
		return false
	}
	pending := bodies.recordPending(o)
	add := func(g *group) error { return g.known.addObservation(o, pending, &g.log) }
	q.enqueue(queuedRequest{request: add, bytes: observationSize(o)})
	return true
}

// submit queues a request and waits until it is durable. onQueued, if it is not nil, is called in the order of the queue.
func (q *queue) submit(ctx context.Context, r request, onQueued func()) error {
	outcome := make(chan error, 1)
	q.mu.Lock()
	if err := q.store.checkUsable(); err != nil {
		q.mu.Unlock()
		return err
	}
	if onQueued != nil {
		onQueued()
	}
	q.enqueue(queuedRequest{request: r, outcome: outcome})
	q.mu.Unlock()
	return q.waitForOutcome(ctx, outcome)
}

// submitText stores a text under a key, and returns nil when it is durable.
func (q *queue) submitText(ctx context.Context, key []byte, text string) error {
	return q.submit(ctx, func(g *group) error { g.batch.putKey(key, []byte(text)); return nil }, nil)
}

// submitLowPriority is submit for a request of size bytes that lets others go first.
func (q *queue) submitLowPriority(ctx context.Context, r request, size int64) error {
	outcome := make(chan error, 1)
	q.mu.Lock()
	if err := q.store.checkUsable(); err != nil {
		q.mu.Unlock()
		return err
	}
	if len(q.lowPriority) == 0 {
		q.armLowPriority()
	}
	q.lowPriority = append(q.lowPriority, queuedRequest{request: r, size: size, outcome: outcome})
	q.mu.Unlock()
	return q.waitForOutcome(ctx, outcome)
}

// enqueue adds a request, and wakes the committer when the queue was empty or has enough for a group. Requires q.mu.
func (q *queue) enqueue(r queuedRequest) {
	q.requests = append(q.requests, r)
	q.pending += r.bytes
	if len(q.requests) == 1 || q.pending >= q.groupTarget() {
		q.signalCommitter()
	}
}

// signalCommitter makes the committer look at the queue. It never waits.
func (q *queue) signalCommitter() {
	ratelimit.Wake(q.wake)
}

// waitForOutcome waits until a request is durable, or refused.
func (q *queue) waitForOutcome(ctx context.Context, outcome <-chan error) error {
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return fmt.Errorf("journal: %w", context.Cause(ctx))
	case <-q.store.failure.done:
		return q.store.failure.currentError()
	case <-q.store.ended:
	}
	select {
	case err := <-outcome: // committed by the last group
		return err
	default:
		return ErrClosed
	}
}

// armLowPriority wakes the committer for low-priority requests after their delay. Requires q.mu.
func (q *queue) armLowPriority() {
	q.lowPrioritySince = time.Now()
	time.AfterFunc(lowPriorityDelay, q.signalCommitter)
}

// setTrimDue makes the committer check what can be trimmed, though nothing is queued.
func (q *queue) setTrimDue() {
	q.mu.Lock()
	q.trimDue = true
	q.mu.Unlock()
	q.signalCommitter()
}

// hasWork reports whether a group is to be committed. At the end low-priority requests wait no longer.
func (q *queue) hasWork(ended bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := q.trimDue
	q.trimDue = false
	return due || len(q.requests) > 0 || len(q.lowPriority) > 0 && (ended || time.Since(q.lowPrioritySince) >= lowPriorityDelay)
}

// waitForGroup lets more requests arrive until a moment, or until there are enough for a group.
func (q *queue) waitForGroup(ctx context.Context, until time.Time) {
	wait := time.Until(until)
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for q.pendingBytes() < q.groupTarget() {
		select {
		case <-q.wake:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// commitInterval returns how long after the begin of a group the next one begins. It grows with the load, so that groups
// do: a millisecond for every 3 MiB a second. bytes is the size of the group, elapsed the time since the one before.
func commitInterval(bytes int64, elapsed time.Duration) time.Duration {
	const perMillisecond = 3 << 20
	rate := float64(bytes) / max(elapsed, time.Microsecond).Seconds()
	return min(max(time.Duration(rate/perMillisecond*float64(time.Millisecond)), minCommitInterval), maxCommitInterval)
}

// groupTarget is how many pending bytes are committed at once, without waiting for more.
func (q *queue) groupTarget() int64 {
	if q.syncInterval > 0 {
		return q.maxPending / 2
	}
	return min(groupTargetBytes, q.maxPending)
}

func (q *queue) takeGroup() []queuedRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, int64(0)
	for n < len(q.requests) && bytes < maxGroupBytes {
		bytes += q.requests[n].bytes
		n++
	}
	low, bytes := 0, int64(0)
	for low < len(q.lowPriority) && (low == 0 || bytes+q.lowPriority[low].size <= maxLowPriorityBytes) {
		bytes += q.lowPriority[low].size
		low++
	}
	taken := slices.Concat(q.requests[:n], q.lowPriority[:low])
	q.requests, q.lowPriority = dropFirst(q.requests, n), dropFirst(q.lowPriority, low)
	if len(q.lowPriority) > 0 {
		q.armLowPriority()
	}
	return taken
}

// dropFirst removes n requests. Their array may live on, and must not keep what was committed in memory.
func dropFirst(requests []queuedRequest, n int) []queuedRequest {
	clear(requests[:n])
	if n == len(requests) {
		return nil
	}
	return requests[n:]
}

func (q *queue) releaseCommitted(taken []queuedRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending -= sizeOf(taken)
}

func sizeOf(requests []queuedRequest) (bytes int64) {
	for _, r := range requests {
		bytes += r.bytes
	}
	return bytes
}

func (q *queue) pendingBytes() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending
}

// observationSize estimates the memory that an observation holds, in bytes.
func observationSize(o *event.Observation) int64 {
	const perKnown = 160
	n := 128 + perKnown*int64(len(o.Known)+len(o.RemovedKeys))
	for _, c := range o.Changes {
		n += int64(c.Size())
	}
	for i := range o.Bodies {
		n += perKnown + int64(len(o.Bodies[i].Raw))
	}
	return n
}

// broadcast wakes any number of waiters. The zero value is not usable.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// nextSignal returns a channel that the next notify closes. Take it before checking the condition that is waited for.
func (b *broadcast) nextSignal() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) notifyAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}
