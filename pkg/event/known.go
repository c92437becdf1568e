package event

import "strings"

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

// Stored is the stored state of one scope, from which it resumes.
type Stored struct {
	Position string  // resourceVersion to resume the watch from; "" if the scope must be listed
	Snapshot string  // ID of the newest snapshot; it is in progress while Position is ""
	Known    []Known // sorted by key
}

// Record is a change with its offset in the journal.
type Record struct {
	Offset uint64 // starts at 1, grows by one per change, never reused
	Change *Change
}
