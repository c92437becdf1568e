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

// Sink is the name under which a [Keeper] holds the trim of its journal: one of journal.Options.Sinks wherever one runs. No
// sink can be called so.
const Sink = "@state"

const (
	followEvery = 200 * time.Millisecond // how often a stand-by reads
	retryEvery  = time.Second            // how often what failed is tried again
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

// Keeper keeps the state: it follows it while another process works, takes it over, and writes it from then on. Follow,
// TakeOver and Run are called one after the other, never at the same time; everything else may be called at any time.
type Keeper struct {
	opts      Options
	store     sinks.StateStore
	log       *slog.Logger
	condition *condition.Condition
	asked     chan func(context.Context) error // done by Run

	// Of the goroutine that is in Follow, TakeOver or Run.
	table *table
	lanes map[sinkLane]uint64      // their numbers
	lost  map[sinkLane]sinks.Place // lanes of a state that was purged or replaced
	w     writer

	skipped atomic.Uint64
	written atomic.Uint64

	mu      sync.Mutex
	members map[string]*member
	stats   Stats
}

// sinkLane is a lane of all sinks.
type sinkLane struct {
	sink string
	lane sinks.Lane
}

// member is a sink that changes are delivered to.
type member struct {
	sink      sinks.Fenced
	delivered atomic.Pointer[delivered] // nil when it is not needed any more
	ends      map[sinks.Lane]sinks.Place
	highest   map[string]uint64
}

// New returns a keeper of the state that open opens. It contacts nothing.
func New(opts Options, open func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error)) (*Keeper, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	k := &Keeper{
		opts: opts, log: opts.Logger, condition: condition.New(opts.Logger, stateUnread),
		asked: make(chan func(context.Context) error), table: newTable(), lanes: map[sinkLane]uint64{}, lost: map[sinkLane]sinks.Place{}, members: map[string]*member{},
	}
	var err error
	k.store, err = open(func(part, parts int) []sinks.StateEntry { return k.table.part(part, parts) })
	return k, err
}

// The conditions of the state. While it is away, the process that works goes on: the state lags, which costs a longer
// look-back.
var (
	stateUnread   = condition.State{Name: "unread"}
	stateFollowed = condition.State{Name: "followed", Message: "the replicated state is followed", Level: slog.LevelInfo}
	stateWritten  = condition.State{Name: "written", Message: "the replicated state is written", Level: slog.LevelInfo}
	stateAway     = condition.State{
		Name: "away", Severity: condition.Degraded, Message: "the replicated state cannot be read or written", Level: slog.LevelWarn,
	}
	stateUnusable = condition.State{
		Name: "unusable", Severity: condition.NotReady, Message: "the replicated state cannot be used", Level: slog.LevelError,
	}
)

// Status says how the store is doing, for readiness. It never waits.
func (k *Keeper) Status() condition.Status { return k.condition.Status() }

// Follow reads what another process writes until ctx ends, and returns nil. A store that is away is waited for; see
// Status.
func (k *Keeper) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := followEvery
		if err := k.follow(ctx); err != nil && ctx.Err() == nil {
			wait = retryEvery
			k.trouble(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

func (k *Keeper) follow(ctx context.Context) error {
	if err := k.read(ctx); err != nil {
		return err
	}
	c, err := k.table.content()
	if err != nil {
		return malformed(err)
	}
	k.show(func(s *Stats) { s.Owner, s.Active, s.Objects = c.meta.owner, false, k.table.size })
	if err := k.check(c, ""); err != nil {
		return err
	}
	k.condition.Become(stateFollowed, "", "")
	return nil
}

// trouble says what is wrong with the state.
func (k *Keeper) trouble(err error) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		k.condition.Become(stateUnusable, refused.Reason, refused.Remedy)
		return
	}
	k.condition.Become(stateAway, err.Error(), "")
}

// read brings the table up to what is stored. Lanes of a state that was lost or replaced stay known: that does not make what
// an older process sends through them go away.
func (k *Keeper) read(ctx context.Context) error {
	for {
		var bad error
		reset, err := k.store.Read(ctx, func(e sinks.StateEntry) error {
			k.table.put(e)
			if len(e.Key) > 0 && e.Key[0] == keyLane && e.Value != nil && bad == nil {
				bad = k.learn(e)
			}
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("read the replicated state: %w", err)
		case reset:
			k.log.Warn("the replicated state was purged or replaced: it is read anew")
			k.keepLanes()
			k.table, k.lanes = newTable(), map[sinkLane]uint64{}
		case bad != nil:
			return malformed(bad)
		default:
			return nil
		}
	}
}

// keepLanes remembers the lanes of a state that is gone.
func (k *Keeper) keepLanes() {
	c, err := k.table.content()
	if err != nil {
		return // it was none
	}
	for _, l := range c.lanes {
		k.lost[sinkLane{l.sink, l.lane}] = l.place
	}
}

// learn remembers a lane.
func (k *Keeper) learn(e sinks.StateEntry) error {
	number, _, err := cutKey(string(e.Key))
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

func malformed(err error) error {
	return &RefusedError{
		Reason: "what is stored as the replicated state is none: " + err.Error(),
		Remedy: "give the state a topic or stream of its own, or empty it with exporter state reset",
	}
}

// check refuses a state that is not of this Lease, of this cluster ("" where it is not known) and of a known format.
func (k *Keeper) check(c content, cluster string) error {
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
func (k *Keeper) Delivered(name string) func(sinks.Lane, *event.Change) bool {
	k.mu.Lock()
	m := k.members[name]
	k.mu.Unlock()
	if m == nil || m.delivered.Load() == nil {
		return nil
	}
	return func(lane sinks.Lane, c *event.Change) bool {
		d := m.delivered.Load()
		if d == nil || !d.has(lane, c) {
			return false
		}
		k.skipped.Add(1)
		return true
	}
}

// Leave takes a sink out that is closed: its places are asked for no more.
func (k *Keeper) Leave(name string) {
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
	Owner     Owner
	Active    bool          // this process is the owner
	Lag       time.Duration // for how long at most the journal has had what the state does not cover; 0 where it covers all
	Objects   int           // known
	Written   uint64        // bytes ever handed to the store
	Takeovers uint64        // that this process did
	Took      time.Duration // the last one
	Fenced    int           // lanes that were fenced in the last one
	Tail      int           // messages that were read back in the last one
	Skipped   uint64        // changes that were passed over since, because a sink had them

	since   time.Time // when the oldest mark was taken that is not stored, or it was seen that there is none; zero: nobody writes
	waiting bool      // there is such a mark
	covered uint64    // offset up to which the state has everything
}

// Stats never waits.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	s := k.stats
	k.mu.Unlock()
	if !s.since.IsZero() && (s.waiting || k.opts.Journal.Newest() > s.covered) {
		s.Lag = time.Since(s.since)
	}
	s.Written, s.Skipped = k.written.Load(), k.skipped.Load()
	return s
}

func (k *Keeper) show(change func(*Stats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.stats)
}

// Close releases the store. Nothing else is called afterwards.
func (k *Keeper) Close(ctx context.Context) error {
	k.condition.Close()
	return k.store.Close(ctx)
}
