package state

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// Sink is the name under which a [Keeper] holds the trim of its journal: one of journal.Options.Sinks wherever one runs. No sink
// can be called so.
const Sink = "@state"

// Options configure a keeper.
type Options struct {
	Group string // names the exporters that take over from each other; the same for all of them, and for nobody else
	Owner string // names this process, for people
	// Journal is that of this process. It runs while TakeOver and Run do.
	Journal *journal.Journal
	// Unsettled names sinks of the journal that the state does not wait for, beside its own.
	Unsettled []string
	Logger    *slog.Logger // nil: slog.Default()
}

// Keeper keeps the state: it follows it while another process works, takes it over, and writes it from then on. Follow,
// TakeOver and Run are called one after the other, never at the same time; everything else may be called at any time.
type Keeper struct {
	opts  Options
	store sinks.StateStore
}

// New returns a keeper of the state that open opens. It contacts nothing.
func New(opts Options, open func(contents func(part, parts int) []sinks.StateEntry) (sinks.StateStore, error)) (*Keeper, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	k := &Keeper{opts: opts}
	var err error
	k.store, err = open(k.contents)
	return k, err
}

// Follow reads what another process writes until ctx ends, and returns nil. A store that is away is waited for; see
// Status.
func (k *Keeper) Follow(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Takeover is what TakeOver needs besides the state.
type Takeover struct {
	// Cluster is the UID of the cluster that is watched, "" where it is not known (yet): the journal then remembers that of the
	// state, and the source compares.
	Cluster string
	// Sinks are all configured sinks by name, nil for one that is not [sinks.Fenced]. None of them publishes yet.
	Sinks map[string]sinks.Fenced
}

// TakeOver makes this process the owner: it claims the state and reads it to its end, fences all sinks, reads the tails of their
// lanes, and begins the journal from all that, unless the state is of this very journal, which then goes on as it is. It
// may be called again after an error. A *RefusedError stays until somebody acts; a *sinks.DeposedError says that another
// process took over meanwhile; anything else passes by itself.
func (k *Keeper) TakeOver(ctx context.Context, t Takeover) (*Taken, error) {
	return nil, errors.New("not written yet")
}

// Taken is what a process has taken over.
type Taken struct {
	Resumed  bool          // the journal goes on as it is; else it was emptied and seeded
	Fresh    bool          // there was no state to take over
	Before   Owner         // who worked before; zero where nobody did
	Took     time.Duration // of TakeOver
	Objects  int           // known objects
	TailSize int           // changes in the tails
}

// Delivered returns what says whether a sink has a change already, in the lane that it is given: the pipeline passes over it.
// It is nil where there is nothing to pass over. Safe for concurrent use; it answers the same for as long as it matters.
func (t *Taken) Delivered(sink string) func(sinks.Lane, *event.Change) bool { return nil }

// Join takes a sink in that was made while this process works, after Fence and the tails of its lanes, and returns what Delivered
// does. It takes the place of one of the same name. A nil sink is one that is not fenced.
func (k *Keeper) Join(ctx context.Context, name string, sink sinks.Fenced) (func(sinks.Lane, *event.Change) bool, error) {
	return nil, errors.New("not written yet")
}

// Leave takes a sink out that is closed: its places are asked for no more.
func (k *Keeper) Leave(name string) {}

// Run writes until ctx ends, and returns nil, or a *sinks.DeposedError when another process has taken over, or an error of
// the journal. A store that is away is waited for; see Status.
func (k *Keeper) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Flush waits until the state covers everything that the journal holds now. It is for a hand-over: the source has stopped,
// all sinks have settled everything, and Run still runs.
func (k *Keeper) Flush(ctx context.Context) error { return nil }

// Status says how the store is doing, for readiness. It never waits.
func (k *Keeper) Status() condition.Status { return condition.Status{} }

// Owner is who writes a state.
type Owner struct {
	Identity   string // of the process, for people; "" where nobody ever wrote
	Journal    string // ID of its journal
	Generation uint64 // grows with every take-over
	Since      time.Time
}

// Owner is who wrote last, as far as it was read. It never waits.
func (k *Keeper) Owner() Owner { return Owner{} }

// Stats are facts for metrics and the status page.
type Stats struct {
	Owner     Owner
	Active    bool          // this process is the owner
	Lag       time.Duration // since the moment of the newest mark that is stored, while one is due; 0 where nothing is
	Behind    uint64        // changes in the journal that the state does not have
	Objects   int           // known
	Written   uint64        // bytes ever handed to the store
	Takeovers uint64        // that this process did
	Took      time.Duration // of the last one
	Fenced    int           // lanes that were fenced in the last one
	Skipped   uint64        // changes that were passed over since, because a sink had them
}

// Stats never waits.
func (k *Keeper) Stats() Stats { return Stats{} }

// Close releases the store. Nothing else is called afterwards.
func (k *Keeper) Close(ctx context.Context) error { return k.store.Close(ctx) }

// contents are all entries of one part of the keys, for stores that write everything again from time to time.
func (k *Keeper) contents(part, parts int) []sinks.StateEntry { return nil }

// RefusedError says why a state must not be used by this process, ever, as it is.
type RefusedError struct {
	Reason string
	Remedy string
}

func (e *RefusedError) Error() string { return e.Reason + ": " + e.Remedy }
