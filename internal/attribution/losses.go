package attribution

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

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

// addLoss adds a loss.
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
		if c := &done[i]; c.Reason == NoEvent && c.Observed.After(lastEvent) {
			g.recordUnnamed(c)
		}
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

func (g *lossTracker) recordUnnamed(c *Resolution) {
	s := g.unnamed[c.Resource]
	if s == nil {
		s = &unnamedSpan{from: c.Observed}
		g.unnamed[c.Resource] = s
	}
	s.to = c.Observed
	s.count++
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
