package monitoring

import (
	"fmt"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Severity is how soon a person has to look.
type Severity string

// The severities: look at once, look within the day, be aware.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// Alert is one alerting rule and its section of the page.
type Alert struct {
	Name     string
	Expr     string // PromQL
	For      string // how long it has to last; "" fires at once
	Severity Severity
	Summary  string // one line, with the labels of the series

	// Codes are the conditions that this alert is about. Every code has an alert.
	Codes []condition.Code

	Meaning string   // what is the case, and what happens meanwhile
	Look    []string // what to look at, in this order, where there are no Codes
	Do      []string // what to do, where there are no Codes, which have a remedy each

	// Series are what the exporter shows when this alert is right, beside a healthy exporter's other series: in promtool's
	// notation, one value a minute.
	Series map[string]string
}

// Expressions that several alerts share. One fault is one alert: what follows from another fault is left out by "unless".
const (
	here       = "on (job, instance)"
	faulty     = `max by (job, instance) (kubecdc_condition` // one series an exporter, which lasts while the code changes
	apiAway    = `(` + unasked + ` or ` + allAway + `)`
	unasked    = faulty + `{code=~"DiscoveryPending|APIServerUnreachable|APIServerBusy|CredentialsRefused|CertificateRefused",component="discovery"}) > 0`
	allAway    = `(sum by (job, instance) (kubecdc_resource_state{state="unreachable"}) > 0 and ` + here + ` (sum by (job, instance) (kubecdc_resource_state{state=~"live|syncing|stale"}) == 0))`
	down       = `kubecdc_sink_ready == 0`
	thisSink   = "on (job, instance, sink)"
	paused     = `kubecdc_sink_paused == 1`
	held       = `kubecdc_sink_dead_letters_held == 1`
	blocked    = faulty + `{code=~"JournalFull|JournalDiskLow|JournalDiskFull|JournalBroken"}) > 0`
	noneActive = `max by (job) (kubecdc_active) == 0`
	letters    = faulty + `{code="DeadLettersFull",component="journal"}) > 0`
	recovered  = faulty + `{code="JournalRecovered"}) > 0`
	mayLose    = `sum by (job, instance, sink) (label_replace(kubecdc_condition{code="SinkMayLose"}, "sink", "$1", "component", "sink/(.*)"))`
	protected  = `kubecdc_condition{code="RedactionHeld"} > 0`
	unwatched  = `kubecdc_resource_state{state=~"unreachable|stale|syncing"} == 1`
)

// lasting are the conditions that are worth a look only if they last, and have no metric of their own.
var lasting = []condition.Code{
	condition.ConfigPending, condition.ResourceListing, condition.ResourceUnread,
	condition.CredentialsUnread, condition.ListAmbiguous, condition.ListIncomplete, condition.ObjectsOutdated, condition.SnapshotPending, condition.ResourceGone,
	condition.NamespaceUnknown,
	condition.SinkThrottled, condition.SinkNoKeepAlive, condition.SinkClockRefused,
	condition.SinkCompressionRefused,
	condition.LaneUnread, condition.LeaseUnknown, condition.LeaseYielded, condition.StateMayLose, condition.PortFlooded, condition.TelemetryUnsent,
	condition.SignalsUnreceived,
}

var degraded = `kubecdc_condition{code=~"` + joinCodes(lasting, "|") + `"} > 0`

// seriesOf returns the series of a condition in promtool's notation.
func seriesOf(code condition.Code, component string) string {
	return fmt.Sprintf(`kubecdc_condition{job="k",instance="i",code=%q,component=%q,severity=%q}`, code, component, code.Kind().Severity)
}

func joinCodes(codes []condition.Code, separator string) string {
	texts := make([]string, len(codes))
	for i, c := range codes {
		texts[i] = string(c)
	}
	return strings.Join(texts, separator)
}

// Alerts are all alerts, the most urgent first.
var Alerts = []Alert{
	{
		Name: "KubecdcAbsent", Expr: `absent(kubecdc_ready)`, For: "10m", Severity: Critical,
		Summary: "No exporter is scraped",
		Meaning: "It does not run, or cannot be scraped. While it does not run nothing is journaled; after about 5 minutes the stream gets a `gap`.",
		Look: []string{"`kubectl -n kubecdc get pods,events`", "the log of the last run: `kubectl -n kubecdc logs exporter-0 --previous`",
			"in Prometheus the page of targets: the NetworkPolicy admits the namespaces it names only"},
		Do: []string{"bring the Pod back; its volume has the positions, so it goes on where it was",
			"exit code 2 is a bad configuration, 3 an environment that allows no start: the log's last line has the remedy"},
		Series: map[string]string{`kubecdc_ready{job="k",instance="i"}`: "_x60"},
	},
	{
		Name: "KubecdcJournalBlocked", Expr: blocked, For: "1m", Severity: Critical,
		Summary: "Nothing is being journaled by {{ $labels.instance }}",
		Codes:   []condition.Code{condition.JournalFull, condition.JournalDiskLow, condition.JournalDiskFull},
		Meaning: "The journal has reached a bound, or its disk is full or broken. The API server is not read; after about 5 minutes the stream gets a `gap`.",
		Series: map[string]string{
			seriesOf(condition.JournalFull, "journal"):             "1x60",
			`kubecdc_ready{job="k",instance="i"}`:                  "0x60",
			`kubecdc_journal_retained_bytes{job="k",instance="i"}`: "100x60",
		},
	},
	{
		Name: "KubecdcAPIServerUnreachable", Expr: apiAway, For: "3m", Severity: Critical,
		Summary: "The API server does not answer {{ $labels.instance }}",
		Codes:   []condition.Code{condition.APIServerUnreachable, condition.APIServerBusy, condition.DiscoveryPending, condition.CredentialsRefused, condition.CertificateRefused},
		Meaning: "Nothing new is seen; history that the API server drops meanwhile becomes a `gap`.",
		Series: map[string]string{
			seriesOf(condition.DiscoveryPending, "discovery"): "1x60",
			`kubecdc_ready{job="k",instance="i"}`:             "0x60",
		},
	},
	{
		Name: "KubecdcSinkDown", Expr: down + ` unless ` + thisSink + ` (` + held + ` and ` + thisSink + ` kubecdc_sink_gate_closed == 0)`, For: "3m", Severity: Critical,
		Summary: "Sink {{ $labels.sink }} of {{ $labels.instance }} accepts nothing",
		Codes: []condition.Code{
			condition.SinkConnecting, condition.SinkUnreachable, condition.SinkTimeout, condition.SinkUnauthorized, condition.SinkCertificate, condition.SinkBusy,
			condition.SinkFull, condition.SinkTargetMissing, condition.SinkMisconfigured, condition.SinkRejectsAll, condition.SinkFailing, condition.SinkDefect,
		},
		Meaning: "Nothing gets through to the whole destination. Other sinks go on; changes wait in the journal until it is full.",
		Series: map[string]string{
			`kubecdc_sink_ready{job="k",instance="i",sink="bus"}`:       "0x60",
			`kubecdc_sink_lag_seconds{job="k",instance="i",sink="bus"}`: "0+60x60",
			`kubecdc_ready{job="k",instance="i"}`:                       "0x60",
		},
	},
	{
		Name: "KubecdcNoneActive", Expr: noneActive, For: "2m", Severity: Critical,
		Summary: "Exporters run, and none of them is active",
		Codes:   []condition.Code{condition.StateRefused, condition.FailoverFailing, condition.NoneActive},
		Meaning: "No exporter is active, or the active one cannot renew the Lease: nothing is journaled; after about 5 minutes the stream gets a `gap`.",
		Series:  map[string]string{`kubecdc_active{job="k",instance="i"}`: "0x60", `kubecdc_ready{job="k",instance="i"}`: "0x60"},
	},
	{
		Name: "KubecdcDeadLettersFull", Expr: letters, For: "1m", Severity: Critical,
		Summary: "{{ $labels.instance }} accepts no more dead letters",
		Codes:   []condition.Code{condition.DeadLettersFull},
		Meaning: "Dead letters have reached `journal.maxDeadLetters`. A permanently rejected change now blocks its lane; " +
			"other lanes continue.",
		Series: map[string]string{
			seriesOf(condition.DeadLettersFull, "journal"):                     "1x60",
			`kubecdc_sink_dead_letters_total{job="k",instance="i",sink="bus"}`: "0x10 3x50",
			`kubecdc_sink_lanes_backing_off{job="k",instance="i",sink="bus"}`:  "1x60",
			`kubecdc_ready{job="k",instance="i"}`:                              "0x60",
		},
	},
	{
		Name: "KubecdcDestinationLostChanges", Expr: `increase(kubecdc_sink_losses_total[15m]) > 0`, Severity: Critical,
		Summary: "The destination of {{ $labels.sink }} has lost changes that it had acknowledged",
		Meaning: "A stream or topic was deleted, purged or restored while the exporter ran. The part that the journal still holds was sent again.",
		Look:    []string{"the log: \"the destination lost changes that it had accepted\", with the offsets; an error is logged if some are no longer in the journal", "the retention and the replication of the stream or topic"},
		Do:      []string{"find the cause of the deletion; consumers of that stream rebuild their state from a resync"},
		Series:  map[string]string{`kubecdc_sink_losses_total{job="k",instance="i",sink="bus"}`: "0x10 1x50"},
	},
	{
		Name: "KubecdcHistoryLost", Expr: `increase(kubecdc_resource_relists_total[15m]) > 0 unless ` + here + ` ` + recovered, Severity: Warning,
		Summary: "The API server had forgotten the history of {{ $labels.resource }}",
		Codes:   []condition.Code{condition.HistoryLost, condition.ResourceVanished},
		Meaning: "The exporter was away, blocked or disconnected for longer than the API server remembers, or a CustomResourceDefinition was changed. States in between are missing.",
		Series:  map[string]string{`kubecdc_resource_relists_total{job="k",instance="i",resource="pods"}`: "0x10 1x50"},
	},
	{
		Name: "KubecdcJournalRecovered", Expr: recovered, Severity: Warning,
		Summary: "{{ $labels.instance }} found its journal broken and started a new one",
		Codes:   []condition.Code{condition.JournalRecovered},
		Meaning: "Stored bytes were not what was written. All that could be read is carried over; a `gap` follows. The condition has the numbers. The next restart ends the alert.",
		Series:  map[string]string{seriesOf(condition.JournalRecovered, "journal"): "1x60"},
	},
	{
		Name: "KubecdcJournalFilling", Expr: `kubecdc_journal_retained_bytes / kubecdc_journal_max_bytes > 0.5 unless ` + here + ` ` + blocked,
		For: "10m", Severity: Warning,
		Summary: "The journal of {{ $labels.instance }} is {{ $value | humanizePercentage }} full",
		Meaning: "A sink is behind, or dead letters, known objects or last states take the space. When it is full, nothing is journaled.",
		Look: []string{"`kubecdc_sink_backlog_changes`: which sink is behind", "`kubecdc_journal_dead_letter_bytes`, `kubecdc_journal_known_bytes`, `kubecdc_journal_body_bytes`",
			"`exporter journal stat` on a copy of the volume"},
		Do:     []string{"bring the sink back or make it faster; discard dead letters that are not needed; raise `journal.maxBytes`"},
		Series: map[string]string{`kubecdc_journal_retained_bytes{job="k",instance="i"}`: "60x60"},
	},
	{
		Name: "KubecdcSinkLagging", Expr: `kubecdc_sink_lag_seconds > 60 unless ` + thisSink + ` (` + down + ` or ` + paused + ` or kubecdc_sink_lanes_backing_off > 0)`,
		For: "5m", Severity: Warning,
		Summary: "Sink {{ $labels.sink }} of {{ $labels.instance }} is {{ $value | humanizeDuration }} behind",
		Meaning: "The destination takes changes more slowly than the cluster makes them, or one call hangs. Nothing is lost meanwhile: changes wait in the journal.",
		Look: []string{"`kubecdc_sink_publish_seconds` and `kubecdc_sink_delivered_total`: slow answers, or many changes",
			"`kubecdc_resource_changes_total` by resource: what makes so many"},
		Do:     []string{"more partitions or lanes, a nearer broker; or select and shape less"},
		Series: map[string]string{`kubecdc_sink_lag_seconds{job="k",instance="i",sink="bus"}`: "120x60"},
	},
	{
		Name: "KubecdcSinkPaused", Expr: paused, For: "15m", Severity: Warning,
		Summary: "Sink {{ $labels.sink }} of {{ $labels.instance }} has been paused for 15 minutes",
		Codes:   []condition.Code{condition.SinkPaused},
		Meaning: "An operator has paused it: changes wait in the journal. A failover to another volume begins with a `gap`.",
		Series: map[string]string{
			`kubecdc_sink_paused{job="k",instance="i",sink="bus"}`:      "1x60",
			`kubecdc_sink_lag_seconds{job="k",instance="i",sink="bus"}`: "0+60x60",
			`kubecdc_state_lag_seconds{job="k",instance="i"}`:           "0+60x60",
		},
	},
	{
		Name: "KubecdcRulePaused", Expr: `kubecdc_rule_paused == 1`, For: "15m", Severity: Warning,
		Summary: "Rule {{ $labels.rule }} of {{ $labels.instance }} has been paused for 15 minutes",
		Codes:   []condition.Code{condition.RulePaused},
		Meaning: "An operator has paused it: nothing of its resources is read, and by now it goes on with a `gap`.",
		Series: map[string]string{
			`kubecdc_rule_paused{job="k",instance="i",rule="pods"}`:                                     "1x60",
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="live"}`:                 "0x60",
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="paused"}`:               "1x60",
			`kubecdc_sink_watermark_timestamp_seconds{job="k",instance="i",sink="bus",resource="pods"}`: "0x60",
		},
	},
	{
		Name: "KubecdcWatermarkStuck",
		Expr: `time() - kubecdc_sink_watermark_timestamp_seconds > 600 unless ` + thisSink + ` (` + down + ` or ` + paused + ` or kubecdc_sink_lanes_backing_off > 0 or kubecdc_sink_lag_seconds > 60)` +
			` unless on (job, instance, resource) (kubecdc_resource_state{state!="live"} == 1) unless ` + here + ` (` + blocked + ` or ` + apiAway + ` or ` + letters + `)`,
		For: "5m", Severity: Warning,
		Summary: "No new watermark of {{ $labels.resource }} in {{ $labels.sink }}",
		Meaning: "Consumers do not learn that they are complete: the newest watermark that every lane has is ten minutes old. Changes may arrive all the same.",
		Look: []string{"`kubecdc_resource_last_event_timestamp_seconds` of the resource: without bookmarks, as of some aggregated APIs, the position moves with changes only",
			"`kubecdc_sink_passed_total` and `kubecdc_sink_dead_letters_total` of the sink: is the record routed elsewhere, or rejected?", "the log, for the resource"},
		Do:     []string{"silence this alert for a resource without bookmarks"},
		Series: map[string]string{`kubecdc_sink_watermark_timestamp_seconds{job="k",instance="i",sink="bus",resource="pods"}`: "0x60"},
	},
	{
		Name: "KubecdcLanesFailing", Expr: `kubecdc_sink_lanes_backing_off > 0 unless ` + thisSink + ` (` + down + ` or ` + paused + ` or ` + held + `) unless ` + here + ` ` + letters,
		For: "5m", Severity: Warning,
		Summary: "{{ $value }} lanes of sink {{ $labels.sink }} fail while others work",
		Codes: []condition.Code{
			condition.SinkTargetMissing, condition.SinkUnauthorized, condition.SinkCertificate,
			condition.SinkRejectsAll, condition.SinkFailing,
		},
		Meaning: "Only these lanes wait; the journal keeps everything since then.",
		Series: map[string]string{
			`kubecdc_sink_lanes_backing_off{job="k",instance="i",sink="bus"}`: "2x60",
			`kubecdc_sink_lag_seconds{job="k",instance="i",sink="bus"}`:       "0+60x60",
		},
	},
	{
		Name: "KubecdcDeadLetters", Expr: `increase(kubecdc_sink_dead_letters_total[15m]) > 0 unless ` + thisSink + ` ` + down + ` unless ` + here + ` ` + letters,
		Severity: Warning,
		Summary:  "Sink {{ $labels.sink }} of {{ $labels.instance }} permanently rejected changes",
		Codes:    []condition.Code{condition.DeadLettersKept},
		Meaning:  "The destination can never accept them. They are kept in the journal with the reason; their lanes continue.",
		Series:   map[string]string{`kubecdc_sink_dead_letters_total{job="k",instance="i",sink="bus"}`: "0x10 3x50"},
	},
	{
		Name: "KubecdcDeadLettersHeld", Expr: `kubecdc_sink_dead_letters_held == 1`, For: "5m", Severity: Warning,
		Summary: "Dead letters of sink {{ $labels.sink }} cannot reach their topic",
		Codes:   []condition.Code{condition.DeadLettersHeld},
		Meaning: "The sink that `deadLetters` names cannot be reached. A permanently rejected change blocks its lane; " +
			"other lanes continue.",
		Series: map[string]string{`kubecdc_sink_dead_letters_held{job="k",instance="i",sink="bus"}`: "1x60"},
	},
	{
		Name: "KubecdcResourceNotWatched",
		Expr: unwatched + ` unless ` + here + ` ` + apiAway, For: "10m", Severity: Warning,
		Summary: "{{ $labels.resource }} has been {{ $labels.state }} for ten minutes",
		Codes:   []condition.Code{condition.ResourceSyncing, condition.ResourceSilent, condition.ResourceFailing},
		Meaning: "Its part of the API does not answer, or its first list takes very long.",
		Series: map[string]string{
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="unreachable"}`: "1x60",
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="live"}`:        "0x60",
			`kubecdc_ready{job="k",instance="i"}`:                                              "0x60",
		},
	},
	{
		Name: "KubecdcResourceForbidden", Expr: `kubecdc_resource_state{state="forbidden"} == 1`, For: "5m", Severity: Warning,
		Summary: "{{ $labels.resource }} may not be listed and watched",
		Codes:   []condition.Code{condition.ResourceForbidden},
		Meaning: "The account lacks the right, so this resource is left out of the stream. Nothing else suffers.",
		Series: map[string]string{
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="forbidden"}`: "1x60",
			`kubecdc_resource_state{job="k",instance="i",resource="pods",state="live"}`:      "0x60",
		},
	},
	{
		Name: "KubecdcResourceNotServed", Expr: `kubecdc_resource_state{state="waiting"} == 1 unless ` + here + ` ` + protected, For: "1h", Severity: Info,
		Summary: "Nothing serves {{ $labels.resource }}",
		Codes: []condition.Code{
			condition.ResourceNotServed, condition.ResourceNeverWatched, condition.ResourceUnwatchable, condition.WildcardUnmatched, condition.GroupUnanswered,
		},
		Meaning: "The configuration selects something that the API server does not serve, or that cannot be watched.",
		Series:  map[string]string{`kubecdc_resource_state{job="k",instance="i",resource="widgets.example.com",state="waiting"}`: "1x90"},
	},
	{
		Name: "KubecdcRedactionUnmatched", Expr: `kubecdc_condition{code=~"RedactionUnmatched|RedactionHeld"} > 0`, For: "5m", Severity: Warning,
		Summary: "A redaction path of {{ $labels.instance }} matches nothing",
		Codes:   []condition.Code{condition.RedactionUnmatched, condition.RedactionHeld},
		Meaning: "No type of the rule has the path, so it protects nothing. With `redaction.strict: true` the types of the rule wait; otherwise their values are emitted.",
		Series: map[string]string{
			seriesOf(condition.RedactionHeld, "resource"): "1x60",
			`kubecdc_ready{job="k",instance="i"}`:         "0x60",
		},
	},
	{
		Name: "KubecdcNamespaceMissing", Expr: `kubecdc_namespace_missing == 1`, For: "15m", Severity: Warning,
		Summary: "A rule names the namespace {{ $labels.name }}, which does not exist",
		Codes:   []condition.Code{condition.NamespaceMissing},
		Meaning: "Nothing can change in it, so nothing comes; it is watched from the moment it is created.",
		Series:  map[string]string{`kubecdc_namespace_missing{job="k",instance="i",name="shpo"}`: "1x60"},
	},
	{
		Name: "KubecdcNotReady",
		Expr: `kubecdc_ready == 0 unless ` + here + ` (` + blocked + ` or ` + letters + ` or ` + apiAway + ` or ` + down + ` or ` + unwatched + ` or ` + protected + `) unless on (job) (` + noneActive + `)`,
		For:  "10m", Severity: Warning,
		Summary: "{{ $labels.instance }} is not ready",
		Codes: []condition.Code{
			condition.NothingWatched, condition.JournalBroken,
			condition.ProgressUnstored, condition.IdentityShared,
		},
		Meaning: "None of the other alerts has the reason. `/readyz` does.",
		Series:  map[string]string{`kubecdc_ready{job="k",instance="i"}`: "0x60"},
	},
	{
		Name: "KubecdcStateLags", Expr: `kubecdc_state_lag_seconds > 300 unless ` + here + ` (` + down + ` or ` + paused + `)`, For: "5m", Severity: Warning,
		Summary: "The replicated state is {{ $value | humanizeDuration }} behind {{ $labels.instance }}",
		Codes:   []condition.Code{condition.StateUnreachable},
		Meaning: "A failover now would read that far back, which takes longer and repeats nothing.",
		Series:  map[string]string{`kubecdc_state_lag_seconds{job="k",instance="i"}`: "600x60"},
	},
	{
		Name: "KubecdcRepeatedFailovers", Expr: `sum by (job) (increase(kubecdc_takeovers_total[30m])) > 4`, Severity: Warning,
		Summary: "The exporters take over from each other repeatedly",
		Meaning: "Nothing is lost or repeated, but each failover is a pause of some seconds.",
		Look:    []string{"the logs of both: each has the reason why it stopped", "two deployments with one `state.name` or one Lease"},
		Do:      []string{"give each deployment a state and a Lease of its own; raise `election.duration` where the API server is slow"},
		Series:  map[string]string{`kubecdc_takeovers_total{job="k",instance="i"}`: "0x10 8x50"},
	},
	{
		Name: "KubecdcConfigRefused", Expr: faulty + `{code="ConfigRefused"}) > 0`, For: "1m", Severity: Warning,
		Summary: "The edited configuration of {{ $labels.instance }} is refused",
		Codes:   []condition.Code{condition.ConfigRefused},
		Meaning: "The file is wrong or cannot be applied while running. The earlier one stays active.",
		Series:  map[string]string{seriesOf(condition.ConfigRefused, "configuration"): "1x60"},
	},
	{
		Name: "KubecdcAuditEventsLost", Expr: `increase(kubecdc_audit_lost_total[15m]) > 0`, Severity: Warning,
		Summary: "{{ $labels.instance }} lost audit events",
		Meaning: "Some changes have no author: audit events were evicted, rejected, or lost before they were read. The changes themselves are complete.",
		Look:    []string{"`kubecdc_attribution_pending_bytes` against `audit.maxPending`", "the reason in `attribution.gap`, and how long the audit topic keeps records"},
		Do:      []string{"raise `audit.maxPending`, keep more of the log, or narrow the audit policy: `exporter audit-policy` prints the least"},
		Series:  map[string]string{`kubecdc_audit_lost_total{job="k",instance="i"}`: "0x10 1x50"},
	},
	{
		Name: "KubecdcAuditSilent", Expr: faulty + `{component=~"audit(/.*)?"}) > 0`, For: "10m", Severity: Warning,
		Summary: "Audit events do not reach {{ $labels.instance }}",
		Codes: []condition.Code{
			condition.AuditSilent, condition.AuditLagging,
			condition.AuditUnreadable, condition.AuditUnserved, condition.AuditCertificate,
		},
		Meaning: "Changes are emitted without an author. They are otherwise complete, and on time.",
		Series:  map[string]string{seriesOf(condition.AuditSilent, "audit"): "1x60"},
	},
	{
		Name: "KubecdcStampsUnproven", Expr: `kubecdc_condition{code=~"StampsUnproven|StampsUnchecked"} > 0`, For: "5m", Severity: Warning,
		Summary: "Stamps name no author at {{ $labels.instance }}",
		Codes:   []condition.Code{condition.StampsUnproven, condition.StampsUnchecked},
		Meaning: "The policy that stamps objects is absent, changed or unreadable, or does not select a resource. Changes are emitted without an author, unless the audit log has it.",
		Series:  map[string]string{seriesOf(condition.StampsUnproven, "stamps"): "1x60"},
	},
	{
		Name: "KubecdcClockSkew", Expr: `abs(kubecdc_clock_skew_seconds) > 30`, For: "10m", Severity: Warning,
		Summary: "The clock of {{ $labels.instance }} and that of the API server are {{ $value | humanizeDuration }} apart",
		Codes:   []condition.Code{condition.ClockSkew},
		Meaning: "Times in changes are wrong, Kafka may refuse their timestamps, and certificates and tokens may be refused.",
		Series:  map[string]string{`kubecdc_clock_skew_seconds{job="k",instance="i"}`: "-3600x60"},
	},
	{
		Name: "KubecdcChangesMissing", Expr: `increase(kubecdc_sink_missing_changes_total[15m]) > 0`, Severity: Critical,
		Summary: "Changes are missing at the destination of {{ $labels.sink }}",
		Codes:   []condition.Code{condition.SinkLost},
		Meaning: "The destination has lost changes, and the journal no longer had them.",
		Series:  map[string]string{`kubecdc_sink_missing_changes_total{job="k",instance="i",sink="bus"}`: "0x10 7x50"},
	},
	{
		Name: "KubecdcSinkMayLose", Expr: mayLose + ` > 0`, For: "10m", Severity: Info,
		Summary: "The destination of {{ $labels.sink }} may lose what it accepts",
		Codes:   []condition.Code{condition.SinkMayLose},
		Meaning: "It is set up so that changes that it has acknowledged may get lost or repeated.",
		Series:  map[string]string{seriesOf(condition.SinkMayLose, "sink/bus"): "1x60"},
	},
	{
		Name: "KubecdcChangesWithheld", Expr: `increase(kubecdc_rule_withheld_total[15m]) > 0`, Severity: Warning,
		Summary: "{{ $labels.rule }} could not redact or shape changes",
		Meaning: "They became dead letters without bodies, so that no secret gets out.",
		Look:    []string{"`exporter deadletters list`: the reason"},
		Do:      []string{"correct the rule's paths or expressions: `exporter explain` shows what they do"},
		Series:  map[string]string{`kubecdc_rule_withheld_total{job="k",instance="i",rule="resources[0]"}`: "0x10 1x50"},
	},
	{
		Name: "KubecdcFilterErrors",
		Expr: `increase(kubecdc_rule_filter_errors_total[15m]) > 0 or increase(kubecdc_route_filter_errors_total[15m]) > 0`, Severity: Warning,
		Summary: "The filter of {{ $labels.rule }}{{ $labels.route }} fails",
		Meaning: "An expression asks for what some objects lack. Their changes were emitted: too much, never too little.",
		Look:    []string{"the status page: the rule's last failure"},
		Do:      []string{"guard the expression with `has(…)`"},
		Series:  map[string]string{`kubecdc_route_filter_errors_total{job="k",instance="i",route="routes[0]"}`: "0x10 1x50"},
	},
	{
		Name: "KubecdcRestarting", Expr: `changes(process_start_time_seconds[30m]) > 2 and ` + here + ` kubecdc_build_info`, Severity: Warning,
		Summary: "{{ $labels.instance }} restarts repeatedly",
		Meaning: "Each start goes on from the stored positions; a few changes may arrive twice, with the same ID.",
		Look:    []string{"the last lines of `kubectl -n kubecdc logs exporter-0 --previous`", "`kubectl -n kubecdc describe pod exporter-0`: OOMKilled, a failed probe, an exit code"},
		Do:      []string{"raise the memory limit and `GOMEMLIMIT`, or follow the last log line"},
		Series:  map[string]string{`process_start_time_seconds{job="k",instance="i"}`: "0x3 100x3 200x3 300x50"},
	},
	{
		Name: "KubecdcDegraded", Expr: degraded, For: "1h", Severity: Info,
		Summary: "{{ $labels.component }} of {{ $labels.instance }} has been {{ $labels.code }} for an hour",
		Codes:   lasting,
		Meaning: "Something works less well than it should, and has not ended by itself. Nothing is lost meanwhile.",
		Series: map[string]string{
			seriesOf(condition.NamespaceUnknown, "namespace/web"): "1x90",
		},
	},
	{
		Name: "KubecdcClusterUnchecked", Expr: faulty + `{code="ClusterUnchecked"}) > 0`, For: "1h", Severity: Info,
		Summary: "{{ $labels.instance }} cannot check that the cluster is still the same",
		Codes:   []condition.Code{condition.ClusterUnchecked},
		Meaning: "The account may not read the namespace kube-system: its UID identifies the cluster.",
		Series:  map[string]string{seriesOf(condition.ClusterUnchecked, "cluster"): "1x90"},
	},
	{
		Name: "KubecdcDefect", Expr: `increase(kubecdc_sink_contract_breaches_total[1h]) > 0`, Severity: Warning,
		Summary: "Sink {{ $labels.sink }} broke its contract",
		Meaning: "A defect of the exporter. The changes were sent again.",
		Look:    []string{"the log: \"defect in the sink\""},
		Do:      []string{"report it, with the log"},
		Series:  map[string]string{`kubecdc_sink_contract_breaches_total{job="k",instance="i",sink="bus"}`: "0x10 1x80"},
	},
}

// Healthy is what an exporter shows without any fault, in promtool's notation.
var Healthy = map[string]string{
	`kubecdc_ready{job="k",instance="i"}`:                                                         "1x120",
	`kubecdc_active{job="k",instance="i"}`:                                                        "1x120",
	`kubecdc_state_lag_seconds{job="k",instance="i"}`:                                             "0x120",
	`kubecdc_takeovers_total{job="k",instance="i"}`:                                               "0x120",
	`kubecdc_build_info{job="k",instance="i",version="v1",goversion="go1.26"}`:                    "1x120",
	`process_start_time_seconds{job="k",instance="i"}`:                                            "100x120",
	`kubecdc_resource_state{job="k",instance="i",resource="pods",state="live"}`:                   "1x120",
	`kubecdc_resource_state{job="k",instance="i",resource="nodes",state="live"}`:                  "1x120",
	`kubecdc_resource_state{job="k",instance="i",resource="pods",state="unreachable"}`:            "0x120",
	`kubecdc_resource_state{job="k",instance="i",resource="pods",state="forbidden"}`:              "0x120",
	`kubecdc_resource_state{job="k",instance="i",resource="widgets.example.com",state="waiting"}`: "0x120",
	`kubecdc_resource_relists_total{job="k",instance="i",resource="pods"}`:                        "0x120",
	`kubecdc_journal_retained_bytes{job="k",instance="i"}`:                                        "10x120",
	`kubecdc_journal_max_bytes{job="k",instance="i"}`:                                             "100x120",
	`kubecdc_audit_lost_total{job="k",instance="i"}`:                                              "0x120",
	`kubecdc_clock_skew_seconds{job="k",instance="i"}`:                                            "0x120",
	`kubecdc_sink_ready{job="k",instance="i",sink="bus"}`:                                         "1x120",
	`kubecdc_sink_gate_closed{job="k",instance="i",sink="bus"}`:                                   "0x120",
	`kubecdc_sink_paused{job="k",instance="i",sink="bus"}`:                                        "0x120",
	`kubecdc_rule_paused{job="k",instance="i",rule="pods"}`:                                       "0x120",
	`kubecdc_sink_lag_seconds{job="k",instance="i",sink="bus"}`:                                   "0x120",
	`kubecdc_sink_watermark_timestamp_seconds{job="k",instance="i",sink="bus",resource="pods"}`:   "0+60x120",
	`kubecdc_sink_lanes_backing_off{job="k",instance="i",sink="bus"}`:                             "0x120",
	`kubecdc_sink_dead_letters_total{job="k",instance="i",sink="bus"}`:                            "7x120",
	`kubecdc_sink_dead_letters_held{job="k",instance="i",sink="bus"}`:                             "0x120",
	`kubecdc_sink_losses_total{job="k",instance="i",sink="bus"}`:                                  "0x120",
	`kubecdc_sink_contract_breaches_total{job="k",instance="i",sink="bus"}`:                       "0x120",
	`kubecdc_rule_withheld_total{job="k",instance="i",rule="resources[0]"}`:                       "0x120",
	`kubecdc_rule_filter_errors_total{job="k",instance="i",rule="resources[0]"}`:                  "0x120",
	`kubecdc_route_filter_errors_total{job="k",instance="i",route="routes[0]"}`:                   "0x120",
}
