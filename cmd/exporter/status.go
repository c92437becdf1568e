package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// snapshot gathers the state of all parts for metrics, readiness and the status page.
func (e *exporter) snapshot() admin.Snapshot {
	s := admin.Snapshot{Cluster: admin.ClusterStatus{Name: e.source.Cluster()}, Journal: e.journalStatus()}
	s.Cluster.UID, s.Cluster.Unchecked = e.source.Identity()
	ready, reasons := e.source.Ready()
	for _, r := range e.source.Status() {
		s.Resources = append(s.Resources, resourceStatus(r))
	}
	if !ready && len(s.Resources) == 0 { // no resource can say so itself: the API server has not told what it serves
		s.Discovery = strings.Join(reasons, "; ")
	}
	for i, r := range e.shaper.Stats() {
		s.Rules = append(s.Rules, admin.RuleStatus{
			Name: fmt.Sprintf("resources[%d]", i), Filtered: r.Filtered, Unchanged: r.Unchanged,
			Withheld: r.Withheld, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for i, r := range e.routes.stats() {
		s.Routes = append(s.Routes, admin.RouteStatus{
			Name: fmt.Sprintf("routes[%d]", i), Sent: r.Sent, Dropped: r.Dropped, Failed: r.Failed, Failure: r.Failure,
		})
	}
	for _, o := range e.outlets {
		s.Sinks = append(s.Sinks, o.status())
	}
	return s
}

func (e *exporter) journalStatus() admin.JournalStatus {
	j := e.journal.Stat()
	return admin.JournalStatus{
		Oldest: j.Oldest, Newest: j.Newest, RetainedBytes: j.RetainedBytes, MaxBytes: j.MaxBytes, DiskBytes: j.DiskBytes,
		PendingBytes: j.PendingBytes, Commits: j.Commits, Recovered: e.recovered, Blocked: j.Blocked,
	}
}

// resourceStatus says what a scope's state means for readiness. A resource that may not be read, or that nothing serves
// yet, degrades alone: it is told, but it does not take the rest out of service.
func resourceStatus(r source.Status) admin.ResourceStatus {
	s := admin.ResourceStatus{
		Name: r.Scope, State: string(r.State), Since: r.Since, Reason: r.Reason,
		Position: r.Position, Known: r.Known, Queued: r.Queued, LastEvent: r.LastEvent,
		Changes: map[string]uint64{}, Events: r.Events, Restarts: r.Restarts, Relists: r.Relists, Lists: r.Lists, DecodeErrors: r.DecodeErrors,
	}
	for t, n := range r.Changes {
		s.Changes[string(t)] = n
	}
	switch {
	case r.State == source.Unreachable, r.State == source.Stale:
		s.NotReady = r.Reason
	case r.State == source.Syncing && !r.Synced:
		s.NotReady = "the first list is not complete: " + r.Reason
	case r.State == source.Forbidden, r.State == source.Waiting:
		s.Degraded = string(r.State) + ": " + r.Reason
	}
	return s
}

func (o *outlet) status() admin.SinkStatus {
	d := o.current().Stats()
	notReady := firstOf(heldUp(d), o.trouble())
	var omitted uint64
	if s, ok := o.sink.(interface{ Omitted() uint64 }); ok {
		omitted = s.Omitted()
	}
	slowed := ""
	if o.slowed != nil {
		slowed = o.slowed()
	}
	held := ""
	if o.grave != nil {
		held = o.grave.status()
	}
	return admin.SinkStatus{
		Name: o.name, Kind: o.kind, NotReady: notReady, Reason: firstOf(notReady, d.LaneReason, slowed), Held: held,
		Delivered: d.Delivered, DeliveredBytes: d.DeliveredBytes, Reduced: d.Reduced, Passed: d.Passed, Skipped: d.Skipped, Retries: d.Retries,
		DeadLetters: d.DeadLetters, Breaches: d.Breaches, Omitted: omitted, Losses: o.losses(),
		Low: d.Low, WindowBytes: d.WindowBytes, WindowLimit: d.WindowLimit, Lanes: d.Lanes, LanesBackingOff: d.LanesBackingOff,
		GateClosed: d.Gate.State != ratelimit.Open, LastAck: d.LastAck, OldestObserved: d.OldestObserved,
	}
}

// heldUp says why a sink as a whole does not deliver; single lanes that fail do not count.
func heldUp(d delivery.Stats) string {
	gate := ""
	if d.Gate.State != ratelimit.Open {
		gate = d.Gate.Reason
	}
	return firstOf(gate, d.BlockedReason, d.SettleReason)
}

func firstOf(reasons ...string) string {
	for _, r := range reasons {
		if r != "" {
			return r
		}
	}
	return ""
}

// timedSink wraps a sink so that observe is told how long each Publish takes.
func timedSink(s sinks.Sink, observe func(time.Duration)) sinks.Sink {
	if stateful, ok := s.(sinks.Stateful); ok {
		return timedStateful{stateful, timed{s, observe}}
	}
	return timed{s, observe}
}

type timedStateful struct {
	sinks.Stateful
	timed timed
}

func (t timedStateful) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	return t.timed.Publish(ctx, lane, batch)
}

// timed tells how long each Publish of a sink takes.
type timed struct {
	sinks.Sink
	observe func(time.Duration)
}

func (t timed) Publish(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
	began := time.Now()
	n, err := t.Sink.Publish(ctx, lane, batch)
	t.observe(time.Since(began))
	return n, err
}

// LaneTo makes what is timed a sinks.Router: the configuration names topics only where the sink itself is
// one.
func (t timed) LaneTo(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	return laneTo(ctx, t.Sink, c, topic)
}

func (t timedStateful) LaneTo(ctx context.Context, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	return laneTo(ctx, t.Stateful, c, topic)
}

func laneTo(ctx context.Context, s sinks.Sink, c *event.Change, topic *sinks.Template) (sinks.Lane, error) {
	if router, ok := s.(sinks.Router); ok {
		return router.LaneTo(ctx, c, topic)
	}
	return "", fmt.Errorf("the sink knows one place only, not %s", topic)
}
