package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// deliver runs the pipeline, and another one that begins further back whenever the destination has lost what it had
// accepted.
func (r *runner) deliver(ctx context.Context) error {
	if r.await != nil {
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	for {
		err := r.current().Run(ctx)
		var lost *sinks.LostError
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		start, err := r.rewind(ctx, lost)
		if err != nil {
			return err
		}
		r.replace(r.renew(start))
	}
}

// rewind stores a cursor from which everything that may be lost is published again.
func (r *runner) rewind(ctx context.Context, lost *sinks.LostError) (event.Cursor, error) {
	cursor, _, err := r.journal.journal.Cursor(r.name)
	if err != nil {
		return event.Cursor{}, err
	}
	from, oldest := min(lost.From, cursor.Low), r.journal.journal.Oldest()
	if from+1 < oldest {
		r.log.Error("the destination may have lost changes that are not in the journal any more; a longer journal.keep would have them",
			"after", from, "before", oldest)
		from = oldest - 1
	}
	r.log.Warn("the destination lost changes that it had accepted; they are sent again", "reason", lost.Reason, "after", from, "upTo", cursor.Low)
	back := event.Cursor{Low: from, Layout: cursor.Layout, State: cursor.State}
	if err := r.journal.Settle(ctx, back, nil); err != nil {
		return event.Cursor{}, fmt.Errorf("rewind to offset %d: %w", from, err)
	}
	if r.fenced {
		return back, restoreEmpty(r.sink)
	}
	return back, nil
}

func (r *runner) current() *delivery.Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pipeline
}

// replace puts another pipeline in the place of one that has ended.
func (r *runner) replace(p *delivery.Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipeline = p
	r.rewinds++
	if r.draining != nil {
		p.Drain(*r.draining)
	}
}

// losses counts how often the destination had lost what it had accepted.
func (r *runner) losses() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rewinds
}

// drain lets a running pipeline end once everything up to an offset is settled.
func (r *runner) drain(upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.delivering != nil && r.draining == nil {
		r.draining = &upTo
		r.pipeline.Drain(upTo)
	}
}
