package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

const (
	sampleEvery = 2 * time.Second
	samplesKept = 60 // two minutes
	samplesRate = 5  // a rate is that of the last ten seconds
)

// frame is what all viewers see at one moment. It does not change.
type frame struct {
	at time.Time
	Snapshot
	stages   map[string]Stage // by what is counted, see counterValues
	rendered sync.Map         // rendered HTML by pageKey, shared by all viewers
}

// meanRate is the mean of the newest points.
func meanRate(points []float64) float64 {
	newest, sum := points[max(0, len(points)-samplesRate):], 0.0
	for _, p := range newest {
		sum += p
	}
	return sum / float64(max(1, len(newest)))
}

// The names of counters.
const (
	countEvents    = "events"
	countChanges   = "changes"
	countJournaled = "journal"
	countResource  = "resource/"
	countSink      = "sink/"
)

// counterValues are what a snapshot counts.
func (s Snapshot) counterValues() map[string]uint64 {
	all := map[string]uint64{countJournaled: s.Journal.Newest, countEvents: 0, countChanges: 0}
	for _, r := range s.Resources {
		made := uint64(0)
		for kind, of := range r.Changes {
			if kind != event.Snapshot { // that something exists is no change
				made += of
			}
		}
		all[countResource+r.Scope] = made
		all[countChanges] += made
		all[countEvents] += r.Events
	}
	for _, k := range s.Sinks {
		all[countSink+k.Name] = k.Delivered
	}
	return all
}

// nextFrame is the frame of a snapshot that was taken after f, which may be nil.
func (f *frame) nextFrame(s Snapshot, now time.Time) *frame {
	next := &frame{at: now, Snapshot: s, stages: map[string]Stage{}}
	for name, count := range s.counterValues() {
		grown := Stage{count: count}
		if f != nil {
			if old, known := f.stages[name]; known && now.After(f.at) {
				first := max(0, len(old.Points)+1-samplesKept)
				grown.Points = append(grown.Points, old.Points[min(first, len(old.Points)):]...)
				grown.Points = append(grown.Points, float64(count-min(count, old.count))/now.Sub(f.at).Seconds())
				grown.Rate = meanRate(grown.Points)
			}
		}
		next.stages[name] = grown
	}
	return next
}

// currentFrame returns the newest frame. It takes a new one if that is too old, because the sampler does not run.
func (s *Server) currentFrame() *frame {
	if f := s.latest.Load(); f != nil && time.Since(f.at) < 2*sampleEvery {
		return f
	}
	return s.sampleFrame()
}

func (s *Server) sampleFrame() *frame {
	next := s.latest.Load().nextFrame(s.options.Snapshot(), time.Now())
	s.latest.Store(next)
	return next
}

// sampleRegularly takes a frame regularly until ctx ends.
func (s *Server) sampleRegularly(ctx context.Context) {
	t := time.NewTicker(sampleEvery)
	defer t.Stop()
	for {
		s.sampleFrame()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// The size of a sparkline, in units of its own.
const sparkWidth, sparkHeight = 120.0, 24.0

// sparkline is how a rate went, as it is drawn and described.
type sparkline struct {
	Points       string  // of the line, which ends at the right
	PeakX, PeakY float64 // where the peak is
	Newest, Peak float64 // rates
	Top          float64 // the rate at the upper edge; the lower edge is 0
	Span         string  // how far the line goes back
}

// newSparkline draws the rates of a stage, the newest last; nil if all are 0, because a flat line shows nothing. The scale
// is a round number, so that lines can be compared, and keep their form while the peak varies.
func newSparkline(rates []float64) *sparkline {
	peak := slices.Max(append([]float64{0}, rates...))
	if peak == 0 {
		return nil
	}
	s := &sparkline{
		Newest: rates[len(rates)-1], Peak: peak, Top: roundUp(peak),
		Span: strings.NewReplacer("m0s", " min", "s", " s").Replace((time.Duration(len(rates)) * sampleEvery).String()),
	}
	var points []string
	for i, rate := range rates {
		x, y := sparkWidth-float64(len(rates)-1-i)*sparkWidth/(samplesKept-1), sparkHeight-1-rate/s.Top*(sparkHeight-2)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		if rate == peak {
			s.PeakX, s.PeakY = x, y
		}
	}
	s.Points = strings.Join(points, " ")
	return s
}

// roundUp returns the next of 1, 2, 5, 10, 20, 50 and so on.
func roundUp(rate float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(rate)))
	for _, step := range []float64{1, 2, 5} {
		if rate <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}

// Snapshot is the state of the exporter at one moment: what its parts report of themselves. Counters count since the process
// started. A field with the tag "metric" is a metric of that name, with the tag "help" as its text. The tag "label" makes a
// name the label of all metrics of its struct, "by" names the label of the keys of a map.
type Snapshot struct {
	Conditions []condition.Status // of everything, whether something is wrong with it or not
	Config     ConfigStatus
	Cluster    ClusterStatus
	Resources  []source.Status
	Rules      []shape.Stats
	Routes     []shape.RouteStats
	Sinks      []SinkStatus
	Journal    journal.Stat
	Audit      *AuditStatus   // nil without attribution
	Replica    *ReplicaStatus // nil without a replicated state
}

// ConfigStatus is what is known of the configuration.
type ConfigStatus struct {
	Hash string // of the active file, as config.Config has it

	Reloads map[string]uint64 `metric:"kubecdc_config_reloads_total" by:"result" help:"Changed configurations, by what became of them: taken or refused."`
}

// ClusterStatus is what is known of the cluster that is watched.
type ClusterStatus struct {
	Name string // that every change carries; "" until it is known
	UID  string // of its namespace kube-system; "" if it is not known

	ClockSkew time.Duration `metric:"kubecdc_clock_skew_seconds" help:"How far this machine's clock is ahead of the API server's, to a second; negative where it is behind."`
}

// SinkStatus is what is known of one destination.
type SinkStatus struct {
	Name    string `label:"sink"` // as configured; unique
	Kind    string // "kafka", "nats", "webhook", "stdout" or "history"
	Missing uint64 `metric:"kubecdc_sink_missing_changes_total" help:"Changes, at most, that the destination had lost after it accepted them, and that the journal no longer had."`
	Losses  uint64 `metric:"kubecdc_sink_losses_total" help:"Times the destination had lost changes it had accepted, and was sent them again from the journal."`
	Omitted uint64 `metric:"kubecdc_sink_omitted_total" help:"Control records, such as gaps, that the destination has no place for: a bucket keeps the state of objects only."`
	delivery.Stats

	// Set by Snapshot.AddSink.
	Ready   bool   `metric:"kubecdc_sink_ready" help:"1 while changes get through; 0 while none does, /readyz has the reason."`
	Held    bool   `metric:"kubecdc_sink_dead_letters_held" help:"1 while dead letters cannot reach the topic that is configured for them; the status page has the reason."`
	Paused  bool   `metric:"kubecdc_sink_paused" help:"1 while a signal has paused the sink: nothing is delivered to it."`
	Backlog uint64 `metric:"kubecdc_sink_backlog_changes" help:"Changes in the journal that this sink has not settled."`

	Watermarks map[string]time.Time `metric:"kubecdc_sink_watermark_timestamp_seconds" by:"resource" help:"When the newest watermark of a resource was made that every lane of the sink has; time() minus this is its age. Before the first, when the configuration became active. No series without watermarks."`
}

// AuditStatus is the state of attribution.
type AuditStatus struct {
	attribution.Stats
	Held      int    `metric:"kubecdc_attribution_held_records" help:"Records that awaitAuthor holds back."`
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

// describeRole returns the role of this process and, for a standby, the active exporter.
func (r *ReplicaStatus) describeRole() string {
	if r.Role != RoleStandby {
		return r.Role
	}
	return r.Role + ", " + cmp.Or(r.Holder, "no exporter") + " is active"
}

// isActive reports whether this process delivers; a standby does not.
func (s Snapshot) isActive() bool { return s.Replica == nil || s.Replica.Role == RoleActive }

// isReady reports whether nothing makes the exporter not ready.
func (s Snapshot) isReady() bool { return worstOf(s.Conditions).Severity != condition.NotReady }

// worstOf returns the first status with the highest severity; one that is OK if there is none.
func worstOf(all []condition.Status) condition.Status {
	return slices.MaxFunc(append(all[:len(all):len(all)], condition.Status{}), func(a, b condition.Status) int { return cmp.Compare(a.Severity, b.Severity) })
}

// AddSink adds the status of a sink, with what follows from its conditions and from the journal.
func (s *Snapshot) AddSink(k SinkStatus, conditions []condition.Status) {
	k.Ready = worstOf(conditions).Severity != condition.NotReady
	k.Held = slices.ContainsFunc(conditions, func(c condition.Status) bool { return c.Code == condition.DeadLettersHeld })
	k.Backlog = s.Journal.Newest - min(s.Journal.Newest, k.Low)
	s.Sinks, s.Conditions = append(s.Sinks, k), append(s.Conditions, conditions...)
}

// conditionsOf returns the conditions of a component, such as "sink/main", and of its parts.
func (s Snapshot) conditionsOf(component string) []condition.Status {
	return slices.DeleteFunc(slices.Clone(s.Conditions), func(c condition.Status) bool {
		return c.Component != component && !strings.HasPrefix(c.Component, component+"/")
	})
}
