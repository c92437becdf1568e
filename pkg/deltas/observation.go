package deltas

import (
	"context"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Observation is one step of one scope: what changed, what is known now, and how far the scope has come. Its parts are
// true together only, so whoever stores it stores it whole (I1).
type Observation struct {
	Scope    string          // stable name of a resource and its selectors
	Changes  []*event.Change // in order; may be empty
	Known    []event.Known   // identities to remember, gone markers included
	Forget   []string        // keys to remember no longer
	Bodies   []event.Body    // to keep, where somebody asks for them; deltas fills in none
	Snapshot string          // ID of the snapshot that has begun; "" when unchanged
	Position string          // resourceVersion from which the scope can be watched on; "" when unchanged
}

// Append takes ownership of an observation in order. It returns before the observation is durable, blocks only when
// memory or disk is at its bound, and fails only when the process is stopping.
type Append func(ctx context.Context, o Observation) error
