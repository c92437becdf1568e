package source

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/deltas"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// maxReadFailures is how many requests of one reading may fail before it is given up.
const maxReadFailures = 6

// Reading is one reading of a scope, outside a [Source]. Its functions may be called again from the first object on, because
// a reading is repeated if it cannot be continued: Begin marks each beginning. Their errors end the reading.
type Reading struct {
	Begin func(position string) error
	Visit func(*deltas.Object) error // owns the object
}

// ReadScope reads everything that a scope selects, once: at an exact version of the cluster, or at the newest one if at is
// "". position is the version that was read; newest is the version of the last page if that is newer, and "" otherwise. A
// failing request is repeated with back-off, unless a right is missing or the version is not available, see
// [IsVersionUnavailable].
func ReadScope(ctx context.Context, client *apiserver.Client, scope selection.Scope, at string, to Reading) (position, newest string, err error) {
	e, err := client.Endpoint(scope)
	if err != nil {
		return "", "", err
	}
	log := slog.New(slog.DiscardHandler)
	c := &scopeClient{
		identity: newClusterIdentity(&Config{Client: client, Log: log}, func(error) {}), // it fails requests
		health:   &health{}, confirmedMissing: &atomic.Bool{}, reconnect: make(chan struct{}, 1),
	}
	defer c.identity.condition.Clear()
	c.endpoint.Store(e)
	failures := 0
	r := &reader{
		api: c, slot: &apiserver.Slot{}, most: maxPage, recordFailure: func(error) {}, recordSuccess: c.backoff.reset,
		handleFailure: func(ctx context.Context, err error) error {
			v := apiserver.Classify(err)
			if failures++; failures >= maxReadFailures || v == apiserver.Forbidden || v == apiserver.NotServed {
				return err
			}
			return c.waitAfter(ctx, err)
		},
	}
	return r.read(ctx, at, &readingVisitor{to: to, filter: scope.Filter})
}

// IsVersionUnavailable reports whether an error of [ReadScope] means that the API server does not list at the version: it is
// too old or too new, or the server does not know such lists.
func IsVersionUnavailable(err error) bool { return err != nil && isUnavailable(err) }

// readingVisitor passes what a reading visits to functions.
type readingVisitor struct {
	to     Reading
	filter func(namespace string) bool
}

// begin implements [visitor].
func (v *readingVisitor) begin(position string) error { return v.wrapError(v.to.Begin(position)) }

// visit implements [visitor].
func (v *readingVisitor) visit(_ context.Context, o *deltas.Object) error {
	if v.filter != nil && !v.filter(o.Namespace) {
		return nil
	}
	return v.wrapError(v.to.Visit(o))
}

// endPage implements [visitor].
func (*readingVisitor) endPage(context.Context, int, bool) error { return nil }

// wrapError distinguishes an error of the caller from one of the API server.
func (*readingVisitor) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return &appendError{err}
}

// Guard decides when what is read of a rule's types may be emitted: by the definitions of the types, and unless the rule is
// paused. A Guard is safe for concurrent use.
//
// The API server reads objects by the definition that it has when a request begins, and an edit of a definition ends the
// watches of its type. Therefore each response is verified when it has begun, and what an open watch delivers later needs no
// other check. A pause depends on no response: whatever is emitted has a turn, and a rule that is paused has none.
type Guard interface {
	// SetTypes replaces the types that are watched. It does not block.
	SetTypes(types []GuardedType)
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
