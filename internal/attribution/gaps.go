package attribution

import (
	"fmt"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// gaps finds out when audit events were lost, and for which resources.
type gaps struct {
	resources map[event.Resource]string // that changes were emitted of, with their cluster
	missing   map[event.Resource]*span  // changes that nobody was named for while no audit event came at all
	lost      []event.GapInfo           // not yet told
	since     time.Time                 // of the newest loss, or of the start
}

// maxLosses bounds the losses that are told apart until the next records are written.
const maxLosses = 8

// span is the time in which changes stayed without a name.
type span struct {
	from, to time.Time
	count    int
}

func newGaps() gaps {
	return gaps{resources: map[event.Resource]string{}, missing: map[event.Resource]*span{}, since: time.Now()}
}

// emits notes that changes of a resource are emitted.
func (g *gaps) emits(c *event.Change) {
	if _, known := g.resources[c.Resource]; !known && c.Resource.Version != "" {
		g.resources[cloneResource(c.Resource)] = c.Cluster
	}
}

// lose notes that events were lost between a time, or the last loss if that is zero, and now.
func (g *gaps) lose(since, now time.Time, reason string) {
	if since.IsZero() {
		since = g.since
	}
	g.since = now
	if n := len(g.lost); n > 0 && (g.lost[n-1].Reason == reason || n == maxLosses) {
		if g.lost[n-1].To = stamp(now); n == maxLosses {
			g.lost[n-1].Reason = "audit events were lost in several ways"
		}
		return
	}
	g.lost = append(g.lost, event.GapInfo{From: stamp(since), To: stamp(now), Reason: reason})
}

// observe takes note of conclusions, and returns the records of the gaps that have come to light. heard is when the newest
// audit event came.
func (g *gaps) observe(done []Conclusion, heard time.Time) []*event.Change {
	for i := range done {
		if c := &done[i]; c.Reason == NoEvent && c.Observed.After(heard) {
			g.miss(c)
		}
	}
	var records []*event.Change
	for resource, s := range g.missing {
		if heard.After(s.to) {
			reason := fmt.Sprintf("no audit event came, and %d changes stayed without a name", s.count)
			records = append(records, g.record(resource, event.GapInfo{From: stamp(s.from), To: stamp(heard), Reason: reason}))
			delete(g.missing, resource)
		}
	}
	for _, lost := range g.lost {
		for resource := range g.resources {
			records = append(records, g.record(resource, lost))
		}
	}
	g.lost = nil
	return records
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

func (g *gaps) record(resource event.Resource, info event.GapInfo) *event.Change {
	return &event.Change{
		Type: event.AttributionGap, Cluster: g.resources[resource], Resource: resource, ObservedAt: time.Now().UTC(), Gap: &info,
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
