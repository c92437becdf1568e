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

// settle stores the cursor and the dead letters it passes in one write (I2), when there is anything new. Called by one
// goroutine at a time.
func (p *Pipeline) settle(ctx context.Context) error {
	cursor, dead, changed := p.backlog.snapshot()
	if !changed {
		return nil
	}
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
