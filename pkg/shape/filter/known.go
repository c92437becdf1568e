package filter

import (
	"errors"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Known is what is known of all changes that an expression is evaluated for, beside their kind.
type Known struct {
	Values       map[string]string // of members of change, by variable, such as "change.namespace"
	MetadataOnly bool              // objects have apiVersion, kind and metadata, and no other member
}

// indexesFreely reports whether an expression selects a member by a value that is no literal.
func indexesFreely(compiled *cel.Ast) (yes bool) {
	ast.PreOrderVisit(compiled.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.CallKind && slices.Contains([]string{operators.Index, operators.OptIndex}, e.AsCall().FunctionName()) {
			yes = yes || e.AsCall().Args()[1].Kind() != ast.LiteralKind
		}
	}))
	return yes
}

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
func (f *Filter) OutcomeFor(kind Kind, known Known) Outcome {
	outcome, _ := f.evaluateFor(kind, known)
	return outcome
}

// evaluateFor returns the result for the changes of a kind, and the error if it is Fails.
func (f *Filter) evaluateFor(kind Kind, known Known) (Outcome, error) {
	facts := kind.facts()
	for name, value := range known.Values {
		facts[name] = value
	}
	switch result, err := f.evaluateKnown(kind, facts, known.MetadataOnly); {
	case err != nil:
		return Fails, err
	case result == types.True:
		return Always, nil
	case result == types.False:
		return Never, nil
	}
	return Sometimes, nil
}

// evaluateKnown evaluates the expression where only some facts are known. The result is unknown if it depends on another.
func (f *Filter) evaluateKnown(kind Kind, facts map[string]any, metadataOnly bool) (ref.Val, error) {
	vars := map[string]any{}
	var unknown []*cel.AttributePatternType
	for _, name := range []string{"object", "oldObject"} {
		switch {
		case name == "oldObject" && kind.Type == event.Added: // there is no state before
			vars[name] = nil
		case metadataOnly && !f.indexesFreely:
			vars[name] = map[string]any{}
			for _, member := range []string{"apiVersion", "kind", "metadata"} {
				unknown = append(unknown, cel.AttributePattern(name).QualString(member))
			}
		default:
			unknown = append(unknown, cel.AttributePattern(name))
		}
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
