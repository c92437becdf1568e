package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kubecdc/kubecdc/internal/journal/codec"
	"github.com/kubecdc/kubecdc/internal/journal/disk"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// ErrClosed says that the journal takes nothing more because Run has ended or Close was called. The caller ends too.
var ErrClosed = errors.New("journal is closed")

// Options configure a journal. Only Dir is required.
type Options struct {
	Dir   string   // made if missing; belongs to the journal alone
	Sinks []string // names of the sinks that hold the trim; cursors of others are dropped at Open

	// KeepEvidence says that somebody keeps evidence here; what is left of earlier times is dropped at Open where nobody does.
	KeepEvidence bool

	// KeepSettled is for how long changes stay readable that every sink has settled, as long as they take less than half of
	// MaxBytes; 0: not at all.
	KeepSettled time.Duration

	// MaxBytes is the bound of what is stored: changes, known objects, last states and dead letters; 0: 10 GiB. Append waits
	// while it is reached. An eighth of it is for changes, whatever the rest takes.
	MaxBytes int64
	// MaxDeadLetters is the bound of dead letters, as stored, see CheckDeadLetterSpace; 0: 1 GiB. It is at most half of MaxBytes.
	MaxDeadLetters int64
	// Reserve is how much of the disk stays free: Append waits below it, so that settling and trimming can still be written.
	// It is at most a quarter of the disk, or of a small one 40 MiB; 0: nothing.
	Reserve int64

	PendingBytes int64 // bound of appended changes not yet committed, in memory; 0: 8 MiB
	TailBytes    int64 // bound of recent changes kept in memory for readers; 0: 8 MiB

	// SyncInterval is about how long lies between commits: fewer fsyncs on a slow disk, at the price of that much latency.
	// 0: what is appended is committed at once, and under load every few milliseconds. A change is shown to the sinks only
	// after its fsync, so nothing is weakened by it: what has not reached the disk is watched again from the older position.
	SyncInterval time.Duration

	FS     vfs.FS       // nil: the real disk
	Logger *slog.Logger // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 10 << 30
	}
	if o.MaxDeadLetters <= 0 {
		o.MaxDeadLetters = 1 << 30
	}
	o.MaxDeadLetters = min(o.MaxDeadLetters, o.MaxBytes/2)
	if o.PendingBytes <= 0 {
		o.PendingBytes = 8 << 20
	}
	if o.TailBytes <= 0 {
		o.TailBytes = 8 << 20
	}
	if o.FS == nil {
		o.FS = disk.Private{FS: vfs.Default}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Journal is the log. All methods are safe for concurrent use; Run is called once, Close once and after Run has returned.
type Journal struct {
	opts Options
	fs   *disk.SpaceFS
	lock *pebble.Lock
	db   *pebble.DB
	storeReader
	storeFailure *failure      // the store cannot be used any more
	closed       chan struct{} // closed when nothing more will be committed
	closeOnce    func()        // closes ended
	wake         chan struct{} // something was queued for the committer; capacity 1

	retention      retention     // of the committer
	ackFile        *disk.AckFile // of the upkeep
	spaceCheckedAt uint64        // of the committer: stored bytes when it last asked the disk for its room
	reclaimedBytes uint64        // of the upkeep: stored bytes ever trimmed whose disk space was given back

	spaceCondition, deadLetterCondition *condition.Condition // for the log

	using sync.RWMutex // held for reading while db is used outside of Run, for writing by Close

	mu            sync.Mutex
	queue         []queued         // in order of arrival, not yet taken by the committer
	lowPriority   lowPriorityQueue // requests that let others go first
	pending       int64            // bytes queued or being committed
	trimDue       bool             // time has passed: look what can be trimmed
	writes        uint64           // groups ever written to this store
	diskLow       bool             // the disk has less than the reserve left
	measuredSizes storedSizes      // known objects and bodies
	diskBytes     int64            // of the whole store
	logExtent     logExtent
	trimmed       uint64 // everything below it may be gone, or soon: a batch is seen before it is durable, and ext comes after
	tail          tail
	sinks         map[string]sinkState
	bodies        bodyIndex
	resources     map[string]event.StoredResource // by name: what is committed of everything of which anything is stored
	recovered     *Recovery
	commits       uint64        // since Open
	changed       chan struct{} // closed and replaced at every commit: readers and appenders look again
}

// logExtent is what part of the log exists, in offsets and in stored bytes counted from the first frame ever written.
type logExtent struct {
	oldest, newest       uint64 // oldest is newest+1 while the log has never had a change
	startBytes, endBytes uint64 // bytes before the oldest frame, bytes up to and with the newest
}

func (e logExtent) size() int64 { return int64(e.endBytes - e.startBytes) }

// sinkState is what the journal knows about one declared sink, or about one that left dead letters.
type sinkState struct {
	declared    bool
	settled     bool // it has a cursor
	cursor      event.Cursor
	deadLetters int64
	deadBytes   int64
}

// Open locks the directory and loads what is there. It returns ErrLocked, ErrFormatVersion, or an error of the environment. A
// broken store is moved aside and replaced by an empty one; Recovered then says so (I7).
func Open(opts Options) (*Journal, error) {
	opts = opts.withDefaults()
	if opts.Dir == "" {
		return nil, errors.New("journal: no directory given")
	}
	unpacker, err := codec.NewFrameDecoder()
	if err != nil {
		return nil, err
	}
	lock, err := disk.Lock(opts.FS, opts.Dir)
	if err != nil {
		unpacker.Close()
		return nil, err
	}
	j := &Journal{
		opts:        opts,
		fs:          disk.NewSpaceFS(opts.FS, opts.Dir, fullRetry),
		lock:        lock,
		storeReader: storeReader{unpacker: unpacker},
		closed:      make(chan struct{}),
		wake:        make(chan struct{}, 1),
		retention:   retention{keep: opts.KeepSettled},
		changed:     make(chan struct{}),

		spaceCondition: condition.New(opts.Logger, stateHasSpace), deadLetterCondition: condition.New(opts.Logger, stateDeadLettersAccepted),
	}
	j.closeOnce = sync.OnceFunc(func() { close(j.closed) })
	if _, real := opts.FS.(disk.Private); real {
		disk.RestrictPermissions(opts.Dir, opts.Logger)
	}
	if err := j.openStore(); err != nil {
		unpacker.Close()
		return nil, errors.Join(err, lock.Close())
	}
	j.checkDiskSpace()
	j.measureSizes()
	return j, nil
}

// PendingRecovery says that Open found a broken store and started afresh, now or in an earlier process that did not get as far
// as Announced. The caller announces a gap for every resource.
func (j *Journal) PendingRecovery() (Recovery, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.recovered == nil {
		return Recovery{}, false
	}
	return *j.recovered, true
}

// Oldest returns the offset of the oldest change that can be read; it is Newest()+1 when there is none.
func (j *Journal) Oldest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.logExtent.oldest
}

// Newest returns the offset of the newest committed change; 0 before the first.
func (j *Journal) Newest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.logExtent.newest
}

// Close releases the store and the directory. What was appended after Run ended is dropped; it will be watched again.
// After a failure of the store the lock is kept until the process ends, because what the store still does is unknown.
func (j *Journal) Close() error {
	j.closeOnce()
	j.fs.StopWaiting()
	if j.storeFailure.current() != nil {
		return nil // Run has returned it
	}
	j.using.Lock()
	defer j.using.Unlock()
	done := make(chan error, 1)
	go func() { done <- errors.Join(j.db.Close(), j.ackFile.Close()) }()
	select {
	case err := <-done:
		j.unpacker.Close()
		if err = errors.Join(err, j.lock.Close()); err != nil {
			return fmt.Errorf("journal: close %s: %w", j.opts.Dir, err)
		}
		return nil
	case <-j.storeFailure.done:
		return j.storeFailure.current()
	}
}

// acquireStore keeps the store open until the returned function is called, or says why it is not usable.
func (j *Journal) acquireStore() (func(), error) {
	j.using.RLock()
	if err := j.checkUsable(); err != nil {
		j.using.RUnlock()
		return nil, err
	}
	return j.using.RUnlock, nil
}

// checkUsable is why nothing can be read or written any more, or nil.
func (j *Journal) checkUsable() error {
	if err := j.storeFailure.current(); err != nil {
		return err
	}
	select {
	case <-j.closed:
		return ErrClosed
	default:
		return nil
	}
}

// loadText returns the text that is stored under a key; "" where none is.
func (j *Journal) loadText(what string, key []byte) (string, error) {
	done, err := j.acquireStore()
	if err != nil {
		return "", err
	}
	defer done()
	value, err := j.getValue(key)
	return string(value), j.checkCorruption(what, err)
}

// storeText stores a text under a key. It is durable when it returns nil.
func (j *Journal) storeText(ctx context.Context, key []byte, text string) error {
	return j.submitRequest(ctx, func(g *group) error { g.setKey(key, []byte(text)); return nil }, nil)
}

// failStore ends the journal: Run returns err, everything else refuses.
func (j *Journal) failStore(f *failure, err error) {
	err = fmt.Errorf("journal: store in %s failed, restart the exporter to recover: %w", j.opts.Dir, err)
	if f.recordFirst(err) {
		j.opts.Logger.Error("journal failed", "err", firstLine(err))
	}
}

// failBroken ends the journal because stored bytes are wrong, and sees to it that the next Open starts afresh (I7).
func (j *Journal) failBroken(f *failure, err error) error {
	err = fmt.Errorf("%w: %w", ErrBroken, err)
	if markErr := markBroken(j.opts.FS, j.opts.FS.PathJoin(j.opts.Dir, storeName), err); markErr != nil {
		err = fmt.Errorf("%w (and could not be marked as broken: %w)", err, markErr)
	}
	j.failStore(f, err)
	return err
}

// checkCorruption ends the journal when err speaks of broken bytes, and returns err with its place.
func (j *Journal) checkCorruption(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("journal: %s: %w", doing, err)
	if errors.Is(err, codec.ErrMalformed) || pebble.IsCorruptionError(err) {
		return j.failBroken(j.storeFailure, err)
	}
	return err
}
