package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// scheduleEvery bounds how many changes are queued before the workers hear of them. Handing lanes over in groups lets a
// worker take several changes of a lane at once, which costs the destination and us less than one by one.
const scheduleEvery = 256

// dispatch reads the journal in order and queues each change with its lane. It returns nil when a drain is complete.
func (p *Pipeline) dispatch(ctx context.Context) error {
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	p.drain.interrupt(stopReading)
	for !p.drain.over(p.backlog.position()) {
		err := p.dispatchFrame(reading)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && reading.Err() == nil {
			return err
		}
	}
	return p.awaitEmpty(ctx)
}

// dispatchFrame queues what one read of the journal returns.
func (p *Pipeline) dispatchFrame(ctx context.Context) error {
	position := p.backlog.position()
	records, err := p.journal.Read(ctx, position)
	if err != nil {
		return p.journalError(fmt.Sprintf("read the journal after offset %d", position), err)
	}
	defer p.schedule()
	frame := int64(0)
	for _, r := range records {
		if r.Offset <= position {
			return p.journalError("read the journal", fmt.Errorf("offset %d follows %d: offsets must ascend", r.Offset, position))
		}
		position = r.Offset
		frame += int64(r.Change.Size())
		if err := p.admit(ctx, r); err != nil {
			return err
		}
	}
	p.backlog.unpin(frame)
	return nil
}

// schedule hands the lanes that have become active to the workers. It is called before every wait, so that what is
// queued is delivered meanwhile.
func (p *Pipeline) schedule() {
	for _, l := range p.active {
		p.queue.Add(l)
	}
	p.active = p.active[:0]
}

// admit routes one change and queues it.
func (p *Pipeline) admit(ctx context.Context, r event.Record) error {
	var to Route
	if p.cfg.Route != nil {
		to = p.cfg.Route(r.Change)
	}
	if to.Pass {
		p.backlog.pass(r.Offset)
		return nil
	}
	if r.Change.Withheld != "" {
		return p.enqueueDead(ctx, r, &sinks.RejectedError{Reason: "withheld: " + r.Change.Withheld})
	}
	name, err := p.route(ctx, r, to.Topic)
	if err != nil {
		p.schedule()
		name, err = p.routeAgain(ctx, r, to.Topic, err)
	}
	switch classify(err) {
	case none:
		return p.enqueue(ctx, name, r, to.Topic)
	case rejected:
		return p.enqueueDead(ctx, r, err)
	default:
		return err
	}
}

// enqueue queues r with its lane, waiting for room in the window.
func (p *Pipeline) enqueue(ctx context.Context, name sinks.Lane, r event.Record, topic *sinks.Template) error {
	for {
		active, ok := p.backlog.add(name, r, topic)
		if active != nil {
			p.active = append(p.active, active)
			if len(p.active) == scheduleEvery {
				p.schedule()
			}
		}
		if ok {
			return nil
		}
		if err := p.awaitRoom(ctx); err != nil {
			return err
		}
	}
}

// enqueueDead makes r, which was rejected before it had a lane, a dead letter, waiting for room in the window.
func (p *Pipeline) enqueueDead(ctx context.Context, r event.Record, reason error) error {
	text, err := p.buryAgain(ctx, r, reason)
	if err != nil {
		return err
	}
	for !p.backlog.addDead(r, text, time.Now()) {
		if err := p.awaitRoom(ctx); err != nil {
			return err
		}
	}
	p.health.deadLettered(reason)
	return nil
}

// buryAgain buries r until that is done or ctx ends. Everything behind r waits.
func (p *Pipeline) buryAgain(ctx context.Context, r event.Record, rejection error) (reason string, err error) {
	defer p.routing.Forget(r.Offset)
	for {
		if reason, err = p.bury(ctx, r.Change, rejection); err == nil {
			p.health.routed()
			return reason, nil
		}
		p.schedule()
		p.retries.Add(1)
		p.health.blocked(r, err, unknown)
		if err := pause(ctx, p.routing.When(r.Offset)); err != nil {
			return "", err
		}
	}
}

// routeAgain asks the sink for the lane of r until it answers, rejects r, or ctx ends. Everything behind r waits: a
// change without a lane has no place of its own to wait in, and passing it could reorder its object (I3).
func (p *Pipeline) routeAgain(ctx context.Context, r event.Record, topic *sinks.Template, err error) (name sinks.Lane, _ error) {
	defer p.routing.Forget(r.Offset)
	for {
		kind := classify(err)
		if kind == none || kind == rejected {
			p.health.routed()
			return name, err
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		p.retries.Add(1)
		p.health.blocked(r, err, kind)
		if kind == unknown {
			if err := pause(ctx, p.routing.When(r.Offset)); err != nil {
				return "", err
			}
		}
		pass, waitErr := p.gate.Wait(ctx)
		if waitErr != nil {
			return "", waitErr
		}
		name, err = p.route(ctx, r, topic)
		report(ctx, pass, err)
	}
}

// route asks the sink for the lane of r, draining others first where the sink asks for that.
func (p *Pipeline) route(ctx context.Context, r event.Record, topic *sinks.Template) (sinks.Lane, error) {
	for {
		name, err := p.laneOf(ctx, r.Change, topic)
		var drain *sinks.DrainError
		if err == nil || !errors.As(err, &drain) {
			return name, err
		}
		for p.backlog.holds(drain.Lanes) {
			if err := p.awaitRoom(ctx); err != nil {
				return "", err
			}
		}
	}
}

// laneOf asks the sink for the lane of a change that may have a topic of its own.
func (p *Pipeline) laneOf(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		return p.sink.Lane(ctx, c)
	}
	router, ok := p.sink.(sinks.Router)
	if !ok {
		return "", fmt.Errorf("routed to the topic %s, and this sink knows one place only", topic)
	}
	return router.LaneTo(ctx, c, topic)
}

// awaitRoom waits until the window may have room.
func (p *Pipeline) awaitRoom(ctx context.Context) error {
	p.schedule()
	select {
	case <-p.backlog.room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitEmpty waits until everything read is settled.
func (p *Pipeline) awaitEmpty(ctx context.Context) error {
	for !p.backlog.empty() {
		if p.awaitRoom(ctx) != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// pause waits for d, or returns ctx's error when it ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
