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
	// forgetAfter is for how long a lane has nothing to do before it is forgotten; it may be twice as long.
	forgetAfter = time.Minute

	// cursorPace bounds what is written of a cursor, which is long where lanes are many, in bytes a second.
	cursorPace = 2 << 20
)

// settleRegularly stores progress every SettleInterval until ctx ends, and sees to what else is to be done now and then. A
// journal that cannot store is not a reason to stop: delivery goes on until the window is full of dead letters, at worst
// sending more again after a crash, and the next interval tries again.
func (p *Pipeline) settleRegularly(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.SettleInterval)
	defer ticker.Stop()
	forget := time.NewTicker(forgetAfter)
	defer forget.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if next := p.settleNext.Load(); next == nil || !now.Before(*next) {
				p.health.settled(p.settle(ctx))
			}
			p.repartition()
			p.decide(now)
		case <-forget.C:
			p.forget()
		}
	}
}

// decide says how the sink is doing.
func (p *Pipeline) decide(now time.Time) {
	var s Stats
	p.backlog.describe(&s)
	p.health.decide(s, p.gate.Status())
	p.digest.write(now, s.Reduced)
}

// forget lets go of lanes that are idle.
func (p *Pipeline) forget() {
	p.health.prune()
	p.naming.Lock()
	defer p.naming.Unlock()
	idle := p.backlog.forgetIdle()
	if f, ok := p.sink.(sinks.Forgetter); ok && len(idle) > 0 {
		f.Forget(idle)
	}
}

// settle stores progress when there is any.
func (p *Pipeline) settle(ctx context.Context) error {
	if !p.backlog.advanced() {
		return nil
	}
	return p.store(ctx)
}

// store stores the cursor, the dead letters it passes (I2) and the sink's state, all as they are now or later, in one
// write. Many lanes may ask at once; those that wait for the same write share it.
func (p *Pipeline) store(ctx context.Context) error {
	asked := p.asked.Add(1)
	p.storing.Lock() // an older snapshot must not be stored after a newer one
	defer p.storing.Unlock()
	if p.answered >= asked {
		return nil
	}
	answers := p.asked.Load()
	if err := p.write(ctx); err != nil {
		return err
	}
	p.answered = answers
	return nil
}

func (p *Pipeline) write(ctx context.Context) error {
	cursor, dead := p.backlog.snapshot()
	cursor.State = p.state(cursor.Low) // after the snapshot: it may know of more than the cursor, never of less
	// Not cut short by a stop: a write that is half done is worth its last milliseconds.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := p.journal.Settle(ctx, cursor, dead); err != nil {
		p.backlog.notStored()
		return p.journalError(fmt.Sprintf("store the cursor at offset %d and %d dead letters", cursor.Low, len(dead)), err)
	}
	p.backlog.stored(cursor, len(dead))
	if s, ok := p.sink.(sinks.Settler); ok {
		s.Settled(cursor.Low)
	}
	next := time.Now().Add(time.Duration(sizeOf(cursor)) * time.Second / cursorPace)
	p.settleNext.Store(&next)
	return nil
}

// sizeOf is about how many bytes a cursor takes.
func sizeOf(c event.Cursor) int {
	n := len(c.State)
	for name := range c.Lanes {
		n += len(name) + binary.MaxVarintLen32
	}
	return n
}
