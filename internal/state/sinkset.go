package state

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sinkSet holds the fenced sinks that changes are delivered to. It is safe for concurrent use; the methods of sinks that are
// called under its lock do not wait.
type sinkSet struct {
	skipped atomic.Uint64 // changes that a filter reported as delivered

	mu     sync.Mutex
	byName map[string]*fencedSink
}

// fencedSink is a sink with what its lanes held beyond the state when they were fenced. Lanes that were read later than the
// others have a tail of their own.
type fencedSink struct {
	sink    sinks.Fenced
	tails   []unreleasedTail
	waiting map[sinks.Lane]waitingLane

	// delivered is what the tails hold; nil once nothing of it can come again. The slice is not modified.
	delivered atomic.Pointer[[]*deliveredSet]
	restored  *sync.Map // of all sets
}

// unreleasedTail is a tail until the positions are past it.
type unreleasedTail struct {
	ends    map[sinks.Lane]sinks.LanePosition
	highest map[string]uint64 // newest version by resource
	set     *deliveredSet
}

func newSinkSet() *sinkSet { return &sinkSet{byName: map[string]*fencedSink{}} }

// addTail adds what was read of the lanes of a sink. The lanes that it names as waiting are all that still wait.
func (f *fencedSink) addTail(t *tail) {
	t.restored = f.restored
	f.tails, f.waiting = append(f.tails, unreleasedTail{t.ends, t.highest, t.deliveredSet}), t.waiting
	f.publishDelivered()
}

// publishDelivered makes the sets of the tails those that the filter asks.
func (f *fencedSink) publishDelivered() {
	var sets []*deliveredSet
	for _, t := range f.tails {
		if t.set.size > 0 {
			sets = append(sets, t.set)
		}
	}
	f.delivered.Store(nil)
	if len(sets) > 0 {
		f.delivered.Store(&sets)
	}
}

// addSink adds a fenced sink, in place of one of the same name.
func (s *sinkSet) addSink(name string, sink sinks.Fenced, t *tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &fencedSink{sink: sink, restored: &sync.Map{}}
	f.addTail(t)
	s.byName[name] = f
}

// addTail adds what was read of lanes that have waited, unless the sink was replaced.
func (s *sinkSet) addTail(name string, sink sinks.Fenced, t *tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byName[name]; f != nil && f.sink == sink {
		f.addTail(t)
	}
}

// waitingLanes returns the lanes of a sink that wait.
func (s *sinkSet) waitingLanes(name string) map[sinks.Lane]waitingLane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.byName[name]; f != nil {
		return maps.Clone(f.waiting)
	}
	return nil
}

// firstReason returns why the first of the lanes waits; nil if there is none.
func firstReason(waiting map[sinks.Lane]waitingLane) error {
	for _, lane := range slices.Sorted(maps.Keys(waiting)) {
		return fmt.Errorf("lane %s: %w", lane, waiting[lane].reason)
	}
	return nil
}

// whyHeld implements [Writer.WhyHeld].
func (s *sinkSet) whyHeld(name string, lane sinks.Lane) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.byName[name]
	if f == nil || len(f.waiting) == 0 {
		return nil
	}
	if one, ok := f.waiting[lane]; ok {
		return &condition.Error{Code: condition.LaneUnread, Err: one.reason}
	}
	for other, one := range f.waiting {
		if f.sink.SharesObjects(lane, other) {
			return &condition.Error{Code: condition.LaneUnread, Cause: "it shares objects with lane " + string(other), Err: one.reason}
		}
	}
	return nil
}

func (s *sinkSet) removeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byName)
}

// deliveredFilter implements [Writer.Delivered].
func (s *sinkSet) deliveredFilter(name string) func(sinks.Lane, *event.Change) bool {
	s.mu.Lock()
	f := s.byName[name]
	s.mu.Unlock()
	if f == nil || f.delivered.Load() == nil && len(s.waitingLanes(name)) == 0 {
		return nil
	}
	return func(lane sinks.Lane, c *event.Change) bool {
		recordRestored(f.restored, c)
		sets := f.delivered.Load()
		if sets == nil || !slices.ContainsFunc(*sets, func(d *deliveredSet) bool { return d.containsChange(lane, c) }) {
			return false
		}
		s.skipped.Add(1)
		return true
	}
}

// laneProgress collects the progress of all lanes of all sinks.
func (s *sinkSet) laneProgress() map[sinkLane]sinks.LanePosition {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[sinkLane]sinks.LanePosition{}
	for name, f := range s.byName {
		for lane, position := range f.sink.LaneProgress() {
			all[sinkLane{name, lane}] = position
		}
	}
	return all
}

// releaseDelivered prepares a settled checkpoint for writing. Once all positions of the checkpoint are past the versions of
// a tail, the tail is released, because nothing of it can come again; its lanes are covered up to its ends. Until then the
// checkpoint leaves the stored progress of its lanes as it is: the skipped messages lie before what is published now, and
// are not in the state yet.
func (s *sinkSet) releaseDelivered(c *checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.byName {
		kept := f.tails[:0:0]
		for _, t := range f.tails {
			passed := positionsPassed(c.Resources, t.highest)
			for lane, end := range t.ends {
				l := sinkLane{name, lane}
				if passed {
					c.progress[l] = max(c.progress[l], end)
				} else {
					delete(c.progress, l)
				}
			}
			if !passed {
				kept = append(kept, t)
			}
		}
		if len(kept) < len(f.tails) {
			f.tails = kept
			f.publishDelivered()
		}
	}
}

// positionsPassed reports whether every scope is past these versions, so that nothing up to them is emitted again.
func positionsPassed(resources []event.StoredResource, highest map[string]uint64) bool {
	for _, r := range resources {
		version, ok := highest[r.Resource.String()]
		if !ok {
			continue
		}
		if len(r.Scopes) == 0 {
			return false
		}
		for _, s := range r.Scopes {
			if position, ordered := parseVersion(s.Position); !ordered || position < version {
				return false
			}
		}
	}
	return true
}
