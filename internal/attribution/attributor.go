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
	StoreEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error
	ForEachEvidence(each func(event.Evidence) error) error
	Resources() ([]string, error)
	LoadResource(name string, known func(event.Known)) (event.StoredResource, error)
	AppendAttributions(ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64) error
}

// Options configure an [Attributor]. All are required but Crowded.
type Options struct {
	Limits
	Journal Journal
	Cluster string // name of the cluster, as changes have it
	// Selected says whether changes of a resource are emitted: requests to others are forgotten at once.
	Selected func(group, resource string) bool
	// JournalCrowded says that the journal is filling up, so that nothing may hold its changes any longer.
	JournalCrowded func() bool
	Logger         *slog.Logger
}

// resolveInterval is how often conclusions are drawn.
const resolveInterval = 200 * time.Millisecond

// Attributor reads changes from the journal and takes audit events from the intakes. It writes an Attributed record for each
// change that it can name the author of. What it waits with is in the journal: changes in front of its cursor, events as
// evidence. So a restart loses nothing of what it took.
type Attributor struct {
	options   Options
	condition *condition.Condition

	mu       sync.Mutex // of join, read and gaps; held for no wait
	matcher  *Matcher
	read     uint64        // every change up to here is in the join, or not for it
	progress chan struct{} // closed, and replaced, when more changes are decided
	loaded   chan struct{} // closed when evidence was loaded

	startOffset  uint64      // what the journal held when this was made: nobody was to be named for it, unless somebody was before
	losses       lossTracker // under mu
	storedCursor uint64      // of Run: the cursor as stored

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
		options: options, matcher: NewMatcher(options.Limits), startOffset: options.Journal.Newest(), losses: newLossTracker(options.Cluster),
		progress: make(chan struct{}), loaded: make(chan struct{}),
		condition: condition.New(options.Logger, conditionReceiving), unresolved: map[Reason]*atomic.Uint64{},
	}
	for _, r := range Reasons() {
		a.unresolved[r] = &atomic.Uint64{}
	}
	return a
}

// Run works until ctx ends, or the journal fails.
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

// readJournal gives the changes of the journal to the join.
func (a *Attributor) readJournal(ctx context.Context) error {
	for {
		records, err := a.options.Journal.Read(ctx, a.readOffset())
		if err != nil {
			return err
		}
		a.addRecords(records)
	}
}

func (a *Attributor) readOffset() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.read
}

func (a *Attributor) addRecords(records []event.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range records {
		a.read = r.Offset
		if c, eligible := ChangeOf(r); eligible {
			a.matcher.AddChange(c)
		} else if c.UID != "" {
			a.matcher.recordState(&c)
			if r.Change.Coalesced {
				a.unresolved[FromList].Add(1)
			}
		}
		a.losses.recordResource(r.Change.Resource)
	}
	a.signalResolved()
}

// StoreEvents takes audit events of one origin, in the order in which they were read, and returns when those that may name somebody
// are durable. place and position, if place is not empty, are stored with them: how far a file has been read. It fails when
// the journal does.
func (a *Attributor) StoreEvents(ctx context.Context, origin string, events []audit.Event, place, position string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	now := time.Now()
	a.events.Add(uint64(len(events)))
	if len(events) > 0 {
		a.lastEvent.Store(now.UnixNano())
	}
	requests, evidence, err := a.selectRequests(origin, events, now)
	if err != nil || len(requests) == 0 && place == "" {
		return err
	}
	if err := a.options.Journal.StoreEvidence(ctx, evidence, place, position); err != nil {
		if place == "" { // they are taken again; what is stored with a place is not
			a.dropEvidence(evidence)
		}
		return err
	}
	a.kept.Add(uint64(len(requests)))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range requests {
		a.addRequest(r)
	}
	return nil
}

// dropEvidence drops evidence that was perhaps stored, though nobody was told so: it comes again, under other numbers.
func (a *Attributor) dropEvidence(evidence []event.Evidence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range evidence {
		a.matcher.findings.Drop = append(a.matcher.findings.Drop, e.Number)
	}
}

// awaitLoaded waits until evidence was loaded.
func (a *Attributor) awaitLoaded(ctx context.Context) error {
	select {
	case <-a.loaded:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addRequest gives a request to the join, or lets go of its evidence. The caller holds mu.
func (a *Attributor) addRequest(r *Request) {
	if !a.matcher.AddRequest(r) {
		a.matcher.findings.Drop = append(a.matcher.findings.Drop, r.Number)
	}
}

// lastEventTime returns when the newest audit event came; zero before the first.
func (a *Attributor) lastEventTime() time.Time {
	if n := a.lastEvent.Load(); n > 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// selectRequests returns the events that may name somebody, as they are kept.
func (a *Attributor) selectRequests(origin string, events []audit.Event, now time.Time) ([]*Request, []event.Evidence, error) {
	var requests []*Request
	var evidence []event.Evidence
	for i := range events {
		e := &events[i]
		if !e.IsWrite() || !a.options.Selected(e.Group, e.Resource) {
			continue
		}
		r := &Request{Event: *e, Origin: origin, Arrived: now}
		if len(claimsOfRequest(&waitingRequest{Request: r}, a.options.Likely)) == 0 {
			continue
		}
		if err := r.encodeEvidence(); err != nil {
			return nil, nil, err
		}
		a.mu.Lock()
		known := a.matcher.HasRequest(r)
		if !known {
			r.Number = a.matcher.NextNumber()
		}
		a.mu.Unlock()
		if !known {
			requests, evidence = append(requests, r), append(evidence, event.Evidence{Number: r.Number, Value: r.encoded})
		}
	}
	return requests, evidence, nil
}
