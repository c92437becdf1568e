package delivery

import (
	"cmp"
	"slices"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// Stats is the state of a pipeline at one moment, for metrics and readiness. Counters count since New. Tags name metrics,
// see internal/admin.
type Stats struct {
	Delivered          uint64 `metric:"kubecdc_sink_delivered_total" help:"Changes the destination acknowledged."`
	DeliveredBytes     uint64 `metric:"kubecdc_sink_delivered_bytes_total" help:"Bytes of the changes the destination acknowledged, as estimated in memory."`
	Truncated          uint64 `metric:"kubecdc_sink_reduced_total" help:"Changes the destination acknowledged in a smaller form, because the whole one was too large."`
	NotRouted          uint64 `metric:"kubecdc_sink_passed_total" help:"Changes that routes do not send to this sink."`
	AlreadySettled     uint64 `metric:"kubecdc_sink_skipped_total" help:"Changes read again after a restart and known to be delivered."`
	Retries            uint64 `metric:"kubecdc_sink_retries_total" help:"Attempts that failed and are made again."`
	DeadLetters        uint64 `metric:"kubecdc_sink_dead_letters_total" help:"Changes the destination rejected for ever; they are kept in the journal."`
	ContractViolations uint64 `metric:"kubecdc_sink_contract_breaches_total" help:"Answers of the sink that break its contract. More than 0 is a defect."`

	Read         uint64    // last offset read from the journal; the journal's end minus this is unread
	Low          uint64    // Cursor.Low as stored: the journal may be trimmed up to here
	Pending      int       // changes read and not acknowledged, without those that lagging lanes lack
	WindowBytes  int64     `metric:"kubecdc_sink_window_bytes" help:"Memory of the changes on their way."`
	WindowLimit  int64     `metric:"kubecdc_sink_window_limit_bytes" help:"Bound of kubecdc_sink_window_bytes."`
	Lanes        int       `metric:"kubecdc_sink_lanes" help:"Ordered channels of the destination that are in memory."`
	LanesFailing int       `metric:"kubecdc_sink_lanes_backing_off" help:"Lanes that failed and wait for their next attempt."`
	LanesLagging int       `metric:"kubecdc_sink_lanes_behind" help:"Lanes with changes that are to be read from the journal again, because they failed or were slow."`
	LastAck      time.Time `metric:"kubecdc_sink_last_ack_timestamp_seconds" help:"When the destination last acknowledged a change; 0 if never."`

	Lag time.Duration `metric:"kubecdc_sink_lag_seconds" help:"Age of the oldest change that is read from the journal and not delivered; 0 when there is none."`

	Condition    condition.Status   // of the whole sink
	FailingLanes []condition.Status // one for each code, those that fail for longest first
	ListedLanes  []LaneStatus       // failing, then lagging ones, then those that wait for longest; 50 at most
	GateClosed   bool               `metric:"kubecdc_sink_gate_closed" help:"1 while the whole destination is taken to be away."`
}

// maxListedLanes bounds Stats.ListedLanes.
const maxListedLanes = 50

// LaneStatus is one lane of a sink.
type LaneStatus struct {
	Name    string
	Failing bool
	Lagging bool      // it has changes that are to be read from the journal again
	Queued  int       // changes in memory that are not settled
	Oldest  time.Time // when the oldest change that is not settled was observed; zero if there is none, or that is not known
}

// listLane enters a lane into ListedLanes, unless those that are there come first.
func (s *Stats) listLane(l LaneStatus) {
	i, _ := slices.BinarySearchFunc(s.ListedLanes, l, compareLanes)
	if i < maxListedLanes {
		s.ListedLanes = slices.Insert(s.ListedLanes, i, l)
		s.ListedLanes = s.ListedLanes[:min(len(s.ListedLanes), maxListedLanes)]
	}
}

// laneStates are the states of a lane for operators, in the order in which [Stats] lists them.
var laneStates = []string{"failing", "catching up", "delivering", "up to date"}

// rank returns the index of the state in laneStates.
func (l LaneStatus) rank() int {
	switch {
	case l.Failing:
		return 0
	case l.Lagging:
		return 1
	case l.Queued > 0:
		return 2
	}
	return 3
}

// State returns the state in words.
func (l LaneStatus) State() string { return laneStates[l.rank()] }

func compareLanes(a, b LaneStatus) int {
	return cmp.Or(cmp.Compare(a.rank(), b.rank()), a.Oldest.Compare(b.Oldest), cmp.Compare(a.Name, b.Name))
}
