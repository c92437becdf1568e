package nats

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats/stream"
)

const (
	// singleLane is the lane of all objects, unless the layout is split.
	singleLane sinks.Lane = "stream"
	// maxConcurrentLanes is the number of lanes that are published at once, and that share maxInFlightBytes, in a split layout.
	maxConcurrentLanes = 16
)

// layoutState is how objects are spread over lanes.
type layoutState = int32

const (
	// layoutSingle: all objects are in the single lane and are sent in the order of the journal.
	layoutSingle layoutState = iota
	// layoutSplitPending: as layoutSingle, but the server has refused a subject, and the single lane is to be replaced.
	layoutSplitPending
	// layoutSplit: objects hash to many lanes, so that a refused subject blocks only the objects in its lane.
	layoutSplit
)

// laneLayout assigns objects to lanes. All subjects share them. It is safe for concurrent use.
type laneLayout struct {
	count int          // of lanes in a split layout
	state atomic.Int32 // a layoutState
}

// Concurrency implements [sinks.Concurrent]. It matters only in a split layout.
func (*laneLayout) Concurrency() int { return maxConcurrentLanes }

// Lane implements [sinks.Sink]. It never fails.
func (n *laneLayout) Lane(c *event.Change) (sinks.Lane, error) { return n.LaneTo(c, nil) }

// LaneTo implements [sinks.Router].
func (n *laneLayout) LaneTo(c *event.Change, _ *sinks.Template) (sinks.Lane, error) {
	if n.isSplit() {
		return n.splitLaneOf(c), nil
	}
	return singleLane, nil
}

// AllLanes implements [sinks.LaneLister].
func (n *laneLayout) AllLanes(*event.Change, *sinks.Template) ([]sinks.Lane, error) {
	if n.isSplit() {
		return n.allSplitLanes(), nil
	}
	return []sinks.Lane{singleLane}, nil
}

// StandsForSeveral implements [sinks.LaneLister].
func (*laneLayout) StandsForSeveral(sinks.Lane) bool { return false }

func (n *laneLayout) isSplit() bool { return n.state.Load() == layoutSplit }

// requestSplit asks for a split layout, because the server has refused a subject of the single lane.
func (n *laneLayout) requestSplit() { n.state.CompareAndSwap(layoutSingle, layoutSplitPending) }

// ResumeLanes implements [sinks.Repartitioner]. The layout is split if the previous process left changes in a split lane.
func (n *laneLayout) ResumeLanes(unfinished []sinks.Lane) {
	for _, lane := range unfinished {
		if lane != singleLane && n.containsLane(lane) {
			n.state.Store(layoutSplit)
		}
	}
}

// PendingRepartitions implements [sinks.Repartitioner]. A single lane with a refused subject accepts nothing more; a split
// layout is merged when the caller finds no failing lane.
func (n *laneLayout) PendingRepartitions() []sinks.Repartition {
	switch n.state.Load() {
	case layoutSplit:
		return []sinks.Repartition{{Reason: "no subject is refused any more", From: n.allSplitLanes(), To: []sinks.Lane{singleLane}}}
	case layoutSplitPending:
		return []sinks.Repartition{{Reason: "the server refuses a subject: its objects wait, delivery of the others continues",
			From: []sinks.Lane{singleLane}, To: n.allSplitLanes(), Lost: true}}
	default:
		return nil
	}
}

// ApplyRepartition implements [sinks.Repartitioner].
func (n *laneLayout) ApplyRepartition(r sinks.Repartition) {
	n.state.Store(layoutSingle)
	if r.Lost { // only the split of the single lane is one
		n.state.Store(layoutSplit)
	}
}

// SharesObjects implements [sinks.Fenced].
func (*laneLayout) SharesObjects(a, b sinks.Lane) bool {
	i, m, known := parseLane(a)
	j, n, other := parseLane(b)
	return known && other && sinks.SharesHashes(i, m, j, n)
}

func (n *laneLayout) splitLaneOf(c *event.Change) sinks.Lane {
	return n.splitLane(sinks.KeyHash(c) % uint64(n.count))
}

func (n *laneLayout) splitLane(i uint64) sinks.Lane {
	return sinks.Lane(fmt.Sprintf("%d/%d", i, n.count))
}

func (n *laneLayout) allSplitLanes() []sinks.Lane {
	names := make([]sinks.Lane, n.count)
	for i := range names {
		names[i] = n.splitLane(uint64(i))
	}
	return names
}

func (n *laneLayout) containsLane(lane sinks.Lane) bool {
	_, of, known := parseLane(lane)
	return lane == singleLane || known && of == uint64(n.count)
}

// laneWindowBytes returns how many bytes of a lane may be in flight, if total is the bound of the sink.
func laneWindowBytes(lane sinks.Lane, total int64) int64 {
	if lane == singleLane {
		return total
	}
	return max(1, total/maxConcurrentLanes)
}

// storedState is the stored state (see [sinks.Stateful]). While changes are sent in batches there is an epoch, and the first
// three numbers are those of streamEnd: 0 if the stream's end is unknown, else one more than the sequence behind which this
// journal began; the last sequence, and the newest offset in it.
// Then follow those of idProgress: the highest acknowledged sequence, resendThrough, lossCount, and three for each
// checkpoint. Last, when the stream of all this was created, and its last message when it was seen; 0.9.0 stored neither.
type storedState struct {
	epoch  string
	values []uint64
	seen   *stream.Info
}

const (
	stateFormat = 1

	batchValues, progressValues, checkpointValues = 3, 3, 3 // numbers of each part
)

// codeState refuses another number of values than the parts have.
func codeState(f *form.Coder, s *storedState) {
	f.CodeFormat(stateFormat)
	f.CodeText(&s.epoch)
	form.CodeList(f, &s.values, 1, (*form.Coder).CodeUvarint)
	rest := len(s.values) - progressValues
	if s.epoch != "" {
		rest -= batchValues
	}
	if rest < 0 || rest%checkpointValues != 0 || rest > maxCheckpoints*checkpointValues {
		f.Fail()
	}
	if !f.Decoding || f.In != "" {
		f.CodeTime(&s.seen.Created)
		f.CodeUvarint(&s.seen.State.LastSeq)
		f.CodeTime(&s.seen.State.LastTime)
	}
}

// RestoreState implements [sinks.Stateful]. It resumes where the previous process ended, and ends a loss.
func (s *Sink) RestoreState(state []byte, newest uint64, save func(context.Context) error) error {
	s.ids.ackedAhead.Clear()
	s.features.invalidate() // the stream may be another one now
	batched := s.end.applyRestore(newest, save)
	sentByID := s.ids.progress.applyRestore()
	if t := s.fence.current.Load(); t != nil {
		for lane := range t.laneProgress() {
			name, _ := sinks.SplitRecordedLane(lane)
			t.recordLost(s.fence.ackedSequence(name), s.fence.life(t))
		}
	}
	stored := storedState{seen: new(stream.Info)}
	if state != nil && newest > 0 {
		if err := form.DecodeValue("state of a NATS sink", state, codeState, &stored); err != nil {
			return err
		}
	}
	begun, knowsMore := s.end.restoreTerm(stored), sentByID || batched // than any stored state
	if (begun || !knowsMore) && !stored.seen.Created.IsZero() {
		s.end.seen.Store(stored.seen)
	}
	if begun || state == nil || newest == 0 || knowsMore {
		return nil
	}
	if stored.epoch == "" {
		s.ids.progress.attemptedThrough.Store(newest)
	} else {
		s.end.loadState(stored.epoch, stored.values)
		stored.values = stored.values[batchValues:]
	}
	s.ids.progress.loadState(stored.values)
	return nil
}

// State implements [sinks.Stateful]. It returns the end of the stream as known to the way in use: the epoch and the newest
// change for batches, checkpoints for message IDs.
func (s *Sink) State(low uint64) []byte {
	epoch, values := s.end.stateValues()
	if epoch != "" && values[0] > 0 {
		s.ids.progress.newest.Store(values[1])
	}
	values = append(values, s.ids.progress.stateValues(low)...)
	return form.EncodeValue(nil, codeState, &storedState{epoch, values, cmp.Or(s.end.seen.Load(), new(stream.Info))})
}
