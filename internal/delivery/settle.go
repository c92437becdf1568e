package delivery

import (
	"context"
	"fmt"
	"time"
)

// settleTimeout bounds one write of the cursor, a local write, so that stopping cannot hang on it.
const settleTimeout = 10 * time.Second

// settleRegularly stores progress every SettleInterval until ctx ends. A journal that cannot store is not a reason to
// stop: delivery goes on until the window is full of dead letters, at worst sending more again after a crash, and the
// next interval tries again.
func (p *Pipeline) settleRegularly(ctx context.Context) {
	ticker := time.NewTicker(p.cfg.SettleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			p.health.settled(p.settle(ctx))
			p.health.tick(now)
		}
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
	return nil
}
