package deltas

import (
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// knownSet holds what is known of a scope's objects, which is never their bodies. It is DeltaFIFO's KnownObjects.
type knownSet struct {
	mu   sync.RWMutex
	m    map[string]packed
	live int      // objects known to exist
	gone []string // keys marked Gone, oldest first, to be forgotten once the position passes them

	// While a list is being compared, tombstone makes the item that stands for a known object, and unchanged are the keys of
	// known objects that the list has too. Both are nil at other times. The goroutine that lists owns them.
	tombstone func(event.Known) *item
	unchanged map[string]struct{}
}

var _ cache.KeyListerGetter = (*knownSet)(nil)

func newKnownSet(known []event.Known) *knownSet {
	s := &knownSet{m: make(map[string]packed, len(known))}
	for _, k := range known {
		s.put(k)
	}
	return s
}

func (s *knownSet) get(key string) event.Known {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[key].known(key)
}

func (s *knownSet) put(k event.Known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.m[k.Key]; ok && !old.gone() {
		s.live--
	}
	if k.Gone {
		k.Summary = ""
	}
	s.m[strings.Clone(k.Key)] = pack(k) // the key may be a part of a larger string
	if !k.Gone {
		s.live++
	} else {
		s.gone = append(s.gone, k.Key)
	}
}

// forgetGone drops the markers of deletes that position has passed and returns their keys: no restart will be told of
// those lives again.
func (s *knownSet) forgetGone(position string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for len(s.gone) > 0 {
		key := s.gone[0]
		if p := s.m[key]; p != "" && p.gone() {
			if newer(p.known(key).ResourceVersion, position) {
				break
			}
			delete(s.m, key)
			keys = append(keys, key)
		}
		s.gone = s.gone[1:]
	}
	if len(s.gone) == 0 {
		s.gone = nil
	}
	return keys
}

// count is the number of objects known to exist.
func (s *knownSet) count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.live
}

// ListKeys must be exact: what it names and a list lacks is deleted. It leaves out what the list is known to have.
func (s *knownSet) ListKeys() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make([]string, 0, max(0, len(s.m)-len(s.unchanged)))
	for key, p := range s.m {
		if _, listed := s.unchanged[key]; !listed && !p.gone() {
			keys = append(keys, key)
		}
	}
	return keys
}

// GetByKey says yes to every key, also to unknown ones: DeltaFIFO drops a watch DELETED of what it is told not to exist,
// and whether a delete is news is Step's decision. While a list is compared it returns the tombstone of a known object.
func (s *knownSet) GetByKey(key string) (any, bool, error) {
	if s.tombstone == nil {
		return nil, true, nil
	}
	return s.tombstone(s.get(key)), true, nil
}

// stub is an object of which only the identity is known.
func stub(k event.Known, observedAt time.Time) *Object {
	namespace, name, err := cache.SplitMetaNamespaceKey(k.Key)
	if err != nil { // a key is made by NewObject and has at most one slash
		name = k.Key
	}
	o := NewObject(namespace, name)
	o.UID, o.ResourceVersion, o.ObservedAt = k.UID, k.ResourceVersion, observedAt
	return o
}
