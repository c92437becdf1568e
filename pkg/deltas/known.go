package deltas

import (
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Known is what is known of a scope's objects, which is never their bodies. The zero value is not usable; see [NewKnown].
// It is used by one goroutine at a time.
type Known struct {
	m    map[string]knownObject
	pass uint32 // of the list that is being read, see begin
}

type knownObject struct {
	packed
	pass uint32 // in which the object was last seen
}

// NewKnown returns a set without objects.
func NewKnown() *Known { return &Known{m: map[string]knownObject{}} }

// Add puts an object into the set, in place of what was known of its key. It keeps nothing of k: a map takes the key of the
// newest assignment, and that may be cut out of a longer string.
func (s *Known) Add(k event.Known) {
	s.m[strings.Clone(k.Key)] = knownObject{pack(k), s.pass}
}

// Len is the number of known objects.
func (s *Known) Len() int { return len(s.m) }

// get returns what is known of an object; its UID is empty where nothing is.
func (s *Known) get(key string) event.Known { return s.m[key].known(key) }

// replace puts k into the set, or takes its key out of it where nothing is known any more.
func (s *Known) replace(k event.Known) {
	if !k.Exists() {
		delete(s.m, k.Key)
		return
	}
	s.Add(k)
}

// begin starts to read a list: no known object has been seen in it yet.
func (s *Known) begin() { s.pass++ }

// see notes that the list has an object. One that is not known changes nothing.
func (s *Known) see(key string) {
	if k, ok := s.m[key]; ok && k.pass != s.pass {
		k.pass = s.pass
		s.m[strings.Clone(key)] = k
	}
}

// unseen returns the keys of up to limit known objects that the list does not have, in order.
func (s *Known) unseen(limit int) []string {
	var keys []string
	for key, k := range s.m {
		if len(keys) == limit {
			break
		}
		if k.pass != s.pass {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// digest is a checksum over all known objects, see [event.Digest].
func (s *Known) digest() string {
	var d event.Digest
	for key, k := range s.m {
		namespace, name, found := strings.Cut(key, "/")
		if !found {
			namespace, name = "", key
		}
		known := k.known(key)
		d.Add(namespace, name, known.UID, known.ResourceVersion)
	}
	return d.String()
}
