package nats

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// whole is the lane of everything.
const whole sinks.Lane = "stream"

// concurrency is how many lanes are published to at once while there are more than one.
const concurrency = 16

// lanes says which lane an object belongs to. All share one, so that they go out in the journal's order, until a subject is
// found that may not be published to: then objects hash to many lanes, of which only that one's has to wait.
type lanes struct {
	number int // of the lanes that there are then

	mu     sync.Mutex
	split  bool // there are many
	denied bool // there are to be
}

// Lane is the stream, or while some subject is denied one of many. It asks nobody and never fails.
func (s *Sink) Lane(c *event.Change) (sinks.Lane, error) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	if !s.lanes.split {
		return whole, nil
	}
	return s.lanes.name(sinks.KeyHash(c) % uint64(s.lanes.number)), nil
}

// LaneTo is Lane: all subjects share the lanes.
func (s *Sink) LaneTo(c *event.Change, _ *sinks.Template) (sinks.Lane, error) {
	return s.Lane(c)
}

func (n *lanes) name(i uint64) sinks.Lane { return sinks.Lane(fmt.Sprintf("%d/%d", i, n.number)) }

// all names the lanes that there are when there are many.
func (n *lanes) all() []sinks.Lane {
	names := make([]sinks.Lane, n.number)
	for i := range names {
		names[i] = n.name(uint64(i))
	}
	return names
}

// has says whether there can be such a lane.
func (n *lanes) has(lane sinks.Lane) bool {
	index, number, hashed := strings.Cut(string(lane), "/")
	i, err := strconv.Atoi(index)
	return lane == whole || hashed && err == nil && i >= 0 && i < n.number && number == strconv.Itoa(n.number)
}

// deny asks for many lanes: a subject may not be published to, and the others are not to wait for it.
func (n *lanes) deny() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.denied = true
}

// Resume is [sinks.Repartitioner.Resume]: a process before had many lanes, of which some are not finished.
func (s *Sink) Resume(unfinished []sinks.Lane) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	for _, lane := range unfinished {
		s.lanes.split = s.lanes.split || lane != whole && s.lanes.has(lane)
	}
}

// Repartitions is [sinks.Repartitioner.Repartitions]. The one lane takes nothing more once a subject is denied. The many are
// replaced by the one when none is in trouble.
func (s *Sink) Repartitions() []sinks.Repartition {
	n := &s.lanes
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.split:
		return []sinks.Repartition{{Reason: "every subject may be published to", From: n.all(), To: []sinks.Lane{whole}}}
	case n.denied:
		return []sinks.Repartition{{Reason: "a subject may not be published to: its objects wait, others go on", From: []sinks.Lane{whole}, To: n.all(), Gone: true}}
	}
	return nil
}

// Repartition is [sinks.Repartitioner.Repartition].
func (s *Sink) Repartition(r sinks.Repartition) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	s.lanes.split, s.lanes.denied = r.Gone, false
}

// windowOf is how many bytes of a lane may be on their way.
func (s *Sink) windowOf(lane sinks.Lane) int64 {
	if lane == whole {
		return s.cfg.MaxInFlightBytes
	}
	return max(1, s.cfg.MaxInFlightBytes/concurrency)
}
