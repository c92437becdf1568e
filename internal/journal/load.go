package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// openStore opens the store and loads its state, after moving a broken one aside (I7).
func (j *Journal) openStore() error {
	fsys := j.opts.FS
	dir := fsys.PathJoin(j.opts.Dir, storeName)
	reason, marked := brokenReason(fsys, dir)
	if !marked {
		err := j.openAndLoad(dir)
		if err == nil {
			j.fs.EnableWaiting()
			return nil
		}
		err, broken := classifyOpenError(j.opts.Dir, err)
		if !broken {
			return err
		}
		reason = firstLine(err)
		if err := markBroken(fsys, dir, errors.New(reason)); err != nil {
			return fmt.Errorf("journal: broken store in %s (%s) cannot be moved aside: %w", j.opts.Dir, reason, err)
		}
	}
	if err := moveStoreAside(fsys, j.opts.Dir, reason, time.Now(), j.opts.Logger); err != nil {
		return err
	}
	if err := j.openAndLoad(dir); err != nil {
		return fmt.Errorf("journal: cannot make a new store in %s: %w", j.opts.Dir, err)
	}
	j.fs.EnableWaiting()
	return nil
}

// openAndLoad opens Pebble and loads the state into j. It leaves nothing open when it fails.
func (j *Journal) openAndLoad(dir string) error {
	failed := newFailure() // a try of its own: what an abandoned store still says must not end its successor
	j.storeFailure = failed
	logger := &storeLogger{
		logger:       j.opts.Logger,
		onFailure:    func(err error) { j.failStore(failed, err) },
		onCorruption: func(err error) { _ = j.failBroken(failed, err) },
	}
	db, err := openPebble(dir, storeOptions(j.fs, logger), failed.done)
	if errors.Is(err, errStoreFailed) {
		return fmt.Errorf("%w: %w", err, failed.current())
	}
	if err != nil {
		return err
	}
	j.db, j.from = db, db
	if j.ackFile, err = disk.OpenAckFile(j.fs, dir); err != nil {
		return errors.Join(err, db.Close())
	}
	if err := j.loadState(); err != nil {
		return errors.Join(err, j.ackFile.Close(), db.Close())
	}
	return nil
}

// loadState reads the state of the store, and drops the cursors of sinks that are not declared.
func (j *Journal) loadState() (err error) {
	if err := errors.Join(j.checkWriteCount(), j.loadVersion()); err != nil {
		return err
	}
	if j.logExtent, err = j.loadExtent(); err != nil {
		return err
	}
	if err := j.dropPartialSeed(); err != nil {
		return err
	}
	stored, err := j.loadSinkStates(j.logExtent.newest)
	if err != nil {
		return err
	}
	j.sinks = map[string]sinkState{}
	for _, name := range j.opts.Sinks {
		j.sinks[name] = sinkState{declared: true}
	}
	for name, s := range stored {
		s.declared = j.sinks[name].declared
		if s.settled && !s.declared {
			j.opts.Logger.Warn("journal: dropped the cursor of a sink that is not configured any more", "sink", name, "offset", s.cursor.Low)
			if err := j.db.Delete(codec.KeyCursor(name), pebble.Sync); err != nil {
				return err
			}
			s.settled, s.cursor = false, event.Cursor{}
		}
		if s.declared || s.deadLetters > 0 {
			j.sinks[name] = s
		}
	}
	if err := j.dropUnusedEvidence(); err != nil {
		return err
	}
	j.bodies = newBodyIndex()
	if j.resources, err = j.loadResources(); err != nil {
		return err
	}
	return j.forEachName(codec.PrefixBody, func(name string) { j.bodies.resources[name] = true })
}

// checkWriteCount finds out how many groups were written, and refuses a store that has lost some which were acknowledged.
func (j *Journal) checkWriteCount() error {
	value, err := j.getValue(codec.KeyWrites)
	if err != nil {
		return err
	}
	if j.writes, err = codec.DecodeNumber(value); err != nil {
		return err
	}
	if err := j.ackFile.CheckWrites(j.writes); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}

// loadVersion checks the layout's version, or writes it into an empty store.
func (j *Journal) loadVersion() error {
	value, err := j.getValue(codec.KeyVersion)
	if err != nil {
		return err
	}
	if value == nil {
		return j.initializeStore()
	}
	if err := checkVersion(j.opts.Dir, value); err != nil {
		return err
	}
	value, err = j.getValue(codec.KeyRecovery)
	if err != nil || value == nil {
		return err
	}
	j.recovered, err = codec.DecodeRecovery(value)
	return err
}

// checkVersion refuses a store of any other format version than the one this exporter reads and writes. There is no
// conversion between versions. Bytes that are no version at all are malformed, so that the store is moved aside.
func checkVersion(dir string, stored []byte) error {
	switch v := codec.DecodeVersion(stored); v {
	case codec.Version:
		return nil
	case 0:
		return fmt.Errorf("%w: format version %.40q", codec.ErrMalformed, stored)
	default:
		return fmt.Errorf("%w: %s has version %d, this exporter reads version %d only; %s", ErrFormatVersion, dir, v, codec.Version, versionRemedy)
	}
}

// initializeStore writes the version into an empty store, together with the recovery it may be the result of.
func (j *Journal) initializeStore() error {
	it, err := j.db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := it.Close(); err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("%w: no format version", codec.ErrMalformed)
	}
	b := j.db.NewBatch()
	defer b.Close()
	_ = b.Set(codec.KeyVersion, codec.EncodeVersion(), nil) // a batch in memory does not fail
	if j.recovered, err = lastRecovery(j.opts.FS, j.opts.Dir); err != nil {
		return err
	}
	if j.recovered != nil {
		_ = b.Set(codec.KeyRecovery, codec.EncodeRecovery(*j.recovered), nil)
	}
	return b.Commit(pebble.Sync)
}
