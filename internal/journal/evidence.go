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

func keyEvidencePosition(name string) []byte {
	return append([]byte{codec.PrefixEvidencePosition}, name...)
}

// StoreEvidence stores evidence, and how far the place that it was read from has been read, in one write; durable when it
// returns nil. An empty place stores none. The caller bounds what it keeps.
func (j *Journal) StoreEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error {
	return j.submitLowPriority(ctx, func(g *group) error {
		for _, e := range evidence {
			g.setKey(keyEvidence(e.Number), e.Value)
		}
		if place != "" {
			g.setKey(keyEvidencePosition(place), []byte(position))
		}
		return nil
	}, evidenceSize(evidence))
}

// ForEachEvidence calls each for all evidence that is stored, in order of numbers, until each returns an error, which it returns.
// Values are valid during the call only.
func (j *Journal) ForEachEvidence(each func(event.Evidence) error) error {
	done, err := j.acquireStore()
	if err != nil {
		return err
	}
	defer done()
	err = j.forEachKey([]byte{codec.PrefixEvidence}, func(key, value []byte) error {
		if len(key) != 9 {
			return fmt.Errorf("%w: key of evidence %x", codec.ErrMalformed, key)
		}
		return each(event.Evidence{Number: binary.BigEndian.Uint64(key[1:]), Value: value})
	})
	return j.checkCorruption("evidence", err)
}

// EvidencePosition returns how far a place has been read, as stored by StoreEvidence; "" where nothing is stored.
func (j *Journal) EvidencePosition(name string) (string, error) {
	return j.loadText("place", keyEvidencePosition(name))
}

// AppendAttributions appends changes, stores the evidence that is to be kept beyond them, drops what they were concluded from, and
// settles for a declared sink, all in one write: each is there with the others or not at all. Durable when it returns nil.
// Changes that others append go first, for a moment.
func (j *Journal) AppendAttributions(
	ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
) error {
	c = c.Normalize()
	size := evidenceSize(keep)
	for _, change := range changes {
		size += int64(change.Size())
	}
	return j.submitLowPriority(ctx, func(g *group) error {
		if err := g.settleSink(sink, c, nil); err != nil {
			return err
		}
		for _, change := range changes {
			g.addChange(change)
		}
		for _, e := range keep {
			g.setKey(keyEvidence(e.Number), e.Value)
		}
		for _, number := range drop {
			g.deleteKey(keyEvidence(number))
		}
		return nil
	}, size)
}

// evidenceSize is in bytes.
func evidenceSize(evidence []event.Evidence) (size int64) {
	for _, e := range evidence {
		size += int64(len(e.Value))
	}
	return size
}

// dropUnusedEvidence drops what nobody will conclude from.
func (j *Journal) dropUnusedEvidence() error {
	if j.opts.KeepEvidence {
		return nil
	}
	for _, first := range []byte{codec.PrefixEvidence, codec.PrefixEvidencePosition} {
		if err := j.db.DeleteRange([]byte{first}, []byte{first + 1}, pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}
