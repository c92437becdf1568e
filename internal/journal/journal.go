package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
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

// ErrClosed is returned after Run has ended or Close was called. The caller ends too.
var ErrClosed = errors.New("journal is closed")

const (
	tickEvery    = time.Second
	measureEvery = 5 * time.Second // how often the store is asked about its size
)

// Options configure a journal. Only Dir is required.
type Options struct {
	Dir string // created if missing; belongs to the journal alone

	Declaration // in force once Open returns

	// KeepSettled is for how long changes stay readable that every sink has settled, as long as they take less than half of
	// MaxBytes; 0: not at all.
	KeepSettled time.Duration

	// MaxBytes is the bound of what is stored: changes, known objects, bodies and dead letters; 0: 10 GiB. Append waits
	// while it is reached. An eighth of it is for changes, whatever the rest takes.
	MaxBytes int64
	// MaxDeadLetters is the bound of dead letters, in stored bytes, see CheckDeadLetterSpace; 0: 1 GiB. It is at most half of
	// MaxBytes.
	MaxDeadLetters int64
	// Reserve is how many bytes of the disk stay free: Append waits below it, so that settling and trimming can still be
	// written. It is at most a quarter of the disk, or of a small one 40 MiB; 0: nothing.
	Reserve int64

	PendingBytes int64 // bound of appended changes not yet committed, in memory; 0: 8 MiB
	TailBytes    int64 // bound of recent changes kept in memory for readers; 0: 8 MiB

	// SyncInterval is about how long lies between commits: fewer fsyncs on a slow disk, at the price of that much latency.
	// 0: what is appended is committed at once, and under load every few milliseconds. A change is visible to the sinks only
	// after its fsync, so the interval weakens no promise: what has not reached the disk is watched again from the older
	// position.
	SyncInterval time.Duration

	FS     vfs.FS       // nil: the real disk
	Logger *slog.Logger // nil: slog.Default()
}

func (o Options) withDefaults() Options {
	o.MaxBytes = cmp.Or(o.MaxBytes, 10<<30)
	o.MaxDeadLetters = min(cmp.Or(o.MaxDeadLetters, 1<<30), o.MaxBytes/2)
	o.PendingBytes, o.TailBytes = cmp.Or(o.PendingBytes, 8<<20), cmp.Or(o.TailBytes, 8<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.FS == nil {
		o.FS = disk.Private{FS: vfs.Default}
	}
	return o
}

// Journal is the durable log between the source and the sinks, and what both sides continue from after a restart. Its parts
// are [Log], [KnownObjects], [SinkLedger], [DeadLetters], [ReplayLedger], [OrphanLedger], [EvidenceStore] and [Identity],
// each with its own state; one committer writes for all of them, and what involves several of them is here. All methods are
// safe for concurrent use; Run is called once, Close once and after Run has returned.
type Journal struct {
	*Log
	*KnownObjects
	*SinkLedger
	*DeadLetters
	*ReplayLedger
	*OrphanLedger
	*EvidenceStore
	*Identity

	opts      Options
	store     *store
	queue     *queue
	space     *spaceGuard
	committer *committer
	changed   *broadcast
	view      *view
}

// Open locks the directory and loads what is there. It returns ErrLocked, ErrFormatVersion, a *RenamedError, or an error of
// the environment. A broken store is moved aside and replaced by an empty one, which PendingRecovery then reports (I7).
func Open(opts Options) (*Journal, error) {
	opts = opts.withDefaults()
	if opts.Dir == "" {
		return nil, errors.New("journal: no directory given")
	}
	s, err := lockStore(opts)
	if err != nil {
		return nil, err
	}
	if _, real := s.base.(disk.Private); real {
		disk.RestrictPermissions(s.dir, s.logger)
	}
	j := newJournal(s, opts)
	if err := s.openOrRecover(j.loadFromStore); err != nil {
		s.decoder.Close()
		return nil, errors.Join(err, s.lock.Close())
	}
	j.space.checkDisk()
	j.space.measureSizes()
	return j, nil
}

// newJournal makes the parts of a journal. They are empty until load.
func newJournal(s *store, opts Options) *Journal {
	j := &Journal{opts: opts, store: s, changed: &broadcast{ch: make(chan struct{})}, view: &view{}}
	j.queue = &queue{store: s, maxPending: opts.PendingBytes, syncInterval: opts.SyncInterval, wake: make(chan struct{}, 1)}
	j.OrphanLedger = &OrphanLedger{
		store: s, queue: j.queue, seed: maphash.MakeSeed(), readings: map[*OrphanReading]bool{}, all: map[string]OrphanPass{},
	}
	j.Log = &Log{
		store: s, changed: j.changed, orphans: j.OrphanLedger, tailBytes: opts.TailBytes, retention: retention{keep: opts.KeepSettled},
	}
	j.KnownObjects = &KnownObjects{store: s, queue: j.queue, orphans: j.OrphanLedger}
	j.SinkLedger = &SinkLedger{store: s, queue: j.queue, log: j.Log, logger: opts.Logger}
	j.DeadLetters = &DeadLetters{
		store: s, queue: j.queue, maxBytes: opts.MaxDeadLetters, condition: condition.New(opts.Logger, "journal", condition.Problem{}),
	}
	j.EvidenceStore = &EvidenceStore{store: s, queue: j.queue}
	j.Identity = &Identity{store: s, queue: j.queue}
	j.space = &spaceGuard{
		store: s, log: j.Log, sinks: j.SinkLedger, deadLetters: j.DeadLetters, changed: j.changed, view: j.view,
		maxBytes: opts.MaxBytes, reserve: opts.Reserve, condition: condition.New(opts.Logger, "journal", condition.Problem{}),
	}
	j.ReplayLedger = &ReplayLedger{store: s, queue: j.queue, log: j.Log, space: j.space, all: map[string]Replay{}}
	j.committer = &committer{
		store: s, queue: j.queue, log: j.Log, known: j.KnownObjects, sinks: j.SinkLedger, deadLetters: j.DeadLetters,
		identity: j.Identity, space: j.space, changed: j.changed, view: j.view,
	}
	return j
}

// loadParts reads the state of the store into the parts. The log comes before the cursors, which are compared with it.
func (j *Journal) loadParts() error {
	if err := errors.Join(j.committer.loadWrites(), j.Identity.loadVersion()); err != nil {
		return err
	}
	if err := j.Log.loadExtent(); err != nil {
		return err
	}
	if err := dropPartialSeed(j.store); err != nil {
		return err
	}
	return errors.Join(
		j.SinkLedger.loadFromStore(), j.DeadLetters.loadFromStore(), j.KnownObjects.loadFromStore(), j.ReplayLedger.loadFromStore(),
		j.OrphanLedger.loadFromStore(),
	)
}

// loadFromStore is loadParts, and deletes what the declaration of the options does not need.
func (j *Journal) loadFromStore() error {
	if err := j.loadParts(); err != nil {
		return err
	}
	encoder, err := codec.NewFrameEncoder()
	if err != nil {
		return err
	}
	outcome := make(chan error, 1)
	declare := func(g *group) error { return g.declare(j.opts.Declaration) }
	if err := j.committer.commitGroup(encoder, []queuedRequest{{request: declare, outcome: outcome}}); err != nil {
		return err
	}
	return <-outcome
}

// Run commits what is appended until ctx ends, then commits the rest and returns nil. It returns an error when the store
// cannot continue: the process then ends, and recovers at its next start. While the disk is full Run waits for space, except
// after ctx has ended.
func (j *Journal) Run(ctx context.Context) error {
	encoder, err := codec.NewFrameEncoder()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, j.store.fs.StopWaiting)
	defer stop()
	defer j.store.end()
	var running sync.WaitGroup
	running.Go(func() { j.committer.run(ctx, encoder) })
	running.Go(func() {
		j.repeatEverySecond(ctx, func() { // it never waits
			j.updateConditions()
			j.queue.setTrimDue()
		})
	})
	running.Go(func() { j.runUpkeep(ctx) })
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
		j.recordAcknowledged()
	case <-j.store.failure.done:
		// Pebble may have blocked the committer for good, see storeLogger: it is not waited for.
	}
	return j.store.failure.currentError()
}

// repeatEverySecond calls f at once and every second, until ctx ends or the store fails.
func (j *Journal) repeatEverySecond(ctx context.Context, f func()) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		f()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-j.store.failure.done:
			return
		}
	}
}

func (j *Journal) updateConditions() {
	j.space.updateCondition()
	j.DeadLetters.updateCondition()
}

// runUpkeep measures the disk and the store, and records what is acknowledged. The store may wait for the disk under its own
// lock, so this has a goroutine of its own.
func (j *Journal) runUpkeep(ctx context.Context) {
	var measured time.Time
	j.repeatEverySecond(ctx, func() {
		j.space.checkDisk()
		if time.Since(measured) >= measureEvery {
			j.space.measureSizes()
			measured = time.Now()
		}
		j.recordAcknowledged()
		j.space.reclaimSpace(ctx)
	})
}

// recordAcknowledged makes durable up to which write the store has acknowledged everything, see [disk.AckFile].
func (j *Journal) recordAcknowledged() {
	if err := j.store.ackFile.Sync(); err != nil {
		j.opts.Logger.Warn("journal: cannot store what is acknowledged; a damaged log may go unnoticed at the next start", "err", err)
	}
}

// Close releases the store and the directory. Observations appended after Run ended are dropped, and watched again by the
// next start. After a failure of the store the lock is kept until the process ends, because what the store still does is
// unknown.
func (j *Journal) Close() error { return j.store.close() }

// Declaration is what a configuration requires of the journal.
type Declaration struct {
	Sinks        []string          // hold the trim; the cursors of all others are deleted
	Lasting      []string          // stay declared if they are
	Starts       map[string]Start  // where those begin that are new, by name
	Destinations map[string]string // by which a renamed sink is recognized, by name
	ReadBack     []string          // get an [OrphanPass] behind each snapshot, by name
	KeepEvidence bool              // without it all evidence is deleted
	ClusterName  string            // of the cluster in records; "": its UID. Another one than before is a *RenamedError
}

// Start is where a sink begins that was never declared before.
type Start int

// The starts.
const (
	StartJournal  Start = iota // with the oldest change
	StartSnapshot              // after the newest change, with a snapshot of what exists of all scopes
	StartNow                   // after the newest change
)

// Declare replaces the declared sinks in one durable write, so that no trim falls between the removal of one sink and the
// addition of another. A sink that stays keeps its cursor. An added one begins as its Start defines, and the snapshots for
// it are requested in the same write, unless it has the destination of a removed one: then it continues in its place. Those
// for a removed one are requested no longer. What a removed one has not received is counted, logged, and reported by
// Offline.Stat; its dead letters stay. If it is added again and something of that is trimmed, it begins with a gap and what
// follows. The pipelines of removed sinks have ended.
func (j *Journal) Declare(ctx context.Context, d Declaration) error {
	return j.queue.submit(ctx, func(g *group) error { return g.declare(d) }, nil)
}

// Append queues an observation for the next commit and returns at once. It owns the slices and changes from then on. Calls
// are logged in the order in which they return; one scope appends from one goroutine. It waits while PendingBytes are not
// yet committed, MaxBytes are stored or the disk has no more than Reserve left (I6), and fails only when ctx ends or the
// journal does.
func (j *Journal) Append(ctx context.Context, o event.Observation) error {
	if o.Resource.Resource == "" || o.Scope == "" {
		return fmt.Errorf("journal: append for resource %q, scope %q: both must be given", o.Resource, o.Scope)
	}
	for {
		changed := j.changed.nextSignal()
		if err := j.store.checkUsable(); err != nil {
			return err
		}
		if j.queue.tryAppend(&o, &j.KnownObjects.bodies, j.space.hasSpace) {
			return nil
		}
		if err := j.store.waitFor(ctx, changed); err != nil {
			return fmt.Errorf("journal: append for %s: %w", o.Scope, err)
		}
	}
}

// Flush waits until everything appended before it is durable and visible to readers.
func (j *Journal) Flush(ctx context.Context) error {
	return j.queue.submit(ctx, func(*group) error { return nil }, nil)
}

// ResetForCluster deletes all that is stored of resources, as DropResource does of one, because the cluster that is watched
// from now on is another one, and stores that one and the reason, all in one write. Changes stay: they happened. Durable
// when it returns nil; ordered with Append.
func (j *Journal) ResetForCluster(ctx context.Context, uid, reason string) error {
	if uid == "" || reason == "" {
		return fmt.Errorf("journal: reset for cluster %q because of %q: both must be given", uid, reason)
	}
	return j.queue.submit(ctx, func(g *group) error {
		g.known.dropAll()
		g.batch.putKey(codec.KeyCluster, []byte(uid))
		g.batch.putKey(codec.KeyResetReason, []byte(reason))
		return nil
	}, j.KnownObjects.bodies.reset)
}

// RecordLost stores why the journal, which is empty, lacks what was known: a [Identity.ResetReason]. Durable when it returns
// nil.
func (j *Journal) RecordLost(ctx context.Context, reason string) error {
	return j.queue.submit(ctx, func(g *group) error {
		g.batch.putKey(codec.KeyResetReason, []byte(reason))
		return nil
	}, nil)
}

// Checkpoint is the state of the journal at one moment: the positions are those of the observations up to the newest change.
type Checkpoint struct {
	Newest    uint64
	Resources []event.StoredResource // by name, all of which anything is stored
	Members   Members
}

// Checkpoint returns what is committed at this moment, which the caller must not modify. It does not wait.
func (j *Journal) Checkpoint() Checkpoint {
	j.view.RLock()
	defer j.view.RUnlock()
	return Checkpoint{Newest: j.Newest(), Resources: j.KnownObjects.storedResources(), Members: j.members()}
}

// ForEachKnown calls each for every object that is known at the moment of the checkpoint which it returns, until each
// returns an error, which it returns. Appends and commits continue meanwhile.
func (j *Journal) ForEachKnown(ctx context.Context, each func(resource string, k event.Known) error) (c Checkpoint, err error) {
	release, err := j.store.acquire()
	if err != nil {
		return c, err
	}
	defer release()
	var snapshot *pebble.Snapshot
	err = j.queue.submit(context.WithoutCancel(ctx), func(*group) error { // between two groups, so that both are of one moment
		snapshot, c = j.store.db.NewSnapshot(), j.Checkpoint()
		return nil
	}, nil)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	err = storeReader{from: snapshot}.forEachKey([]byte{codec.PrefixKnown}, func(key, value []byte) error {
		name, object, err := codec.SplitNamedKey(key)
		if err != nil {
			return err
		}
		k, err := codec.DecodeKnown([]byte(object), value)
		if err != nil || !k.Exists() {
			return err
		}
		return each(name, k)
	})
	return c, j.store.checkCorruption("inventory", err)
}
