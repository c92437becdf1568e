package shape

import (
	"hash/maphash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// stale is the set of objects of one resource that were last emitted under another redaction than now. It holds hashes of
// their keys: two that meet make a claim too careful, and nothing worse. Safe for concurrent use.
type stale struct {
	mu   sync.Mutex
	keys map[uint64]struct{}
}

var staleSeed = maphash.MakeSeed()

func (s *stale) has(key string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 {
		return false
	}
	_, yes := s.keys[maphash.String(staleSeed, key)]
	return yes
}

func (s *stale) remove(key string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 {
		delete(s.keys, maphash.String(staleSeed, key))
	}
}

// emit marks a change that is emitted under this redaction after one that was emitted under another, once.
func (s *stale) emit(c *event.Change) {
	if s == nil || c.Type.Control() {
		return
	}
	key := keyOf(c)
	if !s.has(key) {
		return
	}
	c.RedactionChanged = claimsDifference(c.Type)
	s.remove(key)
}

// claimsDifference says that a consumer compares what a change of this type carries with what it has of the object.
func claimsDifference(t event.Type) bool {
	return t == event.Updated || t == event.Deleted || t == event.Sync
}
