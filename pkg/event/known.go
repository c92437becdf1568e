package event

// Known is what the exporter has told about one object: the identity of its newest journaled change. The set of all
// Known of a scope is what deletes are computed from after an absence (I8), and what makes replayed history silent.
type Known struct {
	Key             string // "namespace/name", or "name" for cluster-scoped objects
	UID             string
	ResourceVersion string
	// Gone marks an object whose delete is journaled while the stored position is still older than that delete: a
	// restart will be told of its last life again and must stay silent (I3). It is forgotten once the position passes.
	Gone bool
}

// Record is a change with its place in the journal.
type Record struct {
	Offset uint64 // 1 for the first change ever journaled; grows by one a change; never reused
	Change *Change
}
