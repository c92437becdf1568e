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
	// scheduleBatch bounds how many changes are queued before the workers hear of them. Handing lanes over in groups lets a
	// worker take several changes of a lane at once, which costs the destination and us less than one by one.
	scheduleBatch = 256

	// spillDelay is how long a change waits for room before lanes that hold the window alone fall behind.
	spillDelay = 200 * time.Millisecond

	// unroutableLane is the lane of changes that the sink is not to see. All of them become dead letters.
	unroutableLane sinks.Lane = ""
)

// dispatchChanges reads the journal in order and queues each change with its lane. It returns nil when a drain is complete.
func (p *Pipeline) dispatchChanges(ctx context.Context) error {
	reading, interrupt := context.WithCancel(ctx)
	defer interrupt()
	defer context.AfterFunc(p.draining, interrupt)()
	for !p.isReadUpToDrain() {
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
	return p.awaitAllSettled(ctx)
}

// dispatchFrame queues what one read of the journal returns.
func (p *Pipeline) dispatchFrame(ctx context.Context) error {
	position := p.backlog.readPosition()
	records, err := p.journal.Read(ctx, position)
	if err != nil {
		return p.journalError(fmt.Sprintf("read the journal after offset %d", position), err)
	}
	defer p.scheduleActiveLanes()
	for _, r := range records {
		if r.Offset <= position {
			return p.journalError("read the journal", fmt.Errorf("offset %d follows %d: offsets must ascend", r.Offset, position))
		}
		position = r.Offset
		if err := p.admitChange(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// scheduleActiveLanes hands the lanes that have become active to the workers. It is called before every wait, so that what is
// queued is delivered meanwhile.
func (p *Pipeline) scheduleActiveLanes() {
	p.enqueueLanes(p.toSchedule)
	p.toSchedule = p.toSchedule[:0]
}

// admitChange queues one change with its lane, waiting for room in the window.
func (p *Pipeline) admitChange(ctx context.Context, r event.Record) error {
	to := p.routeOf(r.Change)
	if to.Skip {
		p.backlog.recordNotRouted(r.Offset)
		return nil
	}
	var since time.Time // of the wait
	for {
		active, ok, err := p.enqueueChange(r, to.Topic)
		if err != nil {
			return err
		}
		if active != nil {
			p.toSchedule = append(p.toSchedule, active)
			if len(p.toSchedule) == scheduleBatch {
				p.scheduleActiveLanes()
			}
		}
		if ok {
			return nil
		}
		if since.IsZero() {
			since = time.Now()
		}
		p.scheduleActiveLanes()
		if err := p.awaitSpace(ctx, time.Until(since.Add(spillDelay))); err != nil {
			return err
		}
	}
}

// enqueueChange names the lane of a change and adds the change to the backlog. Nothing comes between the two: a lane that has
// just been replaced must not get another change.
func (p *Pipeline) enqueueChange(r event.Record, topic *sinks.Template) (active *lane, ok bool, err error) {
	p.laneMu.Lock()
	defer p.laneMu.Unlock()
	name, e, err := p.resolveLane(r, topic)
	if err != nil {
		return nil, false, err
	}
	if p.isAlreadyDelivered(name, r.Change) {
		p.backlog.recordDeliveredBefore(r.Offset)
		return nil, true, nil
	}
	active, ok = p.backlog.addChange(name, e)
	return active, ok, nil
}

// isAlreadyDelivered says whether the destination has a change from a process before.
func (p *Pipeline) isAlreadyDelivered(lane sinks.Lane, c *event.Change) bool {
	return p.cfg.AlreadyDelivered != nil && lane != unroutableLane && p.cfg.AlreadyDelivered(lane, c)
}

// reloadChange names the lane of a change that was read again and gives the change to it, if it lacks it.
func (p *Pipeline) reloadChange(r event.Record) error {
	to := p.routeOf(r.Change)
	if to.Skip {
		return nil
	}
	p.laneMu.Lock()
	defer p.laneMu.Unlock()
	name, e, err := p.resolveLane(r, to.Topic)
	if err != nil {
		return err
	}
	if p.isAlreadyDelivered(name, r.Change) {
		return nil
	}
	if l := p.backlog.reloadEntry(name, e); l != nil {
		p.queue.Add(l)
	}
	return nil
}

// routeOf says whether a change is for this sink, and for which topic.
func (p *Pipeline) routeOf(c *event.Change) Route {
	if p.cfg.Route == nil {
		return Route{}
	}
	return p.cfg.Route(c)
}

// resolveLane says which lane a change goes to, and as what. The caller holds p.naming. An error is a defect of the sink.
func (p *Pipeline) resolveLane(r event.Record, topic *sinks.Template) (sinks.Lane, entry, error) {
	if r.Change.Withheld != "" {
		return unroutableLane, newEntry(r, nil, &sinks.RejectedError{Reason: "withheld: " + r.Change.Withheld}), nil
	}
	name, err := p.askSinkForLane(r.Change, topic)
	if err == nil {
		return name, newEntry(r, topic, nil), nil
	}
	var never *sinks.RejectedError
	if !errors.As(err, &never) {
		return "", entry{}, fmt.Errorf("sink %q: defect: no lane for the change at offset %d: %w", p.sinkName, r.Offset, err)
	}
	return unroutableLane, newEntry(r, nil, err), nil
}

// askSinkForLane asks the sink for the lane of a change that may have a topic of its own.
func (p *Pipeline) askSinkForLane(c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if topic == nil {
		return p.sink.Lane(c)
	}
	router, ok := p.sink.(sinks.Router)
	if !ok {
		return "", fmt.Errorf("routed to the topic %s, and this sink knows one place only", topic)
	}
	return router.LaneTo(c, topic)
}

// awaitSpace waits until the window may have room. After a while it makes room, where lanes hold the window while others
// could go on.
func (p *Pipeline) awaitSpace(ctx context.Context, patience time.Duration) error {
	if patience <= 0 {
		if p.gate.Status().State == ratelimit.Open && p.backlog.spillSlowLanes() > 0 {
			return nil
		}
		patience = spillDelay
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.backlog.spaceFreed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// awaitAllSettled waits until everything read is settled.
func (p *Pipeline) awaitAllSettled(ctx context.Context) error {
	p.scheduleActiveLanes()
	for !p.backlog.isAllSettled() {
		select {
		case <-p.backlog.spaceFreed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
