package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// runPipelines runs the pipeline, and another one that begins further back whenever the destination has lost what it had
// accepted.
func (r *runner) runPipelines(ctx context.Context) error {
	if r.awaitFenced != nil {
		if err := r.awaitFenced(ctx); err != nil {
			return err
		}
	}
	for {
		err := r.currentPipeline().Run(ctx)
		var lost *sinks.LostError
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return err
		}
		start, err := r.rewindCursor(ctx, lost)
		if err != nil {
			return err
		}
		r.replacePipeline(r.newPipeline(start))
	}
}

// rewindCursor stores a cursor from which everything that may be lost is published again.
func (r *runner) rewindCursor(ctx context.Context, lost *sinks.LostError) (event.Cursor, error) {
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
		return back, restoreWithoutState(r.sink)
	}
	return back, nil
}

func (r *runner) currentPipeline() *delivery.Pipeline {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pipeline
}

// replacePipeline puts another pipeline in the place of one that has ended.
func (r *runner) replacePipeline(p *delivery.Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pipeline = p
	r.rewindCount++
	if r.drainTarget != nil {
		p.Drain(*r.drainTarget)
	}
}

// lossCount counts how often the destination had lost what it had accepted.
func (r *runner) lossCount() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rewindCount
}

// drainUpTo lets a running pipeline end once everything up to an offset is settled.
func (r *runner) drainUpTo(upTo uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deliveryTask != nil && r.drainTarget == nil {
		r.drainTarget = &upTo
		r.pipeline.Drain(upTo)
	}
}
