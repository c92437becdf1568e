package event

import "context"

// AppendFunc takes ownership of an observation. It returns before that is durable, waits only when memory or disk is at its
// bound, and fails only when the process is stopping. One scope appends from one goroutine; scopes append concurrently.
type AppendFunc func(ctx context.Context, o Observation) error

// Observation is one step of one scope: what changed, what is known now, and how far the scope has come. Its parts are
// true together only, so whoever stores it stores it whole (I1).
type Observation struct {
	// Resource owns Known, Forget and Bodies, under its String, which does not hold the version. Version and kind are those
	// it is read in now; they are stored too, so that deletes that are found later can name them.
	Resource    Resource
	Scope       string    // owns Position and Snapshot: what is watched together, see [StoredScope]
	Changes     []*Change // in order; may be empty
	Known       []Known   // identities to remember, at most one of each key
	RemovedKeys []string  // keys to remember no longer; none of them is in Known
	Bodies      []Body    // to keep, where somebody asks for them
	Snapshot    string    // ID of the snapshot that has begun; "" when unchanged
	Position    string    // resourceVersion from which the scope can be watched on; "" when unchanged. It ends Lost and Pass
	// LostReason, if it is not empty, takes the scope's position and snapshot away, because the scope has to be listed again: the
	// reason of the gap, which is told in the same observation. It is remembered until there is a position again.
	LostReason string
}

// StoredScope is what is remembered of a scope, which is a resource as selected by one rule, or one namespace of it.
type StoredScope struct {
	ID         string // "deployments.apps;ns=web;l=app=shop"; begins with the name of the resource
	Position   string // resourceVersion to watch on from; "" when the scope must be listed
	Snapshot   string // ID of the newest snapshot; it is in progress while Position is ""
	LostReason string // why there is no position though there was one: the reason of the gap to tell; "" else
	Pass       string // with Lost where the rules were edited: names the comparison with them, see Change.Pass; "" else
}

// StoredResource is what is remembered of a resource beside its known objects.
type StoredResource struct {
	Resource Resource // in the version it was last read in; Version and Kind are "" in journals that did not store them
	Scopes   []StoredScope
	// BodiesMissing says that the known objects have no bodies, because they were taken over without or nobody asked for them,
	// and that somebody does.
	BodiesMissing bool
}
