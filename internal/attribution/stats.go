package attribution

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stats are facts for metrics and the status page. Counters start with the process. Tags name metrics, see internal/admin.
type Stats struct {
	Events       uint64            `metric:"kubecdc_audit_events_total" help:"Audit events taken."`
	Kept         uint64            `metric:"kubecdc_audit_events_kept_total" help:"Audit events that may name the author of a change."`
	Late         uint64            `metric:"kubecdc_audit_late_total" help:"Audit events that arrived later than audit.settle after their request."`
	Lost         uint64            `metric:"kubecdc_audit_lost_total" help:"Audit events that had to make room, and times that events are known to be lost."`
	Attributed   uint64            `metric:"kubecdc_attributed_total" help:"Changes that an authenticated user was named for."`
	Stamped      uint64            `metric:"kubecdc_attributed_stamped_total" help:"Changes whose author a stamp in the object proves; of kubecdc_attributed_total."`
	Unresolved   map[Reason]uint64 `metric:"kubecdc_unresolved_total" by:"reason" help:"Changes without an author, by reason: none, several, late, lag, bound, stamp, policy, disagree, annotation or list, see docs/audit-trail.md."`
	Pending      int64             `metric:"kubecdc_attribution_pending_changes" help:"Changes that wait for their audit event."`
	PendingBytes int64             `metric:"kubecdc_attribution_pending_bytes" help:"Memory of the changes and audit events that wait for each other; audit.maxPending bounds it."`
	LastEvent    time.Time         `metric:"kubecdc_audit_last_event_timestamp_seconds" help:"When the newest audit event came; 0 if never."`
	Lag          time.Duration     `metric:"kubecdc_audit_lag_seconds" help:"From the end of a request until its audit event arrived, the longest of the newest; more than audit.settle proves nothing."`
	Condition    condition.Status  // whether audit events arrive
	LagCondition condition.Status  // whether they arrive in time
}

// counters are updated by the intakes and by Run.
type counters struct {
	events, kept, late, lost   atomic.Uint64
	attributed, stamped        atomic.Uint64
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
		r := &resolved[i]
		if r.By == nil {
			c.unresolved[r.Reason].Add(1)
			continue
		}
		if c.attributed.Add(1); r.ByStamp {
			c.stamped.Add(1)
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
		Stamped:    c.stamped.Load(),
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
