package source

import (
	"context"
	"errors"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Guard decides when what is read of a rule's types may be emitted: by the definitions of the types, and unless the rule is
// paused. A Guard is safe for concurrent use.
//
// The API server reads objects by the definition that it has when a request begins, and an edit of a definition ends the
// watches of its type. Therefore each response is verified when it has begun, and what an open watch delivers later needs no
// other check. A pause depends on no response: whatever is emitted has a turn, and a rule that is paused has none.
type Guard interface {
	// SetTypes replaces the types that are watched. edited is whether definitions may have changed since the last call. It
	// does not block.
	SetTypes(types []GuardedType, edited bool)
	// Held returns why nothing of a rule may be emitted, a zero Problem if it may: condition.RulePaused, or
	// condition.RedactionHeld.
	Held(rule int) (condition.Problem, Changed)
	// BeginTurn begins to emit something of a rule, until end is called. Its error is a *HeldError with
	// condition.RulePaused.
	BeginTurn(rule int) (end func(), err error)
	// BeginRequest is called before each request for the objects of a scope, and verify when its response has begun, before
	// any object is read. verify returns nil if they may be emitted, otherwise a *HeldError, ErrRedefined, or the error of
	// its context.
	BeginRequest(scope selection.Scope) (verify func(ctx context.Context) error)
}

// Changed holds channels of which one is closed when something else is the case than what was returned with them. Nil ones
// never are.
type Changed [2]<-chan struct{}

// GuardedType is a scope that is watched, of one of the types.
type GuardedType struct {
	Scope selection.Scope // in the version that is watched
	Next  event.Resource  // in the version that a restart would watch, often the same
}

// ErrRedefined means that the definition of a type has changed since the request began. The next request may succeed.
var ErrRedefined = errors.New("the definition of the type has changed")

// HeldError means that nothing of a type may be emitted.
type HeldError struct{ Problem condition.Problem }

func (e *HeldError) Error() string { return e.Problem.Cause }

// isHeld reports whether nothing of a rule may be emitted. The guard may be nil.
func isHeld(g Guard, rule int) bool {
	if g == nil {
		return false
	}
	held, _ := g.Held(rule)
	return held.Code != ""
}
