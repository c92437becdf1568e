package journal

import (
	"context"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Declare adds a sink while the journal runs, as Options.Sinks does at Open: it begins with the oldest change that there is, and
// holds the trim. Durable when it returns nil. For a sink that is declared it does nothing.
func (j *Journal) Declare(ctx context.Context, sink string) error {
	return j.submit(ctx, func(g *group) error {
		state := g.sink(sink)
		state.declared = true
		g.sinks[sink] = state
		return nil
	}, nil)
}

// Withdraw takes a sink back, whose pipeline has ended: its cursor is forgotten, and it does not hold the trim any more. Its dead
// letters stay.
func (j *Journal) Withdraw(ctx context.Context, sink string) error {
	return j.submit(ctx, func(g *group) error {
		state := g.sink(sink)
		if state.settled {
			j.opts.Logger.Warn("journal: dropped the cursor of a sink that is not configured any more", "sink", sink, "offset", state.cursor.Low)
			g.delete(codec.KeyCursor(sink))
		}
		state.declared, state.settled, state.cursor = false, false, event.Cursor{}
		g.sinks[sink] = state
		return nil
	}, nil)
}

// SetRedaction remembers what Rewrite would, where nothing that is stored has to be rewritten for it. Durable when it returns nil.
func (j *Journal) SetRedaction(ctx context.Context, redaction string) error {
	return j.setText(ctx, codec.KeyRedaction, redaction)
}
