package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/audit/topic"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/state"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// maxClockSkew is what a clock may be off. Below that nothing depends on it but the times that changes carry.
const maxClockSkew = 30 * time.Second

// buildSnapshot collects the status of every part for metrics, readiness and the status page. Secrets are masked. It is safe
// for concurrent use.
func (a *app) buildSnapshot() admin.Snapshot {
	c := a.terms.current.Load()
	s := admin.Snapshot{
		Config: admin.ConfigStatus{
			Hash: *a.reloader.activeHash.Load(), Reloads: map[string]uint64{"taken": a.reloader.applied.Load(), "refused": a.reloader.refused.Load()},
		},
		Journal: c.journal.Stat(), Replica: c.replica.replicaStatus(),
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
		status := admin.SinkStatus{
			Name: r.name, Kind: r.kind, Losses: r.losses.Load(), Missing: r.missing.Load(), Stats: r.currentPipeline().Stats(),
			Paused: !r.pause.PausedSince().IsZero(),
		}
		if bucket, ok := r.sink.(*nats.Sink); ok {
			status.Omitted = bucket.OmittedRecords()
		}
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

// attributionRunner runs the attribution of changes: the intakes of audit events and the attributor that matches them with
// changes. The methods of a nil runner do nothing.
type attributionRunner struct {
	attributor *attribution.Attributor
	webhook    *audit.Webhook // one of the intakes; nil without one
	intakes    []intake
	counters   *audit.Counters // nil if they are not read
	stamps     *stamp.Guard    // nil without stamps
	holder     *attribution.Holder

	tasks []*task // in the order of their start
}

type intake interface {
	Name() string
	Run(ctx context.Context) error
	Status() (status condition.Status, malformed uint64)
}

// isCrowded reports whether the journal is half full, so that nothing may keep it from trimming.
func isCrowded(j *journal.Journal) bool {
	s := j.Stat()
	return s.RetainedBytes > s.MaxBytes/2
}

// newHolder makes what releases the records that routes hold back, or once did; nil where there was never any.
func newHolder(j *journal.Journal) *attribution.Holder {
	if _, _, err := j.Cursor(attribution.HolderSink); err != nil { // not declared
		return nil
	}
	return attribution.NewHolder(attribution.HolderOptions{
		Journal: j, Crowded: func() bool { return isCrowded(j) }, Internal: []string{attribution.HolderSink, attribution.Sink, state.Sink},
	})
}

// newAttributionRunner makes the attributor and its intakes; nil without audit.
func newAttributionRunner(
	cfg *config.Config, j *journal.Journal, holder *attribution.Holder, client *apiserver.Client, log *slog.Logger,
) (*attributionRunner, error) {
	c := cfg.Audit
	if !c.Enabled() {
		return nil, nil
	}
	n, ruleOf := &attributionRunner{holder: holder}, selection.Owners(config.SelectionRules(cfg.Resources))
	selected := func(group, resource string) bool {
		_, yes := ruleOf(event.Resource{Group: group, Resource: resource})
		return yes
	}
	o := attribution.Options{
		Limits: attribution.Limits{
			Settle: c.Settle, Window: c.Window, Skew: c.ClockSkew, Bytes: int(c.MaxPending), NoEvents: !c.HasEvents(),
		},
		Journal: j, Cluster: cfg.Cluster.Name, Selected: selected,
		JournalCrowded: func() bool { return isCrowded(j) },
		Logger:         log,
	}
	if holder != nil {
		o.Unresolved = holder.RecordUnresolved
	}
	if c.Stamps.Enabled {
		n.stamps = stamp.NewGuard(stamp.Options{
			Grace: c.Stamps.Grace, List: client.ListText, ClockSkew: client.ClockSkew, Logger: log,
			IsNotServed: func(err error) bool { return apiserver.Classify(err) == apiserver.NotServed },
			Selected: func() (all []event.Resource, err error) {
				names, err := j.Resources()
				for _, name := range names {
					if r := event.ParseResourceName(name); selected(r.Group, r.Resource) {
						all = append(all, r)
					}
				}
				return all, err
			},
			Stored: func() (string, error) { return j.EvidencePosition(stamp.PolicyName) },
			Store: func(ctx context.Context, state string) error {
				return j.StoreEvidence(ctx, nil, stamp.PolicyName, state)
			},
			RecordGap: func(ctx context.Context, since time.Time, reason string) error {
				return n.attributor.RecordGap(ctx, since, reason)
			},
		})
		o.Stamps = n.stamps
	}
	n.attributor = attribution.New(o)
	if c.Webhook.Listen != "" {
		var err error
		if n.webhook, err = audit.NewWebhook(c.Webhook, n.attributor.StoreEvents, n.attributor.RecordLoss, log); err != nil {
			return nil, err
		}
		n.intakes = append(n.intakes, n.webhook)
	}
	reading := topic.Options{StoreEvents: n.attributor.StoreEvents, StoredPosition: j.EvidencePosition, RecordLoss: n.attributor.RecordLoss, Logger: log}
	for _, name := range c.Kafka.Topics {
		n.intakes = append(n.intakes, topic.New(c.Kafka, name, reading))
	}
	if c.CountersEvery > 0 && c.HasEvents() {
		n.counters = audit.NewCounters(c.CountersEvery, client.Metrics, n.attributor.RecordLoss)
	}
	return n, nil
}

// startTasks starts the attributor, then the intakes.
func (n *attributionRunner) startTasks(failed func(error)) {
	if n == nil {
		return
	}
	run := func(name string, f func(context.Context) error) {
		n.tasks = append(n.tasks, startTask(name, f, failed))
	}
	run("attribution", n.attributor.Run)
	for _, i := range n.intakes {
		run("audit intake "+i.Name(), i.Run)
	}
	if n.stamps != nil {
		run("stamps", n.stamps.Run)
	}
	if n.counters != nil {
		run("audit counters", n.counters.Run)
	}
}

// stopTasks stops the intakes, then the attributor.
func (n *attributionRunner) stopTasks() {
	if n == nil {
		return
	}
	for i := len(n.tasks) - 1; i >= 0; i-- {
		n.tasks[i].stop()
	}
}

func (n *attributionRunner) auditStatus() *admin.AuditStatus {
	if n == nil {
		return nil
	}
	a := &admin.AuditStatus{Stats: n.attributor.Stats(), Held: n.holder.Held()}
	if n.webhook != nil {
		a.Refused = n.webhook.RejectedRequests()
	}
	for _, i := range n.intakes {
		_, malformed := i.Status()
		a.Malformed += malformed
	}
	return a
}

// conditions returns whether audit events arrive, and the status of each intake.
func (n *attributionRunner) conditions() (all []condition.Status) {
	if n == nil {
		return nil
	}
	s := n.attributor.Stats()
	all = append(all, s.Condition, s.LagCondition)
	if n.stamps != nil {
		all = append(all, n.stamps.Condition())
	}
	for _, i := range n.intakes {
		status, _ := i.Status()
		all = append(all, status)
	}
	if n.webhook != nil {
		all = append(all, n.webhook.PortStatus())
	}
	return all
}
