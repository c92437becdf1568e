package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/attribution/audit/topic"
	"github.com/kubecdc/kubecdc/internal/attribution/stamp"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// attributionRunner runs the attribution of changes: the intakes of audit events and the attributor that matches them with
// changes. The methods of a nil runner do nothing.
type attributionRunner struct {
	attributor *attribution.Attributor
	maxWait    time.Duration  // how long sinks hold a change back
	webhook    *audit.Webhook // one of the intakes; nil without one
	intakes    []intake
	counters   *audit.Counters // nil if they are not read
	stamps     *stamp.Guard    // nil without stamps

	tasks []*task // in the order of their start
}

// intake is a source of audit events.
type intake interface {
	Name() string
	Run(ctx context.Context) error
	Status() (status condition.Status, malformed uint64)
}

// checkAttribution reads the files that newAttributionRunner reads, so that a changed configuration is refused before
// anything is stopped.
func checkAttribution(cfg *config.Config, log *slog.Logger) error {
	if cfg.Audit.Webhook.Listen == "" {
		return nil
	}
	_, err := audit.NewWebhook(cfg.Audit.Webhook, nil, nil, log)
	return err
}

// newAttributionRunner makes the attributor and its intakes; nil without audit.
func newAttributionRunner(cfg *config.Config, j *journal.Journal, client *apiserver.Client, log *slog.Logger) (*attributionRunner, error) {
	c := cfg.Audit
	if !c.Enabled() {
		return nil, nil
	}
	n, ruleOf := &attributionRunner{maxWait: c.Wait}, selection.Owners(config.SelectionRules(cfg.Resources))
	selected := func(group, resource string) bool {
		_, yes := ruleOf(event.Resource{Group: group, Resource: resource})
		return yes
	}
	o := attribution.Options{
		Limits: attribution.Limits{
			Settle: c.Settle, Window: c.Window, Skew: c.ClockSkew, Bytes: int(c.MaxPending), Likely: c.Likely, NoEvents: !c.HasEvents(),
		},
		Journal: j, Cluster: cfg.Cluster.Name, Selected: selected,
		JournalCrowded: func() bool { s := j.Stat(); return s.RetainedBytes > s.MaxBytes/2 },
		Logger:         log,
	}
	if c.Stamps.Enabled {
		n.stamps = stamp.NewGuard(stamp.Options{
			Grace: c.Stamps.Grace, List: client.ListText, ClockSkew: client.ClockSkew, Logger: log,
			IsNotServed: func(err error) bool { return apiserver.Classify(err) == apiserver.NotServed },
			Selected:    func() ([]event.Resource, error) { return resourcesOf(j, selected) },
			Stored:      func() (string, error) { return j.EvidencePosition(stamp.PolicyName) },
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
	reading := audit.Options{StoreEvents: n.attributor.StoreEvents, StoredPosition: j.EvidencePosition, RecordLoss: n.attributor.RecordLoss, Logger: log}
	for _, path := range c.Files {
		n.intakes = append(n.intakes, audit.NewFile(path, c.FileEnvelope, reading))
	}
	for _, name := range c.Kafka.Topics {
		n.intakes = append(n.intakes, topic.New(c.Kafka, name, reading))
	}
	if c.CountersEvery > 0 && c.HasEvents() {
		n.counters = audit.NewCounters(c.CountersEvery, client.Metrics, n.attributor.RecordLoss)
	}
	return n, nil
}

// resourcesOf returns the resources in the journal that are selected.
func resourcesOf(j *journal.Journal, selected func(group, resource string) bool) (all []event.Resource, err error) {
	names, err := j.Resources()
	for _, name := range names {
		if r := event.ParseResourceName(name); selected(r.Group, r.Resource) {
			all = append(all, r)
		}
	}
	return all, err
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

// awaitAuthors blocks until the first of records need not be held back any longer, and returns those.
func (n *attributionRunner) awaitAuthors(ctx context.Context, records []event.Record) ([]event.Record, error) {
	if n == nil || n.maxWait == 0 || len(records) == 0 {
		return records, nil
	}
	return n.attributor.AwaitAuthors(ctx, records, n.maxWait)
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
	a := &admin.AuditStatus{Stats: n.attributor.Stats()}
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
