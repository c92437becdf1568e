package shape

import (
	"hash/maphash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// staleObjects is the set of objects of one resource that were last emitted under another redaction than now. It holds hashes of
// their keys: two that meet make a claim too careful, and nothing worse. Safe for concurrent use.
type staleObjects struct {
	mu   sync.Mutex
	keys map[uint64]bool // with whether their body is as old
}

var staleSeed = maphash.MakeSeed()

func (s *staleObjects) hasKey(key string) bool {
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

// hasStaleBody says that the body of an object may have been stored under another redaction than now.
func (s *staleObjects) hasStaleBody(key string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) > 0 && s.keys[maphash.String(staleSeed, key)]
}

// markBodyCurrent notes that the body of an object is stored under this redaction.
func (s *staleObjects) markBodyCurrent(key string) {
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

func (s *staleObjects) removeKey(key string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) > 0 {
		delete(s.keys, maphash.String(staleSeed, key))
	}
}

// markRedactionChange marks a change that is emitted under this redaction after one that was emitted under another, once.
func (s *staleObjects) markRedactionChange(c *event.Change) {
	if s == nil || c.Type.IsControl() {
		return
	}
	key := objectKey(c)
	if !s.hasKey(key) {
		return
	}
	c.RedactionChanged = claimsDifference(c.Type)
	s.removeKey(key)
}

// claimsDifference says that a consumer compares what a change of this type carries with what it has of the object.
func claimsDifference(t event.Type) bool {
	return t == event.Updated || t == event.Deleted || t == event.Sync
}
