package attribution

import (
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stats are facts for metrics and the status page. Counters start with the process.
type Stats struct {
	Events       uint64 // audit events received
	Kept         uint64 // of these, events that may name an author
	Lost         uint64 // reported losses, and events evicted because of their bound
	Attributed   uint64 // changes with a certain author
	Likely       uint64 // changes with a likely author
	Unresolved   map[Reason]uint64
	Pending      int64     // changes that wait
	PendingBytes int64     // estimated memory of waiting changes and events
	LastEvent    time.Time // zero: none yet
	Condition    condition.Status
}

// counters are updated by the intakes and by Run.
type counters struct {
	events, kept, lost         atomic.Uint64
	attributed, likely         atomic.Uint64
	unresolved                 map[Reason]*atomic.Uint64 // has all reasons; the map itself does not change
	pendingBytes, pendingCount atomic.Int64
	lastEvent                  atomic.Int64 // Unix nanoseconds; 0: none yet
}

func newCounters() *counters {
	c := &counters{unresolved: map[Reason]*atomic.Uint64{}}
	for _, r := range Reasons() {
		c.unresolved[r] = &atomic.Uint64{}
	}
	return c
}

func (c *counters) countEvents(n int, now time.Time) {
	c.events.Add(uint64(n))
	if n > 0 {
		c.lastEvent.Store(now.UnixNano())
	}
}

// recordRound records what is waiting after a round of resolving.
func (c *counters) recordRound(f *findings) {
	c.lost.Add(f.evicted)
	c.pendingBytes.Store(int64(f.bytes))
	c.pendingCount.Store(int64(f.waiting))
}

func (c *counters) countResolved(resolved []Resolution) {
	for i := range resolved {
		switch r := &resolved[i]; {
		case r.By == nil:
			c.unresolved[r.Reason].Add(1)
		case r.Likely:
			c.likely.Add(1)
		default:
			c.attributed.Add(1)
		}
	}
}

// lastEventTime returns when the newest audit event arrived; zero before the first.
func (c *counters) lastEventTime() time.Time {
	if n := c.lastEvent.Load(); n > 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// Stats returns the current facts. It never waits.
func (a *Attributor) Stats() Stats {
	c := a.counters
	s := Stats{
		Events: c.events.Load(), Kept: c.kept.Load(), Lost: c.lost.Load(), Attributed: c.attributed.Load(), Likely: c.likely.Load(),
		Unresolved: map[Reason]uint64{}, Pending: c.pendingCount.Load(), PendingBytes: c.pendingBytes.Load(),
		LastEvent: c.lastEventTime(), Condition: a.condition.Status(),
	}
	for reason, n := range c.unresolved {
		s.Unresolved[reason] = n.Load()
	}
	return s
}

// updateCondition sets whether audit events arrive.
func (a *Attributor) updateCondition() {
	if a.shared.countUnnamed() == 0 {
		a.condition.Clear()
		return
	}
	since := "the start"
	if last := a.counters.lastEventTime(); !last.IsZero() {
		since = formatTime(last)
	}
	a.condition.Update(condition.Problem{Code: condition.AuditSilent, Cause: "no audit event came since " + since + ", but changes did"})
}
