package tap

import (
	"container/list"
	"context"
	"sync"

	"github.com/klauspost/compress/s2"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
)

// maxStates bounds the states of objects that are kept to compare with, in bytes: some 50,000 objects. Of more, those that
// changed last are kept; the first change of another is shown without what it changed.
const maxStates = 64 << 20

// states keeps the last states of objects, compressed, those that were used last. Safe for concurrent use.
type states struct {
	most int

	mu    sync.Mutex
	size  int
	byKey map[stateKey]*list.Element
	order *list.List // of *state; the front was used last
}

var _ shape.Bodies = (*states)(nil)

type stateKey struct{ resource, key string }

type state struct {
	of   stateKey
	body event.Body // Raw is compressed
}

// memoryBytes estimates the memory of a state, in bytes.
func (s *state) memoryBytes() int {
	const overhead = 320
	return overhead + len(s.body.Raw)
}

func newStates(most int) *states {
	return &states{most: most, byKey: map[stateKey]*list.Element{}, order: list.New()}
}

// keepBodies stores the states that an observation holds.
func (s *states) keepBodies(o event.Observation) {
	resource := o.Resource.String()
	for _, key := range o.RemovedKeys {
		s.dropOldest(stateKey{resource, key})
	}
	for _, b := range o.Bodies {
		b.Raw = s2.Encode(nil, b.Raw)
		s.putState(&state{stateKey{resource, b.Key}, b})
	}
}

func (s *states) putState(n *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeState(s.byKey[n.of])
	s.byKey[n.of] = s.order.PushFront(n)
	for s.size += n.memoryBytes(); s.size > s.most && s.order.Len() > 1; {
		s.removeState(s.order.Back())
	}
}

func (s *states) dropOldest(of stateKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeState(s.byKey[of])
}

// removeState removes an element if there is one. The caller holds the lock.
func (s *states) removeState(e *list.Element) {
	if e == nil {
		return
	}
	old := s.order.Remove(e).(*state)
	delete(s.byKey, old.of)
	s.size -= old.memoryBytes()
}

// Body implements [shape.Bodies].
func (s *states) Body(resource, key string) (event.Body, bool, error) {
	s.mu.Lock()
	e := s.byKey[stateKey{resource, key}]
	if e == nil {
		s.mu.Unlock()
		return event.Body{}, false, nil
	}
	s.order.MoveToFront(e)
	b := e.Value.(*state).body // what its Raw refers to never changes
	s.mu.Unlock()
	var err error
	b.Raw, err = s2.Decode(nil, b.Raw)
	return b, err == nil, err
}

// BodyResources implements [shape.Bodies]. Every resource keeps bodies here, so that none has to be forgotten.
func (s *states) BodyResources() []string { return nil }

// DropBodies implements [shape.Bodies].
func (s *states) DropBodies(_ context.Context, resource string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for of, e := range s.byKey {
		if of.resource == resource {
			s.removeState(e)
		}
	}
	return nil
}
