package delivery

import (
	"context"
	"fmt"
)

// catchUpLanes reads again what lanes that are behind lack, until ctx ends. An error is one of the journal.
func (p *Pipeline) catchUpLanes(ctx context.Context) error {
	for ctx.Err() == nil {
		after, ok := p.backlog.nextReread()
		if !ok {
			select {
			case <-p.backlog.rereadReady:
			case <-ctx.Done():
			}
			continue
		}
		if err := p.reloadFrame(ctx, after); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// reloadFrame loads from one frame what its lanes lack.
func (p *Pipeline) reloadFrame(ctx context.Context, after uint64) error {
	records, err := p.journal.Read(ctx, after)
	if err != nil {
		return p.journalError(fmt.Sprintf("read the journal again after offset %d", after), err)
	}
	for _, r := range records {
		if lanes, yes := p.backlog.finishAtReadPosition(r.Offset); yes {
			p.enqueueLanes(lanes)
			return nil
		}
		if err := p.reloadChange(r); err != nil {
			return err
		}
	}
	p.enqueueLanes(p.backlog.finishFrame(records[len(records)-1].Offset))
	return nil
}

func (p *Pipeline) enqueueLanes(lanes []*lane) {
	for _, l := range lanes {
		p.queue.Add(l)
	}
}
