package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/audit/topic"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
)

// attributionRunner is what names the authors of changes: the intakes of audit events and what concludes from them. The methods of nil
// do nothing.
type attributionRunner struct {
	attributor *attribution.Attributor
	maxWait    time.Duration  // that sinks hold changes back for
	webhook    *audit.Webhook // one of the intakes; nil without one
	intakes    []intake
	counters   *audit.Counters                                  // nil where they are not read
	ruleOf     atomic.Pointer[func(event.Resource) (int, bool)] // that selects a resource, as the rules are now

	tasks []*task // in the order of their start
}

// intake is where audit events come from.
type intake interface {
	Name() string
	Run(ctx context.Context) error
	Status() (status condition.Status, malformed uint64)
}

// checkAttribution reads what newAttributionRunner will read, so that a changed configuration is refused before anything has stopped.
func checkAttribution(cfg *config.Config, log *slog.Logger) error {
	if cfg.Audit.Webhook.Listen == "" {
		return nil
	}
	_, err := audit.NewWebhook(cfg.Audit.Webhook, nil, nil, log)
	return err
}

// newAttributionRunner makes the parts, if anybody is to be named.
func newAttributionRunner(cfg *config.Config, j *journal.Journal, client *apiserver.Client, log *slog.Logger) (*attributionRunner, error) {
	c := cfg.Audit
	if !c.Enabled() {
		return nil, nil
	}
	n := &attributionRunner{maxWait: c.Wait}
	n.updateRules(cfg)
	n.attributor = attribution.New(attribution.Options{
		Limits:  attribution.Limits{Settle: c.Settle, Window: c.Window, Skew: c.ClockSkew, Bytes: int(c.MaxPending), Likely: c.Likely},
		Journal: j, Cluster: cfg.Cluster.Name,
		Selected: func(group, resource string) bool {
			_, yes := (*n.ruleOf.Load())(event.Resource{Group: group, Resource: resource})
			return yes
		},
		JournalCrowded: func() bool { s := j.Stat(); return s.RetainedBytes > s.MaxBytes/2 },
		Logger:         log,
	})
	if c.Webhook.Listen != "" {
		var err error
		if n.webhook, err = audit.NewWebhook(c.Webhook, n.attributor.StoreEvents, n.attributor.RecordLoss, log); err != nil {
			return nil, err
		}
		n.intakes = append(n.intakes, n.webhook)
	}
	reading := audit.Options{StoreEvents: n.attributor.StoreEvents, StoredPosition: j.EvidencePosition, RecordLoss: n.attributor.RecordLoss, Logger: log}
	for _, path := range c.Files {
		n.intakes = append(n.intakes, audit.NewFile(path, reading))
	}
	for _, name := range c.Kafka.Topics {
		n.intakes = append(n.intakes, topic.New(c.Kafka, name, reading))
	}
	if c.CountersEvery > 0 {
		n.counters = audit.NewCounters(c.CountersEvery, client.Metrics, n.attributor.RecordLoss)
	}
	return n, nil
}

// updateRules takes up edited rules.
func (n *attributionRunner) updateRules(cfg *config.Config) {
	if n == nil {
		return
	}
	rule := ruleMatcher(cfg)
	n.ruleOf.Store(&rule)
}

// startTasks runs what concludes, then the intakes.
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
	if n.counters != nil {
		run("audit counters", n.counters.Run)
	}
}

// awaitAuthors returns the first of some records that no sink has to hold back any more.
func (n *attributionRunner) awaitAuthors(ctx context.Context, records []event.Record) ([]event.Record, error) {
	if n == nil || n.maxWait == 0 || len(records) == 0 {
		return records, nil
	}
	return n.attributor.AwaitAuthors(ctx, records, n.maxWait)
}

// stopTasks stops the intakes, then what concludes.
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
	s := n.attributor.Stats()
	a := &admin.AuditStatus{
		Degraded: s.Condition.Explanation(), Events: s.Events, Kept: s.Kept, Lost: s.Lost, Attributed: s.Attributed, Likely: s.Likely,
		Unresolved: map[string]uint64{}, Pending: s.Pending, PendingBytes: s.PendingBytes, LastEvent: s.LastEvent,
	}
	for reason, count := range s.Unresolved {
		a.Unresolved[string(reason)] = count
	}
	if n.webhook != nil {
		a.Refused = n.webhook.RejectedRequests()
	}
	for _, i := range n.intakes {
		status, malformed := i.Status()
		a.Malformed += malformed
		if d := status.Degraded(); d != "" {
			a.Degraded = i.Name() + ": " + d
		}
	}
	return a
}

// skipUnrepresentable keeps from a sink what its format, or the state that it keeps, has no place for.
func skipUnrepresentable(s config.Sink, route func(*event.Change) delivery.Route) func(*event.Change) delivery.Route {
	f, err := format.Parse(s.Format)
	if err != nil { // not reached: the sink was made with it
		return route
	}
	rows := s.NATS != nil && s.NATS.KeepsRows()
	return func(c *event.Change) delivery.Route {
		switch {
		case !f.CanRepresent(c), rows && c.Type == event.Attributed:
			return delivery.Route{Skip: true}
		case route == nil:
			return delivery.Route{}
		}
		return route(c)
	}
}
