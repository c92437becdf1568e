package admin

import (
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// Snapshot is the state of the exporter at one moment: what its parts report of themselves. Counters count since the process
// started. A field with the tag "metric" is a metric of that name, with the tag "help" as its text. The tag "label" makes a
// name the label of all metrics of its struct, "by" names the label of the keys of a map.
type Snapshot struct {
	Conditions []condition.Status // of everything, whether something is wrong with it or not
	Config     ConfigStatus
	Cluster    ClusterStatus
	Resources  []source.Status
	Rules      []RuleStatus
	Routes     []RouteStatus
	Sinks      []SinkStatus
	Journal    journal.Stat
	Audit      *AuditStatus   // nil without attribution
	Replica    *ReplicaStatus // nil without a replicated state
}

// ConfigStatus is what is known of the configuration.
type ConfigStatus struct {
	Hash     string // of the active file, as config.Config has it
	Reloads  uint64 // changed configurations that were taken up
	Refusals uint64 // and that were refused
}

// ClusterStatus is what is known of the cluster that is watched.
type ClusterStatus struct {
	Name string // that every change carries; "" until it is known
	UID  string // of its namespace kube-system; "" if it is not known

	ClockSkew time.Duration `metric:"kubecdc_clock_skew_seconds" help:"How far this machine's clock is ahead of the API server's, to a second; negative where it is behind."`
}

// RuleStatus is what one rule did with the changes of its resources.
type RuleStatus struct {
	Name string `label:"rule"` // its place in the configuration: "resources[0]"
	shape.Stats
}

// RouteStatus is what one route decided. Every sink decides for itself, so a change counts once for each.
type RouteStatus struct {
	Name string `label:"route"` // its place in the configuration: "routes[0]"
	shape.RouteStats
}

// SinkStatus is what is known of one destination.
type SinkStatus struct {
	Name    string `label:"sink"` // as configured; unique
	Kind    string // "kafka", "nats", "stdout"
	Losses  uint64 `metric:"kubecdc_sink_losses_total" help:"Times the destination had lost changes it had accepted, and was sent them again from the journal."`
	Omitted uint64 `metric:"kubecdc_sink_omitted_total" help:"Control records, such as gaps, that the destination has no place for: a bucket keeps the state of objects only."`
	delivery.Stats

	// Set by Snapshot.AddSink.
	Ready    bool   `metric:"kubecdc_sink_ready" help:"1 while changes get through; 0 while none does, /readyz has the reason."`
	Held     bool   `metric:"kubecdc_sink_dead_letters_held" help:"1 while dead letters cannot reach the topic that is configured for them; the status page has the reason."`
	Cautions int    `metric:"kubecdc_sink_cautions" help:"How many things about the destination may lose changes that it accepts; /readyz and the log name them."`
	Paused   bool   `metric:"kubecdc_sink_paused" help:"1 while a signal has paused the sink: nothing is delivered to it."`
	Backlog  uint64 `metric:"kubecdc_sink_backlog_changes" help:"Changes in the journal that this sink has not settled."`

	// Watermarks is when the newest watermark was made that every lane has, by the name of the resource; nil without
	// watermarks.
	Watermarks map[string]time.Time
}

// AuditStatus is the state of attribution.
type AuditStatus struct {
	attribution.Stats
	Refused   uint64 `metric:"kubecdc_audit_refused_total" help:"Connections and requests of clients that audit.webhook does not name, or without a certificate of its authorities."`
	Malformed uint64 `metric:"kubecdc_audit_malformed_total" help:"Bodies and lines that were no audit events."`
}

// The roles of an exporter with a replicated state.
const (
	RoleStandby    = "standby"     // another exporter is active, or none is; this one follows the state
	RoleTakingOver = "taking over" // it is the turn of this one, and it learns what was delivered
	RoleActive     = "active"      // this exporter delivers
)

// ReplicaStatus is the state of the replicated state and of the election.
type ReplicaStatus struct {
	Identity string    // of this process
	Role     string    // one of the roles
	Since    time.Time // of the role
	Holder   string    // the active exporter, as far as it is known; "" for none
	Unproven bool      // this process has not renewed the Lease for as long as that lasts, so another one may have it

	TakeOvers uint64        `metric:"kubecdc_takeovers_total" help:"Times this process took over, its own start included."`
	TookOver  time.Duration `metric:"kubecdc_takeover_seconds" help:"How long the last take-over took, from the turn of this process until changes could flow; 0 before the first."`
	Fenced    uint64        `metric:"kubecdc_fenced_total" help:"Times another process took over from this one while it worked."`
	StateLag  time.Duration `metric:"kubecdc_state_lag_seconds" help:"For how long changes have been delivered that the replicated state does not cover yet: so far a take-over looks back."`
	Known     int           `metric:"kubecdc_state_known_objects" help:"Objects in the replicated state."`
}

// AddSink adds the status of a sink, with what follows from its conditions and from the journal.
func (s *Snapshot) AddSink(k SinkStatus, conditions []condition.Status) {
	k.Ready = worstOf(conditions).Severity != condition.NotReady
	k.Held, k.Cautions = countCodes(conditions, condition.DeadLettersHeld) > 0, countCodes(conditions, condition.SinkMayLose)
	k.Backlog = s.Journal.Newest - min(s.Journal.Newest, k.Low)
	s.Sinks, s.Conditions = append(s.Sinks, k), append(s.Conditions, conditions...)
}

// conditionsOf returns the conditions of a component, such as "sink/main", and of its parts.
func (s Snapshot) conditionsOf(component string) (all []condition.Status) {
	for _, c := range s.Conditions {
		if c.Concerns(component) {
			all = append(all, c)
		}
	}
	return all
}
