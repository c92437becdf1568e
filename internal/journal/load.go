package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

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
			j.fs.wait()
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
	j.fs.wait()
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
	j.db = db
	if j.mark, err = openMark(j.fs, dir); err != nil {
		return errors.Join(err, db.Close())
	}
	if err := j.load(); err != nil {
		return errors.Join(err, j.mark.file.Close(), db.Close())
	}
	return nil
}

func (j *Journal) load() error {
	if err := j.loadWrites(); err != nil {
		return err
	}
	if err := j.loadVersion(); err != nil {
		return err
	}
	if err := j.loadExtent(); err != nil {
		return err
	}
	j.sinks = map[string]sinkState{}
	for _, name := range j.opts.Sinks {
		j.sinks[name] = sinkState{declared: true}
	}
	if err := j.loadCursors(); err != nil {
		return err
	}
	if err := j.loadResources(); err != nil {
		return err
	}
	if err := j.loadBodies(); err != nil {
		return err
	}
	return j.loadDead()
}

// loadWrites finds out how many groups were written, and refuses a store that has lost some which were acknowledged.
func (j *Journal) loadWrites() error {
	value, err := j.get(keyWrites)
	if err != nil {
		return err
	}
	j.writes = 0
	if value != nil {
		s := scanner{s: string(value)}
		if j.writes = s.uvarint(); s.failed {
			return fmt.Errorf("%w: number of writes", errMalformed)
		}
	}
	return j.mark.check(j.writes)
}

// loadVersion checks the layout's version, or writes it into an empty store.
func (j *Journal) loadVersion() error {
	value, err := j.get(keyVersion)
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
	value, err = j.get(keyRecovery)
	if err != nil || value == nil {
		return err
	}
	j.recovered, err = decodeRecovery(value)
	return err
}

// checkVersion returns the stored version, and refuses what this exporter cannot read.
func checkVersion(dir string, stored []byte) (uint64, error) {
	v := decodeVersion(stored)
	switch {
	case v > formatVersion:
		return v, fmt.Errorf("%w: %s has format %d, this exporter writes %d: run the newer exporter, or remove the directory to start afresh",
			ErrNewer, dir, v, formatVersion)
	case v < oldestFormat:
		return v, fmt.Errorf("%w: format version %.40q", errMalformed, stored)
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
		return fmt.Errorf("%w: no format version", errMalformed)
	}
	b := j.db.NewBatch()
	defer b.Close()
	_ = b.Set(keyVersion, encodeVersion(), nil) // a batch in memory does not fail
	if j.recovered, err = lastRecovery(j.opts.FS, j.opts.Dir); err != nil {
		return err
	}
	if j.recovered != nil {
		_ = b.Set(keyRecovery, encodeRecovery(*j.recovered), nil)
	}
	return b.Commit(pebble.Sync)
}

func (j *Journal) loadExtent() (err error) {
	j.ext, err = readExtent(j.db)
	return err
}

// readExtent finds the oldest and the newest frame.
func readExtent(db *pebble.DB) (extent, error) {
	ext := extent{oldest: 1}
	it, err := iterate(db, []byte{prefixFrame})
	if err != nil {
		return ext, err
	}
	defer it.Close()
	if !it.First() {
		return ext, it.Error()
	}
	oldest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.oldest, ext.start = oldest, h.before
	it.Last()
	newest, h, err := frameAt(it)
	if err != nil {
		return ext, err
	}
	ext.newest, ext.end = newest+h.count-1, h.before+storedBytes(it)
	if ext.end < ext.start || ext.newest < ext.oldest {
		return ext, fmt.Errorf("%w: frames %d to %d do not follow each other", errMalformed, oldest, newest)
	}
	return ext, nil
}

// frameAt reads the header of the frame it stands on.
func frameAt(it *pebble.Iterator) (first uint64, h frameHeader, err error) {
	if !it.Valid() {
		if err := it.Error(); err != nil {
			return 0, h, err
		}
		return 0, h, fmt.Errorf("%w: a frame is missing", errMalformed)
	}
	first, ok := offsetOfFrame(it.Key())
	if !ok {
		return 0, h, fmt.Errorf("%w: frame key %x", errMalformed, it.Key())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return 0, h, err
	}
	h, _, err = readFrameHeader(value)
	return first, h, err
}

func storedBytes(it *pebble.Iterator) uint64 {
	return uint64(len(it.Key()) + len(it.Value()))
}

// loadCursors reads every cursor, and drops those of sinks that are not declared.
func (j *Journal) loadCursors() error {
	return j.each([]byte{prefixCursor}, func(key, value []byte) error {
		name := string(key[1:])
		c, err := readCursor(name, value, j.ext.newest)
		if err != nil {
			return err
		}
		if s := j.sinks[name]; s.declared {
			s.cursor, s.settled = c, true
			j.sinks[name] = s
			return nil
		}
		j.opts.Logger.Warn("journal: dropped the cursor of a sink that is not configured any more", "sink", name, "offset", c.Low)
		return j.db.Delete(keyCursor(name), pebble.Sync)
	})
}

// readCursor decodes the cursor of a sink and refuses one that speaks of changes that never were.
func readCursor(sink string, value []byte, newest uint64) (Cursor, error) {
	c, err := decodeCursor(value)
	if err != nil {
		return Cursor{}, err
	}
	if c.newest() > newest {
		return Cursor{}, fmt.Errorf("%w: cursor of sink %q is at %d, past the newest change %d", errMalformed, sink, c.newest(), newest)
	}
	return c, nil
}

func (j *Journal) loadDead() error { return countDead(j.db, j.sinks) }

// countDead adds the number and the size of dead letters to their sinks.
func countDead(db *pebble.DB, sinks map[string]sinkState) error {
	return forEach(db, []byte{prefixDead}, func(key, value []byte) error {
		name, _, err := cutDead(key)
		if err != nil {
			return err
		}
		s := sinks[name]
		s.dead++
		s.deadBytes += int64(len(key) + len(value))
		sinks[name] = s
		return nil
	})
}

// forEachResource calls f for the record of every resource of which anything is stored.
func forEachResource(db *pebble.DB, f func(name string, r event.Resource)) error {
	return forEach(db, []byte{prefixResource}, func(key, value []byte) error {
		r, err := decodeResource(value)
		if err == nil {
			f(string(key[1:]), r)
		}
		return err
	})
}

// forEachScope calls f for every scope record.
func forEachScope(db *pebble.DB, f func(resource string, s event.StoredScope)) error {
	return forEach(db, []byte{prefixScope}, func(key, value []byte) error {
		resource, id, err := cutName(key)
		if err != nil {
			return err
		}
		s, err := decodeScope(id, value)
		if err == nil {
			f(resource, s)
		}
		return err
	})
}

// forEachName calls f for each name that has keys under a first byte, with one seek a name.
func forEachName(db *pebble.DB, first byte, f func(name string)) error {
	it, err := iterate(db, []byte{first})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); {
		name, _, err := cutName(it.Key())
		if err != nil {
			return err
		}
		f(name)
		it.SeekGE(keyAfter(appendNamePrefix(nil, first, name)))
	}
	return it.Error()
}

func (j *Journal) get(key []byte) ([]byte, error)               { return readValue(j.db, key) }
func (j *Journal) iter(prefix []byte) (*pebble.Iterator, error) { return iterate(j.db, prefix) }
func (j *Journal) each(prefix []byte, f func(key, value []byte) error) error {
	return forEach(j.db, prefix, f)
}

// readValue returns a copy of the value of key, or nil when there is none.
func readValue(db *pebble.DB, key []byte) ([]byte, error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value = append([]byte{}, value...)
	return value, closer.Close()
}

// iterate iterates over the keys that start with prefix.
func iterate(db *pebble.DB, prefix []byte) (*pebble.Iterator, error) {
	return db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyAfter(prefix)})
}

// forEach calls f for every key that starts with prefix, in order. Key and value are valid during the call only.
func forEach(db *pebble.DB, prefix []byte, f func(key, value []byte) error) error {
	it, err := iterate(db, prefix)
	if err != nil {
		return err
	}
	for it.First(); it.Valid() && err == nil; it.Next() {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil {
			err = f(it.Key(), value)
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}
