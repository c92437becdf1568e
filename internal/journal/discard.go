package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
)

// ErrNoDeadLetter is returned when a sink has no dead letter at one of the given offsets. Nothing was dropped then.
var ErrNoDeadLetter = errors.New("no such dead letter")

// DiscardDeadLetters drops dead letters of a sink from the journal of an exporter that does not run: those at offsets, or
// with nil all of them. Either all that are named exist and are dropped in one durable write, or none is and the error is
// ErrNoDeadLetter. It returns how many were dropped. Its other errors are those of [OpenOffline]; here the lock is
// exclusive. The sink need not be configured any more.
func DiscardDeadLetters(dir, sink string, offsets []uint64) (int, error) {
	if err := checkPresent(dir); err != nil {
		return 0, err
	}
	lock, err := disk.Lock(disk.Private{FS: vfs.Default}, dir)
	if err != nil {
		return 0, err
	}
	keys, err := findDeadLetterKeys(dir, sink, offsets)
	if err == nil && len(keys) > 0 {
		err = deleteKeys(dir, keys)
	}
	if err != nil {
		return 0, errors.Join(err, lock.Close())
	}
	return len(keys), lock.Close()
}

// findDeadLetterKeys finds the dead letters to drop. It opens the store for reading only, so that a store that cannot be
// read is not written to.
func findDeadLetterKeys(dir, sink string, offsets []uint64) (keys [][]byte, err error) {
	o, err := openUnlocked(dir)
	if err != nil {
		return nil, err
	}
	o.lock = disk.NopLock{} // the caller's
	defer func() { err = errors.Join(err, o.Close()) }()
	if offsets == nil {
		err := o.forEachKey(codec.AppendNamePrefix(nil, codec.PrefixDeadLetter, sink), func(key, _ []byte) error {
			keys = append(keys, slices.Clone(key))
			return nil
		})
		return keys, o.wrapReadError(fmt.Sprintf("dead letters of sink %q", sink), err)
	}
	for _, offset := range slices.Compact(slices.Sorted(slices.Values(offsets))) {
		key := codec.KeyDeadLetter(sink, offset)
		value, err := o.getValue(key)
		if err != nil {
			return nil, o.wrapReadError("dead letter", err)
		}
		if value == nil {
			return nil, fmt.Errorf("%w: sink %q, offset %d; nothing was dropped", ErrNoDeadLetter, sink, offset)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// deleteKeys deletes keys in one durable write. After a failure it does not wait for Pebble, which may have blocked its
// goroutines for good, see storeLogger. The process ends anyway.
func deleteKeys(dir string, keys [][]byte) error {
	failed := newFailure()
	opts := storeOptions(disk.Private{FS: vfs.Default}, offlineLogger(failed))
	db, err := openPebble(filepath.Join(dir, storeName), opts, failed.done)
	if err != nil {
		return explainOpenError(dir, errors.Join(err, failed.currentError()))
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(applyKeyDeletes(db, keys), db.Close()) }()
	select {
	case err = <-done:
	case <-failed.done:
		err = failed.currentError()
	}
	if err != nil {
		return fmt.Errorf("journal: cannot write to %s, some or none were dropped: %w", dir, err)
	}
	return nil
}

func applyKeyDeletes(db *pebble.DB, keys [][]byte) error {
	b := db.NewBatch()
	defer b.Close()
	for _, key := range keys {
		_ = b.Delete(key, nil) // a batch in memory does not fail
	}
	return db.Apply(b, pebble.Sync)
}
