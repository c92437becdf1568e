package shape

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// copyMemory remembers which annotations were redacted because they hold a value of their object. Such a verdict outlives
// the value: it stays until the value of the annotation changes, so that a rotated value does not appear in the copy of it.
// It is stored with the known object: digests in the sealed summary, and in front of that hashes of the names, which hide
// the annotation once more if the digests were lost with their key. Safe for concurrent use.
type copyMemory struct {
	mu        sync.Mutex
	resources map[string]*resourceCopies // by name
}

// resourceCopies are the verdicts about the objects of a resource, by the hash of their key.
type resourceCopies struct {
	verdicts map[uint64][]copyVerdict // the slices are not modified
	// unknown holds the objects that an exporter without this memory has emitted, as in a replicated state, and those with
	// too many verdicts: of their annotations, none with JSON is shown until it changes.
	unknown map[uint64]bool
}

// copyVerdict is that an annotation is redacted while it has a value.
type copyVerdict struct {
	name   uint32 // a hash
	digest uint64 // of the value; anyDigest for the next one that is seen
}

const (
	anyDigest  = 0
	digestSize = 8
	nameSize   = 4

	// maxCopyVerdicts is how many verdicts about one object are kept, those that were used last. One state with more than
	// half of them, which the state before may need as well, makes its object one of which nothing is known.
	maxCopyVerdicts = 64
)

func newCopyMemory() *copyMemory { return &copyMemory{resources: map[string]*resourceCopies{}} }

// ofResource returns the verdicts about a resource, under the lock.
func (m *copyMemory) ofResource(name string) *resourceCopies {
	r := m.resources[name]
	if r == nil {
		r = &resourceCopies{map[uint64][]copyVerdict{}, map[uint64]bool{}}
		m.resources[name] = r
	}
	return r
}

// objectCopies are the verdicts about one object.
type objectCopies struct {
	verdicts []copyVerdict // the last used one is the last
	unknown  bool
	modified bool
	present  []copyVerdict // those of the state of this pass
}

func (m *copyMemory) loadObject(resource event.Resource, key string) *objectCopies {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, hash := m.ofResource(resource.String()), maphash.String(flagsSeed, key)
	return &objectCopies{verdicts: r.verdicts[hash], unknown: r.unknown[hash]}
}

// storeObject stores the verdicts after a pass over a state of an object.
func (m *copyMemory) storeObject(resource event.Resource, key string, o *objectCopies) {
	if !o.modified {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, hash := m.ofResource(resource.String()), maphash.String(flagsSeed, key)
	if r.verdicts[hash] = o.verdicts; len(o.verdicts) == 0 {
		delete(r.verdicts, hash)
	}
	if r.unknown[hash] = o.unknown; !o.unknown {
		delete(r.unknown, hash)
	}
}

func (m *copyMemory) forgetObject(resource event.Resource, key string) {
	m.storeObject(resource, key, &objectCopies{modified: true})
}

// hides reports whether an annotation with a value, a JSON string, has to stay redacted.
func (o *objectCopies) hides(name, quoted []byte) bool {
	if o == nil || !o.unknown && len(o.verdicts) == 0 {
		return false
	}
	hash, digest := nameHash(name), digestOfCopy(quoted)
	return o.unknown || slices.ContainsFunc(o.verdicts, func(v copyVerdict) bool {
		return v.digest == digest || v.digest == anyDigest && v.name == hash
	})
}

// record records that an annotation with a value is redacted.
func (o *objectCopies) record(name, quoted []byte) {
	if o == nil {
		return
	}
	if v := (copyVerdict{nameHash(name), digestOfCopy(quoted)}); !slices.Contains(o.present, v) {
		o.present = append(o.present, v)
	}
}

// resolve ends a pass: what it has found is used last, and what was not known of the annotations is known, unless the state
// was a stored one or has too many of them.
func (o *objectCopies) resolve(stored bool) {
	tooMany := len(o.present) > maxCopyVerdicts/2
	unknown := tooMany || o.unknown && stored
	if o.modified = unknown != o.unknown || len(o.present) > 0; !o.modified {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(o.verdicts), func(old copyVerdict) bool {
		return slices.ContainsFunc(o.present, func(v copyVerdict) bool {
			return old == v || old.name == v.name && old.digest == anyDigest
		})
	})
	kept = append(kept, o.present...)
	o.verdicts, o.unknown = kept[max(0, len(kept)-maxCopyVerdicts):], unknown
}

func nameHash(name []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(name) // never fails
	return h.Sum32()
}

func digestOfCopy(quoted []byte) uint64 {
	sum := sha256.Sum256(rawjson.Unquote(quoted))
	return max(binary.BigEndian.Uint64(sum[:]), anyDigest+1)
}

// The form in front of a sealed summary, unless there are no verdicts: whether they are known, and the hashes of the names.
const (
	copiesKnown   = 0x30
	copiesUnknown = 0x31
)

// encode returns what is stored of the verdicts of an object: the form in front of its summary, and the digests that belong
// into the summary.
func (m *copyMemory) encode(resource event.Resource, key string) (form, digests []byte) {
	o := m.loadObject(resource, key)
	switch {
	case o.unknown:
		return []byte{copiesUnknown}, nil
	case len(o.verdicts) == 0:
		return nil, nil
	}
	form = []byte{copiesKnown, byte(len(o.verdicts))}
	for _, v := range o.verdicts {
		form = binary.BigEndian.AppendUint32(form, v.name)
		digests = binary.BigEndian.AppendUint64(digests, v.digest)
	}
	return form, digests
}

// splitCopies splits what is stored of an object into the verdicts, still without digests, and its sealed summary.
func splitCopies(stored string) (copies objectCopies, summary string) {
	if len(stored) > 0 && stored[0] == copiesUnknown {
		return objectCopies{unknown: true}, stored[1:]
	}
	if len(stored) < 2 || stored[0] != copiesKnown || len(stored) < 2+nameSize*int(stored[1]) {
		return objectCopies{}, stored
	}
	names, rest := stored[2:2+nameSize*int(stored[1])], stored[2+nameSize*int(stored[1]):]
	for ; names != ""; names = names[nameSize:] {
		copies.verdicts = append(copies.verdicts, copyVerdict{name: binary.BigEndian.Uint32([]byte(names))})
	}
	return copies, rest
}

// takeDigests takes the digests from the front of an opened summary, and returns the rest; "" for a summary that was lost.
func (o *objectCopies) takeDigests(summary string) string {
	if len(summary) < digestSize*len(o.verdicts) {
		return ""
	}
	for i := range o.verdicts {
		o.verdicts[i].digest = binary.BigEndian.Uint64([]byte(summary))
		summary = summary[digestSize:]
	}
	return summary
}

// restoreObject adds what was stored of an object to what rewritten changes have shown.
func (m *copyMemory) restoreObject(resource event.Resource, key string, stored objectCopies) {
	if !stored.unknown && len(stored.verdicts) == 0 {
		return
	}
	o := m.loadObject(resource, key)
	o.verdicts, o.unknown, o.modified = slices.Concat(o.verdicts, stored.verdicts), stored.unknown, true
	m.storeObject(resource, key, o)
}
