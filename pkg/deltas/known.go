package deltas

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/form"
)

// KnownSet holds the known identities of a scope's objects, without their bodies. The zero value is not usable; see
// [NewKnownSet]. Not safe for concurrent use.
type KnownSet struct {
	objects  map[string]knownEntry
	listPass uint32          // of the current list, see startListPass
	sum      *sum            // of all objects; nil unless it is kept
	unseen   int             // objects not seen in the pass, while they are counted, see startCountedPass
	prefix   string          // of the keys that are counted
	chosen   map[string]bool // the keys that are counted; nil for all with the prefix
}

// sum is the number of the objects that are known to exist, and the digest over them.
type sum struct {
	count  int
	digest event.Digest
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
	if s.sum != nil {
		s.sum.removeObject(s.lookupKey(k.Key))
		s.sum.addObject(k)
	}
	s.countSeen(k.Key)
	s.objects[strings.Clone(k.Key)] = knownEntry{encodeKnown(k), s.listPass}
}

// Len returns the number of known objects.
func (s *KnownSet) Len() int { return len(s.objects) }

// lookupKey returns what is known of an object; the UID is empty if the object is not known.
func (s *KnownSet) lookupKey(key string) event.Known { return s.objects[key].decodeKnown(key) }

// replaceOrRemove stores k, or removes its key if k no longer exists.
func (s *KnownSet) replaceOrRemove(k event.Known) {
	if !k.Exists() {
		if s.sum != nil {
			s.sum.removeObject(s.lookupKey(k.Key))
		}
		s.countSeen(k.Key)
		delete(s.objects, k.Key)
		return
	}
	s.Add(k)
}

// startListPass starts a list: no known object has been seen in it yet.
func (s *KnownSet) startListPass() {
	s.listPass++
	s.unseen, s.prefix, s.chosen = 0, "", nil
}

// startCountedPass is startListPass that counts the objects of a namespace, "" for all, that were not seen, except those
// that only some sinks have. If keys are chosen, only these count.
func (s *KnownSet) startCountedPass(namespace string, chosen map[string]bool) {
	s.startListPass()
	if namespace != "" {
		s.prefix = namespace + "/"
	}
	if s.chosen = chosen; chosen != nil {
		for key := range chosen {
			if s.isUnseen(key) {
				s.unseen++
			}
		}
		return
	}
	for key := range s.objects {
		if s.isUnseen(key) {
			s.unseen++
		}
	}
}

// isUnseen reports whether an object is known, and was not seen in the pass, which has it.
func (s *KnownSet) isUnseen(key string) bool {
	k, ok := s.objects[key]
	return ok && (s.chosen == nil || s.chosen[key]) && strings.HasPrefix(key, s.prefix) && k.seenInPass != s.listPass && k.decodeKnown(key).UID != ""
}

// isSeen reports whether an object is known and was seen in the pass.
func (s *KnownSet) isSeen(key string) bool {
	k, ok := s.objects[key]
	return ok && k.seenInPass == s.listPass
}

// countSeen counts an object as seen that was not.
func (s *KnownSet) countSeen(key string) {
	if s.unseen > 0 && s.isUnseen(key) {
		s.unseen--
	}
}

// replaceSummary replaces the summary of a known object, which counts as seen only if it did before.
func (s *KnownSet) replaceSummary(k event.Known) {
	seen := s.objects[k.Key].seenInPass
	s.objects[strings.Clone(k.Key)] = knownEntry{encodeKnown(k), seen}
}

// markSeen records that the list contains the object. Unknown keys are ignored.
func (s *KnownSet) markSeen(key string) {
	s.countSeen(key)
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

// keepSum computes the sum of all objects, and keeps it up to date from now on.
func (s *KnownSet) keepSum() {
	if s.sum != nil {
		return
	}
	now := s.currentSum()
	s.sum = &now
}

// currentSum returns the number of all objects and the digest over them.
func (s *KnownSet) currentSum() (all sum) {
	if s.sum != nil {
		return *s.sum
	}
	for key, k := range s.objects {
		all.addObject(k.decodeKnown(key))
	}
	return all
}

// addObject adds an object, unless only some sinks have it: the others still need it, so it does not count as known.
func (s *sum) addObject(k event.Known) {
	if k.UID == "" {
		return
	}
	namespace, name := splitKey(k.Key)
	s.digest.Add(namespace, name, k.UID, k.ResourceVersion)
	s.count++
}

// removeObject is the reverse of addObject.
func (s *sum) removeObject(k event.Known) {
	if k.UID == "" {
		return
	}
	namespace, name := splitKey(k.Key)
	s.digest.Remove(namespace, name, k.UID, k.ResourceVersion)
	s.count--
}

func splitKey(key string) (namespace, name string) {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		return "", key
	}
	return namespace, name
}

// encodedKnown is an event.Known without its key, in the compact form of [event.CodeKnown], and then its summary.
type encodedKnown string

func encodeKnown(k event.Known) encodedKnown {
	f := form.Coder{Out: make([]byte, 0, 48)}
	event.CodeKnown(&f, &k)
	return encodedKnown(string(f.Out) + k.Summary)
}

// decodeKnown is the inverse of encodeKnown. The zero value decodes to an object that is not known.
func (p encodedKnown) decodeKnown(key string) event.Known {
	k := event.Known{Key: key}
	if p == "" {
		return k
	}
	f := form.Coder{Decoding: true, In: string(p)}
	event.CodeKnown(&f, &k)
	k.Summary = f.In
	return k
}

// Object is one API object as the API server sent it: its identity and the bytes. Objects are immutable once shared and may
// be used by several goroutines.
type Object struct {
	Namespace       string
	Name            string
	UID             string
	ResourceVersion string
	Generation      int64
	Summary         string       // see AppendParts; "" if the state is not known
	Names           string       // of the writers in Summary, see AppendNames
	Raw             []byte       // JSON without metadata.managedFields and the stamp; nil for stubs of known identities
	Stamp           *event.Stamp // as the object has it, of this write or an earlier one; nil if it has none
	ObservedAt      time.Time    // when the bytes arrived; UTC
	CreatedAt       int64        // metadata.creationTimestamp in Unix seconds; 0 if there is none, as in DeletingAt
	DeletingAt      int64        // when the deletion was requested: metadata.deletionTimestamp without the grace period
	// InitialEventsEnd marks the bookmark that ends a WatchList's initial events (KEP-3157).
	InitialEventsEnd bool

	key string
}

// NewObject returns an object with its key set. The caller sets the other fields before sharing the object.
func NewObject(namespace, name string) *Object {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	return &Object{Namespace: namespace, Name: name, key: key}
}

// Key returns "namespace/name", or "name" for cluster-scoped objects. It is the key in DeltaFIFO and in event.Known.
func (o *Object) Key() string { return o.key }

// LastWrite returns when the object was last written as a whole, by its managed fields: writes of a subresource, such as
// that of the status, leave labels and annotations as they are. "" if that is not known.
func (o *Object) LastWrite() (last string) {
	if o.Summary == "" || hasTruncatedWriters(o.Summary) {
		return ""
	}
	for names := o.Names; names != ""; {
		var entry [4]string // see AppendNames
		for i := range entry {
			entry[i], names, _ = strings.Cut(names, "\x00")
		}
		if entry[2] == "" {
			last = max(last, entry[3])
		}
	}
	return last
}

// toKnown returns what is known of the object once it has been emitted.
func (o *Object) toKnown() event.Known {
	return event.Known{Key: o.key, UID: o.UID, ResourceVersion: o.ResourceVersion, Summary: o.Summary}
}

func (o *Object) matchesKnown(known event.Known) bool {
	return known.UID == o.UID && known.ResourceVersion == o.ResourceVersion && known.UID != ""
}

// objectKey is the key function of DeltaFIFO.
func objectKey(obj any) (string, error) {
	if o, ok := obj.(*Object); ok {
		return o.Key(), nil
	}
	return "", fmt.Errorf("deltas: %T is not an object", obj)
}
