package delivery

import (
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
)

// Stats describes a pipeline at one moment, for metrics and readiness. Counters count since New.
type Stats struct {
	Delivered          uint64 // changes acknowledged
	DeliveredBytes     uint64 // their event.Change.Size
	Truncated          uint64 // changes acknowledged in a smaller form, because the whole one was too large
	NotRouted          uint64 // changes that Config.Route does not send to this sink
	AlreadySettled     uint64 // changes read again after a restart that their lane had settled before
	Retries            uint64 // Publish and Lane calls that failed and are tried again
	DeadLetters        uint64 // changes rejected for ever
	ContractViolations uint64 // answers of the sink that break its contract; more than zero is a defect

	Read            uint64    // last offset read from the journal and queued; the journal's end minus this is unread
	Low             uint64    // Cursor.Low as stored: the journal may be trimmed up to here
	Pending         int       // changes read and not acknowledged
	WindowBytes     int64     // bytes of the window in use, dead letters not yet stored included
	WindowLimit     int64     // Config.WindowBytes
	Lanes           int       // lanes in memory
	LanesFailing    int       // of these: lanes that failed and wait for their next try
	LanesLagging    int       // of these: lanes with changes that are to be read from the journal again
	LanesDelivering int       // of these: lanes that accepted something last; at least 1 while idle lanes are believed to do so
	LastAck         time.Time // zero before the first
	// OldestObserved is when the oldest change that was read and is not delivered was observed; now minus this is the
	// lag. Zero when there is none.
	OldestObserved time.Time

	Condition    condition.Status // how the sink is doing
	FailingLanes []FailingLane    // lanes that fail, those first that have failed for longest; some of them where they are many
	Gate         ratelimit.GateStatus
}

// Stats returns the present state. It may be called at any time, also before and after Run, and costs a look at every
// lane with something to do.
func (p *Pipeline) Stats() Stats {
	s := Stats{Retries: p.retries.Load(), ContractViolations: p.violations.Load(), Gate: p.gate.Status()}
	p.backlog.fillStats(&s)
	s.OldestObserved = p.backlog.oldestObserved()
	p.health.fillStats(&s)
	return s
}
