package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// substituteAfter is for how long a Publish may keep a worker from other lanes, where these lead elsewhere.
	substituteAfter = 200 * time.Millisecond

	// maxSubstitutes bounds the workers that are kept for longer.
	maxSubstitutes = 1024
)

// serveLanes serves lanes until the workqueue is shut down. Run begins Config.Workers of it; one that is kept by a slow
// destination gets a substitute, and ends when it is free.
func (p *Pipeline) serveLanes(ctx context.Context) {
	var batch []sinks.Message // its space is used again, and grows to what the lanes need
	for substituted := false; !substituted; {
		l, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		var ok bool
		if batch, ok = p.backlog.takeBatch(l, batch[:0], p.cfg.BatchMessages, p.cfg.BatchBytes); ok {
			batch, substituted = p.serveLane(ctx, l, batch)
		}
		clear(batch) // an idle worker keeps no change alive
		// Only now may another worker get this lane: one Publish per lane at a time (I3).
		p.queue.Done(l)
	}
}

// armSubstitute lets another worker serve other lanes while this one is kept for long. The function it returns ends that, and
// says whether there is such a worker, so that this one is to end.
func (p *Pipeline) armSubstitute(ctx context.Context) (free func() bool) {
	if _, divided := p.sink.(sinks.MultiDestination); !divided { // all lanes wait for the same destination
		return func() bool { return false }
	}
	var mu sync.Mutex
	var over, begun bool
	timer := time.AfterFunc(substituteAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over || p.substituted.Load() >= maxSubstitutes { // more by a few, as others look at the same time, is no harm
			return
		}
		begun = true
		p.substituted.Add(1)
		p.workers.Go(func() { p.serveLanes(ctx) })
	})
	return func() bool {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if begun {
			p.substituted.Add(-1)
		}
		return begun
	}
}

// serveLane publishes the oldest changes of l and decides when l is served again. It returns the batch that was published last,
// and whether the worker has a substitute.
func (p *Pipeline) serveLane(ctx context.Context, l *lane, batch []sinks.Message) (_ []sinks.Message, substituted bool) {
	if l.name == unroutableLane {
		p.finishAttempt(ctx, l, 1, p.backlog.oldestEntry(l).rejection)
		return batch, false
	}
	pass, err := p.awaitTurn(ctx, len(batch))
	if err != nil {
		return batch, false // stopping: the lane stays scheduled, and nobody serves it any more
	}
	free := p.armSubstitute(ctx)
	n, err := p.publishBatch(ctx, l, batch)
	for err == nil && n < len(batch) { // what is left is on its way
		pass.Succeeded()
		p.markWorking(l, false)
		left := len(batch) - n
		clear(batch)
		batch, _ = p.backlog.takeBatch(l, batch[:0], p.cfg.BatchMessages, p.cfg.BatchBytes)
		if pass, err = p.awaitTurn(ctx, len(batch)-left); err != nil {
			return batch, free()
		}
		n, err = p.publishBatch(ctx, l, batch)
	}
	substituted = free()
	switch classifyError(err) {
	case failureRejected:
		if p.truncateHead(l, err) {
			pass.Abandoned()
			p.finishAttempt(ctx, l, 0, nil)
			return batch, substituted
		}
		err = p.breaker.judgeRejection(l, batch[n], err)
	case failureUnavailable:
		err = p.breaker.judgeUnavailable(l, err)
	}
	reportToGate(ctx, pass, err)
	p.finishAttempt(ctx, l, len(batch)-n, err)
	return batch, substituted
}

// awaitTurn waits until so many messages may be sent that were not before. The error only says that ctx has ended.
func (p *Pipeline) awaitTurn(ctx context.Context, messages int) (ratelimit.Pass, error) {
	if err := p.bucket.Wait(ctx, messages); err != nil {
		return ratelimit.Pass{}, err
	}
	return p.gate.Wait(ctx)
}

// publishBatch calls the sink, holds it to its contract, and books what is accepted. An answer that contradicts itself counts as
// little as can be believed: sending again is allowed, skipping is not.
func (p *Pipeline) publishBatch(ctx context.Context, l *lane, batch []sinks.Message) (int, error) {
	if l.storeBeforePublish {
		if err := p.storeProgress(ctx); err != nil {
			return 0, err
		}
		l.storeBeforePublish = false
	}
	began := time.Now()
	n, err := p.sink.Publish(ctx, l.name, batch)
	if p.cfg.ObservePublish != nil {
		p.cfg.ObservePublish(time.Since(began))
	}
	switch {
	case n < 0 || n > len(batch):
		return 0, p.recordViolation(l, fmt.Sprintf("%d of %d messages accepted", n, len(batch)), err)
	case n == len(batch) && err != nil:
		return 0, p.recordViolation(l, fmt.Sprintf("all %d messages accepted, and an error", n), err)
	case n == 0 && err == nil:
		return 0, p.recordViolation(l, "nothing accepted, and no error", nil)
	}
	p.recordAccepted(l, batch[:n])
	return n, err
}

// recordAccepted books what the destination has of l.
func (p *Pipeline) recordAccepted(l *lane, batch []sinks.Message) {
	if len(batch) == 0 {
		return
	}
	if p.cfg.OnAcknowledged != nil {
		for _, m := range batch {
			p.cfg.OnAcknowledged(m.Change)
		}
	}
	p.backlog.acknowledgeOldest(l, len(batch), time.Now())
	p.breaker.recordAcceptance(l, batch)
	p.backoff.Forget(l) // progress: the next failure is a first one
}

// recordViolation counts an answer that breaks the contract of sinks.Sink and returns it as an error of no known kind. The first
// one is logged as what it is, a defect; after that the lane's back-off tells.
func (p *Pipeline) recordViolation(l *lane, answer string, err error) error {
	if err != nil {
		answer += ": " + err.Error() // not wrapped: a contradictory answer must not reject a message
	}
	if p.violations.Add(1) == 1 {
		p.log.Error("defect in the sink: Publish broke its contract; the messages are sent again",
			"lane", l.name, "answer", answer)
	}
	return errors.New("the sink broke its contract: " + answer)
}

// finishAttempt decides what becomes of l after a try: err speaks of its oldest change, and of left altogether.
func (p *Pipeline) finishAttempt(ctx context.Context, l *lane, left int, err error) {
	kind, now := classifyError(err), time.Now()
	if kind == failureRejected {
		kind, err = p.deadLetterHead(ctx, l, err, now)
	}
	switch {
	case kind == failureLost || kind == failureDeposed:
		p.abort(err) // Run ends; whoever runs the pipeline makes one that begins further back, or none
		return
	case kind != failureNone && ctx.Err() != nil:
		return // stopping: the error only says so
	case kind == failureUnavailable: // the gate is closed: the lane waits there, and no longer than it
		p.retries.Add(1)
	case kind == failureUnknown:
		p.retries.Add(1)
		p.health.recordLaneFailure(l.name, err) // while it has the lane, which may be replaced as soon as it has not
		p.backlog.parkLane(l, left)
		p.queue.AddAfter(l, p.retryDelay(l, err))
		return
	}
	p.markWorking(l, kind == failureUnavailable)
	if p.backlog.releaseLane(l) {
		p.queue.Add(l)
	}
}

// markWorking notes that a Publish of l has succeeded, or failed for a reason that is not the lane's.
func (p *Pipeline) markWorking(l *lane, unsure bool) {
	if p.backlog.markWorking(l, unsure) {
		p.backoff.Forget(l)
		p.health.recordLaneRecovery(l.name)
	}
}

// retryDelay is for how long a lane that fails waits.
func (p *Pipeline) retryDelay(l *lane, err error) time.Duration {
	wait := p.backoff.When(l)
	var cheap *sinks.ProbedError
	if errors.As(err, &cheap) {
		wait = min(wait, cheap.Every)
	}
	var own *laneError
	if errors.As(err, &own) {
		wait = max(wait, own.after)
	}
	return wait
}

// deadLetterHead makes the oldest change of l a dead letter, or says why that has to wait.
func (p *Pipeline) deadLetterHead(ctx context.Context, l *lane, rejection error, now time.Time) (failureKind, error) {
	reason, err := p.publishDeadLetter(ctx, p.backlog.oldestEntry(l).originalRecord().Change, rejection)
	if err != nil {
		return failureUnknown, err
	}
	p.backlog.deadLetterOldest(l, reason, now)
	l.storeBeforePublish = p.stateful != nil
	p.digest.addDeadLetter(rejection)
	return failureNone, nil
}

// publishDeadLetter publishes a dead letter where they go besides the journal, and returns the reason to store it with.
func (p *Pipeline) publishDeadLetter(ctx context.Context, c *event.Change, rejection error) (reason string, err error) {
	reason = rejection.Error()
	if p.cfg.PublishDeadLetter == nil {
		return reason, nil
	}
	if err = p.cfg.PublishDeadLetter(ctx, c, reason); classifyError(err) == failureRejected {
		return reason + "; " + err.Error(), nil
	}
	return reason, err
}

// truncateHead gives the oldest change of l a smaller form, if err says that it is too large and there is one. After a crash it
// is refused and made smaller again, to the same form.
func (p *Pipeline) truncateHead(l *lane, err error) bool {
	if p.cfg.Truncate == nil || !isTooLarge(err) {
		return false
	}
	smaller, ok := p.cfg.Truncate(p.backlog.oldestEntry(l).change)
	if ok {
		p.backlog.replaceOldest(l, smaller)
		p.digest.addTruncated(smaller, err)
	}
	return ok
}

// failureKind is what an error of a sink asks for.
type failureKind int

const (
	failureNone        failureKind = iota
	failureRejected                // dead letter
	failureUnavailable             // close the gate
	failureLost                    // go back
	failureDeposed                 // another process publishes in our place
	failureUnknown                 // try again later
)

// classifyError maps an error to a failure. An error that is both unavailable and rejected is unavailable, because loss must
// not come from a doubt.
func classifyError(err error) failureKind {
	if err == nil {
		return failureNone // before anything escapes to the heap: this is asked for every change
	}
	var away *sinks.UnavailableError
	var never *sinks.RejectedError
	var gone *sinks.LostError
	var replaced *sinks.DeposedError
	switch {
	case errors.As(err, &replaced):
		return failureDeposed
	case errors.As(err, &gone):
		return failureLost
	case errors.As(err, &away):
		return failureUnavailable
	case errors.As(err, &never):
		return failureRejected
	default:
		return failureUnknown
	}
}

// reportToGate tells the gate what a try says about the destination as a whole. An unknown error says nothing: if it was a
// probe's, that lane backs off and another one probes.
func reportToGate(ctx context.Context, pass ratelimit.Pass, err error) {
	switch kind := classifyError(err); {
	case kind == failureNone || kind == failureRejected:
		pass.Succeeded()
	case kind == failureUnavailable && ctx.Err() == nil:
		var away *sinks.UnavailableError
		errors.As(err, &away)
		pass.Failed(away.Reason, away.After)
	default:
		pass.Abandoned()
	}
}
