package delivery

import (
	"context"
	"fmt"
)

// catchUp reads again what lanes that are behind lack, until ctx ends. An error is one of the journal.
func (p *Pipeline) catchUp(ctx context.Context) error {
	for ctx.Err() == nil {
		after, ok := p.backlog.due()
		if !ok {
			select {
			case <-p.backlog.reread:
			case <-ctx.Done():
			}
			continue
		}
		if err := p.readAgain(ctx, after); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// readAgain loads from one frame what its lanes lack.
func (p *Pipeline) readAgain(ctx context.Context, after uint64) error {
	records, err := p.journal.Read(ctx, after)
	if err != nil {
		return p.journalError(fmt.Sprintf("read the journal again after offset %d", after), err)
	}
	for _, r := range records {
		if lanes, yes := p.backlog.beyond(r.Offset); yes {
			p.hand(lanes)
			return nil
		}
		if err := p.reload(r); err != nil {
			return err
		}
	}
	p.hand(p.backlog.loaded(records[len(records)-1].Offset))
	return nil
}

func (p *Pipeline) hand(lanes []*lane) {
	for _, l := range lanes {
		p.queue.Add(l)
	}
}
