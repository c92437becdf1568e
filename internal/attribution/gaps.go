package attribution

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// lossTracker finds out when audit events were lost, and for which resources.
type lossTracker struct {
	cluster    string
	resources  map[groupResource]event.Resource // that changes are emitted of
	unnamed    map[event.Resource]*unnamedSpan  // changes that nobody was named for while no audit event came at all
	unreported []*Loss                          // not yet told
	reported   map[string]*Loss                 // a moment ago, by reason
	lastLoss   time.Time                        // of the newest loss, or of the start
}

type groupResource struct{ group, resource string }

const (
	maxUnreported  = 8           // that are told apart until they are told
	reportInterval = time.Minute // that losses are told of one reason, at most
)

// Loss is a time in which audit events were lost. It is kept as evidence until it was told.
type Loss struct {
	Numbers []uint64  `json:"-"` // among requests, marks and losses: what it is kept as; none where it is not
	Reason  string    `json:"lost"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`

	reportedAt time.Time
}

// unnamedSpan is the time in which changes stayed without a name.
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

// recordResource notes that changes of a resource are emitted.
func (g *lossTracker) recordResource(r event.Resource) {
	if r.Version != "" && g.resources[groupResource{r.Group, r.Resource}] != r {
		r = cloneResource(r)
		g.resources[groupResource{r.Group, r.Resource}] = r
	}
}

// extendLoss says whether a loss that is not told yet is for the same reason, and lasts until now.
func (g *lossTracker) extendLoss(reason string, now time.Time) bool {
	for _, l := range g.unreported {
		if l.Reason == reason {
			l.To, g.lastLoss = now, now
			return true
		}
	}
	return false
}

// addLoss takes a loss.
func (g *lossTracker) addLoss(l *Loss) {
	g.lastLoss = l.To
	for g.hasLossFrom(l.From) {
		l.From = l.From.Add(-time.Nanosecond) // the records of losses are told apart by their beginnings
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

// hasLossFrom says whether another loss begins at a time.
func (g *lossTracker) hasLossFrom(at time.Time) bool {
	for _, l := range g.reported {
		if l.From.Equal(at) {
			return true
		}
	}
	return slices.ContainsFunc(g.unreported, func(l *Loss) bool { return l.From.Equal(at) })
}

// collectGaps takes note of conclusions, and returns the records of the gaps that have come to light, and the numbers of the
// losses that are told by them. heard is when the newest audit event came.
func (g *lossTracker) collectGaps(done []Resolution, heard, now time.Time) (records []*event.Change, told []uint64) {
	for i := range done {
		if c := &done[i]; c.Reason == NoEvent && c.Observed.After(heard) {
			g.recordUnnamed(c)
		}
	}
	for resource, s := range g.unnamed {
		if heard.After(s.to) {
			reason := fmt.Sprintf("no audit event came, and %d changes stayed without a name", s.count)
			records = append(records, g.newGapRecord(resource, event.GapInfo{From: formatTime(s.from), To: formatTime(heard), Reason: reason}, now))
			delete(g.unnamed, resource)
		}
	}
	if len(g.resources) == 0 {
		return records, nil // nothing was emitted yet that a loss could concern
	}
	maps.DeleteFunc(g.reported, func(_ string, l *Loss) bool { return now.Sub(l.reportedAt) >= reportInterval })
	g.unreported = slices.DeleteFunc(g.unreported, func(l *Loss) bool {
		if _, justNow := g.reported[l.Reason]; justNow {
			return false
		}
		for _, resource := range g.resources {
			records = append(records, g.newGapRecord(resource, event.GapInfo{From: formatTime(l.From), To: formatTime(l.To), Reason: l.Reason}, now))
		}
		l.reportedAt, g.reported[l.Reason], told = now, l, append(told, l.Numbers...)
		return true
	})
	return records, told
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

// countUnnamed says how many changes stayed without a name since no audit event comes any more.
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
