package attribution

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// Sink is the name under which the journal knows how far changes are concluded. No configured sink has it.
const Sink = "@attribution"

// Journal is what an attributor needs of the journal.
type Journal interface {
	Cursor(sink string) (event.Cursor, bool, error)
	Settle(ctx context.Context, sink string, c event.Cursor, dead []event.DeadLetter) error
	Read(ctx context.Context, after uint64) ([]event.Record, error)
	Newest() uint64
	KeepEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error
	Evidence(each func(event.Evidence) error) error
	Resources() ([]string, error)
	LoadResource(name string, known func(event.Known)) (event.StoredResource, error)
	Conclude(ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64) error
}

// Options configure an [Attributor]. All are required but Crowded.
type Options struct {
	Limits
	Journal Journal
	Cluster string // name of the cluster, as changes have it
	// Selected says whether changes of a resource are emitted: requests to others are forgotten at once.
	Selected func(group, resource string) bool
	// Crowded says that the journal is filling up, so that nothing may hold its changes any longer.
	Crowded func() bool
	Logger  *slog.Logger
}

// pace is how often conclusions are drawn.
const pace = 200 * time.Millisecond

// Attributor reads changes from the journal and takes audit events from the intakes. It writes an Attributed record for each
// change that it can name the author of. What it waits with is in the journal: changes in front of its cursor, events as
// evidence. So a restart loses nothing of what it took.
type Attributor struct {
	options Options
	state   *condition.Condition

	mu     sync.Mutex // of join, read and gaps; held for no wait
	join   *Join
	read   uint64        // every change up to here is in the join, or not for it
	again  chan struct{} // closed, and replaced, when more changes are decided
	resume chan struct{} // closed when evidence was loaded

	from    uint64 // what the journal held when this was made: nobody was to be named for it, unless somebody was before
	gaps    gaps   // under mu
	settled uint64 // of Run: the cursor as stored

	events, kept, lost         atomic.Uint64
	attributed, likely         atomic.Uint64
	unresolved                 map[Reason]*atomic.Uint64 // the map does not change
	pendingBytes, pendingCount atomic.Int64
	lastEvent                  atomic.Int64 // nanoseconds since 1970
}

// New returns an attributor. Run starts it. Where none has run on the journal before, it names what is journaled from now
// on.
func New(options Options) *Attributor {
	a := &Attributor{
		options: options, join: NewJoin(options.Limits), from: options.Journal.Newest(), gaps: newGaps(options.Cluster),
		again: make(chan struct{}), resume: make(chan struct{}),
		state: condition.New(options.Logger, hears), unresolved: map[Reason]*atomic.Uint64{},
	}
	for _, r := range Reasons() {
		a.unresolved[r] = &atomic.Uint64{}
	}
	return a
}

// Run works until ctx ends, or the journal fails.
func (a *Attributor) Run(ctx context.Context) error {
	if err := a.load(ctx); err != nil {
		return err
	}
	close(a.resume)
	ctx, cancel := context.WithCancelCause(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { cancel(a.follow(ctx)) })
	defer reading.Wait()
	defer cancel(nil)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := a.conclude(ctx, time.Now()); err != nil {
			return err
		}
	}
}

// follow gives the changes of the journal to the join.
func (a *Attributor) follow(ctx context.Context) error {
	for {
		records, err := a.options.Journal.Read(ctx, a.at())
		if err != nil {
			return err
		}
		a.take(records)
	}
}

func (a *Attributor) at() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.read
}

func (a *Attributor) take(records []event.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range records {
		a.read = r.Offset
		if c, eligible := Of(r); eligible {
			a.join.Change(c)
		} else if c.UID != "" {
			a.join.learn(&c)
			if r.Change.Coalesced {
				a.unresolved[Compared].Add(1)
			}
		}
		a.gaps.emits(r.Change.Resource)
	}
	a.wake()
}

// Take takes audit events of one origin, in the order in which they were read, and returns when those that may name somebody
// are durable. place and position, if place is not empty, are stored with them: how far a file has been read. It fails when
// the journal does.
func (a *Attributor) Take(ctx context.Context, origin string, events []audit.Event, place, position string) error {
	if err := a.loaded(ctx); err != nil {
		return err
	}
	now := time.Now()
	a.events.Add(uint64(len(events)))
	if len(events) > 0 {
		a.lastEvent.Store(now.UnixNano())
	}
	requests, evidence, err := a.useful(origin, events, now)
	if err != nil || len(requests) == 0 && place == "" {
		return err
	}
	if err := a.options.Journal.KeepEvidence(ctx, evidence, place, position); err != nil {
		if place == "" { // they are taken again; what is stored with a place is not
			a.disown(evidence)
		}
		return err
	}
	a.kept.Add(uint64(len(requests)))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range requests {
		a.hold(r)
	}
	return nil
}

// disown drops evidence that was perhaps stored, though nobody was told so: it comes again, under other numbers.
func (a *Attributor) disown(evidence []event.Evidence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range evidence {
		a.join.found.Drop = append(a.join.found.Drop, e.Number)
	}
}

// loaded waits until evidence was loaded.
func (a *Attributor) loaded(ctx context.Context) error {
	select {
	case <-a.resume:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hold gives a request to the join, or lets go of its evidence. The caller holds mu.
func (a *Attributor) hold(r *Request) {
	if !a.join.Request(r) {
		a.join.found.Drop = append(a.join.found.Drop, r.Number)
	}
}

// heard returns when the newest audit event came; zero before the first.
func (a *Attributor) heard() time.Time {
	if n := a.lastEvent.Load(); n > 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// useful returns the events that may name somebody, as they are kept.
func (a *Attributor) useful(origin string, events []audit.Event, now time.Time) ([]*Request, []event.Evidence, error) {
	var requests []*Request
	var evidence []event.Evidence
	for i := range events {
		e := &events[i]
		if !e.Wrote() || !a.options.Selected(e.Group, e.Resource) {
			continue
		}
		r := &Request{Event: *e, Origin: origin, Arrived: now}
		if len(claims(&held{Request: r}, a.options.Likely)) == 0 {
			continue
		}
		if err := r.encode(); err != nil {
			return nil, nil, err
		}
		a.mu.Lock()
		known := a.join.Knows(r)
		if !known {
			r.Number = a.join.Number()
		}
		a.mu.Unlock()
		if !known {
			requests, evidence = append(requests, r), append(evidence, event.Evidence{Number: r.Number, Value: r.kept})
		}
	}
	return requests, evidence, nil
}
