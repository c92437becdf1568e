package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// scheduleBatch bounds how many lanes become queued before the workers get them. Lanes are added to the workqueue in
	// groups, so that a worker finds several changes of a lane: one Publish of many costs less than many of one.
	scheduleBatch = 256

	// spillDelay is how long a change waits for space before the lanes that hold the window alone start to lag.
	spillDelay = 200 * time.Millisecond
)

// dispatcher reads the journal in order and queues each change with its lane. One goroutine runs it.
type dispatcher struct {
	sinkName string
	journal  Journal
	backlog  *backlog
	resolver *laneResolver
	queue    *laneQueue
	gate     *ratelimit.Gate
	drain    *drainRequest
	pause    *PauseSwitch

	toSchedule []*lane // queued lanes that the workqueue does not have yet
	active     []*lane // result of enqueueChange
}

// drainRequest is the order to deliver up to an offset and end.
type drainRequest struct {
	upTo      atomic.Pointer[uint64] // nil before request
	requested context.Context        // ends with request
	request   context.CancelFunc
}

// isReachedAt reports whether a drain is requested and reading up to this offset is enough for it.
func (d *drainRequest) isReachedAt(offset uint64) bool {
	upTo := d.upTo.Load()
	return upTo != nil && offset >= *upTo
}

// run dispatches until ctx ends or a drain is complete, for which it returns nil.
func (d *dispatcher) run(ctx context.Context) error {
	reading, interrupt := context.WithCancel(ctx)
	defer interrupt()
	defer context.AfterFunc(d.drain.requested, interrupt)()
	for !d.drain.isReachedAt(d.backlog.readPosition()) {
		err := d.dispatchFrame(reading)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case reading.Err() != nil: // the drain interrupted a Read that waited; what it asks for can be read without waiting
			reading = ctx
		case err != nil:
			return err
		}
	}
	return d.awaitAllSettled(ctx)
}

// dispatchFrame queues what one Read of the journal returns.
func (d *dispatcher) dispatchFrame(ctx context.Context) error {
	position := d.backlog.readPosition()
	records, err := d.journal.Read(ctx, position)
	if err != nil {
		return journalError(d.sinkName, fmt.Sprintf("read the journal after offset %d", position), err)
	}
	defer d.scheduleLanes()
	for _, r := range records {
		if r.Offset <= position {
			err := fmt.Errorf("offset %d follows %d: offsets must ascend", r.Offset, position)
			return journalError(d.sinkName, "read the journal", err)
		}
		position = r.Offset
		if err := d.admitChange(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// scheduleLanes adds the lanes that became queued to the workqueue. It is called before every wait, so that they are
// delivered meanwhile.
func (d *dispatcher) scheduleLanes() {
	d.queue.addLanes(d.toSchedule...)
	d.toSchedule = d.toSchedule[:0]
}

// admitChange queues one change with its lane and waits for space in the window if necessary.
func (d *dispatcher) admitChange(ctx context.Context, r event.Record) error {
	to := d.resolver.routeOf(r.Change)
	if to.Skip {
		d.backlog.skipChange(r.Offset, false)
		return nil
	}
	var waitingSince time.Time
	for {
		active, ok, err := d.enqueueChange(r, to)
		if err != nil {
			return err
		}
		if d.toSchedule = append(d.toSchedule, active...); len(d.toSchedule) >= scheduleBatch {
			d.scheduleLanes()
		}
		if ok {
			return nil
		}
		if waitingSince.IsZero() {
			waitingSince = time.Now()
		}
		d.scheduleLanes()
		if err := d.awaitSpace(ctx, time.Until(waitingSince.Add(spillDelay))); err != nil {
			return err
		}
	}
}

// enqueueChange resolves the lanes of a change and adds the change to the backlog, both under one lock: a lane that was just
// replaced must not get another change.
func (d *dispatcher) enqueueChange(r event.Record, to Route) (active []*lane, ok bool, err error) {
	d.resolver.mu.Lock()
	defer d.resolver.mu.Unlock()
	all, err := d.resolver.resolveLanes(r, to)
	if err != nil {
		return nil, false, err
	}
	found := len(all)
	all = slices.DeleteFunc(all, d.resolver.isAlreadyDelivered)
	if len(all) == 0 {
		d.backlog.skipChange(r.Offset, found > 0)
		return nil, true, nil
	}
	active, ok = d.backlog.addChange(r.Offset, all, d.active[:0])
	d.active = active
	return active, ok, nil
}

// awaitSpace waits until the window may have space, at most for the timeout. When that has passed, it frees space if lanes
// hold the window while others are idle. A closed gate or a pause is no reason for that: then no lane can publish.
func (d *dispatcher) awaitSpace(ctx context.Context, timeout time.Duration) error {
	if timeout <= 0 {
		if d.gate.Status().State == ratelimit.Open && !d.pause.isPaused() && d.backlog.spillSlowLanes() > 0 {
			return nil
		}
		timeout = spillDelay
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-d.backlog.lanes.spaceFreed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// awaitAllSettled waits until everything that was read is settled.
func (d *dispatcher) awaitAllSettled(ctx context.Context) error {
	d.scheduleLanes()
	for !d.backlog.isAllSettled() {
		select {
		case <-d.backlog.lanes.spaceFreed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// The workqueue takes the back-off of this project as its rate limiter.
var _ workqueue.TypedRateLimiter[*lane] = (*ratelimit.Backoff[*lane])(nil)

// laneQueue is the workqueue of client-go with lanes as its items. It never hands out a lane that a worker holds, so that
// one Publish per lane runs at a time (I3). Safe for concurrent use between open and close.
type laneQueue struct {
	backoff *ratelimit.Backoff[*lane]
	lanes   workqueue.TypedRateLimitingInterface[*lane] // set by open
}

// open makes the workqueue, which owns goroutines until close.
func (q *laneQueue) open() { q.lanes = workqueue.NewTypedRateLimitingQueue(q.backoff) }

// close makes every worker that waits for a lane return.
func (q *laneQueue) close() { q.lanes.ShutDown() }

// addLanes adds lanes that became scheduled.
func (q *laneQueue) addLanes(lanes ...*lane) {
	for _, l := range lanes {
		q.lanes.Add(l)
	}
}

// releaseLane lets another worker get the lane that a worker got from lanes.
func (q *laneQueue) releaseLane(l *lane) { q.lanes.Done(l) }

// addAfterBackoff adds a lane again when its back-off after err ends. A sink that probes the cause by itself, or a
// destination that asked for time, bounds the wait.
func (q *laneQueue) addAfterBackoff(l *lane, err error) {
	wait := q.backoff.When(l)
	if probed, found := errors.AsType[*sinks.ProbedError](err); found {
		wait = min(wait, probed.Every)
	}
	if unavailable, found := errors.AsType[*laneUnavailableError](err); found {
		wait = max(wait, unavailable.After)
	}
	q.lanes.AddAfter(l, wait)
}

// resetBackoff makes the next failure of the lane count as its first.
func (q *laneQueue) resetBackoff(l *lane) { q.backoff.Forget(l) }
