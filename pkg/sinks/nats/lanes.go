package nats

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// singleLane is the lane of everything.
const singleLane sinks.Lane = "stream"

// maxConcurrentLanes is how many lanes are published to at once while there are more than one.
const maxConcurrentLanes = 16

// laneLayout says which lane an object belongs to. All share one, so that they go out in the journal's order, until a subject is
// found that may not be published to: then objects hash to many lanes, of which only that one's has to wait.
type laneLayout struct {
	count int // of the lanes that there are then

	mu          sync.Mutex
	split       bool // there are many
	splitWanted bool // there are to be
}

// Lane is the stream, or while some subject is denied one of many. It asks nobody and never fails.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	if !s.lanes.split {
		return singleLane, nil
	}
	return s.lanes.laneName(sinks.KeyHash(c) % uint64(s.lanes.count)), nil
}

// LaneTo is Lane: all subjects share the lanes.
func (s *Sink) LaneTo(c *event.Change, _ *sinks.Template) (sinks.Lane, error) {
	return s.Lane(c)
}

func (n *laneLayout) laneName(i uint64) sinks.Lane {
	return sinks.Lane(fmt.Sprintf("%d/%d", i, n.count))
}

// laneNames names the lanes that there are when there are many.
func (n *laneLayout) laneNames() []sinks.Lane {
	names := make([]sinks.Lane, n.count)
	for i := range names {
		names[i] = n.laneName(uint64(i))
	}
	return names
}

// containsLane says whether there can be such a lane.
func (n *laneLayout) containsLane(lane sinks.Lane) bool {
	index, number, hashed := strings.Cut(string(lane), "/")
	i, err := strconv.Atoi(index)
	return lane == singleLane || hashed && err == nil && i >= 0 && i < n.count && number == strconv.Itoa(n.count)
}

// requestSplit asks for many lanes: a subject may not be published to, and the others are not to wait for it.
func (n *laneLayout) requestSplit() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.splitWanted = true
}

// ResumeLanes is [sinks.Repartitioner.ResumeLanes]: a process before had many lanes, of which some are not finished.
func (s *Sink) ResumeLanes(unfinished []sinks.Lane) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	for _, lane := range unfinished {
		s.lanes.split = s.lanes.split || lane != singleLane && s.lanes.containsLane(lane)
	}
}

// PendingRepartitions is [sinks.Repartitioner.PendingRepartitions]. The one lane takes nothing more once a subject is denied. The many are
// replaced by the one when none is in trouble.
func (s *Sink) PendingRepartitions() []sinks.Repartition {
	n := &s.lanes
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.split:
		return []sinks.Repartition{{Reason: "every subject may be published to", From: n.laneNames(), To: []sinks.Lane{singleLane}}}
	case n.splitWanted:
		return []sinks.Repartition{{Reason: "a subject may not be published to: its objects wait, others go on", From: []sinks.Lane{singleLane}, To: n.laneNames(), Lost: true}}
	}
	return nil
}

// ApplyRepartition is [sinks.Repartitioner.ApplyRepartition].
func (s *Sink) ApplyRepartition(r sinks.Repartition) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	s.lanes.split, s.lanes.splitWanted = r.Lost, false
}

// laneWindowBytes is how many bytes of a lane may be on their way.
func (s *Sink) laneWindowBytes(lane sinks.Lane) int64 {
	if lane == singleLane {
		return s.cfg.MaxInFlightBytes
	}
	return max(1, s.cfg.MaxInFlightBytes/maxConcurrentLanes)
}
