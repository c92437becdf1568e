package state

import (
	"maps"
	"sync"
	"sync/atomic"

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

// fencedSink is a sink with what its lanes held beyond the state when it was fenced.
type fencedSink struct {
	sink      sinks.Fenced
	delivered atomic.Pointer[deliveredSet] // nil once nothing of it can come again
	// Of the tails, until delivered is released; nil afterwards.
	tailEnds map[sinks.Lane]sinks.LanePosition
	highest  map[string]uint64 // newest version by resource
}

func newSinkSet() *sinkSet { return &sinkSet{byName: map[string]*fencedSink{}} }

func newFencedSink(sink sinks.Fenced, t *tail) *fencedSink {
	f := &fencedSink{sink: sink, tailEnds: t.ends, highest: t.highest}
	if t.size > 0 {
		f.delivered.Store(t.deliveredSet)
	}
	return f
}

// addSink adds a fenced sink, in place of one of the same name.
func (s *sinkSet) addSink(name string, sink sinks.Fenced, t *tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[name] = newFencedSink(sink, t)
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
	if f == nil || f.delivered.Load() == nil {
		return nil
	}
	return func(lane sinks.Lane, c *event.Change) bool {
		d := f.delivered.Load()
		if d == nil || !d.containsChange(lane, c) {
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

// releaseDelivered prepares a settled checkpoint for writing. Once all positions of the checkpoint are past the tail
// versions of a sink, its deliveredSet is released, because nothing of the tails can come again; its lanes are covered up
// to the ends of the tails. Until then the checkpoint leaves the stored progress of that sink as it is: the skipped
// messages lie before what is published now, and are not in the state yet.
func (s *sinkSet) releaseDelivered(c *checkpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.byName {
		if f.tailEnds == nil {
			continue
		}
		if !positionsPassed(c.Resources, f.highest) {
			maps.DeleteFunc(c.progress, func(l sinkLane, _ sinks.LanePosition) bool { return l.sink == name })
			continue
		}
		for lane, end := range f.tailEnds {
			l := sinkLane{name, lane}
			c.progress[l] = max(c.progress[l], end)
		}
		f.delivered.Store(nil)
		f.tailEnds, f.highest = nil, nil
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
