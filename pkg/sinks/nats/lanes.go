package nats

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// singleLane is the lane of all objects, unless the layout is split.
const singleLane sinks.Lane = "stream"

// maxConcurrentLanes is the number of lanes that are published at once, and that share maxInFlightBytes, in a split layout.
const maxConcurrentLanes = 16

// layoutState is how objects are spread over lanes.
type layoutState int

const (
	// layoutSingle: all objects are in the single lane and are sent in the order of the journal.
	layoutSingle layoutState = iota
	// layoutSplitPending: as layoutSingle, but the server has refused a subject, and the single lane is to be replaced.
	layoutSplitPending
	// layoutSplit: objects hash to many lanes, so that a refused subject blocks only the objects in its lane.
	layoutSplit
)

// laneLayout assigns objects to lanes. It is safe for concurrent use.
type laneLayout struct {
	count int // of lanes in a split layout

	mu    sync.Mutex
	state layoutState
}

// laneOf returns the lane of a change.
func (n *laneLayout) laneOf(c *event.Change) sinks.Lane {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != layoutSplit {
		return singleLane
	}
	return n.splitLaneOf(c)
}

// splitLaneOf returns the lane of a change in a split layout.
func (n *laneLayout) splitLaneOf(c *event.Change) sinks.Lane {
	return n.laneName(sinks.KeyHash(c) % uint64(n.count))
}

// allLanes returns the lanes of the present layout.
func (n *laneLayout) allLanes() []sinks.Lane {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != layoutSplit {
		return []sinks.Lane{singleLane}
	}
	return n.laneNames()
}

// laneName returns the name of a lane of a split layout.
func (n *laneLayout) laneName(i uint64) sinks.Lane {
	return sinks.Lane(fmt.Sprintf("%d/%d", i, n.count))
}

// laneNames returns all lanes of a split layout.
func (n *laneLayout) laneNames() []sinks.Lane {
	names := make([]sinks.Lane, n.count)
	for i := range names {
		names[i] = n.laneName(uint64(i))
	}
	return names
}

// containsLane reports whether a lane exists in one of the layouts.
func (n *laneLayout) containsLane(lane sinks.Lane) bool {
	index, number, hashed := strings.Cut(string(lane), "/")
	i, err := strconv.Atoi(index)
	return lane == singleLane || hashed && err == nil && i >= 0 && i < n.count && number == strconv.Itoa(n.count)
}

// requestSplit asks for a split layout, because the server has refused a subject of the single lane.
func (n *laneLayout) requestSplit() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == layoutSingle {
		n.state = layoutSplitPending
	}
}

// resumeLanes starts with a split layout if the previous process left changes in one of its lanes.
func (n *laneLayout) resumeLanes(unfinished []sinks.Lane) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, lane := range unfinished {
		if lane != singleLane && n.containsLane(lane) {
			n.state = layoutSplit
		}
	}
}

// pendingRepartitions returns the change of layout that is due. A single lane with a refused subject accepts nothing more; a
// split layout is merged when the caller finds no failing lane.
func (n *laneLayout) pendingRepartitions() []sinks.Repartition {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch n.state {
	case layoutSplit:
		return []sinks.Repartition{{Reason: "no subject is refused any more", From: n.laneNames(), To: []sinks.Lane{singleLane}, FormerLane: n.splitLaneOf}}
	case layoutSplitPending:
		return []sinks.Repartition{{Reason: "the server refuses a subject: its objects wait, delivery of the others continues", From: []sinks.Lane{singleLane}, To: n.laneNames(), Lost: true,
			FormerLane: func(*event.Change) sinks.Lane { return singleLane }}}
	default:
		return nil
	}
}

// applyRepartition makes a repartition of pendingRepartitions effective.
func (n *laneLayout) applyRepartition(r sinks.Repartition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = layoutSingle
	if r.Lost { // only the split of the single lane is one
		n.state = layoutSplit
	}
}

// laneWindowBytes returns how many bytes of a lane may be in flight, if total is the bound of the sink.
func laneWindowBytes(lane sinks.Lane, total int64) int64 {
	if lane == singleLane {
		return total
	}
	return max(1, total/maxConcurrentLanes)
}
