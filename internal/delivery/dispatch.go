package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// scheduleEvery bounds how many changes are queued before the workers hear of them. Handing lanes over in groups lets a
	// worker take several changes of a lane at once, which costs the destination and us less than one by one.
	scheduleEvery = 256

	// spillAfter is how long a change waits for room before lanes that hold the window alone fall behind.
	spillAfter = 200 * time.Millisecond

	// unroutable is the lane of changes that the sink is not to see. All of them become dead letters.
	unroutable sinks.Lane = ""
)

// dispatch reads the journal in order and queues each change with its lane. It returns nil when a drain is complete.
func (p *Pipeline) dispatch(ctx context.Context) error {
	reading, interrupt := context.WithCancel(ctx)
	defer interrupt()
	defer context.AfterFunc(p.draining, interrupt)()
	for !p.drained() {
		err := p.dispatchFrame(reading)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case reading.Err() != nil: // by the drain, all of which is there to be read
			reading = ctx
		case err != nil:
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
	for _, r := range records {
		if r.Offset <= position {
			return p.journalError("read the journal", fmt.Errorf("offset %d follows %d: offsets must ascend", r.Offset, position))
		}
		position = r.Offset
		if err := p.admit(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// schedule hands the lanes that have become active to the workers. It is called before every wait, so that what is
// queued is delivered meanwhile.
func (p *Pipeline) schedule() {
	p.hand(p.active)
	p.active = p.active[:0]
}

// admit queues one change with its lane, waiting for room in the window.
func (p *Pipeline) admit(ctx context.Context, r event.Record) error {
	to := p.route(r.Change)
	if to.Pass {
		p.backlog.pass(r.Offset)
		return nil
	}
	var since time.Time // of the wait
	for {
		active, ok, err := p.enqueue(r, to.Topic)
		if err != nil {
			return err
		}
		if active != nil {
			p.active = append(p.active, active)
			if len(p.active) == scheduleEvery {
				p.schedule()
			}
		}
		if ok {
			return nil
		}
		if since.IsZero() {
			since = time.Now()
		}
		p.schedule()
		if err := p.awaitRoom(ctx, time.Until(since.Add(spillAfter))); err != nil {
			return err
		}
	}
}

// enqueue names the lane of a change and adds the change to the backlog. Nothing comes between the two: a lane that has
// just been replaced must not get another change.
func (p *Pipeline) enqueue(r event.Record, topic *sinks.Template) (active *lane, ok bool, err error) {
	p.naming.Lock()
	defer p.naming.Unlock()
	name, e, err := p.name(r, topic)
	if err != nil {
		return nil, false, err
	}
	if p.delivered(name, r.Change) {
		p.backlog.skip(r.Offset)
		return nil, true, nil
	}
	active, ok = p.backlog.add(name, e)
	return active, ok, nil
}

// delivered says whether the destination has a change from a process before.
func (p *Pipeline) delivered(lane sinks.Lane, c *event.Change) bool {
	return p.cfg.Delivered != nil && lane != unroutable && p.cfg.Delivered(lane, c)
}

// reload names the lane of a change that was read again and gives the change to it, if it lacks it.
func (p *Pipeline) reload(r event.Record) error {
	to := p.route(r.Change)
	if to.Pass {
		return nil
	}
	p.naming.Lock()
	defer p.naming.Unlock()
	name, e, err := p.name(r, to.Topic)
	if err != nil {
		return err
	}
	if p.delivered(name, r.Change) {
		return nil
	}
	if l := p.backlog.reload(name, e); l != nil {
		p.queue.Add(l)
	}
	return nil
}

// route says whether a change is for this sink, and for which topic.
func (p *Pipeline) route(c *event.Change) Route {
	if p.cfg.Route == nil {
		return Route{}
	}
	return p.cfg.Route(c)
}

// name says which lane a change goes to, and as what. The caller holds p.naming. An error is a defect of the sink.
func (p *Pipeline) name(r event.Record, topic *sinks.Template) (sinks.Lane, entry, error) {
	if r.Change.Withheld != "" {
		return unroutable, newEntry(r, nil, &sinks.RejectedError{Reason: "withheld: " + r.Change.Withheld}), nil
	}
	name, err := p.laneOf(r.Change, topic)
	if err == nil {
		return name, newEntry(r, topic, nil), nil
	}
	var never *sinks.RejectedError
	if !errors.As(err, &never) {
		return "", entry{}, fmt.Errorf("sink %q: defect: no lane for the change at offset %d: %w", p.sinkName, r.Offset, err)
	}
	return unroutable, newEntry(r, nil, err), nil
}

// laneOf asks the sink for the lane of a change that may have a topic of its own.
func (p *Pipeline) laneOf(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		return p.sink.Lane(c)
	}
	router, ok := p.sink.(sinks.Router)
	if !ok {
		return "", fmt.Errorf("routed to the topic %s, and this sink knows one place only", topic)
	}
	return router.LaneTo(c, topic)
}

// awaitRoom waits until the window may have room. After a while it makes room, where lanes hold the window while others
// could go on.
func (p *Pipeline) awaitRoom(ctx context.Context, patience time.Duration) error {
	if patience <= 0 {
		if p.gate.Status().State == ratelimit.Open && p.backlog.spill() > 0 {
			return nil
		}
		patience = spillAfter
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.backlog.room:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// awaitEmpty waits until everything read is settled.
func (p *Pipeline) awaitEmpty(ctx context.Context) error {
	p.schedule()
	for !p.backlog.empty() {
		select {
		case <-p.backlog.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
