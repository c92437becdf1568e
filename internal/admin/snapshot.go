package admin

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Snapshot is the state of the exporter at one moment. Counters count since the process started.
type Snapshot struct {
	Conditions []condition.Status // of everything but resources and sinks
	Config     ConfigStatus
	Cluster    ClusterStatus
	Resources  []ResourceStatus
	Rules      []RuleStatus
	Routes     []RouteStatus
	Sinks      []SinkStatus
	Journal    JournalStatus
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

	ClockSkew time.Duration // how far this machine's clock is ahead of the API server's, to a second; negative where it is behind
}

// ResourceStates are the words for what a resource can be in. Metrics have a series for each.
var ResourceStates = []string{"syncing", "live", "stale", "forbidden", "unreachable", "waiting", "gone"}

// ResourceStatus is what is known of one watched resource with its selector.
type ResourceStatus struct {
	Name      string           // unique; "deployments.apps", and the selector where there is one
	State     string           // one of ResourceStates
	Condition condition.Status // why the state is not live

	Position  string    // resourceVersion from which a new process would watch on
	Known     int       // objects known to exist
	LastEvent time.Time // of the last watch event or bookmark; zero if there was none

	Changes      map[string]uint64 // made, by type
	Events       uint64            // watch events read, bookmarks included
	Restarts     uint64            // watch connections opened after the first
	Relists      uint64            // times history was lost
	Lists        uint64            // LIST requests, each page one
	DecodeErrors uint64            // answers that could not be read
}

// RuleStatus is what one rule did with the changes of its resources.
type RuleStatus struct {
	Name      string // its place in the configuration: "resources[0]"
	Filtered  uint64 // changes its filter did not take
	Unchanged uint64 // updates that touched nothing it asks for
	Withheld  uint64 // changes that could not be shaped; they become dead letters without bodies
	Failed    uint64 // evaluations of its filter that failed; their changes were emitted
	Failure   string // why the last one failed; "" for none
}

// RouteStatus is what one route decided. Every sink decides for itself, so a change counts once for each.
type RouteStatus struct {
	Name    string            // its place in the configuration: "routes[0]"
	Sent    map[string]uint64 // changes it sends to a sink, by the sink's name
	Dropped map[string]uint64 // changes it keeps from a sink, by the sink's name
	Failed  uint64            // evaluations of its filter that failed; their changes went to the sink's own topic
	Failure string            // why the last one failed; "" for none
}

// SinkStatus is what is known of one destination.
type SinkStatus struct {
	Name       string             // as configured; unique
	Kind       string             // "kafka", "nats", "stdout"
	Conditions []condition.Status // of the sink, and of the lanes that fail alone

	Delivered       uint64 // changes acknowledged
	DeliveredBytes  uint64
	Reduced         uint64 // changes acknowledged in a smaller form, because the whole one was too large
	Passed          uint64 // changes that routes do not send here
	Skipped         uint64 // changes read again after a restart and known to be delivered
	Retries         uint64 // attempts that failed and are made again
	DeadLetters     uint64 // changes the destination rejected for ever
	DeadLettersKept int64  // dead letters in the journal, of earlier runs too
	Losses          uint64 // times the destination had lost what it had accepted, and was sent it again
	Omitted         uint64 // control records that the destination has no place for
	Breaches        uint64 // answers that break the sink contract: a defect

	Low             uint64 // every change up to this offset is settled, and stored as such
	WindowBytes     int64  // memory of the changes on their way
	WindowLimit     int64
	Lanes           int // in memory
	LanesBackingOff int
	LanesBehind     int                // lanes with changes that are to be read from the journal again
	FailingLanes    []condition.Status // lanes that fail, those first that have failed for longest; some of them where they are many
	GateClosed      bool               // the whole destination is taken to be away
	LastAck         time.Time          // zero before the first
	OldestObserved  time.Time          // when the oldest change that is read and not delivered was observed; zero if there is none
}

// JournalStatus is what is known of the journal.
type JournalStatus struct {
	Oldest, Newest uint64 // offsets of the changes it holds

	RetainedBytes   int64 // changes and all of the following; bounded by MaxBytes
	KnownBytes      int64 // known objects
	BodyBytes       int64 // last states of objects
	DeadLetterBytes int64
	MaxBytes        int64

	DiskBytes    int64  // of the directory
	PendingBytes int64  // in memory, not committed yet
	Commits      uint64 // groups committed
}

// AuditStatus is the state of attribution.
type AuditStatus struct {
	Events       uint64            // audit events taken
	Kept         uint64            // of these, that may name an author
	Refused      uint64            // requests and connections of strangers
	Late         uint64            // of these, events that arrived later than audit.settle
	Lag          time.Duration     // by which audit events are late
	Malformed    uint64            // bodies and lines that were no audit events
	Lost         uint64            // times that events were lost, and events that had to make room
	Attributed   uint64            // changes with an author
	Stamped      uint64            // of these, changes whose author a stamp proves
	Likely       uint64            // changes with a likely author
	Unresolved   map[string]uint64 // changes without an author, by reason
	Pending      int64             // changes that wait
	PendingBytes int64             // of changes and events that wait, in memory
	LastEvent    time.Time         // zero before the first
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
	// Unproven: this process has not renewed the Lease for as long as that lasts, so another one may have it.
	Unproven bool

	TakeOvers uint64        // times this process took over
	TookOver  time.Duration // how long the last one took, until changes could flow; 0 before the first
	Fenced    uint64        // times another process took over from this one
	StateLag  time.Duration // age of the oldest change that is delivered and not in the state; 0 when there is none
	Known     int           // objects in the state
}

// undeliveredOf counts the changes that s has not settled.
func (j JournalStatus) undeliveredOf(s SinkStatus) uint64 {
	if s.Low >= j.Newest {
		return 0
	}
	return j.Newest - s.Low
}

// lagAt is the age of the oldest change on its way to s, 0 when there is none.
func (s SinkStatus) lagAt(now time.Time) time.Duration {
	if s.OldestObserved.IsZero() {
		return 0
	}
	return max(now.Sub(s.OldestObserved), 0)
}
