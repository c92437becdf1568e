package admin

import (
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// metric describes one family and where its values come from. values calls emit once a series.
type metric struct {
	name   string
	help   string
	kind   prometheus.ValueType
	labels []string
	values func(s Snapshot, now time.Time, emit func(value float64, labels ...string))
}

type emit = func(value float64, labels ...string)

// metrics lists every family that is read from a snapshot. docs/metrics.md is written from it.
var metrics = slices.Concat(readyMetrics, configMetrics, discoveryMetrics, resourceMetrics, ruleMetrics, routeMetrics, sinkMetrics, journalMetrics, auditMetrics, replicaMetrics)

var readyMetrics = []metric{
	{"kubecdc_ready", "1 when the exporter is ready; /readyz has the reasons if it is not.", prometheus.GaugeValue, nil,
		func(s Snapshot, _ time.Time, emit emit) { emit(boolToFloat(s.isReady())) }},
	{"kubecdc_condition", "What is wrong: how many parts of the component, such as resources or lanes, it concerns. No series while nothing is; docs/conditions.md has the codes.",
		prometheus.GaugeValue, []string{"code", "component", "severity"},
		func(s Snapshot, _ time.Time, emit emit) {
			for key, faults := range s.conditionsByCode() {
				parts := 0
				for _, c := range faults {
					parts += max(1, len(c.Members))
				}
				emit(float64(parts), string(key.code), key.component, key.severity.String())
			}
		}},
	{"kubecdc_condition_deadline_timestamp_seconds", "When history begins to get lost unless the condition ends; the time is estimated. No series without such a condition.",
		prometheus.GaugeValue, []string{"code", "component", "severity"},
		func(s Snapshot, _ time.Time, emit emit) {
			for key, faults := range s.conditionsByCode() {
				if first := earliestDeadline(faults); !first.IsZero() {
					emit(unixSeconds(first), string(key.code), key.component, key.severity.String())
				}
			}
		}},
}

// conditionKey identifies a series of conditions.
type conditionKey struct {
	code      condition.Code
	component string
	severity  condition.Severity
}

// conditionsByCode returns what is wrong, by series.
func (s Snapshot) conditionsByCode() map[conditionKey][]condition.Status {
	all := map[conditionKey][]condition.Status{}
	for _, c := range s.problems() {
		key := conditionKey{c.Code, c.Component, c.Severity}
		all[key] = append(all[key], c)
	}
	return all
}

func earliestDeadline(all []condition.Status) (first time.Time) {
	for _, c := range all {
		first = condition.Earlier(first, c.Deadline)
	}
	return first
}

var discoveryMetrics = []metric{
	{"kubecdc_discovery_known", "1 when it is known what the API server serves; 0 since the start until it has answered.", prometheus.GaugeValue, nil,
		func(s Snapshot, _ time.Time, emit emit) {
			emit(boolToFloat(countCodes(s.Conditions, condition.DiscoveryPending, condition.APIServerUnreachable) == 0))
		}},
	{"kubecdc_clock_skew_seconds", "How far this machine's clock is ahead of the API server's, to a second; negative where it is behind.", prometheus.GaugeValue, nil,
		func(s Snapshot, _ time.Time, emit emit) { emit(s.Cluster.ClockSkew.Seconds()) }},
	{"kubecdc_namespace_missing", "1 while a namespace that a rule names does not exist; no series where that is not known.", prometheus.GaugeValue, []string{"name"},
		func(s Snapshot, _ time.Time, emit emit) { // a label "namespace" would be that of the scraped Pod
			for _, c := range s.Conditions {
				if c.Component == "namespace" && c.Code != condition.NamespaceUnknown {
					emit(boolToFloat(c.Code == condition.NamespaceMissing), c.Members[0])
				}
			}
		}},
	{"kubecdc_resources", "Resources that are selected, by state. Where all are unreachable, the API server is.", prometheus.GaugeValue, []string{"state"},
		func(s Snapshot, _ time.Time, emit emit) {
			in := map[string]int{}
			for _, r := range s.Resources {
				in[r.State]++
			}
			for _, state := range ResourceStates {
				emit(float64(in[state]), state)
			}
		}},
}

var configMetrics = []metric{
	{"kubecdc_config_info", "1, with the first 12 digits of the SHA-256 of the configuration's file that works.", prometheus.GaugeValue, []string{"hash"},
		func(s Snapshot, _ time.Time, emit emit) { emit(1, s.Config.Hash) }},
	codeMetric("kubecdc_config_refused", "1 while the configuration file is refused and an earlier one stays active; /readyz has the reason.", condition.ConfigRefused),
	codeMetric("kubecdc_config_pending", "1 while the configuration file is accepted and not active yet; /readyz has the reason.", condition.ConfigPending),
	{"kubecdc_config_reloads_total", "Changed configurations, by what became of them: taken or refused.", prometheus.CounterValue, []string{"result"},
		func(s Snapshot, _ time.Time, emit emit) {
			emit(float64(s.Config.Reloads), "taken")
			emit(float64(s.Config.Refusals), "refused")
		}},
}

var resourceMetrics = []metric{
	resourceMetric("kubecdc_resource_known_objects", "Objects known to exist.", prometheus.GaugeValue,
		func(r ResourceStatus) float64 { return float64(r.Known) }),
	resourceMetric("kubecdc_resource_events_total", "Watch events read, bookmarks included.", prometheus.CounterValue,
		func(r ResourceStatus) float64 { return float64(r.Events) }),
	resourceMetric("kubecdc_resource_last_event_timestamp_seconds", "When the last watch event arrived, bookmarks included; 0 if none did.", prometheus.GaugeValue,
		func(r ResourceStatus) float64 { return unixSeconds(r.LastEvent) }),
	resourceMetric("kubecdc_resource_watch_restarts_total", "Watch connections opened after the first.", prometheus.CounterValue,
		func(r ResourceStatus) float64 { return float64(r.Restarts) }),
	resourceMetric("kubecdc_resource_relists_total", "Times history was lost and the stream got a gap record.", prometheus.CounterValue,
		func(r ResourceStatus) float64 { return float64(r.Relists) }),
	resourceMetric("kubecdc_resource_list_requests_total", "LIST requests sent, each page one.", prometheus.CounterValue,
		func(r ResourceStatus) float64 { return float64(r.Lists) }),
	resourceMetric("kubecdc_resource_decode_errors_total", "Answers of the API server that could not be read.", prometheus.CounterValue,
		func(r ResourceStatus) float64 { return float64(r.DecodeErrors) }),
	{"kubecdc_resource_changes_total", "Changes made, by type.", prometheus.CounterValue, []string{"resource", "type"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Resources {
				for kind, n := range r.Changes {
					emit(float64(n), r.Name, kind)
				}
			}
		}},
	{"kubecdc_resource_state", "1 for the state the resource is in, 0 for every other one.", prometheus.GaugeValue, []string{"resource", "state"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Resources {
				for _, state := range ResourceStates {
					emit(boolToFloat(state == r.State), r.Name, state)
				}
			}
		}},
}

var ruleMetrics = []metric{
	{"kubecdc_rule_dropped_total", "Changes that a rule does not emit, by reason: filter, or unchanged (onlyIfChanged, ignoreChanges).", prometheus.CounterValue, []string{"rule", "reason"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Rules {
				emit(float64(r.Filtered), r.Name, "filter")
				emit(float64(r.Unchanged), r.Name, "unchanged")
			}
		}},
	ruleMetric("kubecdc_rule_withheld_total", "Changes that could not be redacted or shaped; they become dead letters without bodies.",
		func(r RuleStatus) float64 { return float64(r.Withheld) }),
	ruleMetric("kubecdc_rule_filter_errors_total", "Evaluations of the rule's filter that failed or were cut off; their changes were emitted.",
		func(r RuleStatus) float64 { return float64(r.Failed) }),
}

var routeMetrics = []metric{
	{"kubecdc_route_sent_total", "Changes that a route sends to a sink.", prometheus.CounterValue, []string{"route", "sink"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Routes {
				for sink, n := range r.Sent {
					emit(float64(n), r.Name, sink)
				}
			}
		}},
	{"kubecdc_route_dropped_total", "Changes that a route keeps from a sink.", prometheus.CounterValue, []string{"route", "sink"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Routes {
				for sink, n := range r.Dropped {
					emit(float64(n), r.Name, sink)
				}
			}
		}},
	{"kubecdc_route_filter_errors_total", "Evaluations of the route's filter that failed or were cut off, one for each sink; the change went to the sink's own topic.",
		prometheus.CounterValue, []string{"route"}, func(s Snapshot, _ time.Time, emit emit) {
			for _, r := range s.Routes {
				emit(float64(r.Failed), r.Name)
			}
		}},
}

var sinkMetrics = []metric{
	sinkMetric("kubecdc_sink_delivered_total", "Changes the destination acknowledged.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Delivered) }),
	sinkMetric("kubecdc_sink_delivered_bytes_total", "Bytes of the changes the destination acknowledged, as estimated in memory.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.DeliveredBytes) }),
	sinkMetric("kubecdc_sink_reduced_total", "Changes the destination acknowledged in a smaller form, because the whole one was too large.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Reduced) }),
	sinkMetric("kubecdc_sink_passed_total", "Changes that routes do not send to this sink.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Passed) }),
	sinkMetric("kubecdc_sink_skipped_total", "Changes read again after a restart and known to be delivered.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Skipped) }),
	sinkMetric("kubecdc_sink_retries_total", "Attempts that failed and are made again.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Retries) }),
	sinkMetric("kubecdc_sink_dead_letters_total", "Changes the destination rejected for ever; they are kept in the journal.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.DeadLetters) }),
	sinkMetric("kubecdc_sink_dead_letters_kept", "Dead letters in the journal, of earlier runs too.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.DeadLettersKept) }),
	sinkMetric("kubecdc_sink_dead_letters_held", "1 while dead letters cannot reach the topic that is configured for them; the status page has the reason.", prometheus.GaugeValue,
		func(k SinkStatus) float64 {
			return boolToFloat(countCodes(k.Conditions, condition.DeadLettersHeld) > 0)
		}),
	sinkMetric("kubecdc_sink_losses_total", "Times the destination had lost changes it had accepted, and was sent them again from the journal.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Losses) }),
	sinkMetric("kubecdc_sink_cautions", "How many things about the destination may lose changes that it accepts; /readyz and the log name them.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(countCodes(k.Conditions, condition.SinkMayLose)) }),
	sinkMetric("kubecdc_sink_omitted_total", "Control records, such as gaps, that the destination has no place for: a bucket keeps the state of objects only.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Omitted) }),
	sinkMetric("kubecdc_sink_contract_breaches_total", "Answers of the sink that break its contract. More than 0 is a defect.", prometheus.CounterValue,
		func(k SinkStatus) float64 { return float64(k.Breaches) }),
	sinkMetric("kubecdc_sink_window_bytes", "Memory of the changes on their way.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.WindowBytes) }),
	sinkMetric("kubecdc_sink_window_limit_bytes", "Bound of kubecdc_sink_window_bytes.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.WindowLimit) }),
	sinkMetric("kubecdc_sink_lanes", "Ordered channels of the destination that are in memory.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.Lanes) }),
	sinkMetric("kubecdc_sink_lanes_backing_off", "Lanes that failed and wait for their next attempt.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.LanesBackingOff) }),
	sinkMetric("kubecdc_sink_lanes_behind", "Lanes with changes that are to be read from the journal again, because they failed or were slow.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return float64(k.LanesBehind) }),
	{"kubecdc_sink_lane_failing_since_seconds", "When a lane began to fail; a hundred lanes of a sink at most.", prometheus.GaugeValue, []string{"sink", "lane", "code"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, k := range s.Sinks {
				for _, lane := range k.FailingLanes {
					emit(unixSeconds(lane.Since), k.Name, lane.Members[0], string(lane.Code))
				}
			}
		}},
	sinkMetric("kubecdc_sink_ready", "1 while changes get through; 0 while none does, /readyz has the reason.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return boolToFloat(worstOf(k.Conditions).Severity != condition.NotReady) }),
	sinkMetric("kubecdc_sink_gate_closed", "1 while the whole destination is taken to be away.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return boolToFloat(k.GateClosed) }),
	sinkMetric("kubecdc_sink_last_ack_timestamp_seconds", "When the destination last acknowledged a change; 0 if never.", prometheus.GaugeValue,
		func(k SinkStatus) float64 { return unixSeconds(k.LastAck) }),
	{"kubecdc_sink_lag_seconds", "Age of the oldest change that is read from the journal and not delivered; 0 when there is none.", prometheus.GaugeValue, []string{"sink"},
		func(s Snapshot, now time.Time, emit emit) {
			for _, k := range s.Sinks {
				emit(k.lagAt(now).Seconds(), k.Name)
			}
		}},
	{"kubecdc_sink_backlog_changes", "Changes in the journal that this sink has not settled.", prometheus.GaugeValue, []string{"sink"},
		func(s Snapshot, _ time.Time, emit emit) {
			for _, k := range s.Sinks {
				emit(float64(s.Journal.undeliveredOf(k)), k.Name)
			}
		}},
}

var journalMetrics = []metric{
	codeMetric("kubecdc_cluster_unchecked", "1 if a missing permission prevents the check that the cluster is the one that the journal was filled from.",
		condition.ClusterUnchecked),
	journalMetric("kubecdc_journal_newest_offset", "Offset of the newest change.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.Newest) }),
	journalMetric("kubecdc_journal_oldest_offset", "Offset of the oldest change still held.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.Oldest) }),
	journalMetric("kubecdc_journal_retained_bytes", "Stored size of changes, known objects, last states and dead letters.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.RetainedBytes) }),
	journalMetric("kubecdc_journal_known_bytes", "Stored size of known objects, measured every few seconds.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.KnownBytes) }),
	journalMetric("kubecdc_journal_body_bytes", "Stored size of last states, measured every few seconds.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.BodyBytes) }),
	journalMetric("kubecdc_journal_dead_letter_bytes", "Stored size of dead letters; journal.maxDeadLetters bounds it.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.DeadLetterBytes) }),
	journalMetric("kubecdc_journal_max_bytes", "Bound of kubecdc_journal_retained_bytes (journal.maxBytes).", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.MaxBytes) }),
	journalMetric("kubecdc_journal_disk_bytes", "Size of the journal's store on disk, measured every few seconds.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.DiskBytes) }),
	journalMetric("kubecdc_journal_pending_bytes", "Changes in memory that are not committed yet.", prometheus.GaugeValue,
		func(j JournalStatus) float64 { return float64(j.PendingBytes) }),
	journalMetric("kubecdc_journal_commits_total", "Groups committed.", prometheus.CounterValue,
		func(j JournalStatus) float64 { return float64(j.Commits) }),
	codeMetric("kubecdc_journal_blocked", "1 while writes to the journal are blocked; /readyz has the reason.",
		condition.JournalFull, condition.JournalDiskLow, condition.JournalDiskFull, condition.JournalBroken),
	codeMetric("kubecdc_journal_dead_letters_full", "1 while no dead letter more is taken, so that a change that is refused for ever waits in its lane.",
		condition.DeadLettersFull),
	codeMetric("kubecdc_journal_recovered", "1 if a broken journal was set aside when the process started.", condition.JournalRecovered),
}

var auditMetrics = []metric{
	{"kubecdc_audit_degraded", "1 while audit events are missing from some or all sources; /readyz has the reason.", prometheus.GaugeValue, nil,
		func(s Snapshot, _ time.Time, emit emit) {
			if s.Audit != nil {
				emit(boolToFloat(slices.ContainsFunc(s.Conditions, func(c condition.Status) bool { return !c.OK() && c.Concerns("audit") })))
			}
		}},
	auditMetric("kubecdc_audit_events_total", "Audit events taken.", prometheus.CounterValue, func(a *AuditStatus) float64 { return float64(a.Events) }),
	auditMetric("kubecdc_audit_events_kept_total", "Audit events that may name the author of a change.", prometheus.CounterValue,
		func(a *AuditStatus) float64 { return float64(a.Kept) }),
	auditMetric("kubecdc_audit_refused_total", "Connections and requests of clients that audit.webhook does not name, or without a certificate of its authorities.",
		prometheus.CounterValue, func(a *AuditStatus) float64 { return float64(a.Refused) }),
	auditMetric("kubecdc_audit_malformed_total", "Bodies and lines that were no audit events.", prometheus.CounterValue,
		func(a *AuditStatus) float64 { return float64(a.Malformed) }),
	auditMetric("kubecdc_audit_lag_seconds", "From the end of a request until its audit event arrived, the longest of the newest; more than audit.settle proves nothing.",
		prometheus.GaugeValue, func(a *AuditStatus) float64 { return a.Lag.Seconds() }),
	auditMetric("kubecdc_audit_late_total", "Audit events that arrived later than audit.settle after their request.", prometheus.CounterValue,
		func(a *AuditStatus) float64 { return float64(a.Late) }),
	auditMetric("kubecdc_audit_lost_total", "Audit events that had to make room, and times that a log was rotated away unread.", prometheus.CounterValue,
		func(a *AuditStatus) float64 { return float64(a.Lost) }),
	auditMetric("kubecdc_audit_last_event_timestamp_seconds", "When the newest audit event came; 0 if never.", prometheus.GaugeValue,
		func(a *AuditStatus) float64 { return unixSeconds(a.LastEvent) }),
	auditMetric("kubecdc_attributed_total", "Changes that an authenticated user was named for.", prometheus.CounterValue,
		func(a *AuditStatus) float64 { return float64(a.Attributed) }),
	auditMetric("kubecdc_attributed_stamped_total", "Changes whose author a stamp in the object proves; of kubecdc_attributed_total.",
		prometheus.CounterValue, func(a *AuditStatus) float64 { return float64(a.Stamped) }),
	auditMetric("kubecdc_attributed_likely_total", "Changes that an authenticated user was guessed for, where audit.likely asks for it.",
		prometheus.CounterValue, func(a *AuditStatus) float64 { return float64(a.Likely) }),
	{"kubecdc_unresolved_total", "Changes without an author, by reason: none, several, late, lag, bound, stamp, policy, disagree, annotation or list, see docs/audit-trail.md.", prometheus.CounterValue,
		[]string{"reason"}, func(s Snapshot, _ time.Time, emit emit) {
			if s.Audit == nil {
				return
			}
			for reason, n := range s.Audit.Unresolved {
				emit(float64(n), reason)
			}
		}},
	auditMetric("kubecdc_attribution_pending_changes", "Changes that wait for their audit event.", prometheus.GaugeValue,
		func(a *AuditStatus) float64 { return float64(a.Pending) }),
	auditMetric("kubecdc_attribution_pending_bytes", "Memory of the changes and audit events that wait for each other; audit.maxPending bounds it.", prometheus.GaugeValue,
		func(a *AuditStatus) float64 { return float64(a.PendingBytes) }),
}

var replicaMetrics = []metric{
	{"kubecdc_active", "1 if this process is active; 0 while it is a standby, takes over, or has not renewed the Lease within election.duration.", prometheus.GaugeValue, nil,
		func(s Snapshot, _ time.Time, emit emit) {
			emit(boolToFloat(s.isActive() && (s.Replica == nil || !s.Replica.Unproven)))
		}},
	replicaMetric("kubecdc_takeovers_total", "Times this process took over, its own start included.", prometheus.CounterValue,
		func(r *ReplicaStatus) float64 { return float64(r.TakeOvers) }),
	replicaMetric("kubecdc_takeover_seconds", "How long the last take-over took, from the turn of this process until changes could flow; 0 before the first.",
		prometheus.GaugeValue, func(r *ReplicaStatus) float64 { return r.TookOver.Seconds() }),
	replicaMetric("kubecdc_fenced_total", "Times another process took over from this one while it worked.", prometheus.CounterValue,
		func(r *ReplicaStatus) float64 { return float64(r.Fenced) }),
	replicaMetric("kubecdc_state_lag_seconds", "For how long changes have been delivered that the replicated state does not cover yet: so far a take-over looks back.",
		prometheus.GaugeValue, func(r *ReplicaStatus) float64 { return r.StateLag.Seconds() }),
	replicaMetric("kubecdc_state_known_objects", "Objects in the replicated state.", prometheus.GaugeValue, func(r *ReplicaStatus) float64 { return float64(r.Known) }),
}

// replicaMetric is a family that has no series without a replicated state.
func replicaMetric(name, help string, kind prometheus.ValueType, value func(*ReplicaStatus) float64) metric {
	return metric{name, help, kind, nil, func(s Snapshot, _ time.Time, emit emit) {
		if s.Replica != nil {
			emit(value(s.Replica))
		}
	}}
}

// auditMetric is a family without series if attribution is not configured.
func auditMetric(name, help string, kind prometheus.ValueType, value func(*AuditStatus) float64) metric {
	return metric{name, help, kind, nil, func(s Snapshot, _ time.Time, emit emit) {
		if s.Audit != nil {
			emit(value(s.Audit))
		}
	}}
}

func resourceMetric(name, help string, kind prometheus.ValueType, value func(ResourceStatus) float64) metric {
	return metric{name, help, kind, []string{"resource"}, func(s Snapshot, _ time.Time, emit emit) {
		for _, r := range s.Resources {
			emit(value(r), r.Name)
		}
	}}
}

func ruleMetric(name, help string, value func(RuleStatus) float64) metric {
	return metric{name, help, prometheus.CounterValue, []string{"rule"}, func(s Snapshot, _ time.Time, emit emit) {
		for _, r := range s.Rules {
			emit(value(r), r.Name)
		}
	}}
}

func sinkMetric(name, help string, kind prometheus.ValueType, value func(SinkStatus) float64) metric {
	return metric{name, help, kind, []string{"sink"}, func(s Snapshot, _ time.Time, emit emit) {
		for _, k := range s.Sinks {
			emit(value(k), k.Name)
		}
	}}
}

func journalMetric(name, help string, kind prometheus.ValueType, value func(JournalStatus) float64) metric {
	return metric{name, help, kind, nil, func(s Snapshot, _ time.Time, emit emit) { emit(value(s.Journal)) }}
}

// codeMetric is 1 while the exporter has one of these codes, and 0 otherwise.
func codeMetric(name, help string, codes ...condition.Code) metric {
	return metric{name, help, prometheus.GaugeValue, nil, func(s Snapshot, _ time.Time, emit emit) {
		emit(boolToFloat(countCodes(s.Conditions, codes...) > 0))
	}}
}

func boolToFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}

// collector makes metrics of one snapshot per scrape.
type collector struct {
	snapshot func() Snapshot
	descs    []*prometheus.Desc // in the order of metrics
}

func newCollector(snapshot func() Snapshot) *collector {
	c := &collector{snapshot: snapshot}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, now := c.snapshot(), time.Now()
	for i, m := range metrics {
		m.values(s, now, func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, value, labels...)
		})
	}
}

const (
	publishName  = "kubecdc_sink_publish_seconds"
	publishHelp  = "Duration of calls to the destination, acknowledgement included, failed ones too."
	deliveryName = "kubecdc_sink_delivery_seconds"
	deliveryHelp = "Age of changes when the destination acknowledged them, from the moment they were read from the API server."
	buildName    = "kubecdc_build_info"
	buildHelp    = "1, with the version of the exporter and of Go."
)

func newPublishHistogram() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: publishName, Help: publishHelp, Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s
	}, []string{"sink"})
}

// newDeliveryHistogram reaches from a change that is passed on at once to one that has waited for an outage.
func newDeliveryHistogram() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: deliveryName, Help: deliveryHelp,
		Buckets: []float64{0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21600},
	}, []string{"sink"})
}

func newBuildInfo(version string) prometheus.Collector {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: buildName, Help: buildHelp}, []string{"version", "goversion"})
	g.WithLabelValues(version, runtime.Version()).Set(1)
	return g
}
