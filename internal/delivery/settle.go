package delivery

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// settleTimeout bounds one write of the cursor, a local write, so that stopping cannot hang on it.
const settleTimeout = 10 * time.Second

const (
	// laneIdleTimeout is for how long a lane has nothing to do before it is forgotten; it may be twice as long.
	laneIdleTimeout = time.Minute

	// cursorBytesPerSecond bounds what is written of a cursor, which is long where lanes are many, in bytes a second.
	cursorBytesPerSecond = 2 << 20
)

// settleRegularly stores progress every SettleInterval until ctx ends, and sees to what else is to be done now and then. A
// journal that cannot store is not a reason to stop: delivery goes on until the window is full of dead letters, at worst
// sending more again after a crash, and the next interval tries again.
func (p *Pipeline) settleRegularly(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.SettleInterval)
	defer ticker.Stop()
	forget := time.NewTicker(laneIdleTimeout)
	defer forget.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if next := p.nextSettle.Load(); next == nil || !now.Before(*next) {
				p.health.recordStore(p.storeIfAdvanced(ctx))
			}
			p.applyRepartitions()
			p.updateHealth(now)
		case <-forget.C:
			p.removeIdleLanes()
		}
	}
}

// updateHealth says how the sink is doing.
func (p *Pipeline) updateHealth(now time.Time) {
	var s Stats
	p.backlog.fillStats(&s)
	p.health.updateCondition(s, p.gate.Status())
	p.digest.writeIfDue(now, s.Truncated)
}

// removeIdleLanes lets go of lanes that are idle.
func (p *Pipeline) removeIdleLanes() {
	p.health.removeRecoveredLanes()
	p.laneMu.Lock()
	defer p.laneMu.Unlock()
	idle := p.backlog.removeIdleLanes()
	if f, ok := p.sink.(sinks.LaneReleaser); ok && len(idle) > 0 {
		f.ReleaseLanes(idle)
	}
}

// storeIfAdvanced stores progress when there is any.
func (p *Pipeline) storeIfAdvanced(ctx context.Context) error {
	if !p.backlog.hasAdvanced() {
		return nil
	}
	return p.storeProgress(ctx)
}

// storeProgress stores the cursor, the dead letters it passes (I2) and the sink's state, all as they are now or later, in one
// write. Many lanes may ask at once; those that wait for the same write share it.
func (p *Pipeline) storeProgress(ctx context.Context) error {
	asked := p.storeRequests.Add(1)
	p.storeMu.Lock() // an older snapshot must not be stored after a newer one
	defer p.storeMu.Unlock()
	if p.storesCovered >= asked {
		return nil
	}
	answers := p.storeRequests.Load()
	if err := p.writeSnapshot(ctx); err != nil {
		return err
	}
	p.storesCovered = answers
	return nil
}

func (p *Pipeline) writeSnapshot(ctx context.Context) error {
	cursor, dead := p.backlog.takeSnapshot()
	cursor.State = p.encodeState(cursor.Low) // after the snapshot: it may know of more than the cursor, never of less
	// Not cut short by a stop: a write that is half done is worth its last milliseconds.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := p.journal.Settle(ctx, cursor, dead); err != nil {
		p.backlog.recordNotStored()
		return p.journalError(fmt.Sprintf("store the cursor at offset %d and %d dead letters", cursor.Low, len(dead)), err)
	}
	p.backlog.recordStored(cursor, len(dead))
	if s, ok := p.sink.(sinks.SettleObserver); ok {
		s.ObserveSettled(cursor.Low)
	}
	next := time.Now().Add(time.Duration(cursorSize(cursor)) * time.Second / cursorBytesPerSecond)
	p.nextSettle.Store(&next)
	return nil
}

// cursorSize is about how many bytes a cursor takes.
func cursorSize(c event.Cursor) int {
	n := len(c.State)
	for name := range c.Lanes {
		n += len(name) + binary.MaxVarintLen32
	}
	return n
}
