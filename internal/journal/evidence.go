package journal

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// EvidenceStore keeps evidence, which is audit events that wait for their change, and how far the sources of evidence were
// read. It gives no meaning to either. Safe for concurrent use.
type EvidenceStore struct {
	store *store
	queue *queue
}

func keyEvidence(number uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{codec.PrefixEvidence}, number)
}

func keyEvidencePosition(source string) []byte {
	return append([]byte{codec.PrefixEvidencePosition}, source...)
}

// StoreEvidence stores evidence, and how far the source that it was read from has been read, in one write; durable when it
// returns nil. An empty source stores no position. The caller bounds what it stores.
func (e *EvidenceStore) StoreEvidence(ctx context.Context, evidence []event.Evidence, source, position string) error {
	return e.queue.submitLowPriority(ctx, func(g *group) error {
		putEvidence(g.batch, evidence)
		if source != "" {
			g.batch.putKey(keyEvidencePosition(source), []byte(position))
		}
		return nil
	}, evidenceSize(evidence))
}

// ForEachEvidence calls each for all evidence that is stored, in order of numbers, until each returns an error, which it
// returns. Values are valid during the call only.
func (e *EvidenceStore) ForEachEvidence(each func(event.Evidence) error) error {
	release, err := e.store.acquire()
	if err != nil {
		return err
	}
	defer release()
	err = e.store.forEachKey([]byte{codec.PrefixEvidence}, func(key, value []byte) error {
		if len(key) != 9 {
			return fmt.Errorf("%w: key of evidence %x", form.ErrMalformed, key)
		}
		return each(event.Evidence{Number: binary.BigEndian.Uint64(key[1:]), Value: value})
	})
	return e.store.checkCorruption("evidence", err)
}

// EvidencePosition returns how far a source has been read, as stored by StoreEvidence; "" where nothing is stored.
func (e *EvidenceStore) EvidencePosition(source string) (string, error) {
	return e.store.loadText("place", keyEvidencePosition(source))
}

// AppendAttributions appends changes, stores the evidence that is still needed after them, drops the evidence that they were
// resolved from, and settles for a declared sink, all in one write: each is there with the others or not at all. Durable
// when it returns nil. Appended observations go first, for lowPriorityDelay.
func (e *EvidenceStore) AppendAttributions(
	ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
) error {
	c = c.Normalize()
	size := evidenceSize(keep)
	for _, change := range changes {
		size += int64(change.Size())
	}
	return e.queue.submitLowPriority(ctx, func(g *group) error {
		if err := g.settleSink(sink, c, nil); err != nil {
			return err
		}
		for _, change := range changes {
			g.log.addChange(change)
		}
		putEvidence(g.batch, keep)
		for _, number := range drop {
			g.batch.removeKey(keyEvidence(number))
		}
		return nil
	}, size)
}

func putEvidence(b *writeBatch, evidence []event.Evidence) {
	for _, e := range evidence {
		b.putKey(keyEvidence(e.Number), e.Value)
	}
}

// evidenceSize is in bytes.
func evidenceSize(evidence []event.Evidence) (size int64) {
	for _, e := range evidence {
		size += int64(len(e.Value))
	}
	return size
}

// dropEvidence deletes all evidence and positions of sources, if there are any.
func (g *group) dropEvidence() error {
	for _, first := range []byte{codec.PrefixEvidence, codec.PrefixEvidencePosition} {
		it, err := g.log.log.store.newPrefixIter([]byte{first})
		if err != nil {
			return err
		}
		if it.First() {
			g.batch.removePrefix([]byte{first})
		}
		if err := it.Close(); err != nil {
			return err
		}
	}
	return nil
}
