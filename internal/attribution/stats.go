package attribution

import (
	"fmt"
	"maps"
	"sync"
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

func (s *Stats) countResolved(resolved []Resolution) {
	for i := range resolved {
		switch r := &resolved[i]; {
		case r.By == nil:
			s.Unresolved[r.Reason]++
		case r.ByStamp:
			s.Stamped++
			fallthrough
		default:
			s.Attributed++
		}
	}
}

// statsBoard holds the facts that the intakes and Run publish, but for the conditions. Its lock is never held across a wait.
type statsBoard struct {
	mu    sync.Mutex
	stats Stats
}

func (b *statsBoard) update(change func(*Stats)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.stats)
}

// lastEvent returns when the newest audit event arrived; zero before the first.
func (b *statsBoard) lastEvent() (at time.Time) {
	b.update(func(s *Stats) { at = s.LastEvent })
	return at
}

// Stats returns the current facts. It never waits.
func (a *Attributor) Stats() (s Stats) {
	a.facts.update(func(now *Stats) {
		s = *now
		s.Unresolved = maps.Clone(now.Unresolved)
	})
	s.Condition, s.LagCondition = a.condition.Status(), a.lagging.Status()
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

func (a *Attributor) updateCondition(unnamed int) {
	if unnamed == 0 {
		a.condition.Clear()
		return
	}
	since := "the start"
	if last := a.facts.lastEvent(); !last.IsZero() {
		since = formatTime(last)
	}
	a.condition.Update(condition.Problem{Code: condition.AuditSilent, Cause: "no audit event came since " + since + ", but changes did"})
}
