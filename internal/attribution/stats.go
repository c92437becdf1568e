package attribution

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stats are facts for metrics and the status page. Counters start with the process.
type Stats struct {
	Events       uint64 // audit events received
	Kept         uint64 // of these, events that may name an author
	Late         uint64 // of these, events that arrived later than Limits.Settle
	Lost         uint64 // reported losses, and events evicted because of their bound
	Attributed   uint64 // changes with a certain author
	Stamped      uint64 // of these, changes whose author a stamp proves
	Likely       uint64 // changes with a likely author
	Unresolved   map[Reason]uint64
	Pending      int64            // changes that wait
	PendingBytes int64            // estimated memory of waiting changes and events
	LastEvent    time.Time        // zero: none yet
	Lag          time.Duration    // by which audit events are late
	Condition    condition.Status // whether audit events arrive
	LagCondition condition.Status // whether they arrive in time
}

// counters are updated by the intakes and by Run.
type counters struct {
	events, kept, late, lost   atomic.Uint64
	attributed, stamped        atomic.Uint64
	likely                     atomic.Uint64
	unresolved                 map[Reason]*atomic.Uint64 // has all reasons; the map itself does not change
	pendingBytes, pendingCount atomic.Int64
	lastEvent                  atomic.Int64 // Unix nanoseconds; 0: none yet
	lag                        atomic.Int64 // nanoseconds
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
	c.lag.Store(int64(f.lag))
}

func (c *counters) countResolved(resolved []Resolution) {
	for i := range resolved {
		switch r := &resolved[i]; {
		case r.By == nil:
			c.unresolved[r.Reason].Add(1)
		case r.Likely:
			c.likely.Add(1)
		default:
			if c.attributed.Add(1); r.ByStamp {
				c.stamped.Add(1)
			}
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
		Events: c.events.Load(), Kept: c.kept.Load(), Late: c.late.Load(), Lost: c.lost.Load(), Attributed: c.attributed.Load(),
		Stamped: c.stamped.Load(), Likely: c.likely.Load(),
		Unresolved: map[Reason]uint64{}, Pending: c.pendingCount.Load(), PendingBytes: c.pendingBytes.Load(),
		LastEvent: c.lastEventTime(), Lag: time.Duration(c.lag.Load()),
		Condition: a.condition.Status(), LagCondition: a.lagging.Status(),
	}
	for reason, n := range c.unresolved {
		s.Unresolved[reason] = n.Load()
	}
	return s
}

// updateLagCondition sets whether audit events arrive within Settle.
func (a *Attributor) updateLagCondition(lag time.Duration) {
	settle := a.options.Settle
	if lag <= settle {
		a.lagging.Clear()
		return
	}
	enough := (lag + lag/4).Truncate(time.Second) + time.Second
	a.lagging.Update(condition.Problem{
		Code:  condition.AuditLagging,
		Cause: fmt.Sprintf("audit events are up to %v late, and audit.settle is %v", lag.Round(time.Millisecond*100), settle),
		Remedy: fmt.Sprintf("raise audit.settle to %v or more, or lower --audit-webhook-batch-max-wait of the API servers; "+
			"compare the clocks of API servers and exporter, too", enough),
	})
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
