package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
)

// ErrLocked is that of package disk.
var ErrLocked = disk.ErrLocked

// ErrFormatVersion is returned for a journal of an older or newer format version. The text names the version found and the
// remedy. The store is left as it is; the caller ends.
var ErrFormatVersion = errors.New("journal has another format version")

// versionRemedy ends every ErrFormatVersion.
const versionRemedy = "delete the journal directory and start again: the new start lists every resource and sinks receive all objects as a " +
	"snapshot; changes that were not delivered yet, and dead letters, are lost"

// ErrBroken says that stored bytes are not what was written. The store is marked, so that the next Open moves it aside and
// starts afresh; the caller ends. What works on the journal of an exporter that does not run, [Offline] and
// [DiscardDeadLetters], marks nothing.
var ErrBroken = errors.New("journal is broken")

// Recovery says what Open did about a store it could not use.
type Recovery = codec.Recovery

const (
	storeName    = "store"        // the store's directory in the journal's
	brokenPrefix = "store.broken" // what a store that was moved aside is called, before its time
	brokenMarker = "BROKEN"       // file in the store: quarantine me; its content is the reason
	fullRetry    = 500 * time.Millisecond

	memTableBytes   = 4 << 20
	blockCacheBytes = 4 << 20
)

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
				if !errors.Is(err, disk.ErrNoRoomToCompact) {
					logger.stopGoroutine(&pebbleFailure{msg: "background work: " + firstLine(err), cause: err})
				}
			},
			DataCorruption: func(i pebble.DataCorruptionInfo) { logger.onCorruption(fmt.Errorf("%s: %w", i.Path, i.Details)) },
		},
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	return o
}

// storeLogger carries what Pebble says. Pebble expects Fatalf to end the process, and repeats failed background work at
// once and for ever. A library must not do the one and must not allow the other: the goroutine that failed is stopped for
// good, which keeps a store in an unknown state from writing anything more, and the failure is handed to fail, which ends
// Run.
type storeLogger struct {
	logger       *slog.Logger
	onFailure    func(error)
	onCorruption func(error) // as fail, and the store must be moved aside
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

// pebbleFailure is a failure after which Pebble cannot go on.
type pebbleFailure struct {
	msg   string
	cause error
}

func (e *pebbleFailure) Error() string { return e.msg }
func (e *pebbleFailure) Unwrap() error { return e.cause }

// openPebble opens the store, or says why not. A failure from which Pebble would end the process is an error like others.
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

// errStoreFailed says that Pebble stopped for good while it opened the store; the reason was handed to its logger.
var errStoreFailed = errors.New("journal store failed")

// classifyOpenError says what an error at opening the store means: a newer format, a fault of the environment (both are returned as
// they are, with a remedy), or, with broken true, a store that can only be moved aside.
func classifyOpenError(dir string, err error) (_ error, broken bool) {
	var errno syscall.Errno
	switch {
	case errors.Is(err, ErrFormatVersion):
		return err, false
	case disk.IsOutOfSpace(err):
		return fmt.Errorf("journal: no space to open %s: free space or enlarge the volume: %w", dir, err), false
	case errors.Is(err, errStoreFailed):
		return err, false // the lock of what is still running cannot be taken over; the next start can
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("%w: %s was written with a newer store library (%w); %s", ErrFormatVersion, dir, err, versionRemedy), false
	case errors.Is(err, ErrBroken), errors.Is(err, codec.ErrMalformed), pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist):
		return err, true
	case errors.As(err, &errno):
		return fmt.Errorf("journal: cannot open %s: %w", dir, err), false
	}
	return err, true
}

// moveStoreAside moves the store aside. Of the stores moved aside earlier none is kept: they would fill the disk (I6).
func moveStoreAside(fsys vfs.FS, dir, reason string, now time.Time, logger *slog.Logger) error {
	names, err := fsys.List(dir)
	if err != nil {
		return fmt.Errorf("journal: cannot list %s: %w", dir, err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, brokenPrefix) {
			continue
		}
		old := fsys.PathJoin(dir, name)
		if err := fsys.RemoveAll(old); err != nil {
			return fmt.Errorf("journal: cannot remove the older broken store %s: %w", old, err)
		}
		logger.Warn("journal: removed an older broken store", "path", old)
	}
	to := fsys.PathJoin(dir, brokenPrefix+now.UTC().Format("-20060102T150405.000Z"))
	if err := fsys.Rename(fsys.PathJoin(dir, storeName), to); err != nil {
		return fmt.Errorf("journal: cannot move the broken store aside: %w", err)
	}
	if err := disk.SyncDir(fsys, dir); err != nil {
		return err
	}
	logger.Error("journal was broken and is started afresh; a gap will be announced", "reason", reason, "movedTo", to)
	return nil
}

// lastRecovery describes the store that was moved aside last; nil when none was.
func lastRecovery(fsys vfs.FS, dir string) (*Recovery, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("journal: cannot list %s: %w", dir, err)
	}
	last := ""
	for _, name := range names {
		if strings.HasPrefix(name, brokenPrefix) {
			last = max(last, name)
		}
	}
	if last == "" {
		return nil, nil
	}
	moved := fsys.PathJoin(dir, last)
	reason, _ := brokenReason(fsys, moved)
	return &Recovery{Reason: reason, MovedTo: moved}, nil
}

// markBroken leaves word for the next Open that the store in dir must be moved aside.
func markBroken(fsys vfs.FS, dir string, reason error) error {
	f, err := fsys.Create(fsys.PathJoin(dir, brokenMarker), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(firstLine(reason)))
	return errors.Join(err, f.Sync(), f.Close(), disk.SyncDir(fsys, dir))
}

// brokenReason reads what markBroken wrote.
func brokenReason(fsys vfs.FS, dir string) (string, bool) {
	f, err := fsys.Open(fsys.PathJoin(dir, brokenMarker))
	if err != nil {
		return "", false
	}
	defer f.Close()
	b := make([]byte, 1024)
	n, _ := f.Read(b) // an unreadable reason is still a mark
	return string(b[:n]), true
}

// firstLine is the first line of an error, shortened.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > 400 {
		line = line[:400]
	}
	return line
}

// failure remembers the first failure after which the store cannot be used any more.
type failure struct {
	mu   sync.Mutex
	err  error
	done chan struct{}
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

func (f *failure) current() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
