package event

import (
	"context"
	"strings"
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
