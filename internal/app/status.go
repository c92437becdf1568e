package app

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// maxClockSkew is what a clock may be off. Below that nothing depends on it but the times that changes carry.
const maxClockSkew = 30 * time.Second

// buildSnapshot collects the status of every part for metrics, readiness and the status page. Secrets are masked. It is safe
// for concurrent use.
func (a *app) buildSnapshot() admin.Snapshot {
	c := a.terms.current.Load()
	s := admin.Snapshot{
		Config: a.reloader.configStatus(), Journal: c.journal.Stat(), Replica: c.replica.replicaStatus(),
		Conditions: slices.Concat([]condition.Status{a.reloader.condition.Status(), a.tokens.Status(), a.admin.PortStatus(), journal.Recovered(c.recovered)}, a.telemetry.Conditions(), c.replica.conditions()),
	}
	if c.open.Load() {
		c.fillSnapshot(&s)
	}
	a.secrets.maskFields(&s)
	return s
}

// fillSnapshot adds the status of the parts that exist once the composition is open.
func (c *composition) fillSnapshot(s *admin.Snapshot) {
	skew := c.client.ClockSkew()
	c.clock.Update(clockProblem(skew))
	c.outdated.Update(outdatedProblem(c.shaper.Outdated()))
	s.Cluster = admin.ClusterStatus{Name: c.source.Cluster(), UID: c.source.Identity(), ClockSkew: skew}
	s.Resources, s.Audit = c.source.Status(), c.attribution.auditStatus()
	s.Rules, s.Routes = c.shaper.Stats(), c.sinks.routes.routeStats()
	s.Conditions = slices.Concat(s.Conditions, s.Journal.Conditions(), []condition.Status{c.clock.Status(), c.outdated.Status()},
		c.source.Conditions(), c.attribution.conditions(), c.guard.statuses(), c.protection.set.Statuses())
	for i, r := range c.sinks.runners {
		status := r.sinkStatus()
		if c.cfg.Sinks[i].Watermarks > 0 {
			status.Watermarks = c.watermarkTimes(s.Resources, r.watermarks)
		}
		s.AddSink(status, r.conditions(status.Stats))
	}
}

// watermarkTimes returns when the newest watermark was made that a sink has in every lane, by the name of the scope. Without
// routes, which may leave a resource out, a scope that has none yet counts from the start of this configuration.
func (c *composition) watermarkTimes(scopes []source.Status, of *watermarkAges) map[string]time.Time {
	all := map[string]time.Time{}
	for _, r := range scopes {
		at := of.completeSince(watermarkScope{r.Resource, r.Namespace})
		if at.IsZero() && r.Synced && len(c.cfg.Routes) == 0 {
			at = c.began
		}
		if !at.IsZero() {
			all[r.Scope] = at
		}
	}
	return all
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

// outdatedProblem reports the objects, counted by resource, that destinations have as their rule was before an edit.
func outdatedProblem(objects map[string]int) (p condition.Problem) {
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, fmt.Sprintf("%d of %s", objects[resource], resource))
	}
	if len(all) > 0 {
		p.Code, p.Cause = condition.ObjectsOutdated, condition.JoinNames(all)
	}
	return p
}

// sinkStatus returns the status of a sink.
func (r *runner) sinkStatus() admin.SinkStatus {
	s := admin.SinkStatus{
		Name: r.name, Kind: r.kind, Losses: r.lossCount(), Missing: r.missingChanges(), Stats: r.currentPipeline().Stats(), Paused: !r.pause.PausedSince().IsZero(),
	}
	if bucket, ok := r.sink.(*nats.Sink); ok {
		s.Omitted = bucket.OmittedRecords()
	}
	return s
}

// conditions returns the pause, which may be the reason for the others, and the conditions of delivery, of lanes that could
// not be read after a failover, of the sink itself, and of the topic for its dead letters.
func (r *runner) conditions(s delivery.Stats) []condition.Status {
	all := slices.Concat([]condition.Status{r.paused()}, s.Conditions(), []condition.Status{r.unread.Status(), r.lost.Status(), r.orphaned.Status()})
	if reporter, ok := r.sink.(sinks.ConditionReporter); ok {
		for _, status := range reporter.Conditions() {
			status.Component = "sink/" + r.name
			all = append(all, status)
		}
	}
	if r.deadLetters != nil {
		all = append(all, r.deadLetters.condition.Status())
	}
	return all
}
