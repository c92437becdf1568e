package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// seedStep is how many bytes of known objects go into one write of Seed.
const seedStep = 1 << 20

// Seed is what a journal begins with that goes on where another one ended.
type Seed struct {
	ID        string                 // of the journal from then on
	Cluster   string                 // as RememberCluster stores it; "" where nobody knows
	Resources []event.StoredResource // with their scopes
	Lost      string                 // what the seed lacks of what was known, a ResetReason; "" for nothing
	// Known calls each for all known objects, by the name of their resource, until it returns an error, which it returns. Those
	// of one resource follow each other: every other order costs writes.
	Known func(each func(resource string, k event.Known) error) error
}

// ID returns what tells this journal from all others, as Seed or SetID stored it; "" before.
func (j *Journal) ID() (string, error) { return j.text("id", codec.KeyID) }

// SetID gives the journal an ID. Durable when it returns nil.
func (j *Journal) SetID(ctx context.Context, id string) error { return j.setText(ctx, codec.KeyID, id) }

// Seed drops all changes, and all that is stored of resources, and stores the seed in their place. Offsets go on: every
// declared sink has settled all that was there. Dead letters stay. Nobody appends or reads meanwhile; Run runs. Durable when
// it returns nil. After an error, or when the process ends before, nothing is stored of any resource, and the journal has no
// ID.
func (j *Journal) Seed(ctx context.Context, s Seed) error {
	if err := j.submit(ctx, (*group).empty, func(b *bodies) { *b = newBodies() }); err != nil {
		return err
	}
	step := &seeding{j: j, ctx: ctx}
	if err := s.Known(step.add); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	if err := step.flush(); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	return j.submit(ctx, func(g *group) error { return g.seeded(s) }, nil)
}

// seeding writes known objects in steps, each of one resource.
type seeding struct {
	j        *Journal
	ctx      context.Context
	resource string
	known    []event.Known
	bytes    int
}

func (s *seeding) add(resource string, k event.Known) error {
	if resource != s.resource {
		if err := s.flush(); err != nil {
			return err
		}
		s.resource = resource
	}
	s.known = append(s.known, k)
	s.bytes += len(k.Key) + len(k.UID) + len(k.ResourceVersion) + len(k.Told)
	if s.bytes < seedStep {
		return nil
	}
	return s.flush()
}

func (s *seeding) flush() error {
	resource, known := s.resource, s.known
	if s.known, s.bytes = nil, 0; len(known) == 0 {
		return nil
	}
	return s.j.submit(s.ctx, func(g *group) error { g.storeKnown(resource, known, nil); return nil }, nil)
}

// empty drops changes and what is stored of resources, and says that it is not whole what follows.
func (g *group) empty() error {
	if len(g.open) > 0 || len(g.frames) > 0 {
		return errors.New("journal: seeded while changes are appended")
	}
	for _, first := range []byte{codec.PrefixFrame, codec.PrefixKnown, codec.PrefixBody} {
		_ = g.batch.DeleteRange([]byte{first}, []byte{first + 1}, nil)
	}
	g.dropResources()
	g.set(codec.KeyEmptied, codec.EncodeNumber(g.ext.newest))
	g.set(codec.KeySeeding, nil)
	g.delete(codec.KeyID)
	g.delete(codec.KeyCluster)
	g.delete(codec.KeyAnew)
	g.ext.oldest, g.ext.start, g.emptied = g.ext.newest+1, g.ext.end, true
	for name, s := range g.allSinks() {
		if s.declared {
			if err := g.settle(name, event.Cursor{Low: g.ext.newest}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// seeded stores the rest of a seed, and that it is whole.
func (g *group) seeded(s Seed) error {
	for _, r := range s.Resources {
		stored, err := g.of(r.Resource)
		if err != nil {
			return err
		}
		stored.Scopes = sorted(r.Scopes)
		g.set(codec.KeyBodiless(r.Resource.String()), nil)
	}
	if s.Cluster != "" {
		g.set(codec.KeyCluster, []byte(s.Cluster))
	}
	g.set(codec.KeyID, []byte(s.ID))
	g.delete(codec.KeySeeding)
	g.delete(codec.KeyRecovery) // what was lost is back, or has another reason
	g.announced = true
	if s.Lost != "" {
		g.set(codec.KeyAnew, []byte(s.Lost))
	}
	return nil
}

// dropSeed drops what a seed has left behind that is not whole.
func (j *Journal) dropSeed() error {
	if value, err := j.get(codec.KeySeeding); err != nil || value == nil {
		return err
	}
	b := j.db.NewBatch()
	defer b.Close()
	_ = b.DeleteRange([]byte{codec.PrefixKnown}, []byte{codec.PrefixKnown + 1}, nil) // a batch in memory does not fail
	_ = b.Delete(codec.KeySeeding, nil)
	return b.Commit(pebble.Sync)
}
