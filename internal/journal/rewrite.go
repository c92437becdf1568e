package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// rewriteStepBytes is the size of a batch of Rewrite.
const rewriteStepBytes = 1 << 20

// RewriteFuncs change what is stored. Each function changes its argument in place and returns whether it did.
type RewriteFuncs struct {
	Change func(*event.Change) bool
	Body   func(event.Resource, *event.Body) bool // one without bytes is deleted
}

// RewriteCounts counts what Rewrite changed.
type RewriteCounts struct {
	Changes, DeadLetters, Bodies int
	Broken                       int // stores that had been moved aside and are deleted
}

// Rewrite passes all changes, dead letters and bodies through r, and then stores the fingerprint of the redaction. Nothing
// of what was replaced is left in any file: tables are compacted, logs are dropped, and stores that were moved aside earlier
// are deleted. Call it before Run. After a crash it has to be called again; what was rewritten already stays as it is.
func (j *Journal) Rewrite(redaction string, r RewriteFuncs) (RewriteCounts, error) {
	w := &rewriter{store: j.store, known: j.KnownObjects, funcs: r}
	if err := w.run(); err != nil {
		return w.counts, j.store.checkCorruption("rewrite", err)
	}
	if w.counts != (RewriteCounts{}) {
		if err := j.purgeReplaced(); err != nil {
			err = fmt.Errorf("purge what was rewritten: %w", err)
			j.store.failStore(j.store.failure, err) // the database may be closed
			return w.counts, fmt.Errorf("journal: %w", err)
		}
	}
	var err error
	if j.Newest() > 0 { // in an empty journal the store that was moved aside is all the history there is
		w.counts.Broken, err = removeBrokenStores(j.store.base, j.store.dir)
	}
	if err == nil {
		err = j.store.db.Set(codec.KeyRedaction, []byte(redaction), pebble.Sync)
	}
	if err != nil {
		return w.counts, fmt.Errorf("journal: after a rewrite: %w", err)
	}
	return w.counts, nil
}

// rewriter goes through the store once.
type rewriter struct {
	store   *store
	known   *KnownObjects
	funcs   RewriteFuncs
	encoder *codec.FrameEncoder
	batch   *pebble.Batch
	counts  RewriteCounts
}

func (w *rewriter) run() (err error) {
	if w.encoder, err = codec.NewFrameEncoder(); err != nil {
		return err
	}
	w.batch = w.store.db.NewBatch()
	defer func() { err = errors.Join(err, w.batch.Close()) }()
	for _, step := range []struct {
		first   byte
		rewrite func(key, value []byte) error
	}{{codec.PrefixFrame, w.rewriteFrame}, {codec.PrefixDeadLetter, w.rewriteDeadLetter}, {codec.PrefixBody, w.rewriteBody}} {
		if err := w.store.forEachKey([]byte{step.first}, step.rewrite); err != nil {
			return err
		}
	}
	return w.commitBatch()
}

// setValue adds a value to the batch. key may be the iterator's.
func (w *rewriter) setValue(key, value []byte) error {
	_ = w.batch.Set(key, value, nil) // a batch in memory does not fail
	if w.batch.Len() < rewriteStepBytes {
		return nil
	}
	return w.commitBatch()
}

func (w *rewriter) commitBatch() error {
	defer w.batch.Reset()
	return w.batch.Commit(pebble.Sync)
}

// rewriteFrame keeps the header's count of the bytes before the frame. The count is for accounting only, and is off by what
// rewrites save.
func (w *rewriter) rewriteFrame(key, value []byte) error {
	h, _, err := codec.ReadFrameHeader(value)
	if err != nil {
		return err
	}
	changes, err := w.store.decoder.Decode(value)
	if err != nil {
		return err
	}
	all, changed := make([]*event.Change, len(changes)), 0
	for i := range changes {
		all[i] = &changes[i]
		if w.funcs.Change(all[i]) {
			changed++
		}
	}
	if changed == 0 {
		return nil
	}
	w.counts.Changes += changed
	return w.setValue(key, w.encoder.Encode(h, all))
}

func (w *rewriter) rewriteDeadLetter(key, value []byte) error {
	_, offset, err := codec.SplitDeadLetterKey(key)
	if err != nil {
		return err
	}
	d, err := codec.DecodeDeadLetter(w.store.decoder, offset, value)
	if err != nil || !w.funcs.Change(d.Change) {
		return err
	}
	w.counts.DeadLetters++
	return w.setValue(key, codec.EncodeDeadLetter(w.encoder, &d))
}

func (w *rewriter) rewriteBody(key, value []byte) error {
	name, object, err := codec.SplitNamedKey(key)
	if err != nil {
		return err
	}
	resource := w.known.resources[name].Resource
	if resource.Resource == "" { // without a record there is no version and kind
		resource = event.ParseResourceName(name)
	}
	body, err := codec.DecodeBody(object, value)
	if err != nil || !w.funcs.Body(resource, &body) {
		return err
	}
	w.counts.Bodies++
	if len(body.Raw) == 0 {
		_ = w.batch.Delete(key, nil)
		return nil
	}
	stored, _ := codec.AppendBody(nil, nil, &body)
	return w.setValue(key, stored)
}

// purgeReplaced leaves nothing in the files that is not stored any more. Compacting the tables drops what was replaced; the
// logs go when the store is closed and opened again.
func (j *Journal) purgeReplaced() error {
	if err := j.store.db.Flush(); err != nil {
		return err
	}
	if err := j.store.db.Compact(context.Background(), []byte{0}, bytes.Repeat([]byte{0xff}, 8), false); err != nil {
		return err
	}
	return j.store.reopen(j.loadFromStore)
}

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
	_, err := readStore(e.store, "evidence", func(r storeReader) (none struct{}, err error) {
		return none, r.forEachKey([]byte{codec.PrefixEvidence}, func(key, value []byte) error {
			if len(key) != 9 {
				return fmt.Errorf("%w: key of evidence %x", form.ErrMalformed, key)
			}
			return each(event.Evidence{Number: binary.BigEndian.Uint64(key[1:]), Value: value})
		})
	})
	return err
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
