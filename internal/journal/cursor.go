package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Cursor says how far a sink got. A change is settled when the sink's destination has acknowledged it or it is
// dead-lettered (I2).
type Cursor struct {
	Low    uint64            // every change up to here is settled: what follows is kept
	High   uint64            // every change up to here is settled, but for those of Lanes; below Low it counts as Low
	Lanes  map[string]uint64 // by lane: every change of the lane up to here is settled; only where that is not High
	Layout string            // fingerprint of the sink's routing; Lanes and High say nothing under another one
	State  []byte            // what the sink asked to have stored with exactly these positions; may be nil
}

// newest returns the highest offset the cursor speaks of.
func (c Cursor) newest() uint64 {
	n := max(c.Low, c.High)
	for _, offset := range c.Lanes {
		n = max(n, offset)
	}
	return n
}

// normal returns a copy without lanes that say no more than High.
func (c Cursor) normal() Cursor {
	c.High = max(c.High, c.Low)
	c.Lanes = maps.Clone(c.Lanes)
	maps.DeleteFunc(c.Lanes, func(_ string, offset uint64) bool { return offset == c.High })
	if len(c.Lanes) == 0 {
		c.Lanes = nil
	}
	return c
}

// DeadLetter is a change that a sink gave up on, with the reason. It stays until it is purged.
type DeadLetter struct {
	Offset uint64
	Time   time.Time // when it was given up
	Reason string    // one line for people
	Change *event.Change
}

// Cursor returns how far a sink got, as last settled. The second result is false for a sink that never settled anything.
func (j *Journal) Cursor(sink string) (Cursor, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.sinks[sink]
	if !s.declared {
		return Cursor{}, false, fmt.Errorf("journal: sink %q is not declared", sink)
	}
	return s.cursor.normal(), s.settled, nil
}

// Settle stores how far a declared sink got, and the changes it gave up on, in one atomic write; both are durable when it
// returns nil (I2). A cursor may go back, to publish again, but not below what is trimmed, and never past the newest
// change. When ctx ends first the outcome is unknown, and settling again is harmless.
func (j *Journal) Settle(ctx context.Context, sink string, c Cursor, dead []DeadLetter) error {
	return j.submit(ctx, &settlement{sink: sink, cursor: c.normal(), dead: dead})
}

type settlement struct {
	sink   string
	cursor Cursor
	dead   []DeadLetter
}

func (s *settlement) addTo(g *group) error {
	if err := s.check(g); err != nil {
		return fmt.Errorf("journal: settle for sink %q: %w", s.sink, err)
	}
	state := g.sink(s.sink)
	for i := range s.dead {
		d := &s.dead[i]
		key, value := keyDead(s.sink, d.Offset), encodeDead(g.packer, d)
		before, err := g.deadSize(key)
		if err != nil {
			return g.j.checked("settle", err)
		}
		if before == 0 {
			state.dead++
		}
		g.set(key, value)
		size := int64(len(key) + len(value))
		g.dead[string(key)] = size
		state.deadBytes += size - before
	}
	g.set(keyCursor(s.sink), encodeCursor(s.cursor))
	state.cursor, state.settled = s.cursor, true
	g.sinks[s.sink] = state
	return nil
}

// check refuses a settlement that contradicts the log. It compares with what is committed: nothing newer can be read.
func (s *settlement) check(g *group) error {
	g.j.mu.Lock()
	newest := g.j.ext.newest
	g.j.mu.Unlock()
	switch state := g.sink(s.sink); {
	case !state.declared:
		return fmt.Errorf("not declared")
	case s.cursor.newest() > newest:
		return fmt.Errorf("cursor %d is past the newest change %d", s.cursor.newest(), newest)
	case s.cursor.Low+1 < g.ext.oldest:
		return fmt.Errorf("cursor %d is below the oldest change %d", s.cursor.Low, g.ext.oldest)
	}
	for _, d := range s.dead {
		if d.Change == nil || d.Offset == 0 || d.Offset > newest {
			return fmt.Errorf("dead letter %d names no change of the journal", d.Offset)
		}
	}
	return nil
}

// deadSize returns the stored bytes of a dead letter as it is in this group, 0 when there is none. A sink that was killed
// before its cursor was stored, or went back, gives up on the same change twice.
func (g *group) deadSize(key []byte) (int64, error) {
	if size, ok := g.dead[string(key)]; ok {
		return size, nil
	}
	value, err := g.j.get(key)
	if err != nil || value == nil {
		return 0, err
	}
	return int64(len(key) + len(value)), nil
}

// DeadLetters calls each for every dead letter of a sink, in order of offsets, until each returns an error, which it
// returns. The sink need not be declared any more.
func (j *Journal) DeadLetters(sink string, each func(DeadLetter) error) error {
	done, err := j.use()
	if err != nil {
		return err
	}
	defer done()
	return j.checked(fmt.Sprintf("dead letters of sink %q", sink), forEachDead(j.db, j.unpacker, sink, each))
}

// forEachDead is DeadLetters on a store.
func forEachDead(db *pebble.DB, u *unpacker, sink string, each func(DeadLetter) error) error {
	return forEach(db, appendNamePrefix(nil, prefixDead, sink), func(key, value []byte) error {
		_, offset, err := cutDead(key)
		if err != nil {
			return err
		}
		d, err := decodeDead(u, offset, value)
		if err != nil {
			return err
		}
		return each(d)
	})
}

// PurgeDeadLetters drops the dead letters of a sink up to and with an offset. They count against MaxBytes until then.
// Durable when it returns nil.
func (j *Journal) PurgeDeadLetters(ctx context.Context, sink string, through uint64) error {
	return j.submit(ctx, &purge{sink: sink, through: through})
}

type purge struct {
	sink    string
	through uint64
}

func (p *purge) addTo(g *group) error {
	first, end := keyDead(p.sink, 0), append(keyDead(p.sink, p.through), 0)
	sizes := map[string]int64{}
	it, err := g.j.db.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end})
	if err != nil {
		return g.j.checked("purge dead letters", err)
	}
	for it.First(); it.Valid(); it.Next() {
		sizes[string(it.Key())] = int64(storedBytes(it))
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return g.j.checked("purge dead letters", err)
	}
	for key, size := range g.dead { // stored or purged earlier in this group
		if key >= string(first) && key < string(end) {
			sizes[key] = size
		}
	}
	state := g.sink(p.sink)
	for key, size := range sizes {
		if size > 0 {
			g.delete([]byte(key))
			g.dead[key] = 0
			state.dead--
			state.deadBytes -= size
		}
	}
	g.sinks[p.sink] = state
	return nil
}
