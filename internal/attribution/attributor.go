package attribution

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/condition"
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
	Conclude(ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64) error
}

// Options configure an [Attributor]. All are required but Crowded.
type Options struct {
	Limits
	Journal Journal
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

	gaps    gaps   // under mu
	settled uint64 // of Run: the cursor as stored

	events, kept, lost         atomic.Uint64
	attributed, likely         atomic.Uint64
	unresolved                 map[Reason]*atomic.Uint64 // the map does not change
	pendingBytes, pendingCount atomic.Int64
	lastEvent                  atomic.Int64 // nanoseconds since 1970
}

// New returns an attributor. Run starts it.
func New(options Options) *Attributor {
	a := &Attributor{
		options: options, join: NewJoin(options.Limits), gaps: newGaps(),
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
	defer cancel(nil)
	var reading sync.WaitGroup
	reading.Go(func() { cancel(a.follow(ctx)) })
	defer reading.Wait()
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

// load takes up what an earlier process waited with. A journal that was filled before anybody was named is not gone through.
func (a *Attributor) load(ctx context.Context) error {
	cursor, settled, err := a.options.Journal.Cursor(Sink)
	if err != nil {
		return err
	}
	if !settled {
		cursor = event.Cursor{Low: a.options.Journal.Newest()}
		if err := a.options.Journal.Settle(ctx, Sink, cursor, nil); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read, a.join.began = cursor.Low, time.Now()
	return a.options.Journal.Evidence(func(e event.Evidence) error {
		mark, request, err := decodeEvidence(e)
		switch {
		case err != nil:
			return fmt.Errorf("evidence %d: %w", e.Number, err)
		case mark != nil:
			a.join.Remember(mark)
		default:
			a.hold(request)
		}
		return nil
	})
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
		a.gaps.emits(r.Change)
	}
	a.wake()
}

// Take takes audit events of one origin, in the order in which they were read, and returns when those that may name somebody
// are durable. place and position, if place is not empty, are stored with them: how far a file has been read. It fails when
// the journal does.
func (a *Attributor) Take(ctx context.Context, origin string, events []audit.Event, place, position string) error {
	select {
	case <-a.resume:
	case <-ctx.Done():
		return context.Cause(ctx)
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

// Lost says that audit events were lost on their way, for a reason in one sentence.
func (a *Attributor) Lost(reason string) { a.LostSince(time.Time{}, reason) }

// LostSince says it where it is known since when.
func (a *Attributor) LostSince(since time.Time, reason string) {
	a.lost.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gaps.lose(since, time.Now(), reason)
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
		value, err := json.Marshal(r)
		if err != nil {
			return nil, nil, err
		}
		a.mu.Lock()
		known := a.join.Knows(r)
		if !known {
			r.Number = a.join.Number()
		}
		a.mu.Unlock()
		if !known {
			requests, evidence = append(requests, r), append(evidence, event.Evidence{Number: r.Number, Value: value})
		}
	}
	return requests, evidence, nil
}

// conclude writes what can be concluded.
func (a *Attributor) conclude(ctx context.Context, now time.Time) error {
	found, changes, cursor := a.decide(now)
	for i := range found.Done {
		if c := &found.Done[i]; c.By != nil {
			changes = append(changes, record(c, now))
		} else {
			a.unresolved[c.Reason].Add(1)
		}
	}
	a.report()
	if len(changes)+len(found.Done)+len(found.Marks)+len(found.Drop) == 0 && !a.behind(cursor) {
		return nil
	}
	keep, err := evidenceOf(found.Marks)
	if err != nil {
		return err
	}
	if err := a.options.Journal.Conclude(ctx, Sink, event.Cursor{Low: cursor}, changes, keep, found.Drop); err != nil {
		return err
	}
	a.settled = cursor
	a.mu.Lock()
	a.wake()
	a.mu.Unlock()
	for i := range found.Done {
		switch c := &found.Done[i]; {
		case c.By == nil:
		case c.Likely:
			a.likely.Add(1)
		default:
			a.attributed.Add(1)
		}
	}
	return nil
}

func evidenceOf(marks []*Mark) (all []event.Evidence, err error) {
	for _, m := range marks {
		value, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, event.Evidence{Number: m.Number, Value: value})
	}
	return all, nil
}

// wake tells who awaits decisions that there are more of them. The caller holds mu.
func (a *Attributor) wake() {
	close(a.again)
	a.again = make(chan struct{})
}

// behind says whether the stored cursor holds much of the journal that nobody waits for.
func (a *Attributor) behind(cursor uint64) bool { return cursor > a.settled+1000 }

func (a *Attributor) decide(now time.Time) (found Findings, gaps []*event.Change, cursor uint64) {
	crowded := a.options.Crowded != nil && a.options.Crowded()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.join.Decide(now)
	if crowded {
		a.join.Expire()
	}
	found = a.join.Fetch()
	if n := a.join.crowded; n > 0 {
		a.join.crowded = 0
		a.lost.Add(n)
		a.gaps.lose(time.Time{}, now, fmt.Sprintf("%d audit events had to make room for newer ones", n))
	}
	gaps = a.gaps.observe(found.Done, a.heard())
	cursor = a.read
	if oldest, waits := a.join.Waiting(); waits {
		cursor = oldest - 1
	}
	a.pendingBytes.Store(int64(a.join.bytes.changes + a.join.bytes.requests))
	a.pendingCount.Store(int64(len(a.join.changes)))
	return found, gaps, cursor
}

// record makes the record that says who made a change.
func record(c *Conclusion, now time.Time) *event.Change {
	of := &event.Change{
		Type: event.Attributed, Cluster: c.Cluster, Resource: c.Resource, Namespace: c.Namespace, Name: c.Name,
		UID: c.UID, ResourceVersion: c.Version, ObservedAt: now.UTC(),
		Attribution: &event.Attribution{Of: c.ID, By: identityOf(c.By), Certainty: event.Exact},
	}
	if c.Likely {
		of.Attribution.Certainty = event.Likely
	}
	if c.RequestedBy != nil {
		asked := identityOf(c.RequestedBy)
		of.Attribution.RequestedBy = &asked
	}
	return of
}

func identityOf(r *Request) event.Identity {
	i := event.Identity{
		User: r.User, UID: r.UserUID, Groups: r.Groups, Verb: r.Verb, Subresource: r.Subresource, Received: r.Received.Time(),
		UserAgent: r.UserAgent, SourceIPs: r.SourceIPs, AuditID: r.ID,
	}
	if as := r.Impersonated; as != nil {
		i.User, i.UID, i.Groups, i.Impersonator = as.Name, as.UID, as.Groups, r.User
	}
	return i
}
