package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// deliver runs the pipeline, and another one that begins further back whenever the destination has lost what it had
// accepted.
func (o *outlet) deliver(ctx context.Context) error {
	for {
		err := o.current().Run(ctx)
		var lost *sinks.LostError
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		start, err := o.goBack(ctx, lost)
		if err != nil {
			return err
		}
		o.replace(o.renew(start))
	}
}

// goBack stores a cursor from which everything that may be lost is published again.
func (o *outlet) goBack(ctx context.Context, lost *sinks.LostError) (delivery.Cursor, error) {
	cursor, _, err := o.journal.journal.Cursor(o.name)
	if err != nil {
		return delivery.Cursor{}, err
	}
	from, oldest := min(lost.From, cursor.Low), o.journal.journal.Oldest()
	if from+1 < oldest {
		o.log.Error("the destination may have lost changes that are not in the journal any more; a longer journal.keep would have them",
			"after", from, "before", oldest)
		from = oldest - 1
	}
	o.log.Warn("the destination lost changes that it had accepted; they are sent again", "reason", lost.Reason, "after", from, "upTo", cursor.Low)
	back := delivery.Cursor{Low: from, Layout: cursor.Layout, State: cursor.State}
	if err := o.journal.Settle(ctx, back, nil); err != nil {
		return delivery.Cursor{}, fmt.Errorf("go back to offset %d: %w", from, err)
	}
	return back, nil
}

func (o *outlet) current() *delivery.Pipeline {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pipeline
}

// replace puts another pipeline in the place of one that has ended.
func (o *outlet) replace(p *delivery.Pipeline) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pipeline = p
	o.wentBack++
	if o.draining != nil {
		p.Drain(*o.draining)
	}
}

// losses counts how often the destination had lost what it had accepted.
func (o *outlet) losses() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wentBack
}

// drain lets a running pipeline end once everything up to an offset is settled.
func (o *outlet) drain(upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.part != nil && o.draining == nil {
		o.draining = &upTo
		o.pipeline.Drain(upTo)
	}
}
