package filter

import (
	"errors"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Outcome is the result of an expression for all changes of a kind.
type Outcome int

// The outcomes of an expression.
const (
	Sometimes Outcome = iota // it depends on the change
	Always                   // true
	Never                    // false
	Fails                    // it fails, or is false
)

// OutcomeFor returns the result of the expression for the changes of a kind.
func (f *Filter) OutcomeFor(kind Kind) Outcome {
	outcome, _ := f.evaluateFor(kind)
	return outcome
}

// evaluateFor returns the result for the changes of a kind, and the error if it is Fails.
func (f *Filter) evaluateFor(kind Kind) (Outcome, error) {
	switch result, err := f.evaluateKnown(kind); {
	case err != nil:
		return Fails, err
	case result == types.True:
		return Always, nil
	case result == types.False:
		return Never, nil
	}
	return Sometimes, nil
}

// evaluateKnown evaluates the expression where only the facts of a kind are known. The result is unknown if it depends on
// another.
func (f *Filter) evaluateKnown(kind Kind) (ref.Val, error) {
	facts, vars := kind.facts(), map[string]any{}
	unknown := []*cel.AttributePatternType{cel.AttributePattern("object")}
	if kind.Type == event.Added { // there is no state before
		vars["oldObject"] = nil
	} else {
		unknown = append(unknown, cel.AttributePattern("oldObject"))
	}
	for name := range changeFacts {
		name = "change." + name
		if value, known := facts[name]; known {
			vars[name] = value
		} else {
			unknown = append(unknown, cel.AttributePattern(name))
		}
	}
	partial, err := cel.PartialVars(vars, unknown...)
	if err != nil {
		return nil, err
	}
	result, _, err := f.partial.Eval(partial)
	if cancelled := (interpreter.EvalCancelledError{}); errors.As(err, &cancelled) {
		return types.NewUnknown(0, nil), nil // an operand that is not evaluated once the others are known may be the expensive one
	}
	return result, err
}
