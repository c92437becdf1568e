package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Sink is the cursor name under which a [Writer] keeps the journal from trimming what the state does not cover. Every
// journal of a Writer lists it in journal.Options.Sinks. It is not a valid name of a configured sink.
const Sink = "@state"

const (
	followInterval = 200 * time.Millisecond // between two reads of a standby
	retryInterval  = time.Second            // after a failed read or write
	flushInterval  = 5 * time.Millisecond   // between two attempts of Flush
)

// Options configure a [Writer].
type Options struct {
	// Group is the fencing group: exporters of one group take over from each other.
	Group string
	// Lease is "namespace/name" of the Lease that the group competes for; "" without an election. A state that belongs to
	// another Lease is refused.
	Lease string
	// ClusterName is the name of the cluster in records; "" is its UID. A state that is bound to another name is refused.
	ClusterName string
	// Owner identifies this process in the state and in status pages.
	Owner string
	// Journal is the journal of this process. Its Run must be active during Follow, TakeOver and Run. Nil for Inspect and
	// Reset.
	Journal *journal.Journal
	// Unsettled names cursors of the journal that the state does not wait for. Its own is implied.
	Unsettled []string
	// IsEmitted reports by its stored summary whether a destination may have a known object of the journal: others are not in
	// the state. Nil: all are emitted.
	IsEmitted func(summary string) bool
	Logger    *slog.Logger // nil: slog.Default()
}

// Writer reads and writes the replicated state of a group. A process is standby in [Writer.Follow], becomes the owner in
// [Writer.TakeOver] and writes in [Writer.Run]. These three run one after the other, never concurrently, and only the
// goroutine inside one of them touches mirror, entries and checkpoints. All other methods are safe for concurrent use.
type Writer struct {
	opts      Options
	log       *slog.Logger
	condition *condition.Condition
	requests  chan func(context.Context) error // executed by Run

	mirror      *mirror
	entries     *entryWriter
	checkpoints *checkpointer // set by TakeOver
	owner       bool          // see IsOwner

	deployment deployment
	heartbeat  time.Duration // see heartbeatInterval

	sinks *sinkSet
	stats *statsBoard
}

// New returns a Writer of the state in store. It contacts nothing.
func New(opts Options, store sinks.StateStore) (*Writer, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	w := &Writer{
		opts: opts, log: opts.Logger, condition: condition.New(opts.Logger, "replica", condition.Problem{}),
		requests: make(chan func(context.Context) error), stats: &statsBoard{},
		mirror:    &mirror{store: store, log: opts.Logger, table: newTable(), lostLanes: map[sinkLane]sinks.Tail{}},
		heartbeat: heartbeatInterval,
	}
	w.sinks = &sinkSet{byName: map[string]*fencedSink{}, fenceBounds: map[string]time.Duration{}, carryAfter: carryAfter}
	w.entries = &entryWriter{mirror: w.mirror, condition: w.condition, log: w.log}
	var err error
	w.deployment, err = loadDeployment(opts.Journal)
	return w, err
}

// Status returns the condition of the store, for readiness. It never waits. While the store is away the active process keeps
// delivering: the state lags, and the next failover reads longer tails.
func (w *Writer) Status() condition.Status { return w.condition.Status() }

// Conditions returns Status, and what the store knows of its topic or stream beside that. It never waits.
func (w *Writer) Conditions() []condition.Status {
	return []condition.Status{w.Status(), w.mirror.store.Condition()}
}

// problemOf returns the problem that an error of the store stands for.
func problemOf(err error) condition.Problem {
	if refused, found := errors.AsType[*RefusedError](err); found {
		return refused.Problem()
	}
	return condition.Caused(condition.StateUnreachable, err)
}

// Follow reads what the active process writes until ctx ends, and returns nil. It retries while the store is away; see
// Status.
func (w *Writer) Follow(ctx context.Context) error {
	w.owner = false
	w.entries.abandonCommits()
	for ctx.Err() == nil {
		wait := followInterval
		if err := w.readStandby(ctx); err != nil && ctx.Err() == nil {
			wait = retryInterval
			w.condition.Update(problemOf(err))
		}
		_ = ratelimit.Sleep(ctx, wait)
	}
	return nil
}

func (w *Writer) readStandby(ctx context.Context) error {
	c, err := w.mirror.readContent(ctx)
	if err != nil {
		return err
	}
	w.stats.update(func(s *Stats) { s.Owner, s.Active, s.Objects = c.meta.owner, false, w.mirror.table.size })
	if err := w.opts.validate(&c, w.deployment.id, ""); err != nil {
		return err
	}
	if w.opts.Lease == c.meta.lease { // the state may be purged before this process takes over
		w.deployment.id = cmp.Or(w.deployment.id, c.deployment.id)
	}
	w.condition.Clear()
	if c.meta.version == 0 {
		return nil
	}
	return w.deployment.recordOwner(ctx, c.meta.owner)
}

// IsOwner reports whether this process took the state over, and has neither been deposed nor followed the state since. Only
// the goroutine that calls Follow, TakeOver and Run may call it, between those calls.
func (w *Writer) IsOwner() bool { return w.owner }

// Run writes checkpoints until ctx ends and returns nil then. It returns a *sinks.DeposedError when another process has
// taken over, or an error of the journal. It retries while the store is away; see Status.
func (w *Writer) Run(ctx context.Context) (err error) {
	defer func() { w.resignIfDeposed(err) }()
	next, heartbeat := time.NewTimer(checkpointInterval), time.NewTicker(w.heartbeat)
	defer next.Stop()
	defer heartbeat.Stop()
	defer w.stats.update(func(s *Stats) { s.Active, s.since = false, time.Time{} })
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-w.requests:
			err = do(ctx)
		case <-heartbeat.C:
			err = w.entries.commitEntries(ctx, []sinks.StateEntry{w.deployment.heartbeatEntry()})
		case <-next.C:
			began := time.Now()
			err = w.checkpoints.advanceState(ctx)
			next.Reset(min(max(checkpointInterval, checkpointShare*time.Since(began)), maxCheckpointInterval))
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// resignIfDeposed records that another process has taken over.
func (w *Writer) resignIfDeposed(err error) {
	if errors.As(err, new(*sinks.DeposedError)) {
		w.owner = false
	}
}

// callInRun executes do in the goroutine of Run and returns its error. An error of do ends Run as well, since do writes the
// state.
func (w *Writer) callInRun(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	request := func(running context.Context) error {
		err := do(running)
		result <- err
		return err
	}
	select {
	case w.requests <- request:
	case <-ctx.Done():
		return fmt.Errorf("the replicated state is not being written: %w", context.Cause(ctx))
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RecordLoss records that a sink has lost something, before it gets that again: only the journal of this process has it. An
// exporter that takes over with another journal meanwhile marks a gap in this sink. It waits while the store is away.
func (w *Writer) RecordLoss(ctx context.Context, sink string) error {
	return w.callInRun(ctx, func(ctx context.Context) error { return w.checkpoints.storeLoss(ctx, sink) })
}

// Flush waits until the state covers everything that the journal holds now. It serves an orderly handover: the source has
// stopped, all sinks have settled everything, and Run is still active.
func (w *Writer) Flush(ctx context.Context) error {
	newest := w.opts.Journal.Newest()
	for {
		covered := false
		err := w.callInRun(ctx, func(ctx context.Context) error {
			err := w.checkpoints.advanceState(ctx)
			p := w.checkpoints
			covered = p.stored.offset >= newest && p.target == nil && len(p.pending) == 0 && !p.rebuild
			return err
		})
		if err != nil || covered {
			return err
		}
		if ratelimit.Sleep(ctx, flushInterval) != nil {
			return fmt.Errorf("the replicated state does not cover everything yet: %w", context.Cause(ctx))
		}
	}
}

// StoreSignals stores entries of the requests of operators by number, and removes those that are nil, in one write. The
// state knows nothing else of them. Run must be active. It waits while the store is away. After an error it is open whether
// the state gets them later.
func (w *Writer) StoreSignals(ctx context.Context, entries map[uint64][]byte) error {
	var all []sinks.StateEntry
	for number, value := range entries {
		all = append(all, sinks.StateEntry{Key: encodeKey(keySignals, number), Value: value})
	}
	return w.callInRun(ctx, func(ctx context.Context) error { return w.entries.commitEntries(ctx, all) })
}

// Signals returns the entries that StoreSignals stored, in this process or another one, by number. As of [Writer.IsOwner],
// only the goroutine that calls Follow, TakeOver and Run may call it.
func (w *Writer) Signals() (map[uint64][]byte, error) {
	entries := map[uint64][]byte{}
	return entries, w.mirror.table.eachOther(keySignals, func(number uint64, _, value string) error {
		entries[number] = []byte(value)
		return nil
	})
}

// Delivered returns a filter that reports which changes a sink already held when it was fenced: the pipeline skips those. It
// is nil if there is nothing to skip, or the sink is unknown. The filter is safe for concurrent use, and its answer for a
// change does not vary.
func (w *Writer) Delivered(name string) func(sinks.Lane, *event.Change) bool {
	return w.sinks.deliveredFilter(name)
}

// WhyHeld returns a function that reports why nothing may be published to a lane of a fenced sink yet, nil if it may be: the
// lane waits, or one that waits shares objects with it. The function is safe for concurrent use and does not wait.
func (w *Writer) WhyHeld(name string) func(sinks.Lane) error {
	return func(lane sinks.Lane) error { return w.sinks.whyHeld(name, lane) }
}

// WaitingLanes returns how many lanes of a sink could not be fenced or read back yet, with the reason of one of them.
func (w *Writer) WaitingLanes(name string) (count int, reason error) {
	waiting := w.sinks.waitingLanes(name)
	return len(waiting), firstReason(waiting)
}

// ReadWaitingLanes fences the lanes of a sink that wait and reads their tails. Those that it cannot read keep waiting. It
// must not be called concurrently for one sink.
func (w *Writer) ReadWaitingLanes(ctx context.Context, name string, sink sinks.Fenced) error {
	waiting := w.sinks.waitingLanes(name)
	if len(waiting) == 0 {
		return nil
	}
	lanes := map[sinks.Lane]sinks.Tail{}
	for lane, one := range waiting {
		lanes[lane] = one.tail
	}
	t, err := readTail(ctx, sink, tailStart{lanes: lanes}, nil)
	if err != nil {
		return fmt.Errorf("sink %s: %w", name, err)
	}
	w.sinks.addTail(name, sink, t)
	return nil
}

// AddSink fences a sink that is listed in [TakeOverResult.Waiting], and reads the tails of its lanes. Each attempt may take
// twice as long as the one before, up to a minute. Run must be active.
func (w *Writer) AddSink(ctx context.Context, name string, sink sinks.Fenced) error {
	var from tailStart
	err := w.callInRun(ctx, func(context.Context) error {
		c, err := w.mirror.table.decodeContent()
		from = w.mirror.tailStart(name, c)
		return err
	})
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, w.sinks.nextFenceBound(name))
	defer cancel()
	t, err := w.fenceSink(ctx, limited, name, sink, from, func() {})
	if err != nil {
		return err
	}
	w.sinks.addSink(name, sink, t)
	return nil
}

// Close releases the store. No method may be called afterwards.
func (w *Writer) Close(ctx context.Context) error {
	w.condition.Close()
	return w.mirror.store.Close(ctx)
}

// Owner identifies the process that writes a state.
type Owner struct {
	Identity   string // Options.Owner of the process; "" if no process has written yet
	Journal    string // ID of its journal
	Generation uint64 // number of take-overs so far
	Since      time.Time
}

// Stats are facts for metrics and the status page.
type Stats struct {
	Owner        Owner
	Active       bool          // this process is the owner
	Lag          time.Duration // upper bound of the time that the journal has been ahead of the state; 0: it covers everything
	Objects      int           // known objects
	Written      uint64        // bytes handed to the store since the process started
	TakeOvers    uint64        // by this process
	LastTakeOver time.Duration // how long the last one took
	Fenced       int           // lanes fenced in the last take-over
	TailSize     int           // messages read back in the last take-over
	Skipped      uint64        // changes skipped since, because their sink already held them

	since   time.Time // of the oldest unwritten checkpoint, or when none was last found; zero: not writing
	waiting bool      // an unwritten checkpoint exists
	covered uint64    // offset up to which the state is complete
}

// Stats returns the current facts. It never waits.
func (w *Writer) Stats() Stats {
	var s Stats
	w.stats.update(func(now *Stats) { s = *now })
	if !s.since.IsZero() && (s.waiting || w.opts.Journal.Newest() > s.covered) {
		s.Lag = time.Since(s.since)
	}
	s.Written, s.Skipped = w.entries.written.Load(), w.sinks.skipped.Load()
	return s
}

// statsBoard holds the facts that the writing goroutine publishes. Its lock is never held across a wait.
type statsBoard struct {
	mu    sync.Mutex
	stats Stats
}

func (b *statsBoard) update(change func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.stats)
}
