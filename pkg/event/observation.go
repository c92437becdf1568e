package event

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/kubecdc/kubecdc/pkg/form"
)

// AppendFunc takes ownership of an observation. It returns before the observation is durable, blocks only if memory or disk
// is at its bound, and fails only when the process is stopping. Each scope appends from one goroutine; different scopes
// append concurrently.
type AppendFunc func(ctx context.Context, o Observation) error

// Observation is one step of one scope: the changes, the known objects after them, and the position. Its parts are only
// consistent together, so they are stored atomically (I1).
type Observation struct {
	// Resource owns Known, RemovedKeys and Bodies; they are stored under its String, which does not include the version. The
	// current version and kind are stored too, so that deletes that are found later can carry them.
	Resource    Resource
	Scope       string    // owns Position and Snapshot, see [StoredScope]
	Changes     []*Change // in order; may be empty
	Known       []Known   // identities to store, at most one per key
	RemovedKeys []string  // keys to delete; none of them is in Known
	Bodies      []Body    // states to store, if a rule needs them
	Snapshot    string    // ID of the snapshot that was started; "" if unchanged
	Position    string    // resourceVersion to resume the watch from; "" if unchanged. Clears LostReason and Pass
	AheadUpTo   string    // see StoredScope.AheadUpTo; counts only with Position
	// LostReason, if set, clears the scope's position and snapshot, because the scope must be listed again. It is the reason
	// of the gap in the same observation, and is stored until there is a position again.
	LostReason string
	// EndedRequest is the ID of a request of the scope that this observation completes; "" for none.
	EndedRequest string
	// EndedCount is the number of objects that its snapshot has, and EndedAbsent that of the objects that do not exist.
	EndedCount, EndedAbsent int
}

// StoredScope is the stored state of a scope: a resource as selected by one rule, or one namespace of it.
type StoredScope struct {
	ID         string // "deployments.apps;ns=web;l=app=shop"; starts with the name of the resource
	Position   string // resourceVersion to resume the watch from; "" if the scope must be listed
	Snapshot   string // ID of the newest snapshot; it is in progress while Position is ""
	LostReason string // reason of the gap to emit if the position was lost; otherwise ""
	Pass       string // with LostReason if the rules were edited: ID of the comparison, see Change.Pass; otherwise ""
	// AheadUpTo is the version up to which known objects may be newer than Position, because later parts of a list were newer
	// than its first page. Until the position has reached it, the known objects are no state of the cluster. "" if none are.
	AheadUpTo string
	// Requests has the snapshots that are requested, in order, as SnapshotRequests returns them.
	Requests string
}

// FormerSink is a sink that is not configured any more, or not by the exporter that is active. If it is configured again, it
// gets a [Gap] of each resource.
type FormerSink struct {
	Name      string
	Positions []ResourcePosition // up to which it received everything, by resource
	Missed    bool               // it missed something already when this was recorded
}

// ResourcePosition is a position in the history of a resource.
type ResourcePosition struct {
	Resource Resource
	Position string // "" if not known
}

// StoredResource is the stored state of a resource, except its known objects.
type StoredResource struct {
	Resource Resource // in the version last read; Version and Kind are "" in journals that did not store them
	Scopes   []StoredScope
	// BodiesMissing is set if a rule needs bodies but the known objects have none: they came from a replicated state without
	// bodies, or no rule needed bodies before.
	BodiesMissing bool
}

// Known is what the exporter has emitted of one object: the identity of its newest journaled change, and a summary of the
// state after it. Deletes during an absence are computed from the set of all Known of a scope (I8), and replayed history is
// recognized by it.
type Known struct {
	Key             string // "namespace/name", or "name" for cluster-scoped objects
	UID             string
	ResourceVersion string
	// Summary is opaque data that the next state of the object is compared with, to find its class and actor. It is empty if
	// no state is known, as in old journals.
	Summary string
	// EmittedElsewhere holds versions that only some sinks received, because the previous exporter ended in between. It is
	// encoded by [AppendEmittedVersion]. UID is empty if there are only such versions.
	EmittedElsewhere string
}

// Exists reports whether anything is known of the object.
func (k Known) Exists() bool { return k.UID != "" || k.EmittedElsewhere != "" }

// Bits of the first byte of the form of a known object. A UID that is a lower-case UUID, and a resourceVersion that is a
// canonical decimal number, have short forms.
const (
	knownUUID = 1 << iota
	knownNumber
	knownElsewhere
)

// CodeKnown codes what is known of an object without its key and its summary. The form is compact, because there may be a
// million of them:
//
//	flags 1 · UID 16, or text · resourceVersion uvarint, or text · versions emitted elsewhere, text, if flagged
func CodeKnown(f *form.Coder, k *Known) {
	var flags byte
	var id uuid.UUID
	var number uint64
	if !f.Decoding {
		flags, id, number = k.shortForms()
	}
	if f.CodeByte(&flags); flags&knownUUID == 0 {
		f.CodeText(&k.UID)
	} else if f.CodeFixed(id[:]); f.Decoding {
		k.UID = id.String()
	}
	if flags&knownNumber == 0 {
		f.CodeText(&k.ResourceVersion)
	} else if f.CodeUvarint(&number); f.Decoding {
		k.ResourceVersion = strconv.FormatUint(number, 10)
	}
	if flags&knownElsewhere != 0 {
		f.CodeText(&k.EmittedElsewhere)
	}
}

// shortForms returns what has a short form. Other spellings of UUIDs and numbers would not come back.
func (k *Known) shortForms() (flags byte, id uuid.UUID, number uint64) {
	var err error
	if len(k.UID) == 36 && !strings.ContainsAny(k.UID, "ABCDEF") {
		if id, err = uuid.Parse(k.UID); err == nil {
			flags |= knownUUID
		}
	}
	number, err = strconv.ParseUint(k.ResourceVersion, 10, 64)
	if err == nil && (k.ResourceVersion[0] != '0' || k.ResourceVersion == "0") {
		flags |= knownNumber
	}
	if k.EmittedElsewhere != "" {
		flags |= knownElsewhere
	}
	return flags, id, number
}

// EmittedVersion is a version of an object that only some sinks received.
type EmittedVersion struct{ UID, ResourceVersion string }

// AppendEmittedVersion appends a version to the encoding of [Known.EmittedElsewhere].
func AppendEmittedVersion(to string, t EmittedVersion) string {
	return to + t.UID + " " + t.ResourceVersion + " "
}

// EachEmittedElsewhere calls each for every version in EmittedElsewhere.
func (k Known) EachEmittedElsewhere(each func(EmittedVersion)) {
	for rest := k.EmittedElsewhere; rest != ""; {
		var t EmittedVersion
		t.UID, rest, _ = strings.Cut(rest, " ")
		t.ResourceVersion, rest, _ = strings.Cut(rest, " ")
		each(t)
	}
}

// Body is the last emitted state of an object, stored if a rule needs the state before a change.
type Body struct {
	Key             string // as in Known
	UID             string
	ResourceVersion string
	Raw             []byte // JSON object; immutable, owned by the code that created the Body
}

// Digest is an order-independent checksum over a set of objects: the sum, word by word and modulo 2⁶⁴, of the SHA-256 of
// "namespace/name/uid/resourceVersion" of each. The zero value is the digest of the empty set. A consumer uses it to verify
// that it holds the same objects in the same versions. It does not protect against forgery.
type Digest [4]uint64

// DigestAlgorithm names the algorithm of [Digest] and its version. It changes when equal sets get another digest.
const DigestAlgorithm = "sha256-sum64/1"

// Add adds an object that is not yet in the set.
func (d *Digest) Add(namespace, name, uid, resourceVersion string) {
	for i, word := range digestWords(namespace, name, uid, resourceVersion) {
		d[i] += word
	}
}

// Remove removes an object that is in the set.
func (d *Digest) Remove(namespace, name, uid, resourceVersion string) {
	for i, word := range digestWords(namespace, name, uid, resourceVersion) {
		d[i] -= word
	}
}

func digestWords(namespace, name, uid, resourceVersion string) (words [4]uint64) {
	var scratch [320]byte
	text := append(append(append(append(scratch[:0], namespace...), '/'), name...), '/')
	text = append(append(append(text, uid...), '/'), resourceVersion...)
	sum := sha256.Sum256(text)
	for i := range words {
		words[i] = binary.BigEndian.Uint64(sum[8*i:])
	}
	return words
}

// String returns the digest as 64 hexadecimal digits.
func (d *Digest) String() string {
	var b [32]byte
	for i, word := range d {
		binary.BigEndian.PutUint64(b[8*i:], word)
	}
	return hex.EncodeToString(b[:])
}

// StampAnnotation is the annotation in which the admission policy of package stamp records the author of a write. It is
// removed from each object when it is read, and is no part of the object for anything behind that.
const StampAnnotation = "kubecdc.io/stamp"

// Stamp is what an object says about the write that made its version. A write that is not stamped leaves the stamp of an
// earlier one, or copies that of another object, and a client may have written it where the policy was not in force: it
// proves nothing by itself.
type Stamp struct {
	User     string // the effective user of the request
	Replaced string // which version of which object the write replaced, see IsOf
}

// StampCreated stands for the replaced version in the stamp of a create.
const StampCreated = "new"

// ParseStamp parses the value of [StampAnnotation]: what was replaced, a space, the user. It returns false for anything
// else.
func ParseStamp(value string) (s Stamp, ok bool) {
	replaced, user, ok := strings.Cut(value, " ")
	if !ok || replaced == "" || user == "" {
		return Stamp{}, false
	}
	return Stamp{User: user, Replaced: replaced}, true
}

// Kubernetes appends so many random characters to generateName, which is cut for that.
const (
	generatedLength  = 5
	generatedNameMax = 63
)

// IsOf reports whether the stamp is of the write that replaced a version of the object of this name; "" if it created the
// object. A stamp has the version and the object, VERSION:GROUP/RESOURCE/NAMESPACE/NAME, so that a copy in another object
// means nothing. In the place of a name that the API server generates there is generateName and a slash.
func (s Stamp) IsOf(version string, r Resource, namespace, name string) bool {
	created := version == ""
	if created {
		version = StampCreated
	}
	of, found := strings.CutPrefix(s.Replaced, version+":"+r.Group+"/"+r.Resource+"/"+namespace+"/")
	if !found || name == "" {
		return false
	}
	if base, generated := strings.CutSuffix(of, "/"); generated && created {
		base = base[:min(len(base), generatedNameMax-generatedLength)]
		return len(name) == len(base)+generatedLength && strings.HasPrefix(name, base)
	}
	return of == name
}
