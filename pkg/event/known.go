package event

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
