package attribution

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// gaps finds out when audit events were lost, and for which resources.
type gaps struct {
	cluster   string
	resources map[groupResource]event.Resource // that changes are emitted of
	missing   map[event.Resource]*span         // changes that nobody was named for while no audit event came at all
	losses    []*Loss                          // not yet told
	told      map[string]*Loss                 // a moment ago, by reason
	since     time.Time                        // of the newest loss, or of the start
}

type groupResource struct{ group, resource string }

const (
	maxLosses = 8           // that are told apart until they are told
	tellEvery = time.Minute // that losses are told of one reason, at most
)

// Loss is a time in which audit events were lost. It is kept as evidence until it was told.
type Loss struct {
	Numbers []uint64  `json:"-"` // among requests, marks and losses: what it is kept as; none where it is not
	Reason  string    `json:"lost"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`

	toldAt time.Time
}

// span is the time in which changes stayed without a name.
type span struct {
	from, to time.Time
	count    int
}

func newGaps(cluster string) gaps {
	return gaps{
		cluster: cluster, resources: map[groupResource]event.Resource{}, missing: map[event.Resource]*span{},
		told: map[string]*Loss{}, since: time.Now(),
	}
}

// emits notes that changes of a resource are emitted.
func (g *gaps) emits(r event.Resource) {
	if r.Version != "" && g.resources[groupResource{r.Group, r.Resource}] != r {
		r = cloneResource(r)
		g.resources[groupResource{r.Group, r.Resource}] = r
	}
}

// goesOn says whether a loss that is not told yet is for the same reason, and lasts until now.
func (g *gaps) goesOn(reason string, now time.Time) bool {
	for _, l := range g.losses {
		if l.Reason == reason {
			l.To, g.since = now, now
			return true
		}
	}
	return false
}

// lose takes a loss.
func (g *gaps) lose(l *Loss) {
	g.since = l.To
	for g.begins(l.From) {
		l.From = l.From.Add(-time.Nanosecond) // the records of losses are told apart by their beginnings
	}
	if len(g.losses) < maxLosses {
		g.losses = append(g.losses, l)
		return
	}
	last := g.losses[maxLosses-1]
	last.Reason, last.To, last.Numbers = "audit events were lost in several ways", l.To, append(last.Numbers, l.Numbers...)
	if l.From.Before(last.From) {
		last.From = l.From
	}
}

// begins says whether another loss begins at a time.
func (g *gaps) begins(at time.Time) bool {
	for _, l := range g.told {
		if l.From.Equal(at) {
			return true
		}
	}
	return slices.ContainsFunc(g.losses, func(l *Loss) bool { return l.From.Equal(at) })
}

// observe takes note of conclusions, and returns the records of the gaps that have come to light, and the numbers of the
// losses that are told by them. heard is when the newest audit event came.
func (g *gaps) observe(done []Conclusion, heard, now time.Time) (records []*event.Change, told []uint64) {
	for i := range done {
		if c := &done[i]; c.Reason == NoEvent && c.Observed.After(heard) {
			g.miss(c)
		}
	}
	for resource, s := range g.missing {
		if heard.After(s.to) {
			reason := fmt.Sprintf("no audit event came, and %d changes stayed without a name", s.count)
			records = append(records, g.record(resource, event.GapInfo{From: stamp(s.from), To: stamp(heard), Reason: reason}, now))
			delete(g.missing, resource)
		}
	}
	if len(g.resources) == 0 {
		return records, nil // nothing was emitted yet that a loss could concern
	}
	maps.DeleteFunc(g.told, func(_ string, l *Loss) bool { return now.Sub(l.toldAt) >= tellEvery })
	g.losses = slices.DeleteFunc(g.losses, func(l *Loss) bool {
		if _, justNow := g.told[l.Reason]; justNow {
			return false
		}
		for _, resource := range g.resources {
			records = append(records, g.record(resource, event.GapInfo{From: stamp(l.From), To: stamp(l.To), Reason: l.Reason}, now))
		}
		l.toldAt, g.told[l.Reason], told = now, l, append(told, l.Numbers...)
		return true
	})
	return records, told
}

func (g *gaps) miss(c *Conclusion) {
	s := g.missing[c.Resource]
	if s == nil {
		s = &span{from: c.Observed}
		g.missing[c.Resource] = s
	}
	s.to = c.Observed
	s.count++
}

// silent says how many changes stayed without a name since no audit event comes any more.
func (g *gaps) silent() int {
	n := 0
	for _, s := range g.missing {
		n += s.count
	}
	return n
}

func (g *gaps) record(resource event.Resource, info event.GapInfo, now time.Time) *event.Change {
	return &event.Change{Type: event.AttributionGap, Cluster: g.cluster, Resource: resource, ObservedAt: now.UTC(), Gap: &info}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
