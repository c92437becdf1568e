package journal

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

func keyEvidence(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{codec.PrefixEvidence}, number)
}

func keyPlace(name string) []byte { return append([]byte{codec.PrefixPlace}, name...) }

// KeepEvidence stores evidence, and how far the place that it was read from has been read, in one write; durable when it
// returns nil. An empty place stores none. The caller bounds what it keeps.
func (j *Journal) KeepEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error {
	return j.submitPatiently(ctx, func(g *group) error {
		for _, e := range evidence {
			g.set(keyEvidence(e.Number), e.Value)
		}
		if place != "" {
			g.set(keyPlace(place), []byte(position))
		}
		return nil
	}, sizeOfEvidence(evidence))
}

// Evidence calls each for all evidence that is stored, in order of numbers, until each returns an error, which it returns.
// Values are valid during the call only.
func (j *Journal) Evidence(each func(event.Evidence) error) error {
	done, err := j.use()
	if err != nil {
		return err
	}
	defer done()
	err = j.each([]byte{codec.PrefixEvidence}, func(key, value []byte) error {
		if len(key) != 9 {
			return fmt.Errorf("%w: key of evidence %x", codec.ErrMalformed, key)
		}
		return each(event.Evidence{Number: binary.BigEndian.Uint64(key[1:]), Value: value})
	})
	return j.checked("evidence", err)
}

// Place returns how far a place has been read, as stored by KeepEvidence; "" where nothing is stored.
func (j *Journal) Place(name string) (string, error) { return j.text("place", keyPlace(name)) }

// Conclude appends changes, stores the evidence that is to be kept beyond them, drops what they were concluded from, and
// settles for a declared sink, all in one write: each is there with the others or not at all. Durable when it returns nil.
// Changes that others append go first, for a moment.
func (j *Journal) Conclude(
	ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
) error {
	c = c.Normal()
	size := sizeOfEvidence(keep)
	for _, change := range changes {
		size += int64(change.Size())
	}
	return j.submitPatiently(ctx, func(g *group) error {
		if err := g.settle(sink, c, nil); err != nil {
			return err
		}
		for _, change := range changes {
			g.add(change)
		}
		for _, e := range keep {
			g.set(keyEvidence(e.Number), e.Value)
		}
		for _, number := range drop {
			g.delete(keyEvidence(number))
		}
		return nil
	}, size)
}

// sizeOfEvidence is in bytes.
func sizeOfEvidence(evidence []event.Evidence) (size int64) {
	for _, e := range evidence {
		size += int64(len(e.Value))
	}
	return size
}

// loadEvidence drops what nobody will conclude from.
func (j *Journal) loadEvidence() error {
	if j.opts.Evidence {
		return nil
	}
	for _, first := range []byte{codec.PrefixEvidence, codec.PrefixPlace} {
		if err := j.db.DeleteRange([]byte{first}, []byte{first + 1}, pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}
