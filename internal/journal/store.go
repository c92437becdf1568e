package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/form"
)

const (
	storeName = "store" // the store's directory in the journal's
	fullRetry = 500 * time.Millisecond

	memTableBytes   = 4 << 20
	blockCacheBytes = 4 << 20
)

// store is the Pebble database of an open journal, with the lock of its directory. It decides when the journal is unusable:
// after a failure of Pebble, after wrong bytes were read, and after close. All parts of the journal share one store.
type store struct {
	dir    string        // of the journal
	base   vfs.FS        // where a full disk is an error
	fs     *disk.SpaceFS // base, with writes that wait while the disk is full
	lock   *pebble.Lock
	logger *slog.Logger

	// The following are replaced by every attempt to open the database. That happens in Open and, before Run, in Rewrite.
	storeReader
	db      *pebble.DB
	ackFile *disk.AckFile
	failure *failure

	ended chan struct{} // closed when nothing more will be committed
	end   func()        // closes ended, once

	// using is held for reading while db is used by callers of the journal, and for writing by close. The committer does not
	// take it: close is called after Run has returned.
	using sync.RWMutex
}

// lockStore locks the directory. The database is opened by open.
func lockStore(opts Options) (*store, error) {
	decoder, err := codec.NewFrameDecoder()
	if err != nil {
		return nil, err
	}
	lock, err := disk.Lock(opts.FS, opts.Dir)
	if err != nil {
		decoder.Close()
		return nil, err
	}
	s := &store{
		dir: opts.Dir, base: opts.FS, logger: opts.Logger, lock: lock,
		fs:          disk.NewSpaceFS(opts.FS, opts.Dir, fullRetry),
		storeReader: storeReader{decoder: decoder},
		ended:       make(chan struct{}),
	}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	return s, nil
}

func (s *store) storePath() string { return s.fs.PathJoin(s.dir, storeName) }

// openOrRecover opens the database, after moving a broken one aside (I7), and calls load, which reads it into memory.
func (s *store) openOrRecover(load func() error) error {
	reason, marked := brokenReason(s.base, s.storePath())
	if !marked {
		err := verifyStore(s.base, s.storePath())
		if err == nil {
			err = s.tryOpen(load)
		}
		if err == nil {
			s.fs.EnableWaiting()
			return nil
		}
		err, broken := classifyOpenError(s.dir, err)
		if !broken {
			return err
		}
		reason = firstLine(err)
	}
	reason, _, _ = strings.Cut(reason, contentsPart) // a start that marked the store may not have moved it
	reason += contentsPart + describeContents(s.base, s.storePath())
	earlier, err := lastRecovery(s.base, s.dir)
	if err != nil {
		return err
	}
	if earlier != nil {
		reason += earlierPart + contentsOf(earlier.Reason)
	}
	if err := markBroken(s.base, s.storePath(), reason); err != nil {
		return fmt.Errorf("journal: broken store in %s (%s) cannot be moved aside: %w", s.dir, reason, err)
	}
	moved, err := moveStoreAside(s.base, s.dir, reason, time.Now(), s.logger)
	if err != nil {
		return err
	}
	if err = s.tryOpen(load); err != nil {
		if _, broken := classifyOpenError(s.dir, err); broken { // by what was carried over: begin without it
			err = errors.Join(markSalvaged(s.base, moved), s.base.RemoveAll(s.storePath()))
			if err == nil {
				err = s.tryOpen(load)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("journal: cannot make a new store in %s: %w", s.dir, err)
	}
	s.fs.EnableWaiting()
	return nil
}

// tryOpen opens the database and loads it. It leaves nothing open when it fails.
func (s *store) tryOpen(load func() error) error {
	failed := newFailure() // of this attempt only: late errors of an abandoned database must not end its successor
	s.failure = failed
	logger := &storeLogger{
		logger:       s.logger,
		onFailure:    func(err error) { s.failStore(failed, err) },
		onCorruption: func(err error) { _ = s.failBroken(failed, err) },
	}
	db, err := openPebble(s.storePath(), storeOptions(s.fs, logger), failed.done)
	if errors.Is(err, errStoreFailed) {
		return fmt.Errorf("%w: %w", err, failed.currentError())
	}
	if err != nil {
		return err
	}
	s.db, s.from = db, db
	if s.ackFile, err = disk.OpenAckFile(s.fs, s.storePath()); err != nil {
		return errors.Join(err, db.Close())
	}
	if err := load(); err != nil {
		return errors.Join(err, s.ackFile.Close(), db.Close())
	}
	return nil
}

// reopen closes the database and opens it again, which drops the logs of the old one. No other goroutine may use the store.
func (s *store) reopen(load func() error) error {
	if err := errors.Join(s.db.Close(), s.ackFile.Close()); err != nil {
		return err
	}
	return s.tryOpen(load)
}

// close releases the database and the directory. After a failure the lock is kept until the process ends, because Pebble's
// goroutines may still write.
func (s *store) close() error {
	s.end()
	s.fs.StopWaiting()
	if s.failure.currentError() != nil {
		return nil // Run has returned it
	}
	s.using.Lock()
	defer s.using.Unlock()
	done := make(chan error, 1)
	go func() { done <- errors.Join(s.db.Close(), s.ackFile.Close()) }()
	select {
	case err := <-done:
		s.decoder.Close()
		if err = errors.Join(err, s.lock.Close()); err != nil {
			return fmt.Errorf("journal: close %s: %w", s.dir, err)
		}
		return nil
	case <-s.failure.done:
		return s.failure.currentError()
	}
}

// acquire keeps the database open until the returned function is called, or returns why it is not usable.
func (s *store) acquire() (release func(), err error) {
	s.using.RLock()
	if err := s.checkUsable(); err != nil {
		s.using.RUnlock()
		return nil, err
	}
	return s.using.RUnlock, nil
}

// checkUsable returns why nothing can be read or written any more, or nil.
func (s *store) checkUsable() error {
	if err := s.failure.currentError(); err != nil {
		return err
	}
	select {
	case <-s.ended:
		return ErrClosed
	default:
		return nil
	}
}

// waitFor returns nil when changed is closed or the journal is not usable any more, and otherwise the cause of ctx's end.
func (s *store) waitFor(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.failure.done:
	case <-s.ended:
	}
	return nil
}

// readStore calls read while the database is open. An error names what was read, and ends the journal if stored bytes are
// wrong.
func readStore[T any](s *store, what string, read func(storeReader) (T, error)) (result T, err error) {
	release, err := s.acquire()
	if err != nil {
		return result, err
	}
	defer release()
	result, err = read(s.storeReader)
	return result, s.checkCorruption(what, err)
}

// loadText returns the text that is stored under a key; "" where none is.
func (s *store) loadText(what string, key []byte) (string, error) {
	value, err := readStore(s, what, func(r storeReader) ([]byte, error) { return r.getValue(key) })
	return string(value), err
}

// loadNumbered returns the text that is stored under a key, and the number behind its blank; "" where none is.
func (s *store) loadNumbered(what string, key []byte) (text string, number uint64, err error) {
	stored, err := s.loadText(what, key)
	if err != nil || stored == "" {
		return "", 0, err
	}
	text, digits, _ := strings.Cut(stored, " ")
	if number, err = strconv.ParseUint(digits, 10, 64); err != nil {
		return "", 0, s.checkCorruption(what, fmt.Errorf("%w: %s %q", form.ErrMalformed, what, stored))
	}
	return text, number, nil
}

// applyBatch writes a batch and waits for its fsync. Pebble panics where a write of its log fails after an earlier failure.
func (s *store) applyBatch(b *pebble.Batch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("commit: %v", r)
		}
	}()
	return s.db.Apply(b, pebble.Sync)
}

// failStore ends the journal: Run returns err, and every other call is refused.
func (s *store) failStore(f *failure, err error) {
	what := "failed"
	if _, missing := s.base.Stat(s.storePath()); errors.Is(missing, fs.ErrNotExist) {
		what = "was removed while it was in use"
	}
	err = fmt.Errorf("journal: store in %s %s, restart the exporter to recover: %w", s.dir, what, &brief{err})
	if f.recordFirst(err) {
		s.logger.Error("journal failed", "err", firstLine(err))
	}
}

// brief is an error without what follows its first line, such as the stacks of Pebble's.
type brief struct{ error }

func (e *brief) Error() string { return firstLine(e.error) }
func (e *brief) Unwrap() error { return e.error }

// failBroken ends the journal because stored bytes are wrong, and marks the store, so that the next Open moves it aside
// (I7).
func (s *store) failBroken(f *failure, err error) error {
	err = fmt.Errorf("%w: %w", ErrBroken, err)
	if markErr := markBroken(s.base, s.storePath(), firstLine(err)); markErr != nil {
		err = fmt.Errorf("%w (and could not be marked as broken: %w)", err, markErr)
	}
	s.failStore(f, err)
	return err
}

// checkCorruption returns err with its place, and ends the journal when err means that stored bytes are wrong.
func (s *store) checkCorruption(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("journal: %s: %w", doing, err)
	if errors.Is(err, form.ErrMalformed) || pebble.IsCorruptionError(err) {
		return s.failBroken(s.failure, err)
	}
	return err
}

// storeOptions are Pebble's options for a small footprint: values are zstd frames already, most of them are trimmed before
// they would ever be compacted, and the other keys are few and small.
func storeOptions(fsys vfs.FS, logger *storeLogger) *pebble.Options {
	o := &pebble.Options{
		FS:                          fsys,
		Logger:                      logger,
		FormatMajorVersion:          pebble.FormatTableFormatV6,
		CacheSize:                   blockCacheBytes,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: 3,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       32,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                256,
		BytesPerSync:                1 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				// Pebble retries both: a compaction that finds no room, and one that a concurrent operation has cancelled.
				if !errors.Is(err, disk.ErrNoRoomToCompact) && !errors.Is(err, pebble.ErrCancelledCompaction) {
					logger.stopGoroutine(&pebbleFailure{msg: "background work: " + firstLine(err), cause: err})
				}
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) { logger.onCorruption(fmt.Errorf("%s: %w", i.Path, i.Details)) },
		},
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	return o
}

// storeLogger receives Pebble's messages. Pebble expects Fatalf to end the process, and repeats failed background work at
// once and without end. A library must not do the one and must not allow the other: the goroutine that failed is blocked for
// good, which keeps a store in an unknown state from writing anything more, and the failure is handed to onFailure, which
// ends Run.
type storeLogger struct {
	logger       *slog.Logger
	onFailure    func(error)
	onCorruption func(error) // as onFailure, and the store must be moved aside
}

// Infof implements [pebble.Logger].
func (l *storeLogger) Infof(format string, args ...any) {
	l.logger.Debug("journal store", "msg", fmt.Sprintf(format, args...))
}

// Errorf implements [pebble.Logger].
func (l *storeLogger) Errorf(format string, args ...any) {
	l.logger.Warn("journal store", "msg", fmt.Sprintf(format, args...))
}

// Fatalf implements [pebble.Logger]. It does not return.
func (l *storeLogger) Fatalf(format string, args ...any) {
	err := &pebbleFailure{msg: strings.TrimPrefix(fmt.Sprintf(format, args...), "pebble: ")}
	for _, a := range args {
		if e, ok := a.(error); ok {
			err.cause = e
		}
	}
	l.stopGoroutine(err)
}

// stopGoroutine reports a failure and does not return.
func (l *storeLogger) stopGoroutine(err *pebbleFailure) {
	if pebble.IsCorruptionError(err.cause) {
		l.onCorruption(err)
	} else {
		l.onFailure(err)
	}
	select {}
}

type pebbleFailure struct {
	msg   string
	cause error
}

func (e *pebbleFailure) Error() string { return e.msg }
func (e *pebbleFailure) Unwrap() error { return e.cause }

// openPebble opens the database. A failure for which Pebble would end the process is returned as errStoreFailed, and a panic
// as ErrBroken.
func openPebble(dir string, opts *pebble.Options, failed <-chan struct{}) (db *pebble.DB, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				db, err = nil, fmt.Errorf("%w: %v", ErrBroken, r)
			}
		}()
		db, err = pebble.Open(dir, opts)
	}()
	select {
	case <-done:
		return db, err
	case <-failed:
		return nil, errStoreFailed
	}
}

// errStoreFailed is returned when Pebble stopped for good while it opened the store; its logger has received the reason.
var errStoreFailed = errors.New("journal store failed")

// failure holds the first failure after which the store cannot be used any more.
type failure struct {
	mu   sync.Mutex
	err  error
	done chan struct{} // closed with the first failure
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

func (f *failure) recordFirst(err error) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return false
	}
	f.err = err
	close(f.done)
	return true
}

func (f *failure) currentError() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

const (
	// minChangeShare is the part of MaxBytes that changes have at least. Known objects and bodies cannot be bounded: were they
	// to leave no space for changes, the journal could never continue.
	minChangeShare = 8

	spaceCheckBytes = 1 << 20 // of changes, after which the disk is asked for its free space
	maxReservePart  = 4       // of a disk; Options.Reserve takes no more of it

	// minReserve is what the store may need beside what is kept: what was admitted and is not in its log yet, the log and
	// the tables of three memtables, and what compactions leave free.
	minReserve = 40 << 20
)

// storedSizes are the stored bytes of everything but changes; all but dead letters as they were measured last.
type storedSizes struct{ known, bodies, signals, dead int64 }

func (s storedSizes) totalBytes() int64 { return s.known + s.bodies + s.signals + s.dead }

// spaceGuard bounds what is stored, by Options.MaxBytes and by the free space of the disk (I6). It admits observations, and
// explains why it does not. Safe for concurrent use.
type spaceGuard struct {
	store       *store
	log         *Log
	sinks       *SinkLedger
	deadLetters *DeadLetters
	changed     *broadcast
	view        *view
	maxBytes    int64
	reserve     int64 // as configured
	condition   *condition.Condition

	checkedAt      uint64 // of the committer's goroutine: stored bytes when it last asked the disk
	reclaimedBytes uint64 // of the upkeep's goroutine: stored bytes ever trimmed and given back to the disk

	mu        sync.Mutex
	missing   atomic.Uint64 // of the reserve on the disk; written with mu held
	measured  storedSizes   // without dead letters
	diskBytes atomic.Int64  // of the whole store, as measured last
}

func (g *spaceGuard) currentSizes() storedSizes {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.measured
	s.dead = g.deadLetters.totalBytes()
	return s
}

// changeCapacity is how many bytes of changes may be retained.
func (g *spaceGuard) changeCapacity() int64 {
	return max(g.maxBytes-g.currentSizes().totalBytes(), g.maxBytes/minChangeShare)
}

// isDiskLow reports whether the disk has less than the reserve left.
func (g *spaceGuard) isDiskLow() bool { return g.missing.Load() > 0 }

// hasSpace reports whether one more observation may be appended.
func (g *spaceGuard) hasSpace() bool {
	g.view.RLock()
	defer g.view.RUnlock()
	return !g.isDiskLow() && !g.isFull()
}

// hasSpareSpace reports whether something may be appended that can wait: the second half of the bound is for what is watched
// while a sink is away.
func (g *spaceGuard) hasSpareSpace() bool {
	g.view.RLock()
	defer g.view.RUnlock()
	return !g.isDiskLow() && !g.holdsMoreThan(g.changeCapacity()/2)
}

// isFull reports whether there is no space for a change. Requires the view.
func (g *spaceGuard) isFull() bool { return g.holdsMoreThan(g.changeCapacity()) }

// holdsMoreThan reports whether changes take so many bytes. While no sink is behind it is false: waiting could not make any
// space. Requires the view.
func (g *spaceGuard) holdsMoreThan(bytes int64) bool {
	extent := g.log.currentExtent()
	if extent.sizeBytes() < bytes {
		return false
	}
	slowest, low := g.sinks.slowestSink()
	return slowest == "" || low < extent.newest
}

// blockingProblem returns why Append waits for more than the disk's next fsync; zero when it does not. Requires the view.
func (g *spaceGuard) blockingProblem() condition.Problem {
	slowest, low := g.sinks.slowestSink()
	p := condition.Problem{LosesHistory: true}
	switch {
	case g.store.fs.IsFull():
		p.Code, p.Cause = condition.JournalDiskFull, "the journal's disk is full"
	case g.isDiskLow():
		p.Code = condition.JournalDiskLow
		p.Cause = "the journal's disk has no more left than journal.reserve, which something else than the changes in the journal takes"
		if extent := g.log.currentExtent(); slowest != "" && low < extent.newest && uint64(extent.sizeBytes()) >= g.missing.Load() { // these bytes, freed, would restore the reserve
			p.Cause = fmt.Sprintf("the journal's disk has no more left than journal.reserve, and sink %q is the furthest behind", slowest)
		} else {
			p.Remedy = "free space or enlarge the volume"
		}
	case !g.isFull():
		return condition.Problem{}
	default:
		return journalFull(slowest, g.log.currentExtent().sizeBytes(), g.currentSizes().totalBytes())
	}
	return p
}

func (g *spaceGuard) updateCondition() {
	g.view.RLock()
	p := g.blockingProblem()
	held := g.log.currentExtent().sizeBytes() + g.currentSizes().totalBytes()
	g.view.RUnlock()
	g.condition.Update(p, "bytes", held, "maxBytes", g.maxBytes)
}

// measureSizes asks the store about its size. The newest bytes, some MiB that are in no table yet, are not in it.
func (g *spaceGuard) measureSizes() {
	var s storedSizes
	for _, m := range []struct {
		first byte
		size  *int64
	}{{codec.PrefixKnown, &s.known}, {codec.PrefixBody, &s.bodies}} {
		n, err := g.store.db.EstimateDiskUsage([]byte{m.first}, []byte{m.first + 1})
		if err != nil {
			_ = g.store.checkCorruption("measure", err)
			return
		}
		*m.size = int64(n)
	}
	_, size, err := loadSignals(g.store.storeReader)
	_ = g.store.checkCorruption("measure", err)
	s.signals = size
	g.diskBytes.Store(int64(g.store.db.Metrics().DiskSpaceUsage()))
	g.mu.Lock()
	g.measured = s
	g.mu.Unlock()
	g.changed.notifyAll()
}

// checkDisk asks the disk whether the reserve is still there. A disk that cannot be asked counts as large.
func (g *spaceGuard) checkDisk() {
	if g.reserve <= 0 {
		return
	}
	usage, err := g.store.fs.GetDiskUsage(g.store.dir)
	if err != nil {
		return
	}
	reserve := min(uint64(g.reserve), max(usage.TotalBytes/maxReservePart, min(minReserve, usage.TotalBytes/2)))
	g.store.fs.SetCompactionReserve(reserve / 2)
	g.mu.Lock()
	wasLow := g.isDiskLow()
	if wasLow {
		reserve += reserve / 4 // hysteresis
	}
	g.missing.Store(reserve - min(reserve, usage.AvailBytes))
	changed := g.isDiskLow() != wasLow
	g.mu.Unlock()
	if changed {
		g.changed.notifyAll()
	}
}

// reclaimSpace gives the disk back what trimming has freed, if the disk needs it. The store would do so by itself, but only
// after some MiB of further writes, which wait for this space, and by a compaction, for which there may be no space. Of the
// upkeep's goroutine.
func (g *spaceGuard) reclaimSpace(ctx context.Context) {
	extent := g.log.currentExtent()
	if !g.isDiskLow() || extent.startBytes <= g.reclaimedBytes {
		return
	}
	if g.store.db.Excise(ctx, pebble.KeyRange{Start: codec.KeyFrame(0), End: codec.KeyFrame(extent.oldest)}) == nil {
		g.reclaimedBytes = extent.startBytes
		g.checkDisk()
	}
}
