package app

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// buildSnapshot collects the status of every part for metrics, readiness and the status page. Secrets are masked. It is safe
// for concurrent use.
func (a *app) buildSnapshot() admin.Snapshot {
	c := a.terms.current.Load()
	stored := c.journal.Stat()
	s := admin.Snapshot{
		Config: a.reloader.configStatus(c.cfg.Hash), Journal: c.journalStatus(stored), Replica: c.replica.replicaStatus(),
	}
	if c.isOpen() {
		c.fillSnapshot(&s, stored)
	}
	a.secrets.maskFields(&s)
	return s
}

// fillSnapshot adds the status of the parts that exist once the composition is open.
func (c *composition) fillSnapshot(s *admin.Snapshot, stored journal.Stat) {
	s.Cluster = admin.ClusterStatus{Name: c.source.Cluster()}
	s.Cluster.UID, s.Cluster.Unchecked = c.source.Identity()
	s.Cluster.ClockSkew = c.client.ClockSkew()
	for _, n := range c.source.Namespaces() {
		s.Namespaces = append(s.Namespaces, admin.NamespaceStatus(n))
	}
	ready, reasons := c.source.Ready()
	for _, r := range c.source.Status() {
		s.Resources = append(s.Resources, resourceStatus(r))
	}
	if !ready && len(s.Resources) == 0 { // discovery has not succeeded yet, so there is no resource to show it
		s.Discovery = strings.Join(reasons, "; ")
	}
	for i, r := range c.shaper.Stats() {
		s.Rules = append(s.Rules, admin.RuleStatus{
			Name: fmt.Sprintf("resources[%d]", i), Filtered: r.Filtered, Unchanged: r.Unchanged,
			Withheld: r.Withheld, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for i, r := range sumRouteStats(c.sinks.runners) {
		s.Routes = append(s.Routes, admin.RouteStatus{
			Name: fmt.Sprintf("routes[%d]", i), Sent: r.Sent, Dropped: r.Dropped, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for _, r := range c.sinks.runners {
		status := r.sinkStatus()
		for _, in := range stored.Sinks {
			if in.Name == r.name {
				status.DeadLettersKept = in.DeadLetters
			}
		}
		s.Sinks = append(s.Sinks, status)
	}
	s.Audit = c.attribution.auditStatus()
}

func (c *composition) journalStatus(j journal.Stat) admin.JournalStatus {
	return admin.JournalStatus{
		Oldest: j.Oldest, Newest: j.Newest, RetainedBytes: j.RetainedBytes, MaxBytes: j.MaxBytes, DiskBytes: j.DiskBytes,
		KnownBytes: j.KnownBytes, BodyBytes: j.BodyBytes, DeadLetterBytes: j.DeadBytes,
		PendingBytes: j.PendingBytes, Commits: j.Commits, Recovered: c.journalRecovered, Blocked: j.BlockedReason, DeadLettersFull: j.DeadLettersBlockedReason,
	}
}

// resourceStatus maps the state of a scope to readiness. A resource that is forbidden, or that nothing serves yet, is
// degraded alone: it does not make the exporter not ready.
func resourceStatus(r source.Status) admin.ResourceStatus {
	s := admin.ResourceStatus{
		Name: r.Scope, State: string(r.State), Since: r.Since, Reason: r.Reason,
		Position: r.Position, Known: r.Known, LastEvent: r.LastEvent,
		Changes: map[string]uint64{}, Events: r.Events, Restarts: r.Restarts, Relists: r.Relists, Lists: r.Lists, DecodeErrors: r.DecodeErrors,
	}
	for t, n := range r.Changes {
		s.Changes[string(t)] = n
	}
	reason := r.Reason
	if r.Remedy != "" {
		reason += "; " + r.Remedy
	}
	switch {
	case r.State == source.Unreachable, r.State == source.Stale:
		s.NotReady = reason
	case r.State == source.Syncing && !r.Synced:
		s.NotReady = "the first list is not complete: " + reason
	case r.State == source.Forbidden, r.State == source.Waiting:
		s.Degraded = string(r.State) + ": " + reason
	}
	return s
}

func (r *runner) sinkStatus() admin.SinkStatus {
	d := r.currentPipeline().Stats()
	s := admin.SinkStatus{
		Name: r.name, Kind: r.kind, NotReady: d.Condition.NotReady(), Reason: d.Condition.Explanation(),
		Delivered: d.Delivered, DeliveredBytes: d.DeliveredBytes, Reduced: d.Truncated, Passed: d.NotRouted, Skipped: d.AlreadySettled, Retries: d.Retries,
		DeadLetters: d.DeadLetters, Breaches: d.ContractViolations, Losses: r.lossCount(),
		Low: d.Low, WindowBytes: d.WindowBytes, WindowLimit: d.WindowLimit,
		Lanes: d.Lanes, LanesBackingOff: d.LanesFailing, LanesBehind: d.LanesLagging,
		GateClosed: d.Gate.State != ratelimit.Open, LastAck: d.LastAck, OldestObserved: d.OldestObserved,
	}
	for _, t := range d.FailingLanes {
		s.Trouble = append(s.Trouble, admin.FailingLane{Lane: t.Lane, Reason: t.Reason, Since: t.Since})
	}
	if slow, ok := r.sink.(sinks.SlowdownReporter); ok {
		s.Reason = cmp.Or(s.Reason, slow.SlowdownReason())
	}
	if c, ok := r.sink.(sinks.Warner); ok {
		s.Warnings = c.Warnings()
	}
	if o, ok := r.sink.(sinks.RecordOmitter); ok {
		s.Omitted = o.OmittedRecords()
	}
	if r.deadLetters != nil {
		s.Held = r.deadLetters.heldReason()
	}
	return s
}
