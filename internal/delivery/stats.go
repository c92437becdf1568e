package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// Stats is the state of a pipeline at one moment, for metrics and readiness. Counters count since New.
type Stats struct {
	Delivered          uint64 // changes acknowledged
	DeliveredBytes     uint64 // their event.Change.Size
	Truncated          uint64 // changes acknowledged without parts of them, because the complete ones were too large
	NotRouted          uint64 // changes that Config.Route does not send to this sink
	AlreadySettled     uint64 // changes read again after a restart that their lane had settled before
	Retries            uint64 // failed Publish calls, each of which is tried again
	DeadLetters        uint64 // changes permanently rejected
	ContractViolations uint64 // answers of the sink that violate its contract; more than zero is a defect

	Read            uint64    // last offset read from the journal; the journal's end minus this is unread
	Low             uint64    // Cursor.Low as stored: the journal may be trimmed up to here
	Pending         int       // changes read and not acknowledged, without those that lagging lanes lack
	WindowBytes     int64     // bytes of the window in use, dead letters that are not stored yet included
	WindowLimit     int64     // Config.WindowBytes
	Lanes           int       // lanes in memory
	LanesFailing    int       // of these: lanes with a failed last Publish
	LanesLagging    int       // of these: lanes with changes that have to be read from the journal again
	LanesDelivering int       // of these: lanes with an accepted last Publish; at least 1 while lanes removed as idle count
	LastAck         time.Time // zero before the first

	// OldestObserved is when the oldest change that was read and is not delivered was observed; now minus this is the lag.
	// Zero if there is none.
	OldestObserved time.Time

	Condition    condition.Status   // of the whole sink
	FailingLanes []condition.Status // those that fail for longest first; 100 at most
	Gate         ratelimit.GateStatus
}
