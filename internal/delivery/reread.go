package delivery

import (
	"context"
	"fmt"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// A lane that fails, or that holds the window while others are idle, lags: its queue is dropped and its changes stay in the
// journal, so that it costs the other lanes nothing however long that takes. When it may publish again, its changes are
// read from the journal until it has caught up with the dispatcher.

// leastLaggingRatio: a lane that lacks this many times less than the one that lags most is loaded without waiting for it.
const leastLaggingRatio = 4

// catchUpReader reads from the journal again what lagging lanes lack. One goroutine runs it.
type catchUpReader struct {
	sinkName string
	journal  Journal
	plan     *rereadPlan
	resolver *laneResolver
	queue    *laneQueue
}

// run loads lagging lanes until ctx ends. Its error is one of the journal, or a defect of the sink.
func (r *catchUpReader) run(ctx context.Context) error {
	for ctx.Err() == nil {
		after, ok := r.plan.nextRead()
		if !ok {
			select {
			case <-r.plan.lanes.rereadReady:
			case <-ctx.Done():
			}
			continue
		}
		if err := r.reloadFrame(ctx, after); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// reloadFrame loads from one frame what its lanes lack.
func (r *catchUpReader) reloadFrame(ctx context.Context, after uint64) error {
	records, err := r.journal.Read(ctx, after)
	if err != nil {
		return journalError(r.sinkName, fmt.Sprintf("read the journal again after offset %d", after), err)
	}
	for _, record := range records {
		if lanes, finished := r.plan.finishAtReadPosition(record.Offset); finished {
			r.queue.addLanes(lanes...)
			return nil
		}
		if err := r.reloadChange(record); err != nil {
			return err
		}
	}
	r.queue.addLanes(r.plan.finishFrame(records[len(records)-1].Offset)...)
	return nil
}

// reloadChange gives a change that was read again to its lane, if that lacks it.
func (r *catchUpReader) reloadChange(record event.Record) error {
	to := r.resolver.routeOf(record.Change)
	if to.Skip {
		return nil
	}
	r.resolver.mu.Lock()
	defer r.resolver.mu.Unlock()
	all, err := r.resolver.resolveLanes(record, to)
	if err != nil {
		return err
	}
	for _, p := range all {
		if r.resolver.isAlreadyDelivered(p) {
			continue
		}
		if l := r.plan.reloadEntry(p.lane, p.entry); l != nil {
			r.queue.addLanes(l)
		}
	}
	return nil
}

// rereadPlan decides what the catch-up reader reads next and which lanes get it. A pass reads one frame for all lanes that
// lack something from its start on.
type rereadPlan struct {
	mu    *sync.Mutex // backlog.mu; guards the following
	lanes *laneTable

	pass              uint64 // number of the current pass; a lane that carries another number is not loaded by it
	choseLeastLagging bool   // the last pass was for the lane that lags least
}

func newRereadPlan(b *backlog) *rereadPlan { return &rereadPlan{mu: &b.mu, lanes: &b.lanes} }

// nextRead chooses the offset after which to read, and the lanes that the pass loads. It returns false if there is nothing
// to read or no space for it: wait for lanes.rereadReady. The lane that lags most is chosen, because one pass serves all
// lanes that lag less. Only a lane that is nearly done in comparison gets every second pass and does not wait for the
// others.
func (p *rereadPlan) nextRead() (after uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.lanes
	if t.window.isRereadBlocked() {
		return 0, false
	}
	first, last := uint64(0), uint64(0)
	for l := range t.catchingUp {
		if p.needsReload(l) {
			last = max(last, l.lagsFrom)
			if first == 0 || l.lagsFrom < first {
				first = l.lagsFrom
			}
		}
	}
	if first == 0 {
		return 0, false
	}
	p.choseLeastLagging = !p.choseLeastLagging && leastLaggingRatio*(t.read-min(last, t.read)) < t.read-first
	from := first
	if p.choseLeastLagging {
		from = last
	}
	p.pass++
	for l := range t.catchingUp {
		if p.needsReload(l) && l.lagsFrom >= from {
			l.pass = p.pass
		}
	}
	return from - 1, true
}

// needsReload reports whether l has less in memory than half of its share. Requires mu.
func (p *rereadPlan) needsReload(l *lane) bool { return l.queue.bytes <= p.catchUpShare()/2 }

// catchUpShare returns how many bytes of one lane are loaded before they are published. Requires mu.
func (p *rereadPlan) catchUpShare() int64 {
	return p.lanes.window.catchUpShare(len(p.lanes.catchingUp))
}

// finishAtReadPosition ends the pass if the dispatcher has not read up to this offset: the lanes get what follows from the
// dispatcher. It returns the lanes that the caller must add to the workqueue.
func (p *rereadPlan) finishAtReadPosition(offset uint64) (schedule []*lane, finished bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if offset <= p.lanes.read {
		return nil, false
	}
	return p.finishPass(offset - 1), true
}

// reloadEntry queues a change that was read again if the pass loads its lane and the lane lacks it. If it returns a lane,
// the caller must add that to the workqueue.
func (p *rereadPlan) reloadEntry(name sinks.Lane, e entry) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.lanes
	l := t.byName[name]
	if l == nil || l.pass != p.pass || e.offset < l.lagsFrom || t.isDeadLetter(e) {
		return nil
	}
	l.lagObserved = e.change.ObservedAt
	size := int64(e.size)
	w := &t.window
	tooMany := w.catchUp > w.limit()/4 && w.catchUp+size > w.limit()/2 // for the lanes that catch up
	if tooMany || !p.needsReload(l) && l.queue.bytes+size > p.catchUpShare() {
		l.lagsFrom, l.pass = e.offset, 0
		return p.claimReloaded(l)
	}
	t.queueEntry(l, e.withOwnChange())
	if l.lagsFrom = e.offset + 1; l.lagsFrom > t.read {
		t.stopLagging(l)
	}
	if l.state.isFailing() {
		if e.offset < l.retryUpTo && l.lagsFrom > 0 {
			return nil // the retry needs more changes than these
		}
		l.pass = 0
	}
	return p.claimReloaded(l)
}

// claimReloaded schedules a lane that has as much as it gets for now, if it may publish. Requires mu.
func (p *rereadPlan) claimReloaded(l *lane) *lane {
	if !l.state.isFailing() {
		return p.lanes.claimSchedule(l)
	}
	if l.state.isScheduled() || l.paused || l.queue.entryCount() == 0 {
		return nil
	}
	l.retryUpTo = min(l.retryUpTo, l.queue.newestOffset())
	p.lanes.become(l, backingOff)
	return l
}

// finishFrame ends the pass at the end of its frame. It returns the lanes that the caller must add to the workqueue.
func (p *rereadPlan) finishFrame(last uint64) (schedule []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.finishPass(last)
}

// finishPass records that the lanes of the pass lack nothing up to an offset. Requires mu.
func (p *rereadPlan) finishPass(last uint64) (schedule []*lane) {
	t := p.lanes
	for l := range t.catchingUp {
		if l.pass == p.pass {
			l.pass = 0
			l.lagsFrom = max(l.lagsFrom, last+1)
			if l.lagsFrom > t.read {
				t.stopLagging(l)
			}
		}
		// A failing lane waits for all changes of its retry, unless there is no space for them: then it retries with fewer.
		if l.lagsFrom == 0 || !l.state.isFailing() || t.window.isRereadBlocked() || !p.needsReload(l) {
			if s := p.claimReloaded(l); s != nil {
				schedule = append(schedule, s)
			}
		}
	}
	return schedule
}
