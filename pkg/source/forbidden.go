package source

import (
	"errors"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// ForbiddenError ends a Source whose rule says so: the API server does not allow to read a mandatory scope.
type ForbiddenError struct {
	Scope   selection.Scope
	Verb    string // what was refused: "list" or "watch"
	AtStart bool   // it was refused from the start, and not taken away later
	Err     error  // what the API server says
}

// Error names the resource, the verb and the remedy.
func (e *ForbiddenError) Error() string {
	where := "at cluster scope"
	if e.Scope.Namespace != "" {
		where = "in namespace " + e.Scope.Namespace
	}
	return fmt.Sprintf("may not %s %s %s, and its rule says onForbidden: fail: %v; "+
		`allow it ("exporter rbac" prints the rights that the configuration needs), or write onForbidden: degrade`,
		e.Verb, e.Scope.Resource, where, apiserver.WithoutObject(e.Err))
}

func (e *ForbiddenError) Unwrap() error { return e.Err }

// maxRefusals is how many times in a row a mandatory scope must be refused: with the waits between them 7 to 14
// seconds. An API server that has just started, or an authorizer behind it, refuses for a moment what it will allow.
const maxRefusals = 4

// failIfMandatory ends the source when a mandatory scope is refused for good.
func (f *follower) failIfMandatory(err error, lived bool) {
	verb := "watch"
	var d *apiserver.DeniedError
	if errors.As(err, &d) {
		verb, err = d.Verb, d.Err
	}
	f.runner.source.fail(&ForbiddenError{Scope: f.scope, Verb: verb, AtStart: f.runner.foundAtStart && !lived, Err: err})
}
