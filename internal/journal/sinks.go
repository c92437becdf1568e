package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// AddSink adds a sink while the journal runs, as Options.Sinks does at Open: it begins with the oldest change that there is,
// and holds the trim. Durable when it returns nil. For a sink that is declared it does nothing.
func (j *Journal) AddSink(ctx context.Context, sink string) error {
	return j.submitRequest(ctx, func(g *group) error {
		state := g.sinkState(sink)
		state.declared = true
		g.sinks[sink] = state
		return nil
	}, nil)
}

// RemoveSink takes a sink back, whose pipeline has ended: its cursor is forgotten, and it does not hold the trim any more. Its
// dead letters stay.
func (j *Journal) RemoveSink(ctx context.Context, sink string) error {
	return j.submitRequest(ctx, func(g *group) error {
		state := g.sinkState(sink)
		if state.settled {
			j.opts.Logger.Warn("journal: dropped the cursor of a sink that is not configured any more", "sink", sink, "offset", state.cursor.Low)
			g.deleteKey(codec.KeyCursor(sink))
		}
		state.declared, state.settled, state.cursor = false, false, event.Cursor{}
		g.sinks[sink] = state
		return nil
	}, nil)
}

// Cursor returns how far a sink got, as last settled. The second result is false for a sink that never settled anything.
func (j *Journal) Cursor(sink string) (event.Cursor, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.sinks[sink]
	if !s.declared {
		return event.Cursor{}, false, fmt.Errorf("journal: sink %q is not declared", sink)
	}
	return s.cursor.Normalize(), s.settled, nil
}

// Settle stores how far a declared sink got, and the changes it gave up on, in one atomic write; both are durable when it
// returns nil (I2). A cursor may go back, to publish again, but not below what is trimmed, and never past the newest
// change. When ctx ends first the outcome is unknown, and settling again is harmless.
func (j *Journal) Settle(ctx context.Context, sink string, c event.Cursor, dead []event.DeadLetter) error {
	c = c.Normalize()
	return j.submitRequest(ctx, func(g *group) error { return g.settleSink(sink, c, dead) }, nil)
}

func (g *group) settleSink(sink string, c event.Cursor, dead []event.DeadLetter) error {
	state := g.sinkState(sink)
	if err := g.checkSettlement(state, c, dead); err != nil {
		return fmt.Errorf("journal: settle for sink %q: %w", sink, err)
	}
	for i := range dead {
		key, value := codec.KeyDeadLetter(sink, dead[i].Offset), codec.EncodeDeadLetter(g.packer, &dead[i])
		before, err := g.deadLetterSize(key)
		if err != nil {
			return g.j.checkCorruption("settle", err)
		}
		if before == 0 {
			state.deadLetters++
		}
		g.setKey(key, value)
		size := int64(len(key) + len(value))
		g.deadLetterSizes[string(key)] = size
		state.deadBytes += size - before
	}
	g.setKey(codec.KeyCursor(sink), codec.EncodeCursor(c))
	state.cursor, state.settled = c, true
	g.sinks[sink] = state
	return nil
}

// checkSettlement refuses a settlement that contradicts the log. It compares with what is committed: nothing newer can be read.
func (g *group) checkSettlement(state sinkState, c event.Cursor, dead []event.DeadLetter) error {
	newest := g.j.Newest()
	switch {
	case !state.declared:
		return errors.New("not declared")
	case c.HighestOffset() > newest:
		return fmt.Errorf("cursor %d is past the newest change %d", c.HighestOffset(), newest)
	case c.Low+1 < g.ext.oldest:
		return fmt.Errorf("cursor %d is below the oldest change %d", c.Low, g.ext.oldest)
	}
	for _, d := range dead {
		if d.Change == nil || d.Offset == 0 || d.Offset > newest {
			return fmt.Errorf("dead letter %d names no change of the journal", d.Offset)
		}
	}
	return nil
}

// deadLetterSize returns the stored bytes of a dead letter as it is in this group, 0 when there is none. A sink that was killed
// before its cursor was stored, or went back, gives up on the same change twice.
func (g *group) deadLetterSize(key []byte) (int64, error) {
	if size, ok := g.deadLetterSizes[string(key)]; ok {
		return size, nil
	}
	value, err := g.j.getValue(key)
	if err != nil || value == nil {
		return 0, err
	}
	return int64(len(key) + len(value)), nil
}

// NewestDeadLetters returns at most so many dead letters of a sink, that with the highest offset first. It reads the disk. A
// sink that is not known has none.
func (j *Journal) NewestDeadLetters(sink string, most int) ([]event.DeadLetter, error) {
	done, err := j.acquireStore()
	if err != nil {
		return nil, err
	}
	defer done()
	newest, err := j.newestDeadLetters(sink, most)
	return newest, j.checkCorruption(fmt.Sprintf("dead letters of sink %q", sink), err)
}

func (r storeReader) newestDeadLetters(sink string, most int) (newest []event.DeadLetter, err error) {
	it, err := r.newPrefixIter(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.Last(); it.Valid() && len(newest) < most; it.Prev() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		d, err := r.decodeDeadLetter(it.Key(), value)
		if err != nil {
			return nil, err
		}
		newest = append(newest, d)
	}
	return newest, it.Error()
}
