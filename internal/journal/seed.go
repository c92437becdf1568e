package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// seedWriteBytes is how many bytes of known objects go into one write of Seed.
const seedWriteBytes = 1 << 20

// Seed is the state with which a journal continues where another one ended.
type Seed struct {
	ID        string                 // of the journal from then on
	Cluster   string                 // as SetCluster stores it; "" where it is not known
	Resources []event.StoredResource // with their scopes
	Lost      string                 // what the seed lacks of what was known, a ResetReason; "" for nothing
	Members   Members                // of the process before; zero if not known
	// Known calls each for all known objects, by the name of their resource, until it returns an error, which it returns. Those
	// of one resource follow each other: every other order costs writes.
	Known func(each func(resource string, k event.Known) error) error
}

// Seed drops all changes, and all that is stored of resources, and stores the seed in their place. Offsets go on: every
// declared sink has settled all that was there. One that was no member before gets a gap first. Dead letters stay, and those
// that were retried and not settled since are dead letters again. Run must run; nothing else may append or read meanwhile.
// Durable when it returns nil. After an error, or when the process ends before, nothing is stored of any resource, and the
// journal has no ID.
func (j *Journal) Seed(ctx context.Context, s Seed) error {
	if err := j.restoreRetried(ctx); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	if err := j.queue.submit(ctx, (*group).clearForSeed, j.KnownObjects.bodies.reset); err != nil {
		return err
	}
	j.ReplayLedger.forget()
	j.OrphanLedger.forget()
	step := &seedWriter{queue: j.queue, ctx: ctx}
	if err := s.Known(step.addKnown); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	if err := step.flushKnown(); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	return j.queue.submit(ctx, func(g *group) error { return g.completeSeed(s) }, nil)
}

type retriedChange struct {
	sink   string
	offset uint64
}

// restoreRetried makes dead letters again of the retried ones whose changes their sinks have not settled, before a seed
// drops the changes. A lane that is ahead of its cursor may have delivered some.
func (j *Journal) restoreRetried(ctx context.Context) error {
	unsettled, err := j.unsettledRetries()
	if err != nil {
		return err
	}
	var frame []event.Record
	for some := range slices.Chunk(unsettled, lettersPerWrite) {
		letters := map[string][]event.DeadLetter{}
		for _, r := range some {
			if len(frame) == 0 || r.offset < frame[0].Offset || r.offset > frame[len(frame)-1].Offset {
				if frame, err = j.Read(ctx, r.offset-1); err != nil {
					return err
				}
			}
			letters[r.sink] = append(letters[r.sink], event.DeadLetter{
				Offset: r.offset, Time: time.Now().UTC(), Reason: reasonTakenOver, Change: frame[r.offset-frame[0].Offset].Change,
			})
		}
		err := j.queue.submit(ctx, func(g *group) error {
			for sink, all := range letters {
				if err := g.deadLetters.storeLetters(sink, all); err != nil {
					return err
				}
			}
			return nil
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// unsettledRetries returns the changes of retried dead letters that can be read and that their sinks have not settled.
func (j *Journal) unsettledRetries() ([]retriedChange, error) {
	return readStore(j.store, "retried dead letters", func(r storeReader) (all []retriedChange, err error) {
		err = r.forEachKey(codec.PrefixRetried, func(key, _ []byte) error {
			sink, offset, err := codec.SplitRetriedKey(key)
			if cursor, _, _ := j.Cursor(sink); offset > cursor.Low && offset >= j.Oldest() { // of a removed sink it is zero
				all = append(all, retriedChange{sink, offset})
			}
			return err
		})
		return all, err
	})
}

// seedWriter writes known objects in steps, each of one resource.
type seedWriter struct {
	queue    *queue
	ctx      context.Context
	resource string
	known    []event.Known
	bytes    int
}

func (s *seedWriter) addKnown(resource string, k event.Known) error {
	if resource != s.resource {
		if err := s.flushKnown(); err != nil {
			return err
		}
		s.resource = resource
	}
	s.known = append(s.known, k)
	s.bytes += len(k.Key) + len(k.UID) + len(k.ResourceVersion) + len(k.EmittedElsewhere)
	if s.bytes < seedWriteBytes {
		return nil
	}
	return s.flushKnown()
}

func (s *seedWriter) flushKnown() error {
	resource, known := s.resource, s.known
	if s.known, s.bytes = nil, 0; len(known) == 0 {
		return nil
	}
	return s.queue.submit(s.ctx, func(g *group) error { g.known.storeKnown(resource, known, nil); return nil }, nil)
}

// clearForSeed drops changes and all that is stored of resources, and marks what follows as incomplete.
func (g *group) clearForSeed() error {
	if len(g.log.openFrame) > 0 || len(g.log.frames) > 0 {
		return errors.New("journal: seeded while changes are appended")
	}
	g.log.dropAll()
	g.batch.removePrefix([]byte{codec.PrefixKnown})
	g.batch.removePrefix([]byte{codec.PrefixBody})
	g.batch.removePrefix(codec.KeyReplay(""))
	g.batch.removePrefix(codec.PrefixOrphans)
	g.batch.removePrefix(codec.PrefixRetried)
	g.known.dropAll()
	g.batch.putKey(codec.KeySeeding, nil)
	g.batch.removeKey(codec.KeyID)
	g.batch.removeKey(codec.KeyCluster)
	g.batch.removeKey(codec.KeyResetReason)
	for name := range g.sinks.ledger.former { // only this goroutine changes it
		g.sinks.removeFormer(name)
	}
	for _, name := range g.sinks.declaredNames() {
		if err := g.settleSink(name, event.Cursor{Low: g.log.extent.newest}, nil); err != nil {
			return err
		}
	}
	return nil
}

// completeSeed stores the rest of a seed, and that it is complete.
func (g *group) completeSeed(s Seed) error {
	for _, r := range s.Resources {
		stored, err := g.known.describeResource(r.Resource)
		if err != nil {
			return err
		}
		stored.Scopes = sortScopes(r.Scopes)
		g.batch.putKey(codec.KeyBodiless(r.Resource.String()), nil)
	}
	if s.Cluster != "" {
		g.batch.putKey(codec.KeyCluster, []byte(s.Cluster))
	}
	g.batch.putKey(codec.KeyID, []byte(s.ID))
	g.batch.removeKey(codec.KeySeeding)
	g.batch.removeKey(codec.KeyRecovery) // what was lost is in the seed, or is described by Seed.Lost
	g.gapsEmitted = true
	if s.Lost != "" {
		g.batch.putKey(codec.KeyResetReason, []byte(s.Lost))
	}
	return g.seedMembers(s)
}

func dropPartialSeed(s *store) error {
	if value, err := s.getValue(codec.KeySeeding); err != nil || value == nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	_ = b.DeleteRange([]byte{codec.PrefixKnown}, []byte{codec.PrefixKnown + 1}, nil) // a batch in memory does not fail
	_ = b.Delete(codec.KeySeeding, nil)
	return b.Commit(pebble.Sync)
}
