package shape

import (
	"hash/maphash"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// staleObjects is the set of objects of one resource that were last emitted under a redaction other than the current one. It
// holds hashes of keys; a collision only sets RedactionChanged unnecessarily. A nil set is empty. Safe for concurrent use.
type staleObjects struct {
	mu   sync.Mutex
	keys map[uint64]bool // whether the stored body is stale too
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

// hasStaleBody reports whether the stored body of an object may be from another redaction.
func (s *staleObjects) hasStaleBody(key string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) > 0 && s.keys[maphash.String(staleSeed, key)]
}

// markBodyCurrent records that the body of an object was stored under the current redaction.
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

// markRedactionChange sets RedactionChanged on the first change of an object under the current redaction.
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

// claimsDifference reports whether consumers compare a change of this type with their state of the object.
func claimsDifference(t event.Type) bool {
	return t == event.Updated || t == event.Deleted || t == event.Sync
}
