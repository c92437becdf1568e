package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/pkg/event"
)

const (
	secretBytes = 32

	rewriteStepBytes = 1 << 20 // of a batch of Rewrite
)

// Secret returns random bytes that belong to this journal and are stored in it. Whoever reads the files has them.
func (j *Journal) Secret() ([]byte, error) {
	done, err := j.acquireStore()
	if err != nil {
		return nil, err
	}
	defer done()
	stored, err := j.getValue(codec.KeySecret)
	if err != nil || len(stored) == secretBytes {
		return stored, j.checkCorruption("secret", err)
	}
	secret := make([]byte, secretBytes)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("journal: make a secret: %w", err)
	}
	if err := j.db.Set(codec.KeySecret, secret, pebble.Sync); err != nil {
		return nil, fmt.Errorf("journal: store a secret: %w", err)
	}
	return secret, nil
}

// Redaction returns what Rewrite stored last; "" when it never did.
func (j *Journal) Redaction() (string, error) { return j.loadText("redaction", codec.KeyRedaction) }

// SetRedaction remembers what Rewrite would, where nothing that is stored has to be rewritten for it. Durable when it
// returns nil.
func (j *Journal) SetRedaction(ctx context.Context, redaction string) error {
	return j.storeText(ctx, codec.KeyRedaction, redaction)
}

// RewriteFuncs says what becomes of what is stored. Each function changes what it is given in place and says whether it did.
type RewriteFuncs struct {
	Change func(*event.Change) bool
	Body   func(event.Resource, *event.Body) bool // one without bytes is deleted
}

// RewriteCounts counts what Rewrite changed.
type RewriteCounts struct {
	Changes, DeadLetters, Bodies int
	Broken                       int // stores that had been moved aside and are deleted
}

// Rewrite passes everything that is stored through r, and then remembers the redaction. Nothing of what was replaced is left
// in any file: tables are compacted, logs are dropped, and stores that were moved aside earlier are deleted. Call it before
// Run. After a crash it has to be called again; what was rewritten already stays as it is.
func (j *Journal) Rewrite(redaction string, r RewriteFuncs) (RewriteCounts, error) {
	w := &rewriter{j: j, funcs: r}
	if err := w.run(); err != nil {
		return w.counts, j.checkCorruption("rewrite", err)
	}
	if w.counts != (RewriteCounts{}) {
		if err := j.purgeReplaced(); err != nil {
			err = fmt.Errorf("purge what was rewritten: %w", err)
			j.failStore(j.storeFailure, err) // the store may be closed
			return w.counts, fmt.Errorf("journal: %w", err)
		}
	}
	var err error
	if j.Newest() > 0 { // else what was moved aside is the whole history, and just broke
		w.counts.Broken, err = j.removeBrokenStores()
	}
	if err == nil {
		err = j.db.Set(codec.KeyRedaction, []byte(redaction), pebble.Sync)
	}
	if err != nil {
		return w.counts, fmt.Errorf("journal: after a rewrite: %w", err)
	}
	return w.counts, nil
}

// rewriter goes through the store once.
type rewriter struct {
	j      *Journal
	funcs  RewriteFuncs
	packer *codec.FrameEncoder
	batch  *pebble.Batch
	counts RewriteCounts
}

func (w *rewriter) run() (err error) {
	if w.packer, err = codec.NewFrameEncoder(); err != nil {
		return err
	}
	w.batch = w.j.db.NewBatch()
	defer func() { err = errors.Join(err, w.batch.Close()) }()
	for _, step := range []struct {
		first   byte
		rewrite func(key, value []byte) error
	}{{codec.PrefixFrame, w.rewriteFrame}, {codec.PrefixDeadLetter, w.rewriteDeadLetter}, {codec.PrefixBody, w.rewriteBody}} {
		if err := w.j.forEachKey([]byte{step.first}, step.rewrite); err != nil {
			return err
		}
	}
	return w.commitBatch()
}

// setValue writes a value of a key that is the store's.
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

// rewriteFrame keeps what the frame says of the bytes before it: that is an account, and may be off by what a rewrite saved.
func (w *rewriter) rewriteFrame(key, value []byte) error {
	h, _, err := codec.ReadFrameHeader(value)
	if err != nil {
		return err
	}
	changes, err := w.j.unpacker.Decode(value)
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
	return w.setValue(key, w.packer.Encode(h, all))
}

func (w *rewriter) rewriteDeadLetter(key, value []byte) error {
	_, offset, err := codec.SplitDeadLetterKey(key)
	if err != nil {
		return err
	}
	d, err := codec.DecodeDeadLetter(w.j.unpacker, offset, value)
	if err != nil || !w.funcs.Change(d.Change) {
		return err
	}
	w.counts.DeadLetters++
	return w.setValue(key, codec.EncodeDeadLetter(w.packer, &d))
}

func (w *rewriter) rewriteBody(key, value []byte) error {
	resource, name, err := w.splitKey(key)
	if err != nil {
		return err
	}
	body, err := codec.DecodeBody(name, value)
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

// splitKey takes the key of a body apart.
func (w *rewriter) splitKey(key []byte) (event.Resource, string, error) {
	name, object, err := codec.SplitNamedKey(key)
	resource := w.j.resources[name].Resource
	if resource.Resource == "" {
		resource = event.ParseResourceName(name)
	}
	return resource, object, err
}

// purgeReplaced leaves nothing in the files that is not stored any more. Tables are compacted, which drops what was replaced; the
// logs of a store go when it is closed and opened again.
func (j *Journal) purgeReplaced() error {
	if err := j.db.Flush(); err != nil {
		return err
	}
	if err := j.db.Compact(context.Background(), []byte{0}, bytes.Repeat([]byte{0xff}, 8), false); err != nil {
		return err
	}
	if err := errors.Join(j.db.Close(), j.ackFile.Close()); err != nil {
		return err
	}
	return j.openAndLoad(j.fs.PathJoin(j.opts.Dir, storeName))
}

// removeBrokenStores deletes the stores that were moved aside.
func (j *Journal) removeBrokenStores() (n int, err error) {
	names, err := j.opts.FS.List(j.opts.Dir)
	for _, name := range names {
		if err == nil && strings.HasPrefix(name, brokenPrefix) {
			err = j.opts.FS.RemoveAll(j.opts.FS.PathJoin(j.opts.Dir, name))
			n++
		}
	}
	return n, err
}
