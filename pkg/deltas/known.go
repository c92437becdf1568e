package deltas

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// KnownSet holds the known identities of a scope's objects, without their bodies. The zero value is not usable; see
// [NewKnownSet]. Not safe for concurrent use.
type KnownSet struct {
	objects  map[string]knownEntry
	listPass uint32 // of the current list, see startListPass
}

type knownEntry struct {
	encodedKnown
	seenInPass uint32 // the last pass in which the object was seen
}

// NewKnownSet returns an empty set.
func NewKnownSet() *KnownSet { return &KnownSet{objects: map[string]knownEntry{}} }

// Add adds an object, replacing the entry of the same key. The key is cloned because a map keeps the key string of the
// newest assignment, and that may be a substring of a larger buffer.
func (s *KnownSet) Add(k event.Known) {
	s.objects[strings.Clone(k.Key)] = knownEntry{encodeKnown(k), s.listPass}
}

// Len returns the number of known objects.
func (s *KnownSet) Len() int { return len(s.objects) }

// lookupKey returns what is known of an object; the UID is empty if the object is not known.
func (s *KnownSet) lookupKey(key string) event.Known { return s.objects[key].decodeKnown(key) }

// replaceOrRemove stores k, or removes its key if k no longer exists.
func (s *KnownSet) replaceOrRemove(k event.Known) {
	if !k.Exists() {
		delete(s.objects, k.Key)
		return
	}
	s.Add(k)
}

// startListPass starts a list: no known object has been seen in it yet.
func (s *KnownSet) startListPass() { s.listPass++ }

// markSeen records that the list contains the object. Unknown keys are ignored.
func (s *KnownSet) markSeen(key string) {
	if k, ok := s.objects[key]; ok && k.seenInPass != s.listPass {
		k.seenInPass = s.listPass
		s.objects[strings.Clone(key)] = k
	}
}

// unseenKeys returns the sorted keys of up to limit known objects that the list lacks.
func (s *KnownSet) unseenKeys(limit int) []string {
	var keys []string
	for key, k := range s.objects {
		if len(keys) == limit {
			break
		}
		if k.seenInPass != s.listPass {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// computeDigest returns the digest over all known objects, see [event.Digest].
func (s *KnownSet) computeDigest() string {
	var d event.Digest
	for key, k := range s.objects {
		namespace, name, found := strings.Cut(key, "/")
		if !found {
			namespace, name = "", key
		}
		known := k.decodeKnown(key)
		d.Add(namespace, name, known.UID, known.ResourceVersion)
	}
	return d.String()
}
