package attribution

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Sink is the cursor name under which the journal stores how far changes are resolved. It is not a valid name of a
// configured sink.
const Sink = "@attribution"

// Journal is the part of the journal that an [Attributor] uses.
type Journal interface {
	Cursor(sink string) (event.Cursor, bool, error)
	Settle(ctx context.Context, sink string, c event.Cursor, dead []event.DeadLetter) error
	Read(ctx context.Context, after uint64) ([]event.Record, error)
	Newest() uint64
	StoreEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error
	ForEachEvidence(each func(event.Evidence) error) error
	Resources() ([]string, error)
	LoadResource(name string, known func(event.Known)) (event.StoredResource, error)
	AppendAttributions(
		ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
	) error
}

// Options configure an [Attributor]. All but JournalCrowded, Unresolved and Stamps are required.
type Options struct {
	Limits
	Journal Journal
	Cluster string // name of the cluster in emitted records
	// Selected reports whether changes of a resource are emitted. Requests for other resources are dropped at once.
	Selected func(group, resource string) bool
	// JournalCrowded reports that the journal is filling up: no change may wait any longer, because it keeps the journal
	// from trimming.
	JournalCrowded func() bool
	// Unresolved gets the reason why a change has no author; nil: it is not needed.
	Unresolved func(offset uint64, reason Reason)
	// Stamps are used as a second source, or the only one with Limits.NoEvents; nil: they are not.
	Stamps Stamps
	Logger *slog.Logger
}

const (
	resolveInterval = 200 * time.Millisecond // between two rounds of resolving
	maxCursorLag    = 1000                   // changes by which the stored cursor may lag if there is nothing else to write
)

// Attributor reads changes from the journal and gets audit events from the intakes. It appends an attributed record for each
// change with a known author. Everything that waits is in the journal, changes after the cursor and events as evidence, so a
// restart loses nothing that was acknowledged.
type Attributor struct {
	options     Options
	condition   *condition.Condition // audit events arrive
	lagging     *condition.Condition // they arrive in time
	shared      *shared
	facts       statsBoard
	loaded      chan struct{} // closed when the evidence of earlier processes is loaded
	startOffset uint64        // newest offset at New: where a first run on this journal starts

	storedCursor uint64 // used by Run only
}

// New returns an Attributor. On a journal without a stored cursor it attributes the changes that are journaled from now on.
func New(options Options) *Attributor {
	a := &Attributor{
		options: options, condition: condition.New(options.Logger, "audit", condition.Problem{}),
		lagging: condition.New(options.Logger, "audit/lag", condition.Problem{}),
		shared:  &shared{matcher: NewMatcher(options.Limits), losses: newLossTracker(options.Cluster)},
		loaded:  make(chan struct{}), startOffset: options.Journal.Newest(),
	}
	a.facts.stats.Unresolved = map[Reason]uint64{}
	for _, r := range Reasons() { // each is in the metric from the start
		a.facts.stats.Unresolved[r] = 0
	}
	return a
}

// Run resolves changes until ctx ends or the journal fails.
func (a *Attributor) Run(ctx context.Context) error {
	if err := a.loadStored(ctx); err != nil {
		return err
	}
	close(a.loaded)
	ctx, cancel := context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { cancel(a.readJournal(ctx)) })
	defer reading.Wait()
	defer cancel(nil)
	tick := time.NewTicker(resolveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := a.writeResolved(ctx, time.Now()); err != nil {
			return err
		}
	}
}

// loadStored restores what an earlier process left. A first run does not go back over a filled journal.
func (a *Attributor) loadStored(ctx context.Context) error {
	cursor, found, err := a.options.Journal.Cursor(Sink)
	if err == nil && found {
		if err = awaitWritten(ctx, a.options.Journal); err == nil {
			cursor, _, err = a.options.Journal.Cursor(Sink)
		}
	}
	if err != nil {
		return err
	}
	if !found {
		cursor = event.Cursor{Low: a.startOffset}
		if err := a.options.Journal.Settle(ctx, Sink, cursor, nil); err != nil {
			return err
		}
	}
	resources, err := a.selectedResources()
	if err != nil {
		return err
	}
	resolved, err := decodeResolved(cursor.State)
	if err != nil {
		return err
	}
	return a.shared.load(cursor.Low, resolved, resources, a.options.Journal.ForEachEvidence)
}

// awaitWritten waits for the writes of an earlier user of the journal, which did not wait for its last one.
func awaitWritten(ctx context.Context, j Journal) error { return j.StoreEvidence(ctx, nil, "", "") }

// selectedResources returns the selected resources of the journal: losses concern them even before anything of them is
// emitted.
func (a *Attributor) selectedResources() (all []event.Resource, err error) {
	names, err := a.options.Journal.Resources()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		stored, err := a.options.Journal.LoadResource(name, nil)
		if err != nil {
			return nil, err
		}
		if r := stored.Resource; a.options.Selected(r.Group, r.Resource) {
			all = append(all, r)
		}
	}
	return all, nil
}

// readJournal adds the changes of the journal until ctx ends or the journal fails.
func (a *Attributor) readJournal(ctx context.Context) error {
	for {
		records, err := a.options.Journal.Read(ctx, a.shared.readOffset())
		if err != nil {
			return err
		}
		fromList := a.shared.addRecords(records)
		a.facts.update(func(s *Stats) { s.Unresolved[FromList] += fromList })
	}
}

// writeResolved resolves what can be resolved and writes it to the journal: records, marks and cursor in one commit.
func (a *Attributor) writeResolved(ctx context.Context, now time.Time) error {
	crowded := a.options.JournalCrowded != nil && a.options.JournalCrowded()
	var proof stampProof
	if a.options.Stamps != nil {
		proof = a.options.Stamps.Proof()
	}
	f := a.shared.resolve(now, a.facts.lastEvent, crowded, proof)
	if f.unproven {
		a.options.Stamps.RequestCheck()
	}
	a.facts.update(func(s *Stats) {
		s.Lost += f.evicted
		s.PendingBytes, s.Pending, s.Lag = int64(f.bytes), int64(f.waiting), f.lag
	})
	changes := f.gaps
	for i := range f.Resolved {
		if r := &f.Resolved[i]; r.By != nil {
			changes = append(changes, attributedRecord(r, now))
		} else if a.options.Unresolved != nil {
			a.options.Unresolved(r.Offset, r.Reason)
		}
	}
	a.updateCondition(f.unnamed)
	a.updateLagCondition(f.lag)
	if len(changes)+len(f.Resolved)+len(f.Marks)+len(f.Bound)+len(f.Drop) == 0 && f.cursor <= a.storedCursor+maxCursorLag {
		return nil
	}
	keep, err := encodeKept(&f.Findings)
	if err != nil {
		return err
	}
	cursor := event.Cursor{Low: f.cursor, State: encodeResolved(f.resolved)}
	if err := a.options.Journal.AppendAttributions(ctx, Sink, cursor, changes, keep, f.Drop); err != nil {
		return err
	}
	a.storedCursor = f.cursor
	a.facts.update(func(s *Stats) { s.countResolved(f.Resolved) })
	return nil
}

func attributedRecord(r *Resolution, now time.Time) *event.Change {
	c := &event.Change{
		Type: event.Attributed, Cluster: r.Cluster, Resource: r.Resource, Namespace: r.Namespace, Name: r.Name,
		UID: r.UID, ResourceVersion: r.Version, ObservedAt: now.UTC(), Held: r.Held,
		Attribution: &event.Attribution{Of: r.ID, By: r.By.identity(), Certainty: event.Exact},
	}
	if r.By.Received != 0 && r.By.Done >= r.By.Received {
		c.ChangedAt = event.ChangeTime{At: r.By.Done.Time().UTC(), NotBefore: r.By.Received.Time().UTC(), Source: event.TimeFromAudit}
	}
	if r.RequestedBy != nil {
		requester := r.RequestedBy.identity()
		c.Attribution.RequestedBy = &requester
	}
	return c
}
