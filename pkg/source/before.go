package source

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubecdc/kubecdc/pkg/deltas"
)

const (
	// concurrentStates bounds the single states of a scope that are requested at the same time.
	concurrentStates = 16
	// statesWithin bounds how long a batch of changes waits for the states before them.
	statesWithin = time.Second
)

// statesBefore reads the state of an object before its first change, while fillBodies reads those of all objects beside the
// watch. It is one request for each object that changes before its turn; the first failure ends it, and changes are then
// emitted without the state before until fillBodies has ended. Only end is safe for concurrent use.
type statesBefore struct {
	follower  *follower
	requested map[string]bool // keys
	ended     atomic.Bool
}

func newStatesBefore(f *follower) *statesBefore {
	return &statesBefore{follower: f, requested: map[string]bool{}}
}

func (s *statesBefore) end() { s.ended.Store(true) }

// storeFor stores the states of the objects that change for the first time with a batch of events. s may be nil.
func (s *statesBefore) storeFor(ctx context.Context, events []deltas.Event) error {
	if s == nil {
		return nil
	}
	if s.ended.Load() {
		s.requested = nil
		return nil
	}
	out := s.follower.out
	tracker := out.tracker.Load()
	var changed []*deltas.Object
	for _, e := range events {
		if e.Type != watch.Modified || s.requested[e.Object.Key()] {
			continue
		}
		s.requested[e.Object.Key()] = true
		if tracker.Knows(e.Object) {
			changed = append(changed, e.Object)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	_, err := out.storeBodies(ctx, s.readAll(ctx, changed, out.currentPosition()))
	return err
}

// readAll reads the states of objects at a position of the scope, at which they are in the known version.
func (s *statesBefore) readAll(ctx context.Context, changed []*deltas.Object, position string) (found []*deltas.Object) {
	ctx, cancel := context.WithTimeout(ctx, statesWithin)
	defer cancel()
	endpoint, slots := s.follower.api.endpoint.Load(), make(chan struct{}, concurrentStates)
	s.follower.health.updateCounters(func(st *Status) { st.Lists += uint64(len(changed)) })
	var mu sync.Mutex
	var reading sync.WaitGroup
	for _, o := range changed {
		slots <- struct{}{}
		reading.Go(func() {
			defer func() { <-slots }()
			if s.ended.Load() {
				return
			}
			before, err := endpoint.ReadAt(ctx, o.Namespace, o.Name, position)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				s.end()
			case before != nil:
				found = append(found, before)
			}
		})
	}
	reading.Wait()
	return found
}
