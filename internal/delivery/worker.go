package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
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
	gate    *ratelimit.Gate
	policy  *rejectionPolicy
	health  *health
	digest  *logDigest

	destinations sinks.MultiDestination // the sink if it is one; else nil
	sizes        sinks.SizeAnnouncer    // the sink if it is one; else nil
	isStateful   bool                   // the sink is a sinks.Stateful
	ahead        lookAhead
	store        func(context.Context) error // stores all progress durably
	abort        func(error)                 // ends Pipeline.Run with a cause

	stopping    context.Context // ends before the calls of the sink do: nothing new is published then
	running     sync.WaitGroup
	substituted atomic.Int64  // workers with a long Publish that have a substitute
	acceptances atomic.Uint64 // of Publish calls
	retries     atomic.Uint64
	violations  atomic.Uint64
}

// start runs cfg.Workers workers until the workqueue is closed. When stopping ends, they publish nothing new; ctx ends their
// calls of the sink.
func (w *workerPool) start(stopping, ctx context.Context) {
	w.stopping = stopping
	for range w.cfg.Workers {
		w.running.Go(func() { w.serveLanes(ctx) })
	}
}

// serveLanes is one worker. It ends when the workqueue is closed, or when a substitute has taken its place.
func (w *workerPool) serveLanes(ctx context.Context) {
	var batch []sinks.Message // reused; it grows to what the lanes need
	for substituted := false; !substituted; {
		l, closed := w.queue.lanes.Get()
		if closed {
			return
		}
		var ok bool
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
	if w.destinations == nil {
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
	pass, err := w.beginTurn(l)
	if err != nil {
		return batch, false // the pipeline stops: the lane stays scheduled and is not served again
	}
	defer w.cfg.Pause.EndTurn()
	if l.name == unroutableLane {
		w.finishAttempt(ctx, l, 1, w.backlog.entryAt(l, 0).rejection)
		return batch, false
	}
	disarm := w.armSubstitute(ctx)
	n := 0
	if batch, err = w.removeOversized(ctx, l, batch, 0); err == nil {
		n, err = w.publishBatch(ctx, l, batch)
	}
	for err == nil && n < len(batch) { // the sink has the rest in flight, see sinks.Sink
		pass.Succeeded()
		w.markWorking(l, false)
		left, limit := len(batch)-n, w.cfg.BatchMessages
		if w.stopping.Err() != nil || w.cfg.Pause.isPaused() {
			limit = left // wait for what is in flight, and add nothing
		}
		clear(batch)
		batch, _ = w.backlog.takeBatch(l, batch[:0], limit, w.cfg.BatchBytes)
		if pass, err = w.gate.Wait(ctx); err != nil {
			return batch, disarm()
		}
		batch, _ = w.removeOversized(ctx, l, batch, left)
		n, err = w.publishBatch(ctx, l, batch)
	}
	substituted = disarm()
	switch classifyError(err) {
	case failureRejected:
		l.worker.isSizeLimited = l.worker.isSizeLimited || isTooLarge(err)
		if w.truncateEntry(l, 0, err) {
			pass.Abandoned()
			w.finishAttempt(ctx, l, 0, nil)
			return batch, substituted
		}
		err = w.judgeRejection(ctx, l, batch[n:], err)
	case failureUnavailable:
		err = w.judgeUnavailable(l, err)
	default: // the error is final, or proves nothing about the destination
	}
	w.reportToGate(ctx, pass, err)
	w.finishAttempt(ctx, l, len(batch)-n, err)
	return batch, substituted
}

// beginTurn waits until l may be served. Its error is that the pipeline stops.
func (w *workerPool) beginTurn(l *lane) (pass ratelimit.Pass, err error) {
	if l.name == unroutableLane { // which sends nothing to this destination
		return pass, w.cfg.Pause.beginTurn(w.stopping, context.Context.Err, func() {})
	}
	err = w.cfg.Pause.beginTurn(w.stopping, func(ctx context.Context) (err error) {
		pass, err = w.gate.Wait(ctx)
		return err
	}, func() { pass.Abandoned() })
	return pass, err
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
	w.health.recordPublish(l.name)
	n, err := w.sink.Publish(ctx, l.name, batch)
	w.health.recordAnswer(l.name)
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
	w.recordAccepted(l, batch[:n], start)
	return n, err
}

// recordAccepted settles what the destination accepted.
func (w *workerPool) recordAccepted(l *lane, batch []sinks.Message, start time.Time) {
	if len(batch) == 0 {
		return
	}
	if w.cfg.OnAcknowledged != nil {
		for _, m := range batch {
			w.cfg.OnAcknowledged(m.Change)
		}
	}
	w.backlog.acknowledgeOldest(l, len(batch), time.Now())
	w.acceptances.Add(1)
	w.health.recordAcknowledged(l.name, start)
	l.worker.unavailableSince = 0
	w.policy.recordAcceptance(w.destinationOf(l), time.Now())
	w.queue.resetBackoff(l)
}

// destinationOf returns the name of the destination of l. Only the worker that holds the lane may call it.
func (w *workerPool) destinationOf(l *lane) string {
	if w.destinations != nil && l.worker.destination == "" {
		l.worker.destination = w.destinations.DestinationOf(l.name)
	}
	return l.worker.destination
}

// judgeUnavailable turns err, an UnavailableError, into a failure of l alone if Publish calls of other lanes were accepted
// since l got this answer first: a receiver that answers 503 for one object must not stop all others again and again. Only
// the worker that holds the lane may call it.
func (w *workerPool) judgeUnavailable(l *lane, err error) error {
	now := w.acceptances.Load() + 1 // never 0, which means that the last answer was another one
	if l.worker.unavailableSince == 0 {
		l.worker.unavailableSince = now
	}
	unavailable, found := errors.AsType[*sinks.UnavailableError](err)
	if l.worker.unavailableSince == now || !found {
		return err
	}
	return &laneUnavailableError{unavailable}
}

// judgeRejection decides what the rejection of batch[0], the oldest change of l, means. It returns the rejection if that is
// believed, otherwise another error or nil, after which the same change is tried again. Only the worker that holds the lane
// may call it.
func (w *workerPool) judgeRejection(ctx context.Context, l *lane, batch []sinks.Message, rejection error) error {
	state, offset, destination := &l.worker, batch[0].Offset, w.destinationOf(l)
	if state.believedOffset == offset { // it waits to become a dead letter
		return rejection
	}
	believed, proofs := w.policy.believeRejection(destination, time.Now())
	if believed {
		state.believedOffset = offset
		return rejection
	}
	if accepts := w.accepterOf(ctx, l); accepts != nil && w.ahead.find(ctx, l, batch[0], accepts) {
		w.policy.recordAcceptance(destination, time.Now())
		return nil
	}
	others := w.destinations != nil
	if first := state.suspectedAfter != proofs+1; first { // each lane looks for what is accepted, before the gate closes
		state.suspectedAfter, others = proofs+1, true
		w.queue.resetBackoff(l)
	}
	p := condition.Problem{Code: condition.SinkRejectsAll, Cause: "every change is rejected and none accepted; last rejection: " + rejection.Error()}
	if others {
		return p.Wrap(nil)
	}
	// No other lane can find what it accepts, so the sink is unavailable as a whole.
	return &sinks.UnavailableError{Code: p.Code, Reason: p.Cause, After: suspectedProbe}
}

// accepterOf returns a function that reports whether the destination of l accepts a message. It publishes the message,
// unless the sink is Stateful: that needs each outcome before it publishes the next change, so that only a limit that its
// destination announces can prove it well. nil if none is known. Its error means that no other message can be tried now.
func (w *workerPool) accepterOf(ctx context.Context, l *lane) func(sinks.Message) (bool, error) {
	if !w.isStateful {
		return func(m sinks.Message) (bool, error) {
			n, err := w.sink.Publish(ctx, l.name, []sinks.Message{m})
			if classifyError(err) == failureRejected {
				err = nil
			}
			return n == 1, err
		}
	}
	if check := w.sizeCheckOf(ctx, l); check != nil {
		return func(m sinks.Message) (bool, error) { return check(m) == nil, nil }
	}
	return nil
}

// sizeCheckOf returns the check of the limit that the destination of l announces; nil if none is known.
func (w *workerPool) sizeCheckOf(ctx context.Context, l *lane) func(sinks.Message) error {
	if w.sizes == nil {
		return nil
	}
	check, _ := w.sizes.SizeLimit(ctx, l.name) // without it the destination decides
	return check
}

// removeOversized truncates the changes of a batch that the announced limit does not permit, or makes them dead letters, so
// that they do not end a Publish. The first n are in flight. Before another one is published, one may only be truncated: an
// error is its rejection, of which the caller decides what it is about. Where a dead letter has to wait, the batch ends.
func (w *workerPool) removeOversized(ctx context.Context, l *lane, batch []sinks.Message, n int) ([]sinks.Message, error) {
	var check func(sinks.Message) error
	if l.worker.isSizeLimited {
		check = w.sizeCheckOf(ctx, l)
	}
	if check == nil {
		return batch, nil
	}
	kept := batch[:n]
	for _, m := range batch[n:] {
		rejection := check(m)
		for rejection != nil && w.truncateEntry(l, len(kept), rejection) {
			m.Change = w.backlog.entryAt(l, len(kept)).change
			rejection = check(m)
		}
		switch {
		case rejection == nil:
			kept = append(kept, m)
		case len(kept) == 0:
			return batch, rejection
		default:
			if w.deadLetterEntry(ctx, l, len(kept), rejection) != nil {
				return kept, nil //nolint:nilerr // it comes again when the change is the first of its lane
			}
		}
	}
	return kept, nil
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
	return condition.Problem{Code: condition.SinkDefect, Cause: "the sink violates its contract: " + answer}.Wrap(nil)
}

// finishAttempt decides what becomes of l after a Publish. err is about its oldest change, and left is how many changes of
// the batch were not accepted.
func (w *workerPool) finishAttempt(ctx context.Context, l *lane, left int, err error) {
	kind := classifyError(err)
	if kind == failureRejected {
		if kind, err = failureNone, w.deadLetterEntry(ctx, l, 0, err); err != nil {
			kind = failureUnknown
		}
	}
	switch {
	case kind == failureLost || kind == failureDeposed:
		w.abort(err) // the caller of Run starts another pipeline from an earlier position, or none
		return
	case kind != failureNone && ctx.Err() != nil:
		return // the pipeline stops, which is all that the error means
	case kind == failureUnavailable: // the gate is closed: the lane waits there, and needs no back-off of its own
		w.retries.Add(1)
		w.health.recordFailure(l.name, err)
		w.queue.resetBackoff(l)
	case kind == failureUnknown:
		w.retries.Add(1)
		// Before parkLane: afterwards the lane may be replaced at any time, which removes its failure.
		w.health.recordFailure(l.name, err)
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
	w.backlog.markWorking(l, inDoubt)
	if !inDoubt {
		w.health.forgetLane(l.name)
	}
}

// deadLetterEntry makes the change i of l a dead letter. An error means that this has to be retried.
func (w *workerPool) deadLetterEntry(ctx context.Context, l *lane, i int, rejection error) error {
	record := w.backlog.entryAt(l, i).originalRecord()
	reason, err := w.publishDeadLetter(ctx, record.Change, rejection)
	if err != nil {
		return err
	}
	w.queue.resetBackoff(l)
	w.backlog.deadLetterEntry(l, i, reason, time.Now())
	l.worker.storeBeforePublish = w.isStateful
	w.digest.addDeadLetter(rejection)
	return nil
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

// truncateEntry truncates the change i of l further if err rejects it as too large and that can be done.
// After a crash the complete change is rejected and truncated to the same form again.
func (w *workerPool) truncateEntry(l *lane, i int, err error) bool {
	if w.cfg.Truncate == nil || !isTooLarge(err) {
		return false
	}
	truncated, ok := w.cfg.Truncate(w.backlog.entryAt(l, i).change)
	if ok {
		w.backlog.truncateEntry(l, i, truncated)
		w.digest.addTruncated(truncated, err)
	}
	return ok
}
