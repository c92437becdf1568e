package event

import "strings"

// Known is what the exporter has told about one object: the identity of its newest journaled change, and a summary of the
// state that change left behind. The set of all Known of a scope is what deletes are computed from after an absence (I8),
// and what makes replayed history silent.
type Known struct {
	Key             string // "namespace/name", or "name" for cluster-scoped objects
	UID             string
	ResourceVersion string
	// Summary is opaque bytes that the next state of the object is compared with to tell its class and its actor. Empty
	// where nothing is to be compared with: those of journals from before there were any.
	Summary string
	// EmittedElsewhere is what some sinks were told of beyond that, and not all: the exporter before this one ended in between. It is
	// written by [AppendEmittedVersion]. UID is empty where there is nothing else.
	EmittedElsewhere string
}

// Exists says that something is known.
func (k Known) Exists() bool { return k.UID != "" || k.EmittedElsewhere != "" }

// EmittedVersion is a version of an object that some sinks were told of.
type EmittedVersion struct{ UID, ResourceVersion string }

// AppendEmittedVersion adds to what [Known.Told] holds.
func AppendEmittedVersion(to string, t EmittedVersion) string {
	return to + t.UID + " " + t.ResourceVersion + " "
}

// EachEmittedElsewhere calls each for what Told holds.
func (k Known) EachEmittedElsewhere(each func(EmittedVersion)) {
	for rest := k.EmittedElsewhere; rest != ""; {
		var t EmittedVersion
		t.UID, rest, _ = strings.Cut(rest, " ")
		t.ResourceVersion, rest, _ = strings.Cut(rest, " ")
		each(t)
	}
}

// Body is the last told state of an object, kept where a rule asks what was there before a change.
type Body struct {
	Key             string // as in Known
	UID             string
	ResourceVersion string
	Raw             []byte // JSON object; belongs to whoever made the body, and does not change
}

// Stored is what is remembered of one scope, a resource with its selectors, to go on from.
type Stored struct {
	Position string  // resourceVersion to watch on from; "" when the scope must be listed
	Snapshot string  // ID of the newest snapshot; it is in progress while Position is ""
	Known    []Known // in order of keys
}

// Record is a change with its place in the journal.
type Record struct {
	Offset uint64 // 1 for the first change ever journaled; grows by one a change; never reused
	Change *Change
}
