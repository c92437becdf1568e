package attribution

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// StoreEvents adds audit events of one origin, in the order in which they were read. It returns when the events that may
// name an author are durable. place and position, unless place is empty, are stored in the same commit: how far a log was
// read. It fails if the journal does.
func (a *Attributor) StoreEvents(ctx context.Context, origin string, events []audit.Event, place, position string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	now := time.Now()
	if n := len(events); n > 0 {
		a.facts.update(func(s *Stats) { s.Events, s.LastEvent = s.Events+uint64(n), now.Round(0) }) // by the wall clock
	}
	requests, evidence, err := a.selectRequests(origin, events, now)
	if err != nil || len(requests) == 0 && place == "" {
		return err
	}
	if err := a.options.Journal.StoreEvidence(ctx, evidence, place, position); err != nil {
		if place == "" { // the sender repeats the events; events with a stored position are not read again
			a.shared.dropEvidence(evidence)
		}
		return err
	}
	a.facts.update(func(s *Stats) { s.Kept += uint64(len(requests)) })
	a.shared.addRequests(requests)
	return nil
}

// RecordLoss records that audit events were lost between since and now, for a reason in one sentence. A zero since stands
// for the end of the last loss. It returns when that is durable, and fails if the journal does.
func (a *Attributor) RecordLoss(ctx context.Context, since time.Time, reason string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	a.facts.update(func(s *Stats) { s.Lost++ })
	return a.RecordGap(ctx, since, reason)
}

// RecordGap is RecordLoss for a gap that no lost event causes.
func (a *Attributor) RecordGap(ctx context.Context, since time.Time, reason string) error {
	if err := a.awaitLoaded(ctx); err != nil {
		return err
	}
	l := a.shared.newLoss(since, time.Now(), reason)
	if l == nil {
		return nil
	}
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	evidence := []event.Evidence{{Number: l.Numbers[0], Value: value}}
	if err := a.options.Journal.StoreEvidence(ctx, evidence, "", ""); err != nil {
		a.shared.dropEvidence(evidence)
		return err
	}
	a.shared.addLoss(l)
	return nil
}

// awaitLoaded waits until the evidence of earlier processes is loaded: new evidence must not use their numbers.
func (a *Attributor) awaitLoaded(ctx context.Context) error {
	select {
	case <-a.loaded:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// selectRequests returns the events that may name an author, numbered, with their stored form.
func (a *Attributor) selectRequests(
	origin string, events []audit.Event, now time.Time,
) (requests []*Request, evidence []event.Evidence, err error) {
	for i := range events {
		e := &events[i]
		if !e.IsWrite() || !a.options.Selected(e.Group, e.Resource) {
			continue
		}
		r := &Request{Event: *e, Origin: origin, Arrived: now}
		if len(claimsOfRequest(&waitingRequest{Request: r})) == 0 || !a.shared.numberRequest(r) {
			continue
		}
		if r.Lag > 0 {
			a.facts.update(func(s *Stats) { s.Late++ })
		}
		if err := r.encodeEvidence(); err != nil {
			return nil, nil, err
		}
		requests, evidence = append(requests, r), append(evidence, event.Evidence{Number: r.Number, Value: r.encoded})
	}
	return requests, evidence, nil
}

const (
	maxLagSources  = 256 // API servers and logs; each connection counts as an API server
	lagDeliveries  = 16  // newest deliveries of a source that its lag is measured over
	clockOffsets   = 8   // newest comparisons of the clocks
	lagRepeatShare = 2   // a lag is expected again for this many times its length
)

// sourceLag measures how late audit events arrive: from the end of a request until its event is here. A claim that waits
// for contradicting ones has to wait for longer than that. The clock of an API server may differ from ours, so it is
// compared where a request certainly made a change that we observed. Until then the clocks count as equal, which makes the
// lag too long if the API server's clock is behind; if it is ahead, requests count as too late anyway.
type sourceLag struct {
	bySource  recentMap[*originLag]
	startedAt time.Time // events that waited for the start of this process are late since then only
	remember  time.Duration
	arrivals  int // since the start
}

type originLag struct {
	deliveries []delivery    // at most lagDeliveries, oldest first
	longest    delivery      // an older one that is expected again
	stored     time.Duration // by an earlier process, which has compared the clocks
	offsets    []time.Duration
}

// delivery is the arrival of events at one time.
type delivery struct {
	delay time.Duration // by two clocks: ours at the arrival, and the API server's at the end of the request
	at    time.Time
}

// recordArrival records the arrival of the event of a request, and returns by how much it was late.
func (s *sourceLag) recordArrival(r *Request) time.Duration {
	if r.Done == 0 || r.Arrived.IsZero() {
		return 0
	}
	d := delivery{r.Arrived.Sub(r.Done.Time()), r.Arrived}
	o := s.source(r.Origin)
	o.addDelivery(d)
	s.arrivals++
	return o.lagOf(d, s.startedAt)
}

func (s *sourceLag) source(origin string) *originLag {
	o, found := s.bySource.get(origin)
	if !found {
		o = &originLag{}
	}
	s.bySource.putNewest(origin, o)
	return o
}

// compareClocks records when a change was observed and when the request that made it had ended.
func (s *sourceLag) compareClocks(by *Request, observed time.Time) {
	o, found := s.bySource.get(by.Origin)
	if !found || by.Done == 0 || observed.IsZero() {
		return
	}
	if o.offsets = append(o.offsets, observed.Sub(by.Done.Time())); len(o.offsets) > clockOffsets {
		o.offsets = slices.Delete(o.offsets, 0, 1)
	}
}

// current returns the longest lag of all sources.
func (s *sourceLag) current(now time.Time) (lag time.Duration) {
	for _, e := range s.bySource.all {
		o := e.Value.(recentEntry[*originLag]).value
		for _, d := range o.deliveries {
			if l := o.lagOf(d, s.startedAt); now.Sub(d.at) <= max(s.remember, lagRepeatShare*l) {
				lag = max(lag, l)
			}
		}
		if l := o.lagOf(o.longest, s.startedAt); now.Sub(o.longest.at) <= lagRepeatShare*l {
			lag = max(lag, l)
		}
		if age := now.Sub(s.startedAt); age <= lagRepeatShare*o.stored || age <= s.remember && s.arrivals < lagDeliveries {
			lag = max(lag, o.stored)
		}
	}
	return lag
}

// addDelivery adds a delivery. Events that arrive together are one.
func (o *originLag) addDelivery(d delivery) {
	if n := len(o.deliveries); n > 0 && o.deliveries[n-1].at.Equal(d.at) {
		o.deliveries[n-1].delay = max(o.deliveries[n-1].delay, d.delay)
		return
	}
	if o.deliveries = append(o.deliveries, d); len(o.deliveries) <= lagDeliveries {
		return
	}
	oldest := o.deliveries[0]
	o.deliveries = slices.Delete(o.deliveries, 0, 1)
	if oldest.delay >= o.longest.delay || d.at.Sub(o.longest.at) > lagRepeatShare*o.longest.delay {
		o.longest = oldest
	}
}

// lagOf returns the lag of a delivery by our clock.
func (o *originLag) lagOf(d delivery, startedAt time.Time) time.Duration {
	lag := d.delay
	if len(o.offsets) > 0 {
		lag -= slices.Min(o.offsets)
	}
	return max(0, min(lag, d.at.Sub(startedAt)))
}

// lossTracker turns lost audit events, and their absence while changes arrive, into attribution gap records.
type lossTracker struct {
	cluster    string
	resources  map[groupResource]event.Resource // with emitted changes
	unnamed    map[event.Resource]*unnamedSpan  // changes without an author since the newest audit event
	unreported []*Loss                          // not emitted yet
	reported   map[string]*Loss                 // emitted within reportInterval, by reason
	lastLoss   time.Time                        // end of the newest loss, or the start of the process
}

type groupResource struct{ group, resource string }

const (
	maxUnreported  = 8           // further losses are merged into the last one
	reportInterval = time.Minute // between two gaps of the same reason
)

// Loss is a period in which audit events were lost. It is stored as evidence until its gap record is emitted.
type Loss struct {
	Numbers []uint64  `json:"-"` // its evidence numbers; none if it is not stored
	Reason  string    `json:"lost"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`

	reportedAt time.Time
}

// unnamedSpan is a period in which changes were resolved without an author.
type unnamedSpan struct {
	from, to time.Time
	count    int
}

func newLossTracker(cluster string) lossTracker {
	return lossTracker{
		cluster: cluster, resources: map[groupResource]event.Resource{}, unnamed: map[event.Resource]*unnamedSpan{},
		reported: map[string]*Loss{}, lastLoss: time.Now(),
	}
}

// recordResource records that changes of a resource are emitted, so that losses concern it.
func (g *lossTracker) recordResource(r event.Resource) {
	if r.Version != "" && g.resources[groupResource{r.Group, r.Resource}] != r {
		r = cloneResource(r)
		g.resources[groupResource{r.Group, r.Resource}] = r
	}
}

// extendLoss extends an unreported loss of the same reason until now. It returns false if there is none.
func (g *lossTracker) extendLoss(reason string, now time.Time) bool {
	for _, l := range g.unreported {
		if l.Reason == reason {
			l.To, g.lastLoss = now, now
			return true
		}
	}
	return false
}

func (g *lossTracker) addLoss(l *Loss) {
	g.lastLoss = l.To
	for g.hasLossFrom(l.From) {
		l.From = l.From.Add(-time.Nanosecond) // the ID of a gap record contains From, so it must be unique
	}
	if len(g.unreported) < maxUnreported {
		g.unreported = append(g.unreported, l)
		return
	}
	last := g.unreported[maxUnreported-1]
	last.Reason, last.To, last.Numbers = "audit events were lost in several ways", l.To, append(last.Numbers, l.Numbers...)
	if l.From.Before(last.From) {
		last.From = l.From
	}
}

// hasLossFrom reports whether a loss begins at this time.
func (g *lossTracker) hasLossFrom(at time.Time) bool {
	for _, l := range g.reported {
		if l.From.Equal(at) {
			return true
		}
	}
	return slices.ContainsFunc(g.unreported, func(l *Loss) bool { return l.From.Equal(at) })
}

// collectGaps records unresolved changes and returns the gap records that are due, with the numbers of the stored losses
// that they report. lastEvent is when the newest audit event arrived.
func (g *lossTracker) collectGaps(done []Resolution, lastEvent, now time.Time) (records []*event.Change, drop []uint64) {
	for i := range done {
		c := &done[i]
		if c.Reason != NoEvent || !c.Observed.After(lastEvent) {
			continue
		}
		if g.unnamed[c.Resource] == nil {
			g.unnamed[c.Resource] = &unnamedSpan{from: c.Observed}
		}
		g.unnamed[c.Resource].to = c.Observed
		g.unnamed[c.Resource].count++
	}
	for resource, s := range g.unnamed {
		if lastEvent.After(s.to) {
			reason := fmt.Sprintf("no audit event came, and %d changes stayed without a name", s.count)
			gap := event.GapInfo{From: formatTime(s.from), To: formatTime(lastEvent), Reason: reason}
			records = append(records, g.newGapRecord(resource, gap, now))
			delete(g.unnamed, resource)
		}
	}
	if len(g.resources) == 0 {
		return records, nil // a loss concerns no resource yet
	}
	maps.DeleteFunc(g.reported, func(_ string, l *Loss) bool { return now.Sub(l.reportedAt) >= reportInterval })
	g.unreported = slices.DeleteFunc(g.unreported, func(l *Loss) bool {
		if _, recent := g.reported[l.Reason]; recent {
			return false
		}
		for _, resource := range g.resources {
			gap := event.GapInfo{From: formatTime(l.From), To: formatTime(l.To), Reason: l.Reason}
			records = append(records, g.newGapRecord(resource, gap, now))
		}
		l.reportedAt, g.reported[l.Reason], drop = now, l, append(drop, l.Numbers...)
		return true
	})
	return records, drop
}

// countUnnamed returns the number of changes without an author since the newest audit event.
func (g *lossTracker) countUnnamed() int {
	n := 0
	for _, s := range g.unnamed {
		n += s.count
	}
	return n
}

func (g *lossTracker) newGapRecord(resource event.Resource, info event.GapInfo, now time.Time) *event.Change {
	return &event.Change{Type: event.AttributionGap, Cluster: g.cluster, Resource: resource, ObservedAt: now.UTC(), Gap: &info}
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
