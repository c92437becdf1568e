package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// seedWriteBytes is how many bytes of known objects go into one write of Seed.
const seedWriteBytes = 1 << 20

// Seed is what a journal begins with that goes on where another one ended.
type Seed struct {
	ID        string                 // of the journal from then on
	Cluster   string                 // as SetCluster stores it; "" where nobody knows
	Resources []event.StoredResource // with their scopes
	Lost      string                 // what the seed lacks of what was known, a ResetReason; "" for nothing
	// Known calls each for all known objects, by the name of their resource, until it returns an error, which it returns. Those
	// of one resource follow each other: every other order costs writes.
	Known func(each func(resource string, k event.Known) error) error
}

// ID returns what tells this journal from all others, as Seed or SetID stored it; "" before.
func (j *Journal) ID() (string, error) { return j.loadText("id", codec.KeyID) }

// SetID gives the journal an ID. Durable when it returns nil.
func (j *Journal) SetID(ctx context.Context, id string) error {
	return j.storeText(ctx, codec.KeyID, id)
}

// Seed drops all changes, and all that is stored of resources, and stores the seed in their place. Offsets go on: every
// declared sink has settled all that was there. Dead letters stay. Nobody appends or reads meanwhile; Run runs. Durable when
// it returns nil. After an error, or when the process ends before, nothing is stored of any resource, and the journal has no
// ID.
func (j *Journal) Seed(ctx context.Context, s Seed) error {
	if err := j.submitRequest(ctx, (*group).clearForSeed, func(b *bodyIndex) { *b = newBodyIndex() }); err != nil {
		return err
	}
	step := &seedWriter{j: j, ctx: ctx}
	if err := s.Known(step.addKnown); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	if err := step.flushKnown(); err != nil {
		return fmt.Errorf("journal: seed: %w", err)
	}
	return j.submitRequest(ctx, func(g *group) error { return g.completeSeed(s) }, nil)
}

// seedWriter writes known objects in steps, each of one resource.
type seedWriter struct {
	j        *Journal
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
	return s.j.submitRequest(s.ctx, func(g *group) error { g.storeKnown(resource, known, nil); return nil }, nil)
}

// clearForSeed drops changes and what is stored of resources, and says that it is not whole what follows.
func (g *group) clearForSeed() error {
	if len(g.openFrame) > 0 || len(g.frames) > 0 {
		return errors.New("journal: seeded while changes are appended")
	}
	for _, first := range []byte{codec.PrefixFrame, codec.PrefixKnown, codec.PrefixBody} {
		_ = g.batch.DeleteRange([]byte{first}, []byte{first + 1}, nil)
	}
	g.dropResources()
	g.setKey(codec.KeyEmptied, codec.EncodeNumber(g.ext.newest))
	g.setKey(codec.KeySeeding, nil)
	g.deleteKey(codec.KeyID)
	g.deleteKey(codec.KeyCluster)
	g.deleteKey(codec.KeyResetReason)
	g.ext.oldest, g.ext.startBytes, g.logCleared = g.ext.newest+1, g.ext.endBytes, true
	for name, s := range g.allSinkStates() {
		if s.declared {
			if err := g.settleSink(name, event.Cursor{Low: g.ext.newest}, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// completeSeed stores the rest of a seed, and that it is whole.
func (g *group) completeSeed(s Seed) error {
	for _, r := range s.Resources {
		stored, err := g.describeResource(r.Resource)
		if err != nil {
			return err
		}
		stored.Scopes = sortScopes(r.Scopes)
		g.setKey(codec.KeyBodiless(r.Resource.String()), nil)
	}
	if s.Cluster != "" {
		g.setKey(codec.KeyCluster, []byte(s.Cluster))
	}
	g.setKey(codec.KeyID, []byte(s.ID))
	g.deleteKey(codec.KeySeeding)
	g.deleteKey(codec.KeyRecovery) // what was lost is back, or has another reason
	g.gapsEmitted = true
	if s.Lost != "" {
		g.setKey(codec.KeyResetReason, []byte(s.Lost))
	}
	return nil
}

// dropPartialSeed drops what a seed has left behind that is not whole.
func (j *Journal) dropPartialSeed() error {
	if value, err := j.getValue(codec.KeySeeding); err != nil || value == nil {
		return err
	}
	b := j.db.NewBatch()
	defer b.Close()
	_ = b.DeleteRange([]byte{codec.PrefixKnown}, []byte{codec.PrefixKnown + 1}, nil) // a batch in memory does not fail
	_ = b.Delete(codec.KeySeeding, nil)
	return b.Commit(pebble.Sync)
}
