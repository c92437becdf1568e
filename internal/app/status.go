package app

import (
	"fmt"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// maxClockSkew is what a clock may be off. Below that nothing depends on it but the times that changes carry.
const maxClockSkew = 30 * time.Second

// buildSnapshot collects the status of every part for metrics, readiness and the status page. Secrets are masked. It is safe
// for concurrent use.
func (a *app) buildSnapshot() admin.Snapshot {
	c := a.terms.current.Load()
	stored := c.journal.Stat()
	s := admin.Snapshot{
		Config: a.reloader.configStatus(), Journal: journalStatus(stored), Replica: c.replica.replicaStatus(),
		Conditions: slices.Concat([]condition.Status{a.reloader.condition.Status()}, a.telemetry.Conditions(), c.replica.conditions()),
	}
	if c.open.Load() {
		c.fillSnapshot(&s, stored)
	}
	a.secrets.maskFields(&s)
	return s
}

// fillSnapshot adds the status of the parts that exist once the composition is open.
func (c *composition) fillSnapshot(s *admin.Snapshot, stored journal.Stat) {
	skew := c.client.ClockSkew()
	c.clock.Update(clockProblem(skew))
	s.Cluster = admin.ClusterStatus{Name: c.source.Cluster(), UID: c.source.Identity(), ClockSkew: skew}
	s.Conditions = slices.Concat(s.Conditions, []condition.Status{stored.Blocked, stored.DeadLettersFull, journal.Recovered(c.recovered), c.clock.Status()})
	for _, status := range c.source.Conditions() {
		if status.Component != "resource" { // those are with their resources
			s.Conditions = append(s.Conditions, status)
		}
	}
	s.Conditions = slices.Concat(s.Conditions, c.attribution.conditions(), c.protection.set.Statuses())
	for _, r := range c.source.Status() {
		s.Resources, s.Conditions = append(s.Resources, resourceStatus(r)), append(s.Conditions, r.Reread)
	}
	for i, r := range c.shaper.Stats() {
		s.Rules = append(s.Rules, admin.RuleStatus{
			Name: fmt.Sprintf("resources[%d]", i), Filtered: r.Filtered, Unchanged: r.Unchanged,
			Withheld: r.Withheld, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for i, r := range c.sinks.routes.routeStats() {
		s.Routes = append(s.Routes, admin.RouteStatus{
			Name: fmt.Sprintf("routes[%d]", i), Sent: r.Sent, Dropped: r.Dropped, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for _, r := range c.sinks.runners {
		kept := int64(0)
		for _, in := range stored.Sinks {
			if in.Name == r.name {
				kept = in.DeadLetters
			}
		}
		s.Sinks = append(s.Sinks, r.sinkStatus(kept))
	}
	s.Audit = c.attribution.auditStatus()
}

// firstCause returns the first condition that is not OK, with its cause; "" if all are.
func firstCause(all []condition.Status) string {
	for _, s := range condition.Summarize(all) {
		return s.Name() + ": " + s.CauseText()
	}
	return ""
}

// clockProblem reports how far the clocks of this machine and of the API server are apart.
func clockProblem(ahead time.Duration) (p condition.Problem) {
	which := "ahead of"
	if ahead < 0 {
		ahead, which = -ahead, "behind"
	}
	if ahead >= maxClockSkew {
		p.Code = condition.ClockSkew
		p.Cause = fmt.Sprintf("this machine's clock is %v %s the API server's", ahead.Round(time.Second), which)
	}
	return p
}

func journalStatus(j journal.Stat) admin.JournalStatus {
	return admin.JournalStatus{
		Oldest: j.Oldest, Newest: j.Newest, RetainedBytes: j.RetainedBytes, MaxBytes: j.MaxBytes, DiskBytes: j.DiskBytes,
		KnownBytes: j.KnownBytes, BodyBytes: j.BodyBytes, DeadLetterBytes: j.DeadBytes,
		PendingBytes: j.PendingBytes, Commits: j.Commits,
	}
}

func resourceStatus(r source.Status) admin.ResourceStatus {
	s := admin.ResourceStatus{
		Name: r.Scope, State: string(r.State), Condition: r.Condition,
		Position: r.Position, Known: r.Known, LastEvent: r.LastEvent,
		Changes: map[string]uint64{}, Events: r.Events, Restarts: r.Restarts, Relists: r.Relists, Lists: r.Lists, DecodeErrors: r.DecodeErrors,
	}
	for t, n := range r.Changes {
		s.Changes[string(t)] = n
	}
	return s
}

// sinkStatus returns the status of a sink with so many dead letters in the journal.
func (r *runner) sinkStatus(kept int64) admin.SinkStatus {
	d := r.currentPipeline().Stats()
	s := admin.SinkStatus{
		Name: r.name, Kind: r.kind, Conditions: d.Conditions(), FailingLanes: d.FailingLanes, DeadLettersKept: kept,
		Delivered: d.Delivered, DeliveredBytes: d.DeliveredBytes, Reduced: d.Truncated, Passed: d.NotRouted, Skipped: d.AlreadySettled, Retries: d.Retries,
		DeadLetters: d.DeadLetters, Breaches: d.ContractViolations, Losses: r.lossCount(),
		Low: d.Low, WindowBytes: d.WindowBytes, WindowLimit: d.WindowLimit,
		Lanes: d.Lanes, LanesBackingOff: d.LanesFailing, LanesBehind: d.LanesLagging,
		GateClosed: d.Gate.State != ratelimit.Open, LastAck: d.LastAck, OldestObserved: d.OldestObserved,
	}
	if unread := r.unread.Status(); !unread.OK() {
		s.Conditions = append(s.Conditions, unread)
	}
	if kept > 0 {
		s.Conditions = append(s.Conditions, journal.DeadLettersKept(r.name, kept))
	}
	if reporter, ok := r.sink.(sinks.ConditionReporter); ok {
		for _, status := range reporter.Conditions() {
			status.Component = "sink/" + r.name
			s.Conditions = append(s.Conditions, status)
		}
	}
	if o, ok := r.sink.(sinks.RecordOmitter); ok {
		s.Omitted = o.OmittedRecords()
	}
	if r.deadLetters != nil {
		s.Conditions = append(s.Conditions, r.deadLetters.condition.Status())
	}
	return s
}
