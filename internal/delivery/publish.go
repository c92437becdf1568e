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
	// slowAfter is for how long a Publish may keep a worker from other lanes, where these lead elsewhere.
	slowAfter = 200 * time.Millisecond

	// maxSlow bounds the workers that are kept for longer.
	maxSlow = 1024
)

// work serves lanes until the workqueue is shut down. Run begins Config.Workers of it; one that is kept by a slow
// destination gets a substitute, and ends when it is free.
func (p *Pipeline) work(ctx context.Context) {
	var batch []sinks.Message // its space is used again, and grows to what the lanes need
	for substituted := false; !substituted; {
		l, shutdown := p.queue.Get()
		if shutdown {
			return
		}
		var ok bool
		if batch, ok = p.backlog.take(l, batch[:0], p.cfg.BatchMessages, p.cfg.BatchBytes); ok {
			batch, substituted = p.serve(ctx, l, batch)
		}
		clear(batch) // an idle worker keeps no change alive
		// Only now may another worker get this lane: one Publish per lane at a time (I3).
		p.queue.Done(l)
	}
}

// substitute lets another worker serve other lanes while this one is kept for long. The function it returns ends that, and
// says whether there is such a worker, so that this one is to end.
func (p *Pipeline) substitute(ctx context.Context) (free func() bool) {
	if _, divided := p.sink.(sinks.Divided); !divided { // all lanes wait for the same destination
		return func() bool { return false }
	}
	var mu sync.Mutex
	var over, begun bool
	timer := time.AfterFunc(slowAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if over || p.slow.Load() >= maxSlow { // more by a few, as others look at the same time, is no harm
			return
		}
		begun = true
		p.slow.Add(1)
		p.workers.Go(func() { p.work(ctx) })
	})
	return func() bool {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if begun {
			p.slow.Add(-1)
		}
		return begun
	}
}

// serve publishes the oldest changes of l and decides when l is served again. It returns the batch that was published last,
// and whether the worker has a substitute.
func (p *Pipeline) serve(ctx context.Context, l *lane, batch []sinks.Message) (_ []sinks.Message, substituted bool) {
	if l.name == unroutable {
		p.conclude(ctx, l, 1, p.backlog.head(l).rejected)
		return batch, false
	}
	pass, err := p.turn(ctx, len(batch))
	if err != nil {
		return batch, false // stopping: the lane stays scheduled, and nobody serves it any more
	}
	free := p.substitute(ctx)
	n, err := p.publish(ctx, l, batch)
	for err == nil && n < len(batch) { // what is left is on its way
		pass.Succeeded()
		p.works(l, false)
		left := len(batch) - n
		clear(batch)
		batch, _ = p.backlog.take(l, batch[:0], p.cfg.BatchMessages, p.cfg.BatchBytes)
		if pass, err = p.turn(ctx, len(batch)-left); err != nil {
			return batch, free()
		}
		n, err = p.publish(ctx, l, batch)
	}
	substituted = free()
	switch classify(err) {
	case rejected:
		if p.reduce(l, err) {
			pass.Abandoned()
			p.conclude(ctx, l, 0, nil)
			return batch, substituted
		}
		err = p.breaker.rejected(l, batch[n], err)
	case unavailable:
		err = p.breaker.unavailable(l, err)
	}
	report(ctx, pass, err)
	p.conclude(ctx, l, len(batch)-n, err)
	return batch, substituted
}

// turn waits until so many messages may be sent that were not before. The error only says that ctx has ended.
func (p *Pipeline) turn(ctx context.Context, messages int) (ratelimit.Pass, error) {
	if err := p.bucket.Wait(ctx, messages); err != nil {
		return ratelimit.Pass{}, err
	}
	return p.gate.Wait(ctx)
}

// publish calls the sink, holds it to its contract, and books what is accepted. An answer that contradicts itself counts as
// little as can be believed: sending again is allowed, skipping is not.
func (p *Pipeline) publish(ctx context.Context, l *lane, batch []sinks.Message) (int, error) {
	if l.buried {
		if err := p.store(ctx); err != nil {
			return 0, err
		}
		l.buried = false
	}
	began := time.Now()
	n, err := p.sink.Publish(ctx, l.name, batch)
	if p.cfg.Observe != nil {
		p.cfg.Observe(time.Since(began))
	}
	switch {
	case n < 0 || n > len(batch):
		return 0, p.breach(l, fmt.Sprintf("%d of %d messages accepted", n, len(batch)), err)
	case n == len(batch) && err != nil:
		return 0, p.breach(l, fmt.Sprintf("all %d messages accepted, and an error", n), err)
	case n == 0 && err == nil:
		return 0, p.breach(l, "nothing accepted, and no error", nil)
	}
	p.accepted(l, batch[:n])
	return n, err
}

// accepted books what the destination has of l.
func (p *Pipeline) accepted(l *lane, batch []sinks.Message) {
	if len(batch) == 0 {
		return
	}
	if p.cfg.Acknowledged != nil {
		for _, m := range batch {
			p.cfg.Acknowledged(m.Change)
		}
	}
	p.backlog.acknowledge(l, len(batch), time.Now())
	p.breaker.accepted(l, batch)
	p.backoff.Forget(l) // progress: the next failure is a first one
}

// breach counts an answer that breaks the contract of sinks.Sink and returns it as an error of no known kind. The first
// one is logged as what it is, a defect; after that the lane's back-off tells.
func (p *Pipeline) breach(l *lane, answer string, err error) error {
	if err != nil {
		answer += ": " + err.Error() // not wrapped: a contradictory answer must not reject a message
	}
	if p.breaches.Add(1) == 1 {
		p.log.Error("defect in the sink: Publish broke its contract; the messages are sent again",
			"lane", l.name, "answer", answer)
	}
	return errors.New("the sink broke its contract: " + answer)
}

// conclude decides what becomes of l after a try: err speaks of its oldest change, and of left altogether.
func (p *Pipeline) conclude(ctx context.Context, l *lane, left int, err error) {
	kind, now := classify(err), time.Now()
	if kind == rejected {
		kind, err = p.deadLetter(ctx, l, err, now)
	}
	switch {
	case kind == lost || kind == deposed:
		p.abort(err) // Run ends; whoever runs the pipeline makes one that begins further back, or none
		return
	case kind != none && ctx.Err() != nil:
		return // stopping: the error only says so
	case kind == unavailable: // the gate is closed: the lane waits there, and no longer than it
		p.retries.Add(1)
	case kind == unknown:
		p.retries.Add(1)
		p.health.laneFails(l.name, err) // while it has the lane, which may be replaced as soon as it has not
		p.backlog.park(l, left)
		p.queue.AddAfter(l, p.pause(l, err))
		return
	}
	p.works(l, kind == unavailable)
	if p.backlog.rest(l) {
		p.queue.Add(l)
	}
}

// works notes that a Publish of l has succeeded, or failed for a reason that is not the lane's.
func (p *Pipeline) works(l *lane, unsure bool) {
	if p.backlog.works(l, unsure) {
		p.backoff.Forget(l)
		p.health.laneWorks(l.name)
	}
}

// pause is for how long a lane that fails waits.
func (p *Pipeline) pause(l *lane, err error) time.Duration {
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

// deadLetter makes the oldest change of l a dead letter, or says why that has to wait.
func (p *Pipeline) deadLetter(ctx context.Context, l *lane, rejection error, now time.Time) (failure, error) {
	reason, err := p.bury(ctx, p.backlog.head(l).record().Change, rejection)
	if err != nil {
		return unknown, err
	}
	p.backlog.reject(l, reason, now)
	l.buried = p.stateful != nil
	p.digest.addDead(rejection)
	return none, nil
}

// bury publishes a dead letter where they go besides the journal, and returns the reason to store it with.
func (p *Pipeline) bury(ctx context.Context, c *event.Change, rejection error) (reason string, err error) {
	reason = rejection.Error()
	if p.cfg.Bury == nil {
		return reason, nil
	}
	if err = p.cfg.Bury(ctx, c, reason); classify(err) == rejected {
		return reason + "; " + err.Error(), nil
	}
	return reason, err
}

// reduce gives the oldest change of l a smaller form, if err says that it is too large and there is one. After a crash it
// is refused and made smaller again, to the same form.
func (p *Pipeline) reduce(l *lane, err error) bool {
	if p.cfg.Smaller == nil || !tooLarge(err) {
		return false
	}
	smaller, ok := p.cfg.Smaller(p.backlog.head(l).change)
	if ok {
		p.backlog.replace(l, smaller)
		p.digest.addReduced(smaller, err)
	}
	return ok
}

// failure is what an error of a sink asks for.
type failure int

const (
	none        failure = iota
	rejected            // dead letter
	unavailable         // close the gate
	lost                // go back
	deposed             // another process publishes in our place
	unknown             // try again later
)

// classify maps an error to a failure. An error that is both unavailable and rejected is unavailable, because loss must
// not come from a doubt.
func classify(err error) failure {
	if err == nil {
		return none // before anything escapes to the heap: this is asked for every change
	}
	var away *sinks.UnavailableError
	var never *sinks.RejectedError
	var gone *sinks.LostError
	var replaced *sinks.DeposedError
	switch {
	case errors.As(err, &replaced):
		return deposed
	case errors.As(err, &gone):
		return lost
	case errors.As(err, &away):
		return unavailable
	case errors.As(err, &never):
		return rejected
	default:
		return unknown
	}
}

// report tells the gate what a try says about the destination as a whole. An unknown error says nothing: if it was a
// probe's, that lane backs off and another one probes.
func report(ctx context.Context, pass ratelimit.Pass, err error) {
	switch kind := classify(err); {
	case kind == none || kind == rejected:
		pass.Succeeded()
	case kind == unavailable && ctx.Err() == nil:
		var away *sinks.UnavailableError
		errors.As(err, &away)
		pass.Failed(away.Reason, away.After)
	default:
		pass.Abandoned()
	}
}
