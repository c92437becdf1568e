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
	keys map[uint64]bool // with whether their body is as old
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

// hasBody says that the body of an object may have been stored under another redaction than now.
func (s *stale) hasBody(key string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) > 0 && s.keys[maphash.String(staleSeed, key)]
}

// renewBody notes that the body of an object is stored under this redaction.
func (s *stale) renewBody(key string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := maphash.String(staleSeed, key)
	if _, yes := s.keys[hash]; yes {
		s.keys[hash] = false
	}
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
