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
		err := j.tryStore(dir)
		if err == nil {
			j.fs.Wait()
			return nil
		}
		err, broken := classify(j.opts.Dir, err)
		if !broken {
			return err
		}
		reason = oneLine(err)
		if err := markBroken(fsys, dir, errors.New(reason)); err != nil {
			return fmt.Errorf("journal: broken store in %s (%s) cannot be moved aside: %w", j.opts.Dir, reason, err)
		}
	}
	if err := quarantine(fsys, j.opts.Dir, reason, time.Now(), j.opts.Logger); err != nil {
		return err
	}
	if err := j.tryStore(dir); err != nil {
		return fmt.Errorf("journal: cannot make a new store in %s: %w", j.opts.Dir, err)
	}
	j.fs.Wait()
	return nil
}

// tryStore opens Pebble and loads the state into j. It leaves nothing open when it fails.
func (j *Journal) tryStore(dir string) error {
	failed := newFailure() // a try of its own: what an abandoned store still says must not end its successor
	j.failed = failed
	logger := &storeLogger{
		logger: j.opts.Logger,
		fail:   func(err error) { j.fail(failed, err) },
		broken: func(err error) { _ = j.failBroken(failed, err) },
	}
	db, err := openPebble(dir, storeOptions(j.fs, logger), failed.ch)
	if errors.Is(err, errStoreFailed) {
		return fmt.Errorf("%w: %w", err, failed.get())
	}
	if err != nil {
		return err
	}
	j.db, j.from = db, db
	if j.mark, err = disk.OpenMark(j.fs, dir); err != nil {
		return errors.Join(err, db.Close())
	}
	if err := j.load(); err != nil {
		return errors.Join(err, j.mark.Close(), db.Close())
	}
	return nil
}

// load reads the state of the store, upgrades an older one, and drops the cursors of sinks that are not declared.
func (j *Journal) load() (err error) {
	if err := errors.Join(j.loadWrites(), j.loadVersion()); err != nil {
		return err
	}
	if j.ext, err = j.extent(); err != nil {
		return err
	}
	if err := j.dropSeed(); err != nil {
		return err
	}
	stored, err := j.sinkStates(j.ext.newest)
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
		if s.declared || s.dead > 0 {
			j.sinks[name] = s
		}
	}
	if err := j.loadEvidence(); err != nil {
		return err
	}
	j.bodies = newBodies()
	if j.resources, err = j.storedResources(); err != nil {
		return err
	}
	return j.eachName(codec.PrefixBody, func(name string) { j.bodies.resources[name] = true })
}

// loadWrites finds out how many groups were written, and refuses a store that has lost some which were acknowledged.
func (j *Journal) loadWrites() error {
	value, err := j.get(codec.KeyWrites)
	if err != nil {
		return err
	}
	if j.writes, err = codec.DecodeNumber(value); err != nil {
		return err
	}
	if err := j.mark.Check(j.writes); err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}

// loadVersion checks the layout's version, or writes it into an empty store.
func (j *Journal) loadVersion() error {
	value, err := j.get(codec.KeyVersion)
	if err != nil {
		return err
	}
	if value == nil {
		return j.create()
	}
	version, err := checkVersion(j.opts.Dir, value)
	if err != nil {
		return err
	}
	if err := j.upgrade(version); err != nil {
		return err
	}
	value, err = j.get(codec.KeyRecovery)
	if err != nil || value == nil {
		return err
	}
	j.recovered, err = codec.DecodeRecovery(value)
	return err
}

// checkVersion returns the stored version, and refuses what this exporter cannot read.
func checkVersion(dir string, stored []byte) (uint64, error) {
	v := codec.DecodeVersion(stored)
	switch {
	case v > codec.Version:
		return v, fmt.Errorf("%w: %s has format %d, this exporter writes %d: run the newer exporter, or remove the directory to start afresh",
			ErrNewer, dir, v, codec.Version)
	case v < codec.OldestVersion:
		return v, fmt.Errorf("%w: format version %.40q", codec.ErrMalformed, stored)
	}
	return v, nil
}

// create writes the version into an empty store, together with the recovery it may be the result of.
func (j *Journal) create() error {
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
