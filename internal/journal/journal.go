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

	// Evidence says that somebody keeps evidence here; what is left of earlier times is dropped at Open where nobody does.
	Evidence bool

	// KeepSettled is for how long changes stay readable that every sink has settled, as long as they take less than half of
	// MaxBytes; 0: not at all.
	KeepSettled time.Duration

	// MaxBytes is the bound of what is stored: changes, known objects, last states and dead letters; 0: 10 GiB. Append waits
	// while it is reached. An eighth of it is for changes, whatever the rest takes.
	MaxBytes int64
	// MaxDeadLetters is the bound of dead letters, as stored, see DeadLetterRoom; 0: 1 GiB. It is at most half of MaxBytes.
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
	reader
	failed *failure      // the store cannot be used any more
	ended  chan struct{} // closed when nothing more will be committed
	end    func()        // closes ended
	wake   chan struct{} // something was queued for the committer; capacity 1

	retention retention  // of the committer
	mark      *disk.Mark // of the upkeep
	asked     uint64     // of the committer: stored bytes when it last asked the disk for its room
	reclaimed uint64     // of the upkeep: stored bytes ever trimmed whose disk space was given back

	roomState, letterState *condition.Condition // for the log

	using sync.RWMutex // held for reading while db is used outside of Run, for writing by Close

	mu        sync.Mutex
	queue     []queued // in order of arrival, not yet taken by the committer
	patient   patient  // requests that let others go first
	pending   int64    // bytes queued or being committed
	due       bool     // time has passed: look what can be trimmed
	writes    uint64   // groups ever written to this store
	low       bool     // the disk has less than the reserve left
	measured  sizes    // known objects and bodies
	disk      int64    // of the whole store
	ext       extent
	trimmed   uint64 // everything below it may be gone, or soon: a batch is seen before it is durable, and ext comes after
	tail      tail
	sinks     map[string]sinkState
	bodies    bodies
	resources map[string]event.StoredResource // by name: what is committed of everything of which anything is stored
	recovered *Recovery
	commits   uint64        // since Open
	changed   chan struct{} // closed and replaced at every commit: readers and appenders look again
}

// extent is what part of the log exists, in offsets and in stored bytes counted from the first frame ever written.
type extent struct {
	oldest, newest uint64 // oldest is newest+1 while the log has never had a change
	start, end     uint64 // bytes before the oldest frame, bytes up to and with the newest
}

func (e extent) bytes() int64 { return int64(e.end - e.start) }

// sinkState is what the journal knows about one declared sink, or about one that left dead letters.
type sinkState struct {
	declared  bool
	settled   bool // it has a cursor
	cursor    event.Cursor
	dead      int64
	deadBytes int64
}

// Open locks the directory and loads what is there. It returns ErrLocked, ErrNewer, or an error of the environment. A
// broken store is moved aside and replaced by an empty one; Recovered then says so (I7).
func Open(opts Options) (*Journal, error) {
	opts = opts.withDefaults()
	if opts.Dir == "" {
		return nil, errors.New("journal: no directory given")
	}
	unpacker, err := codec.NewUnpacker()
	if err != nil {
		return nil, err
	}
	lock, err := disk.Lock(opts.FS, opts.Dir)
	if err != nil {
		unpacker.Close()
		return nil, err
	}
	j := &Journal{
		opts:      opts,
		fs:        disk.NewSpaceFS(opts.FS, opts.Dir, fullRetry),
		lock:      lock,
		reader:    reader{unpacker: unpacker},
		ended:     make(chan struct{}),
		wake:      make(chan struct{}, 1),
		retention: retention{keep: opts.KeepSettled},
		changed:   make(chan struct{}),

		roomState: condition.New(opts.Logger, hasRoom), letterState: condition.New(opts.Logger, lettersFit),
	}
	j.end = sync.OnceFunc(func() { close(j.ended) })
	if _, real := opts.FS.(disk.Private); real {
		disk.Tighten(opts.Dir, opts.Logger)
	}
	if err := j.openStore(); err != nil {
		unpacker.Close()
		return nil, errors.Join(err, lock.Close())
	}
	j.checkSpace()
	j.measure()
	return j, nil
}

// Recovered says that Open found a broken store and started afresh, now or in an earlier process that did not get as far
// as Announced. The caller announces a gap for every resource.
func (j *Journal) Recovered() (Recovery, bool) {
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
	return j.ext.oldest
}

// Newest returns the offset of the newest committed change; 0 before the first.
func (j *Journal) Newest() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ext.newest
}

// Close releases the store and the directory. What was appended after Run ended is dropped; it will be watched again.
// After a failure of the store the lock is kept until the process ends, because what the store still does is unknown.
func (j *Journal) Close() error {
	j.end()
	j.fs.Release()
	if j.failed.get() != nil {
		return nil // Run has returned it
	}
	j.using.Lock()
	defer j.using.Unlock()
	done := make(chan error, 1)
	go func() { done <- errors.Join(j.db.Close(), j.mark.Close()) }()
	select {
	case err := <-done:
		j.unpacker.Close()
		if err = errors.Join(err, j.lock.Close()); err != nil {
			return fmt.Errorf("journal: close %s: %w", j.opts.Dir, err)
		}
		return nil
	case <-j.failed.ch:
		return j.failed.get()
	}
}

// use keeps the store open until the returned function is called, or says why it is not usable.
func (j *Journal) use() (func(), error) {
	j.using.RLock()
	if err := j.refusal(); err != nil {
		j.using.RUnlock()
		return nil, err
	}
	return j.using.RUnlock, nil
}

// refusal is why nothing can be read or written any more, or nil.
func (j *Journal) refusal() error {
	if err := j.failed.get(); err != nil {
		return err
	}
	select {
	case <-j.ended:
		return ErrClosed
	default:
		return nil
	}
}

// text returns the text that is stored under a key; "" where none is.
func (j *Journal) text(what string, key []byte) (string, error) {
	done, err := j.use()
	if err != nil {
		return "", err
	}
	defer done()
	value, err := j.get(key)
	return string(value), j.checked(what, err)
}

// setText stores a text under a key. It is durable when it returns nil.
func (j *Journal) setText(ctx context.Context, key []byte, text string) error {
	return j.submit(ctx, func(g *group) error { g.set(key, []byte(text)); return nil }, nil)
}

// fail ends the journal: Run returns err, everything else refuses.
func (j *Journal) fail(f *failure, err error) {
	err = fmt.Errorf("journal: store in %s failed, restart the exporter to recover: %w", j.opts.Dir, err)
	if f.set(err) {
		j.opts.Logger.Error("journal failed", "err", oneLine(err))
	}
}

// failBroken ends the journal because stored bytes are wrong, and sees to it that the next Open starts afresh (I7).
func (j *Journal) failBroken(f *failure, err error) error {
	err = fmt.Errorf("%w: %w", ErrBroken, err)
	if markErr := markBroken(j.opts.FS, j.opts.FS.PathJoin(j.opts.Dir, storeName), err); markErr != nil {
		err = fmt.Errorf("%w (and could not be marked as broken: %w)", err, markErr)
	}
	j.fail(f, err)
	return err
}

// checked ends the journal when err speaks of broken bytes, and returns err with its place.
func (j *Journal) checked(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("journal: %s: %w", doing, err)
	if errors.Is(err, codec.ErrMalformed) || pebble.IsCorruptionError(err) {
		return j.failBroken(j.failed, err)
	}
	return err
}
