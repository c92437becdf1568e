package shape

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
	"github.com/kubecdc/kubecdc/pkg/shape/path"
)

// copyKind describes whether an annotation holds a copy of an object, which may contain secret values.
type copyKind int

const (
	noCopy      copyKind = iota
	wholeCopy            // a copy of the object as it was applied, including its values
	derivedCopy          // a credential, or data derived from an object that cannot be redacted like one
)

// copyAnnotations lists annotations that hold copies. Any annotation with "last-applied" in its name holds one too.
var copyAnnotations = map[string]copyKind{
	"kubectl.kubernetes.io/last-applied-configuration": wholeCopy,
	"kapp.k14s.io/original":                            wholeCopy,
	"kapp.k14s.io/original-diff":                       derivedCopy,
	"kapp.k14s.io/original-diff-full":                  derivedCopy,
	"kapp.k14s.io/original-diff-md5":                   derivedCopy,
	"objectset.rio.cattle.io/applied":                  wholeCopy, // gzip in base64, or JSON
	"openshift.io/token-secret.value":                  derivedCopy,
}

// copyKindOf returns what the annotation with this name holds.
func copyKindOf[T string | []byte](name T) copyKind {
	if kind, ok := copyAnnotations[string(name)]; ok {
		return kind
	}
	lower := strings.ToLower(string(name))
	if strings.Contains(lower, "last-applied") || strings.Contains(lower, "lastapplied") {
		return wholeCopy
	}
	return noCopy
}

// maxCopyDepth bounds how many levels of copies within copies are inspected.
const maxCopyDepth = 3

// annotationsTree applies to every object except Secrets: only copies in its annotations need to be inspected.
var annotationsTree = &path.Tree{Names: map[string]*path.Tree{
	"metadata": {Names: map[string]*path.Tree{"annotations": {Copies: true}}},
}}

// annotationTree returns the tree for the value of an annotation; next is the tree according to the paths. An annotation
// with a copy is redacted completely, unless the copy is of the same kind as the object and holds nothing to redact. A copy
// that cannot be parsed, for example because it is compressed, is redacted.
func (w *redactionPass) annotationTree(name []byte, i int, next *path.Tree) *path.Tree {
	kind := copyKindOf(name)
	if next != redactAll && w.isCopyOfObject(name, i, kind) {
		return redactAll
	}
	if kind == noCopy && (next == nil || !next.Ends) {
		w.recordKept(i)
	}
	if kind == noCopy || next == redactAll {
		return next
	}
	if kind == wholeCopy && !w.hideCopies {
		if end := w.skipValue(i, 0); end < 0 || w.isHarmlessCopy(w.b[i:end]) {
			w.keptCopies = true
			return next
		}
	}
	return redactAll
}

// isCopyOfObject reports whether the annotation at i is redacted because it holds a value that the object has, or had when
// the annotation was last judged. It remembers that.
func (w *redactionPass) isCopyOfObject(name []byte, i int, kind copyKind) bool {
	found := w.copies[i] || kind == wholeCopy && w.hideCopies
	if w.remembered == nil || i >= len(w.b) || w.b[i] != '"' || kind != wholeCopy && !holdsContainer(w.b[i:]) {
		return found
	}
	end := rawjson.SkipString(w.b, i)
	if end < 0 || string(w.b[i:end]) == masked || isHash(w.b[i:end]) || !found && !w.remembered.hides(name, w.b[i:end]) {
		return found
	}
	w.remembered.record(name, w.b[i:end])
	return true
}

// isHarmlessCopy reports whether a copy holds nothing that the rule redacts.
func (w *redactionPass) isHarmlessCopy(value []byte) bool {
	if value[0] != '"' || w.depth == maxCopyDepth {
		return string(value) == "null"
	}
	inner := redactionPass{
		redactor: w.redactor, b: rawjson.Unquote(value), kind: w.kind, trusted: w.trusted, secret: w.secret, depth: w.depth + 1,
	}
	return inner.redactObject(w.others) == nil && len(inner.findCopies()) == 0 && len(inner.edits) == 0 && !inner.foundRedacted &&
		inner.declaredKind == w.kind && w.kind != "" && w.kind != "Secret"
}

// recordKept records that the annotation at i is shown, if it may hold values of the object.
func (w *redactionPass) recordKept(i int) {
	if w.trusted || i >= len(w.b) || w.copies != nil || w.hideCopies || !holdsContainer(w.b[i:]) {
		return
	}
	if end := rawjson.SkipString(w.b, i); end >= 0 {
		w.kept = append(w.kept, span{i, end})
	}
}

// secretPaths are the paths of the values of a Secret.
var secretPaths = []path.Path{path.OfNames("data"), path.OfNames("stringData")}

// findCopies returns the starts of annotations that hold values which the rule redacts.
func (w *redactionPass) findCopies() map[int]bool {
	if len(w.kept) == 0 {
		return nil
	}
	search := copySearch{tails: w.tails}
	if w.secret {
		search.tails = slices.Concat(w.tails, secretPaths)
	}
	for _, v := range w.values {
		search.addValues(w.b[v.start:v.end], w.secret)
	}
	var copies map[int]bool
	for _, a := range w.kept {
		if search.isCopied(w.b[a.start:a.end], w.depth) {
			if copies == nil {
				copies = map[int]bool{}
			}
			copies[a.start] = true
		}
	}
	return copies
}

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
