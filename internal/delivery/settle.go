package delivery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

const (
	// settleTimeout bounds one write of the cursor, which is local, so that a stop cannot hang on it.
	settleTimeout = 10 * time.Second

	// cursorBytesPerSecond bounds how much is written for cursors, which are long if lanes are many.
	cursorBytesPerSecond = 2 << 20
)

// settler stores progress: the cursor, the dead letters that it passes (I2) and the state of the sink, in one write. Safe
// for concurrent use.
type settler struct {
	sinkName string
	log      *slog.Logger
	journal  Journal
	backlog  *backlog
	policy   *rejectionPolicy
	cfg      *Config
	stateful sinks.Stateful       // the sink if it is one; else nil
	observer sinks.SettleObserver // the sink if it is one; else nil

	requests  atomic.Uint64             // calls of storeProgress
	notBefore atomic.Pointer[time.Time] // when progress is stored regularly again: the longer the last cursor was, the later; nil: at once

	mu      sync.Mutex // held during a write: an older snapshot must not be stored after a newer one
	covered uint64     // guarded by mu: so many calls of storeProgress are covered by a write
}

// restoreState restores what was stored with the cursor the pipeline starts from: the answers of the destinations, and the
// state of a stateful sink. Under another routing fingerprint the sink could take one message for another, so newest is 0
// then.
func (s *settler) restoreState(stored []byte) {
	fingerprint, answers, state, ok := splitState(stored)
	isKnown := ok && fingerprint == s.cfg.RoutingFingerprint
	if isKnown {
		s.policy.decode(answers)
	}
	if s.stateful == nil {
		return
	}
	newest := s.cfg.NewestOffset
	if len(state) == 0 {
		state = nil
	}
	if !isKnown && stored != nil {
		newest = 0
		s.log.Info("sink routing changed, by configuration or upgrade: records in flight when the last run ended are sent again")
	}
	if err := s.stateful.RestoreState(state, newest, s.storeProgress); err != nil {
		s.log.Warn("the stored state of the sink cannot be read: records in flight when the last run ended are sent again",
			"error", err)
	}
}

// encodeState returns what is stored as Cursor.State: the length of a header as a varint, the header, and the state of a
// stateful sink. The header is the routing fingerprint and, if there are any, a zero byte and the answers of destinations.
func (s *settler) encodeState(low uint64) []byte {
	header := []byte(s.cfg.RoutingFingerprint)
	answers := s.policy.encode(time.Now())
	if answers != nil {
		header = append(append(header, 0), answers...)
	}
	if s.stateful == nil && answers == nil {
		return nil
	}
	b := append(binary.AppendUvarint(nil, uint64(len(header))), header...)
	if s.stateful != nil {
		b = append(b, s.stateful.State(low)...)
	}
	return b
}

func splitState(b []byte) (fingerprint string, answers, state []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, nil, false
	}
	b = b[size:]
	header, answers, _ := bytes.Cut(b[:n], []byte{0})
	return string(header), answers, b[n:], true
}

func (s *settler) storeIfAdvanced(ctx context.Context) error {
	if !s.backlog.hasAdvanced() {
		return nil
	}
	return s.storeProgress(ctx)
}

// storeProgress stores progress as it is at the call or later. Concurrent calls that wait for the same write share it.
func (s *settler) storeProgress(ctx context.Context) error {
	request := s.requests.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.covered >= request {
		return nil
	}
	covered := s.requests.Load()
	if err := s.writeSnapshot(ctx); err != nil {
		return err
	}
	s.covered = covered
	return nil
}

// writeSnapshot requires mu.
func (s *settler) writeSnapshot(ctx context.Context) error {
	cursor, letters := s.backlog.takeSnapshot()
	// After the snapshot: the state may cover more than the cursor, but never less.
	cursor.State = s.encodeState(cursor.Low)
	// A stop does not cancel the write: the milliseconds that it takes save repetitions.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err := s.journal.Settle(ctx, cursor, letters); err != nil {
		s.backlog.recordNotStored()
		operation := fmt.Sprintf("store the cursor at offset %d and %d dead letters", cursor.Low, len(letters))
		return journalError(s.sinkName, operation, err)
	}
	s.backlog.recordStored(cursor, len(letters))
	if s.observer != nil {
		s.observer.ObserveSettled(cursor.Low)
	}
	size := len(cursor.State) // about as many bytes as the stored cursor takes
	for name := range cursor.Lanes {
		size += len(name) + binary.MaxVarintLen32
	}
	notBefore := time.Now().Add(time.Duration(size) * time.Second / cursorBytesPerSecond)
	s.notBefore.Store(&notBefore)
	return nil
}

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
