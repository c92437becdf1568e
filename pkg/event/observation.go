package event

import "context"

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
	// LostReason, if set, clears the scope's position and snapshot, because the scope must be listed again. It is the reason
	// of the gap in the same observation, and is stored until there is a position again.
	LostReason string
}

// StoredScope is the stored state of a scope: a resource as selected by one rule, or one namespace of it.
type StoredScope struct {
	ID         string // "deployments.apps;ns=web;l=app=shop"; starts with the name of the resource
	Position   string // resourceVersion to resume the watch from; "" if the scope must be listed
	Snapshot   string // ID of the newest snapshot; it is in progress while Position is ""
	LostReason string // reason of the gap to emit if the position was lost; otherwise ""
	Pass       string // with LostReason if the rules were edited: ID of the comparison, see Change.Pass; otherwise ""
}

// StoredResource is the stored state of a resource, except its known objects.
type StoredResource struct {
	Resource Resource // in the version last read; Version and Kind are "" in journals that did not store them
	Scopes   []StoredScope
	// BodiesMissing is set if a rule needs bodies but the known objects have none: they came from a replicated state without
	// bodies, or no rule needed bodies before.
	BodiesMissing bool
}
