package filter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// knownFactValues are the possible values of facts; a comparison with another value is always false.
var knownFactValues = map[string][]string{
	"change.type": {string(event.Added), string(event.Updated), string(event.Deleted), string(event.Snapshot),
		string(event.Sync)},
	"change.class": {"", string(event.ClassDeleting), string(event.ClassSpec), string(event.ClassStatus),
		string(event.ClassMetadata)},
	"change.actor.operation": {"", "Apply", "Update"},
}

// checkSatisfiable rejects expressions that compile but can never have the intended effect: a part that fails for every
// object, a comparison with an impossible value, or an expression that is false for every change.
func checkSatisfiable(env *cel.Env, compiled *cel.Ast) error {
	root := compiled.NativeRep()
	var wrong error
	ast.PreOrderVisit(root.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if wrong == nil && e.Kind() == ast.CallKind {
			wrong = checkCall(e.AsCall())
		}
	}))
	if wrong != nil {
		return wrong
	}
	if !isConstant(root.Expr()) {
		return nil
	}
	program, err := env.Program(compiled)
	if err != nil {
		return err
	}
	result, _, err := program.Eval(cel.NoVars())
	switch {
	case err != nil:
		return fmt.Errorf("it fails for every change: %w", err)
	case result == types.False:
		return fmt.Errorf("it is false for every change")
	}
	return nil
}

func checkCall(c ast.CallExpr) error {
	args := c.Args()
	if len(args) != 2 {
		return nil
	}
	switch c.FunctionName() {
	case operators.Divide, operators.Modulo:
		if isZero(args[1]) {
			return fmt.Errorf("it divides by zero, which fails for every change")
		}
	case operators.Equals, operators.NotEquals:
		if err := checkValue(args[0], args[1]); err != nil {
			return err
		}
		return checkValue(args[1], args[0])
	case operators.In:
		if args[1].Kind() != ast.ListKind {
			return nil
		}
		for _, element := range args[1].AsList().Elements() {
			if err := checkValue(args[0], element); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkValue rejects the comparison of a fact with a value that it never has.
func checkValue(fact, value ast.Expr) error {
	if fact.Kind() != ast.IdentKind || value.Kind() != ast.LiteralKind {
		return nil
	}
	values, listed := knownFactValues[fact.AsIdent()]
	text, isText := value.AsLiteral().(types.String)
	if !listed || !isText || slices.Contains(values, string(text)) {
		return nil
	}
	named := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
	return fmt.Errorf("%s is never %q; it is one of %s", fact.AsIdent(), string(text), strings.Join(named, ", "))
}

func isZero(e ast.Expr) bool {
	if e.Kind() != ast.LiteralKind {
		return false
	}
	switch n := e.AsLiteral().(type) {
	case types.Int:
		return n == 0
	case types.Uint:
		return n == 0
	}
	return false
}

// isConstant reports whether an expression does not depend on the change.
func isConstant(e ast.Expr) bool {
	alike := true
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		alike = alike && e.Kind() != ast.IdentKind && e.Kind() != ast.ComprehensionKind
	}))
	return alike
}
