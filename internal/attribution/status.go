package attribution

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

var (
	conditionReceiving = condition.State{Name: "ok", Message: "audit events come"}
	conditionSilent    = condition.State{Name: "silent", Severity: condition.Degraded, Message: "no audit events come; changes are emitted without a name"}
)

// Stats is how an attributor is, at one moment. Counters count since the process started.
type Stats struct {
	Events       uint64 // audit events taken
	Kept         uint64 // of these, that may name somebody
	Lost         uint64 // times that events were lost, or had to make room
	Attributed   uint64 // changes that somebody was named for
	Likely       uint64 // changes that somebody was guessed for
	Unresolved   map[Reason]uint64
	Pending      int64 // changes that wait
	PendingBytes int64 // of changes and events that wait, in memory
	LastEvent    time.Time
	Condition    condition.Status
}

// Stats never waits.
func (a *Attributor) Stats() Stats {
	s := Stats{
		Events: a.events.Load(), Kept: a.kept.Load(), Lost: a.lost.Load(), Attributed: a.attributed.Load(), Likely: a.likely.Load(),
		Unresolved: map[Reason]uint64{}, Pending: a.pendingCount.Load(), PendingBytes: a.pendingBytes.Load(),
		LastEvent: a.lastEventTime(), Condition: a.condition.Status(),
	}
	for reason, n := range a.unresolved {
		s.Unresolved[reason] = n.Load()
	}
	return s
}

// updateCondition says whether audit events come.
func (a *Attributor) updateCondition() {
	a.mu.Lock()
	missing := a.losses.countUnnamed()
	a.mu.Unlock()
	if missing == 0 {
		a.condition.Update(conditionReceiving, "", "")
		return
	}
	since := "the start"
	if heard := a.lastEventTime(); !heard.IsZero() {
		since = formatTime(heard)
	}
	a.condition.Update(conditionSilent, "no audit event came since "+since+", and changes did",
		"see that the API servers write them and that they reach this exporter: exporter audit-policy prints what that needs")
}
