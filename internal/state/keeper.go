package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Sink is the name under which a [Writer] holds the trim of its journal: one of journal.Options.Sinks wherever one runs. No
// sink can be called so.
const Sink = "@state"

const (
	followInterval = 200 * time.Millisecond // how often a stand-by reads
	retryInterval  = time.Second            // how often what failed is tried again
)

// Options configure a keeper.
type Options struct {
	Group string // what the bus knows the exporters by that take over from each other; the same for all of them
	Lease string // what they compete for; "" where nobody competes. A state that belongs to another Lease is refused
	Owner string // names this process, for people
	// Journal is that of this process. Its Run runs while TakeOver and Run do.
	Journal *journal.Journal
	// Unsettled names sinks of the journal that the state does not wait for, beside its own.
	Unsettled []string
	Logger    *slog.Logger // nil: slog.Default()
}

// Writer keeps the state: it follows it while another process works, takes it over, and writes it from then on. Follow,
// TakeOver and Run are called one after the other, never at the same time; everything else may be called at any time.
type Writer struct {
	opts      Options
	store     sinks.StateStore
	log       *slog.Logger
	condition *condition.Condition
	requests  chan func(context.Context) error // done by Run

	// Of the goroutine that is in Follow, TakeOver or Run.
	table       *table
	lanes       map[sinkLane]uint64             // their numbers
	lostLanes   map[sinkLane]sinks.LanePosition // lanes of a state that was purged or replaced
	checkpoints checkpointer

	skipped atomic.Uint64
	written atomic.Uint64

	mu      sync.Mutex
	members map[string]*fencedSink
	stats   Stats
}

// sinkLane is a lane of all sinks.
type sinkLane struct {
	sink string
	lane sinks.Lane
}

// fencedSink is a sink that changes are delivered to.
type fencedSink struct {
	sink      sinks.Fenced
	delivered atomic.Pointer[deliveredSet] // nil when it is not needed any more
	tailEnds  map[sinks.Lane]sinks.LanePosition
	highest   map[string]uint64
}

// New returns a keeper of the state that open opens. It contacts nothing.
func New(opts Options, open func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error)) (*Writer, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	k := &Writer{
		opts: opts, log: opts.Logger, condition: condition.New(opts.Logger, conditionUnread),
		requests: make(chan func(context.Context) error), table: newTable(), lanes: map[sinkLane]uint64{}, lostLanes: map[sinkLane]sinks.LanePosition{}, members: map[string]*fencedSink{},
	}
	var err error
	k.store, err = open(func(part, parts int) []sinks.StateEntry { return k.table.entriesOfPart(part, parts) })
	return k, err
}

// The conditions of the state. While it is away, the process that works goes on: the state lags, which costs a longer
// look-back.
var (
	conditionUnread   = condition.State{Name: "unread"}
	conditionFollowed = condition.State{Name: "followed", Message: "the replicated state is followed", Level: slog.LevelInfo}
	conditionWritten  = condition.State{Name: "written", Message: "the replicated state is written", Level: slog.LevelInfo}
	conditionAway     = condition.State{
		Name: "away", Severity: condition.Degraded, Message: "the replicated state cannot be read or written", Level: slog.LevelWarn,
	}
	conditionUnusable = condition.State{
		Name: "unusable", Severity: condition.NotReady, Message: "the replicated state cannot be used", Level: slog.LevelError,
	}
)

// Status says how the store is doing, for readiness. It never waits.
func (k *Writer) Status() condition.Status { return k.condition.Status() }

// Follow reads what another process writes until ctx ends, and returns nil. A store that is away is waited for; see
// Status.
func (k *Writer) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := followInterval
		if err := k.readStandby(ctx); err != nil && ctx.Err() == nil {
			wait = retryInterval
			k.reportProblem(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

func (k *Writer) readStandby(ctx context.Context) error {
	if err := k.readStored(ctx); err != nil {
		return err
	}
	c, err := k.table.decodeContent()
	if err != nil {
		return malformedState(err)
	}
	k.updateStats(func(s *Stats) { s.Owner, s.Active, s.Objects = c.meta.owner, false, k.table.size })
	if err := k.validateOwner(c, ""); err != nil {
		return err
	}
	k.condition.Update(conditionFollowed, "", "")
	return nil
}

// reportProblem says what is wrong with the state.
func (k *Writer) reportProblem(err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		k.condition.Update(conditionUnusable, refused.Reason, refused.Remedy)
		return
	}
	k.condition.Update(conditionAway, err.Error(), "")
}

// readStored brings the table up to what is stored. Lanes of a state that was lost or replaced stay known: that does not make what
// an older process sends through them go away.
func (k *Writer) readStored(ctx context.Context) error {
	for {
		var bad error
		reset, err := k.store.Read(ctx, func(e sinks.StateEntry) error {
			k.table.applyEntry(e)
			if len(e.Key) > 0 && e.Key[0] == keyLane && e.Value != nil && bad == nil {
				bad = k.recordLane(e)
			}
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("read the replicated state: %w", err)
		case reset:
			k.log.Warn("the replicated state was purged or replaced: it is read anew")
			k.retainLostLanes()
			k.table, k.lanes = newTable(), map[sinkLane]uint64{}
		case bad != nil:
			return malformedState(bad)
		default:
			return nil
		}
	}
}

// retainLostLanes remembers the lanes of a state that is gone.
func (k *Writer) retainLostLanes() {
	c, err := k.table.decodeContent()
	if err != nil {
		return // it was none
	}
	for _, l := range c.lanes {
		k.lostLanes[sinkLane{l.sink, l.lane}] = l.place
	}
}

// recordLane remembers a lane.
func (k *Writer) recordLane(e sinks.StateEntry) error {
	number, _, err := decodeKey(string(e.Key))
	if err != nil {
		return err
	}
	sink, lane, err := decodeLane(string(e.Value))
	if err == nil {
		k.lanes[sinkLane{sink, lane}] = number
	}
	return err
}

// RefusedError says why a state must not be used by this process, ever, as it is.
type RefusedError struct {
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Remedy }

func malformedState(err error) error {
	return &RefusedError{
		Reason: "what is stored as the replicated state is none: " + err.Error(),
		Remedy: "give the state a topic or stream of its own, or empty it with exporter state reset",
	}
}

// validateOwner refuses a state that is not of this Lease, of this cluster ("" where it is not known) and of a known format.
func (k *Writer) validateOwner(c stateContent, cluster string) error {
	m := c.meta
	switch {
	case m.version > Version:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state has format %d, written by a newer exporter; this one knows format %d", m.version, Version),
			Remedy: "run the newer exporter, or give this one another state.name",
		}
	case m.version == 0:
		return nil
	case m.lease != "" && k.opts.Lease != "" && m.lease != k.opts.Lease:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state belongs to the exporters of the Lease %s, and this one competes for %s", m.lease, k.opts.Lease),
			Remedy: "give each deployment a state.name of its own; where only the Lease was renamed, run once without election",
		}
	case cluster != "" && m.cluster != "" && cluster != m.cluster:
		return &RefusedError{
			Reason: fmt.Sprintf("the replicated state is of the cluster %s, and this one is %s", m.cluster, cluster),
			Remedy: "give each cluster a state.name of its own, or empty it with exporter state reset",
		}
	}
	return nil
}

// Delivered returns what says whether a sink has a change already that is to go through a lane: the pipeline passes over it.
// It is nil where there is nothing to pass over, and for a sink that is not known. Safe for concurrent use; it answers the
// same for as long as it matters. A pipeline that is made because the destination has lost what it had must not use it.
func (k *Writer) Delivered(name string) func(sinks.Lane, *event.Change) bool {
	k.mu.Lock()
	m := k.members[name]
	k.mu.Unlock()
	if m == nil || m.delivered.Load() == nil {
		return nil
	}
	return func(lane sinks.Lane, c *event.Change) bool {
		d := m.delivered.Load()
		if d == nil || !d.contains(lane, c) {
			return false
		}
		k.skipped.Add(1)
		return true
	}
}

// RemoveSink takes a sink out that is closed: its places are asked for no more.
func (k *Writer) RemoveSink(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.members, name)
}

// Owner is who writes a state.
type Owner struct {
	Identity   string // of the process, for people; "" where nobody ever wrote
	Journal    string // ID of its journal
	Generation uint64 // grows with every take-over
	Since      time.Time
}

// Stats are facts for metrics and the status page.
type Stats struct {
	Owner        Owner
	Active       bool          // this process is the owner
	Lag          time.Duration // for how long at most the journal has had what the state does not cover; 0 where it covers all
	Objects      int           // known
	Written      uint64        // bytes ever handed to the store
	TakeOvers    uint64        // that this process did
	LastTakeOver time.Duration // the last one
	Fenced       int           // lanes that were fenced in the last one
	TailSize     int           // messages that were read back in the last one
	Skipped      uint64        // changes that were passed over since, because a sink had them

	since   time.Time // when the oldest mark was taken that is not stored, or it was seen that there is none; zero: nobody writes
	waiting bool      // there is such a mark
	covered uint64    // offset up to which the state has everything
}

// Stats never waits.
func (k *Writer) Stats() Stats {
	k.mu.Lock()
	s := k.stats
	k.mu.Unlock()
	if !s.since.IsZero() && (s.waiting || k.opts.Journal.Newest() > s.covered) {
		s.Lag = time.Since(s.since)
	}
	s.Written, s.Skipped = k.written.Load(), k.skipped.Load()
	return s
}

func (k *Writer) updateStats(change func(*Stats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.stats)
}

// Close releases the store. Nothing else is called afterwards.
func (k *Writer) Close(ctx context.Context) error {
	k.condition.Close()
	return k.store.Close(ctx)
}
