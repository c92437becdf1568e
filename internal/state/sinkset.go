package state

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// sinkSet holds the fenced sinks that changes are delivered to. It is safe for concurrent use; the methods of sinks that are
// called under its lock do not wait.
type sinkSet struct {
	skipped atomic.Uint64 // changes that a filter reported as delivered

	carryAfter time.Duration

	mu          sync.Mutex
	byName      map[string]*fencedSink
	fenceBounds map[string]time.Duration // of the last attempt to fence a sink that was not fenced with the others
}

// fencedSink is a sink with what its lanes held beyond the state when they were fenced. Lanes that were read later than the
// others have a tail of their own.
type fencedSink struct {
	sink    sinks.Fenced
	tails   []*unreleasedTail
	waiting map[sinks.Lane]waitingLane

	// delivered is what the tails hold; nil once nothing of it can come again. The slice is not modified.
	delivered atomic.Pointer[[]*deliveredSet]
	restored  *sync.Map // of all sets

	changed map[string]bool // resources of which the state may carry more than it has to
}

// unreleasedTail is a tail until the positions are past it.
type unreleasedTail struct {
	*tail
	readAt  time.Time
	behind  map[string]uint64 // newest version by resource, without those that the positions have passed
	covered bool              // the lanes have advanced behind the tail: the state carries its records
}

// carryAfter is how long the lanes of a sink wait for a resource whose positions do not pass what the tails hold, because it
// cannot be read for example. Then its records are carried in the state.
const carryAfter = 5 * time.Second

// nextFenceBound returns how long the next attempt to fence a sink may take: twice as long as the one before. A destination
// that needs longer than the others waited for it in the take-over would be given up again and again.
func (s *sinkSet) nextFenceBound(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	bound := min(2*max(s.fenceBounds[name], fenceTimeout), maxFenceTimeout)
	s.fenceBounds[name] = bound
	return bound
}

// addTail adds what was read of the lanes of a sink. The lanes that it names as waiting are all that still wait.
func (f *fencedSink) addTail(t *tail) {
	t.restored = f.restored
	f.tails = append(f.tails, &unreleasedTail{tail: t, readAt: time.Now(), behind: maps.Clone(t.highest)})
	f.waiting = t.waiting
	f.publishDelivered()
}

// publishDelivered makes the sets of the tails those that the filter asks.
func (f *fencedSink) publishDelivered() {
	var sets []*deliveredSet
	for _, t := range f.tails {
		if len(t.newest)+len(t.exact) > 0 {
			sets = append(sets, t.deliveredSet)
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
	f := &fencedSink{sink: sink, restored: &sync.Map{}, changed: map[string]bool{}}
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
	for recorded, one := range f.waiting {
		if other, _ := sinks.SplitRecordedLane(recorded); other == lane {
			return condition.Problem{Code: condition.LaneUnread}.Wrap(one.reason)
		}
	}
	for recorded, one := range f.waiting {
		if other, _ := sinks.SplitRecordedLane(recorded); f.sink.SharesObjects(lane, other) {
			return condition.Problem{Code: condition.LaneUnread, Cause: "it shares objects with lane " + string(other)}.Wrap(one.reason)
		}
	}
	return nil
}

func (s *sinkSet) removeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byName)
	clear(s.fenceBounds)
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

// coverTails prepares a settled checkpoint for writing. Once its positions are past the versions of a tail, the tail is
// released, because nothing of it can come again; its lanes are covered up to its ends, or leave the state if they are
// gone. Until then the skipped messages are not in the state, so the checkpoint leaves the stored progress of its lanes as
// it is. After carryAfter the lanes are covered all the same, if carry is not nil: it replaces what the state carries of a
// resource for a sink.
func (s *sinkSet) coverTails(c *checkpoint, carry func(sink, resource string, chunks map[int][]byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.byName {
		kept, changed := f.tails[:0:0], f.changed
		f.changed = map[string]bool{}
		for _, t := range f.tails {
			behind := resourcesBehind(c.Resources, t.behind)
			covers := len(behind) == 0 || t.covered || carry != nil && time.Since(t.readAt) >= s.carryAfter
			t.coverLanes(name, c, covers)
			for resource := range t.behind {
				if covers && (!t.covered || !behind[resource]) {
					changed[resource] = true
				}
				if !behind[resource] {
					delete(t.behind, resource)
					maps.DeleteFunc(t.objects, func(place emittedRef, _ map[string]liveObject) bool { return place.resource == resource })
				}
			}
			t.covered = covers
			if len(behind) > 0 {
				kept = append(kept, t)
			}
		}
		if len(kept) < len(f.tails) {
			f.tails = kept
			f.publishDelivered()
		}
		for resource := range changed {
			if carry != nil {
				carry(name, resource, f.encodeCarried(resource))
			}
		}
	}
}

// keepLane keeps a gone lane in the state, because it exists again, and reports whether it would have left.
func (s *sinkSet) keepLane(l sinkLane) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.byName[l.sink]
	if f == nil {
		return false
	}
	for _, t := range f.tails {
		if t.gone[l.lane] {
			delete(t.gone, l.lane)
			delete(t.ends, l.lane)
			kept = true
		}
	}
	return kept
}

// coverLanes lets the lanes of a tail advance in a checkpoint, or leaves them where they are.
func (t *unreleasedTail) coverLanes(sink string, c *checkpoint, covers bool) {
	for lane, end := range t.ends {
		l := sinkLane{sink, lane}
		switch {
		case !covers:
			delete(c.progress, l)
		case t.covered:
		case t.gone[lane]:
			c.gone = append(c.gone, l)
		default:
			c.progress[l] = max(c.progress[l], end)
		}
	}
}

// encodeCarried returns what the state has to carry of a resource for the sink. Tails whose lanes do not advance yet are
// part of it, because they have what the state carried before them.
func (f *fencedSink) encodeCarried(resource string) map[int][]byte {
	merged := &tail{deliveredSet: newDeliveredSet(f.sink), objects: map[emittedRef]map[string]liveObject{}}
	for _, t := range f.tails {
		if _, behind := t.behind[resource]; behind {
			t.copyResource(merged, resource)
		}
	}
	return merged.encodeCarried(resource)
}

// recordSettled records that the next checkpoint has the object of a change.
func (s *sinkSet) recordSettled(c *event.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.byName {
		for _, t := range f.tails {
			ref := objectRef{c.Resource.String(), c.EmittedRecord().Key}
			if version, ordered := parseVersion(c.ResourceVersion); ordered && t.removeUpTo(ref, version, c.Type == event.Deleted) {
				f.changed[ref.resource] = true
			}
		}
	}
}

// hasUncovered reports whether the tails of a sink may be covered after carryAfter, even if nothing has changed.
func (s *sinkSet) hasUncovered() bool {
	since := s.uncoveredSince()
	return !since.IsZero() && time.Since(since) >= s.carryAfter
}

// uncoveredSince returns since when the state has not covered the tails of a sink; zero if it covers all.
func (s *sinkSet) uncoveredSince() (since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.byName {
		for _, t := range f.tails {
			if !t.covered && len(t.behind) > 0 && (since.IsZero() || t.readAt.Before(since)) {
				since = t.readAt
			}
		}
	}
	return since
}

// resourcesBehind returns the resources of which a scope is not past the version in highest, so that changes up to that may
// be emitted again.
func resourcesBehind(resources []event.StoredResource, highest map[string]uint64) map[string]bool {
	behind := map[string]bool{}
	for _, r := range resources {
		name := r.Resource.String()
		version, ok := highest[name]
		if !ok {
			continue
		}
		if len(r.Scopes) == 0 {
			behind[name] = true
		}
		for _, s := range r.Scopes {
			if position, ordered := parseVersion(s.Position); !ordered || position < version {
				behind[name] = true
			}
		}
	}
	return behind
}
