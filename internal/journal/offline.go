package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// ErrNoJournal is returned for a directory that holds no journal. The caller names another one.
var ErrNoJournal = errors.New("no journal here")

// Offline is the journal of an exporter that does not run, open for reading. Nothing in its directory is made, changed or
// removed, so it works on a read-only volume and on a copy; what the store's log holds beyond its tables is replayed in
// memory. A broken store is reported as [ErrBroken] and left as it is: only [Open] moves it aside.
//
// Not safe for concurrent use. Close releases it.
type Offline struct {
	dir  string
	lock io.Closer
	db   *pebble.DB
	storeReader
	extent      logExtent
	cursors     map[string]event.Cursor    // by sink
	deadLetters map[string]deadLetterCount // by sink
	records     map[string]codec.SinkRecord
}

// OpenOffline opens the journal in dir. It returns ErrNoJournal, ErrLocked while an exporter runs on it, ErrFormatVersion,
// ErrBroken, or an error of the environment. It holds a shared lock: others may read too, and an exporter that starts
// meanwhile gets ErrLocked. It must not be called in a process that has the same journal open: closing would release that
// lock.
func OpenOffline(dir string) (*Offline, error) {
	if err := checkPresent(dir); err != nil {
		return nil, err
	}
	lock, err := disk.LockShared(dir)
	if err != nil {
		return nil, err
	}
	o, err := openUnlocked(dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	o.lock = lock
	return o, nil
}

// Close releases the store and the directory.
func (o *Offline) Close() error {
	o.decoder.Close()
	return errors.Join(o.db.Close(), o.lock.Close())
}

// Oldest returns the offset of the oldest change; it is Newest()+1 when there is none.
func (o *Offline) Oldest() uint64 { return o.extent.oldest }

// Newest returns the offset of the newest change; 0 before the first.
func (o *Offline) Newest() uint64 { return o.extent.newest }

// Sinks returns the names of all sinks that have a cursor or dead letters, or were removed before they had received
// everything, in order.
func (o *Offline) Sinks() []string {
	names := slices.Collect(maps.Keys(o.cursors))
	names = slices.AppendSeq(names, maps.Keys(o.deadLetters))
	for name, r := range o.records {
		if r.Unsent > 0 && !isInternalSink(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ForEachChange calls each for every retained change from one offset up to and with another, in order, until each returns an
// error, which it returns. Trimmed and future offsets are skipped. A record and what it refers to are valid during the call
// only; memory is bounded by one frame, about 1 MiB or one larger change.
func (o *Offline) ForEachChange(from, to uint64, each func(event.Record) error) error {
	from, to = max(from, o.extent.oldest), min(to, o.extent.newest)
	if from > to {
		return nil
	}
	frames := frameReader{o.storeReader}
	for after := from - 1; after < to; {
		records, err := frames.readFrameAfter(after, o.Oldest, o.decoder.Decode)
		if err != nil {
			return o.wrapReadError(fmt.Sprintf("read change %d", after+1), err)
		}
		for _, r := range records {
			if after = r.Offset; after > to {
				return nil
			}
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// DeadLettersAfter returns at most limit dead letters of a sink behind an offset, as [DeadLetters.DeadLettersAfter].
func (o *Offline) DeadLettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error) {
	letters, err := deadLetterReader{o.storeReader}.lettersAfter(sink, after, limit)
	return letters, o.wrapReadError(fmt.Sprintf("dead letters of sink %q", sink), err)
}

// checkPresent refuses a directory that holds no journal, before anything could be made in it.
func checkPresent(dir string) error {
	_, err := os.Stat(filepath.Join(dir, storeName))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s has no directory %q", ErrNoJournal, dir, storeName)
	}
	if err != nil {
		return fmt.Errorf("journal: cannot open %s: %w", dir, err)
	}
	return nil
}

// openUnlocked opens the store of a journal whose directory the caller has locked.
func openUnlocked(dir string) (*Offline, error) {
	store := filepath.Join(dir, storeName)
	if reason, marked := brokenReason(vfs.Default, store); marked {
		return nil, fmt.Errorf("%w: %s (%s); the next start of the exporter moves it aside", ErrBroken, dir, reason)
	}
	o, err := openStoreForReading(vfs.Default, store)
	if err != nil {
		return nil, explainOpenError(dir, err)
	}
	o.dir = dir
	if err := o.loadState(); err != nil {
		o.decoder.Close()
		return nil, explainOpenError(dir, errors.Join(err, o.db.Close()))
	}
	return o, nil
}

// openDatabase opens the database and reads nothing of it.
func (o *Offline) openDatabase(fsys vfs.FS, store string) (err error) {
	failed := newFailure()
	opts := storeOptions(disk.ReadOnly{FS: fsys}, &storeLogger{ // what matters is returned as an error too, or sets failed
		logger: slog.New(slog.DiscardHandler), onFailure: func(err error) { failed.recordFirst(err) }, onCorruption: func(error) {},
	})
	opts.ReadOnly = true
	if o.db, err = openPebble(store, opts, failed.done); err != nil {
		return errors.Join(err, failed.currentError())
	}
	o.from = o.db
	return nil
}

// loadState reads what Open would, and changes nothing.
func (o *Offline) loadState() error {
	version, err := o.getValue(codec.KeyVersion)
	if err != nil {
		return err
	}
	if version == nil {
		return fmt.Errorf("%w: %s was never begun", ErrNoJournal, o.dir)
	}
	if err := checkVersion(o.dir, version); err != nil {
		return err
	}
	if o.extent, err = (frameReader{o.storeReader}).loadExtent(); err != nil {
		return err
	}
	if o.cursors, err = loadCursors(o.storeReader, o.extent.newest); err != nil {
		return err
	}
	if o.records, err = loadSinkRecords(o.storeReader); err != nil {
		return err
	}
	o.deadLetters, err = deadLetterReader{o.storeReader}.countBySink()
	return err
}

// explainOpenError adds to an error at opening what it means. It never marks a broken store.
func explainOpenError(dir string, err error) error {
	if errors.Is(err, ErrNoJournal) || errors.Is(err, pebble.ErrDBDoesNotExist) {
		return fmt.Errorf("%w: %s", ErrNoJournal, dir)
	}
	err, broken := classifyOpenError(dir, err)
	if broken {
		return fmt.Errorf("%w: %s (%s); the next start of the exporter moves it aside", ErrBroken, dir, firstLine(err))
	}
	return err
}

// wrapReadError adds to an error while reading where it happened, and whether the stored bytes are wrong.
func (o *Offline) wrapReadError(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, form.ErrMalformed), pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %s: %s: %w", ErrBroken, o.dir, doing, err)
	}
	return fmt.Errorf("journal: %s: %s: %w", o.dir, doing, err)
}

// OfflineStat is what is in the journal of an exporter that does not run.
type OfflineStat struct {
	Oldest, Newest uint64            // offsets; Oldest is Newest+1 before the first change
	RetainedBytes  int64             // stored bytes of changes, known objects, bodies, dead letters and signals: what Options.MaxBytes bounds
	ChangeBytes    int64             // of changes alone
	DiskBytes      int64             // of all files of the store
	Resources      []ResourceStat    // by name
	Sinks          []OfflineSinkStat // by name
	Signals        map[uint64][]byte // as [Identity.StoreSignals] stored them
	Recovery       *Recovery         // a broken store was replaced and its gaps are not emitted yet; else nil
}

// ChangeCount returns the number of changes that can be read.
func (s *OfflineStat) ChangeCount() uint64 { return s.Newest + 1 - s.Oldest }

// ResourceStat is what is stored about one resource.
type ResourceStat struct {
	event.StoredResource
	Name       string
	Known      int64 // objects that exist
	KnownBytes int64 // of those, as stored
	Bodies     int64 // objects with a body
	BodyBytes  int64 // of those, as stored
}

// OfflineSinkStat is what is stored about one sink: it has a cursor or dead letters, or it was removed before it had
// received everything.
type OfflineSinkStat struct {
	SinkStat
	Settled bool         // it has a cursor
	Cursor  event.Cursor // where Settled
	Backlog uint64       // changes above Cursor.Low; lanes ahead of it may have settled some. Everything where not Settled
	Removed time.Time    // when the sink was last removed from the configuration, where Unsent is not 0
	Unsent  uint64       // changes that were not sent to it because of that
}

// Stat counts what is stored. It reads everything, so that no wrong byte goes unnoticed.
func (o *Offline) Stat() (OfflineStat, error) {
	if err := o.verify(); err != nil {
		return OfflineStat{}, o.wrapReadError("verify all that is stored", err)
	}
	disk, err := dirBytes(filepath.Join(o.dir, storeName))
	if err != nil {
		return OfflineStat{}, fmt.Errorf("journal: cannot measure the size of %s: %w", o.dir, err)
	}
	s := OfflineStat{Oldest: o.extent.oldest, Newest: o.extent.newest, RetainedBytes: o.extent.sizeBytes(), ChangeBytes: o.extent.sizeBytes(), DiskBytes: disk}
	for _, name := range o.Sinks() {
		cursor, settled := o.cursors[name]
		dead, record := o.deadLetters[name], o.records[name]
		s.RetainedBytes += dead.bytes
		s.Sinks = append(s.Sinks, OfflineSinkStat{
			SinkStat: SinkStat{Name: name, DeadLetters: dead.letters, DeadBytes: dead.bytes}, Settled: settled, Cursor: cursor.Normalize(),
			Backlog: s.Newest - min(s.Newest, max(cursor.Low, s.Oldest-1)), Removed: record.Removed, Unsent: record.Unsent,
		})
	}
	if s.Resources, err = o.countResources(); err != nil {
		return OfflineStat{}, o.wrapReadError("resources", err)
	}
	for _, r := range s.Resources {
		s.RetainedBytes += r.KnownBytes + r.BodyBytes
	}
	var size int64
	if s.Signals, size, err = loadSignals(o.storeReader); err != nil {
		return OfflineStat{}, o.wrapReadError("signals", err)
	}
	s.RetainedBytes += size
	value, err := o.getValue(codec.KeyRecovery)
	if err == nil && value != nil {
		s.Recovery, err = codec.DecodeRecovery(value)
	}
	return s, o.wrapReadError("recovery", err)
}

func (o *Offline) countResources() ([]ResourceStat, error) {
	found := map[string]*ResourceStat{}
	of := func(name string) *ResourceStat {
		if found[name] == nil {
			found[name] = &ResourceStat{Name: name}
		}
		return found[name]
	}
	stored, err := loadResources(o.storeReader)
	for name, r := range stored {
		of(name).StoredResource = r
	}
	err = errors.Join(err,
		o.countKeys(codec.PrefixKnown, func(name string, bytes int64) { of(name).Known++; of(name).KnownBytes += bytes }),
		o.countKeys(codec.PrefixBody, func(name string, bytes int64) { of(name).Bodies++; of(name).BodyBytes += bytes }),
	)
	var all []ResourceStat
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[name])
	}
	return all, err
}

// countKeys calls f with the name and the stored bytes of everything under a first byte.
func (o *Offline) countKeys(first byte, f func(name string, bytes int64)) error {
	return o.forEachKey([]byte{first}, func(key, value []byte) error {
		name, _, err := codec.SplitNamedKey(key)
		f(name, int64(len(key)+len(value)))
		return err
	})
}

// dirBytes adds up the files in a directory. The store itself does not count its log before it writes one.
func dirBytes(dir string) (n int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}
