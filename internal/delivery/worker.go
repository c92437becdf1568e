package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// substituteAfter is how long a Publish may occupy a worker before another one takes over the other lanes.
	substituteAfter = 200 * time.Millisecond

	// maxSubstitutes bounds the workers that run in place of occupied ones.
	maxSubstitutes = 1024
)

// workerPool publishes what is queued: each worker gets a lane from the workqueue, hands its oldest changes to the sink and
// decides by the answer what becomes of the lane.
type workerPool struct {
	log     *slog.Logger
	sink    sinks.Sink
	cfg     *Config
	backlog *backlog
	queue   *laneQueue
	bucket  *ratelimit.Bucket
	gate    *ratelimit.Gate
	breaker *breaker
	health  *health
	digest  *logDigest

	storesState bool                        // the sink is a sinks.Stateful that is in use
	store       func(context.Context) error // stores all progress durably
	abort       func(error)                 // ends Pipeline.Run with a cause

	running     sync.WaitGroup
	substituted atomic.Int64 // workers with a long Publish that have a substitute
	retries     atomic.Uint64
	violations  atomic.Uint64
}

// start runs cfg.Workers workers until the workqueue is closed. ctx ends their calls of the sink.
func (w *workerPool) start(ctx context.Context) {
	for range w.cfg.Workers {
		w.running.Go(func() { w.serveLanes(ctx) })
	}
}

// serveLanes is one worker. It ends when the workqueue is closed, or when a substitute has taken its place.
func (w *workerPool) serveLanes(ctx context.Context) {
	var batch []sinks.Message // reused; it grows to what the lanes need
	for substituted := false; !substituted; {
		l, ok := w.queue.nextLane()
		if !ok {
			return
		}
		if batch, ok = w.backlog.takeBatch(l, batch[:0], w.cfg.BatchMessages, w.cfg.BatchBytes); ok {
			batch, substituted = w.serveLane(ctx, l, batch)
		}
		clear(batch) // an idle worker keeps no change alive
		// Only now may another worker get this lane: one Publish per lane at a time (I3).
		w.queue.releaseLane(l)
	}
}

// armSubstitute starts another worker if the caller is still busy after substituteAfter. Only a sink with several
// destinations needs that: one that hangs must not take the workers from the others. The returned function ends the
// arrangement and reports whether there is a substitute, so that the caller has to end.
func (w *workerPool) armSubstitute(ctx context.Context) (disarm func() bool) {
	if _, ok := w.sink.(sinks.MultiDestination); !ok {
		return func() bool { return false }
	}
	var mu sync.Mutex
	var disarmed, started bool
	timer := time.AfterFunc(substituteAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if disarmed || w.substituted.Load() >= maxSubstitutes { // concurrent callers may exceed the bound by a few
			return
		}
		started = true
		w.substituted.Add(1)
		w.running.Go(func() { w.serveLanes(ctx) })
	})
	return func() bool {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		disarmed = true
		if started {
			w.substituted.Add(-1)
		}
		return started
	}
}

// serveLane publishes the oldest changes of l and decides what becomes of the lane. It returns the batch that was published
// last, and whether the worker has a substitute.
func (w *workerPool) serveLane(ctx context.Context, l *lane, batch []sinks.Message) (_ []sinks.Message, substituted bool) {
	if l.name == unroutableLane {
		w.finishAttempt(ctx, l, 1, w.backlog.oldestEntry(l).rejection)
		return batch, false
	}
	pass, err := w.awaitTurn(ctx, len(batch))
	if err != nil {
		return batch, false // the pipeline stops: the lane stays scheduled and is not served again
	}
	disarm := w.armSubstitute(ctx)
	n, err := w.publishBatch(ctx, l, batch)
	for err == nil && n < len(batch) { // the sink has the rest in flight, see sinks.Sink
		pass.Succeeded()
		w.markWorking(l, false)
		left := len(batch) - n
		clear(batch)
		batch, _ = w.backlog.takeBatch(l, batch[:0], w.cfg.BatchMessages, w.cfg.BatchBytes)
		if pass, err = w.awaitTurn(ctx, len(batch)-left); err != nil {
			return batch, disarm()
		}
		n, err = w.publishBatch(ctx, l, batch)
	}
	substituted = disarm()
	switch classifyError(err) {
	case failureRejected:
		if w.truncateHead(l, err) {
			pass.Abandoned()
			w.finishAttempt(ctx, l, 0, nil)
			return batch, substituted
		}
		err = w.breaker.judgeRejection(l, batch[n], err)
	case failureUnavailable:
		err = w.breaker.judgeUnavailable(l, err)
	default: // the error is final, or proves nothing about the destination
	}
	reportToGate(ctx, pass, err)
	w.finishAttempt(ctx, l, len(batch)-n, err)
	return batch, substituted
}

// awaitTurn waits until so many more messages may be sent. Its error is that of ctx.
func (w *workerPool) awaitTurn(ctx context.Context, messages int) (ratelimit.Pass, error) {
	if err := w.bucket.Wait(ctx, messages); err != nil {
		return ratelimit.Pass{}, err
	}
	return w.gate.Wait(ctx)
}

// publishBatch calls the sink, checks that the answer keeps the contract, and settles what was accepted. An answer that
// contradicts itself counts as nothing accepted: a message may be sent twice, but must not be skipped.
func (w *workerPool) publishBatch(ctx context.Context, l *lane, batch []sinks.Message) (int, error) {
	if l.worker.storeBeforePublish {
		if err := w.store(ctx); err != nil {
			return 0, err
		}
		l.worker.storeBeforePublish = false
	}
	start := time.Now()
	n, err := w.sink.Publish(ctx, l.name, batch)
	if w.cfg.ObservePublish != nil {
		w.cfg.ObservePublish(time.Since(start))
	}
	switch {
	case n < 0 || n > len(batch):
		return 0, w.recordViolation(l, fmt.Sprintf("%d of %d messages accepted", n, len(batch)), err)
	case n == len(batch) && err != nil:
		return 0, w.recordViolation(l, fmt.Sprintf("all %d messages accepted, and an error", n), err)
	case n == 0 && err == nil:
		return 0, w.recordViolation(l, "nothing accepted, and no error", nil)
	}
	w.recordAccepted(l, batch[:n])
	return n, err
}

// recordAccepted settles what the destination accepted.
func (w *workerPool) recordAccepted(l *lane, batch []sinks.Message) {
	if len(batch) == 0 {
		return
	}
	if w.cfg.OnAcknowledged != nil {
		for _, m := range batch {
			w.cfg.OnAcknowledged(m.Change)
		}
	}
	w.backlog.acknowledgeOldest(l, len(batch), time.Now())
	w.breaker.recordAcceptance(l, batch)
	w.queue.resetBackoff(l)
}

// recordViolation counts an answer that violates the contract of sinks.Sink and returns it as an error of no known kind.
// Only the first one is logged: after that the condition of the lane shows it.
func (w *workerPool) recordViolation(l *lane, answer string, err error) error {
	if err != nil {
		answer += ": " + err.Error() // not wrapped: a contradictory answer must not reject a message
	}
	if w.violations.Add(1) == 1 {
		w.log.Error("defect in the sink: Publish violates its contract; the messages are sent again",
			"lane", l.name, "answer", answer)
	}
	return errors.New("the sink violates its contract: " + answer)
}

// finishAttempt decides what becomes of l after a Publish. err is about its oldest change, and left is how many changes of
// the batch were not accepted.
func (w *workerPool) finishAttempt(ctx context.Context, l *lane, left int, err error) {
	kind, now := classifyError(err), time.Now()
	if kind == failureRejected {
		kind, err = w.deadLetterHead(ctx, l, err, now)
	}
	switch {
	case kind == failureLost || kind == failureDeposed:
		w.abort(err) // the caller of Run starts another pipeline from an earlier position, or none
		return
	case kind != failureNone && ctx.Err() != nil:
		return // the pipeline stops, which is all that the error means
	case kind == failureUnavailable: // the gate is closed: the lane waits there, and needs no back-off of its own
		w.retries.Add(1)
	case kind == failureUnknown:
		w.retries.Add(1)
		// Before parkLane: afterwards the lane may be replaced at any time, which removes its failure.
		w.health.recordLaneFailure(l.name, err)
		w.backlog.parkLane(l, left)
		w.queue.addAfterBackoff(l, err)
		return
	}
	w.markWorking(l, kind == failureUnavailable)
	if w.backlog.releaseLane(l) {
		w.queue.addLanes(l)
	}
}

// markWorking records that a Publish of l succeeded, or failed for a reason that is not the lane's own.
func (w *workerPool) markWorking(l *lane, inDoubt bool) {
	if w.backlog.markWorking(l, inDoubt) {
		w.queue.resetBackoff(l)
		w.health.recordLaneRecovery(l.name)
	}
}

// deadLetterHead makes the oldest change of l a dead letter. An error means that this has to be retried.
func (w *workerPool) deadLetterHead(ctx context.Context, l *lane, rejection error, now time.Time) (failureKind, error) {
	reason, err := w.publishDeadLetter(ctx, w.backlog.oldestEntry(l).originalRecord().Change, rejection)
	if err != nil {
		return failureUnknown, err
	}
	w.backlog.deadLetterOldest(l, reason, now)
	l.worker.storeBeforePublish = w.storesState
	w.digest.addDeadLetter(rejection)
	return failureNone, nil
}

// publishDeadLetter publishes a dead letter to its configured destination, if there is one, and returns the reason to store
// with it. If that destination rejects it as well, it is only stored.
func (w *workerPool) publishDeadLetter(ctx context.Context, c *event.Change, rejection error) (reason string, err error) {
	reason = rejection.Error()
	if w.cfg.PublishDeadLetter == nil {
		return reason, nil
	}
	if err = w.cfg.PublishDeadLetter(ctx, c, reason); classifyError(err) == failureRejected {
		return reason + "; " + err.Error(), nil
	}
	return reason, err
}

// truncateHead replaces the oldest change of l by a truncated one if err rejects it as too large and it can be truncated
// further. After a crash the complete change is rejected and truncated to the same form again.
func (w *workerPool) truncateHead(l *lane, err error) bool {
	if w.cfg.Truncate == nil || !isTooLarge(err) {
		return false
	}
	truncated, ok := w.cfg.Truncate(w.backlog.oldestEntry(l).change)
	if ok {
		w.backlog.replaceOldest(l, truncated)
		w.digest.addTruncated(truncated, err)
	}
	return ok
}
