package deltas

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// KnownSet is what is known of a scope's objects, which is never their bodies. The zero value is not usable; see [NewKnownSet].
// It is used by one goroutine at a time.
type KnownSet struct {
	objects  map[string]knownEntry
	listPass uint32 // of the list that is being read, see begin
}

type knownEntry struct {
	encodedKnown
	seenInPass uint32 // in which the object was last seen
}

// NewKnownSet returns a set without objects.
func NewKnownSet() *KnownSet { return &KnownSet{objects: map[string]knownEntry{}} }

// Add puts an object into the set, in place of what was known of its key. It keeps nothing of k: a map takes the key of the
// newest assignment, and that may be cut out of a longer string.
func (s *KnownSet) Add(k event.Known) {
	s.objects[strings.Clone(k.Key)] = knownEntry{encodeKnown(k), s.listPass}
}

// Len is the number of known objects.
func (s *KnownSet) Len() int { return len(s.objects) }

// lookupKey returns what is known of an object; its UID is empty where nothing is.
func (s *KnownSet) lookupKey(key string) event.Known { return s.objects[key].decodeKnown(key) }

// replaceOrRemove puts k into the set, or takes its key out of it where nothing is known any more.
func (s *KnownSet) replaceOrRemove(k event.Known) {
	if !k.Exists() {
		delete(s.objects, k.Key)
		return
	}
	s.Add(k)
}

// startListPass starts to read a list: no known object has been seen in it yet.
func (s *KnownSet) startListPass() { s.listPass++ }

// markSeen notes that the list has an object. One that is not known changes nothing.
func (s *KnownSet) markSeen(key string) {
	if k, ok := s.objects[key]; ok && k.seenInPass != s.listPass {
		k.seenInPass = s.listPass
		s.objects[strings.Clone(key)] = k
	}
}

// unseenKeys returns the keys of up to limit known objects that the list does not have, in order.
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

// computeDigest is a checksum over all known objects, see [event.Digest].
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
