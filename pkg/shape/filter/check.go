package filter

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
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
func (f *Filter) checkSatisfiable(compiled *cel.Ast) error {
	var wrong error
	ast.PreOrderVisit(compiled.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if wrong == nil && e.Kind() == ast.CallKind {
			wrong = f.checkCall(e.AsCall(), compiled.NativeRep().SourceInfo())
		}
	}))
	if wrong != nil {
		return wrong
	}
	for _, kind := range kindsOfChanges(f.withOld) {
		outcome, err := f.evaluateAll(kind, Known{})
		if outcome != Never && outcome != Fails {
			return nil
		}
		wrong = cmp.Or(wrong, err)
	}
	if wrong != nil {
		return fmt.Errorf("it fails, or is false, for every change: %w", wrong)
	}
	return errors.New("it is false for every change")
}

// Kind is what tells changes apart before their objects are known.
type Kind struct {
	Type  event.Type
	Class event.Class
}

func (k Kind) facts() map[string]any {
	facts := map[string]any{"change.type": string(k.Type), "change.class": string(k.Class)}
	if k.Type != event.Deleted && k.Type != event.Attributed {
		facts["change.finalStateUnknown"] = false
	}
	return facts
}

// kindsOfChanges returns the kinds of changes that a filter is evaluated for. Filters of rules have the old object, and are
// not evaluated for records of authors.
func kindsOfChanges(withOld bool) []Kind {
	var all []Kind
	for _, kind := range Kinds() {
		if !withOld || kind.Type != event.Attributed {
			all = append(all, kind)
		}
	}
	return all
}

// Kinds returns all kinds of changes.
func Kinds() []Kind {
	return []Kind{
		{Type: event.Added}, {Type: event.Deleted}, {Type: event.Snapshot}, {Type: event.Sync}, {Type: event.Attributed},
		{Type: event.Updated}, {event.Updated, event.ClassDeleting}, {event.Updated, event.ClassSpec},
		{event.Updated, event.ClassStatus}, {event.Updated, event.ClassMetadata},
	}
}

func (f *Filter) checkCall(c ast.CallExpr, source *ast.SourceInfo) error {
	args := c.Args()
	if len(args) != 2 {
		return nil
	}
	switch c.FunctionName() {
	case operators.Divide, operators.Modulo:
		if isZero(args[1]) {
			return fmt.Errorf("it divides by zero, which fails for every change")
		}
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		if text := textOf(args[0], source); text == textOf(args[1], source) && usesVariable.MatchString(text) {
			return fmt.Errorf("it compares %s with itself", text)
		}
		if err := f.checkValue(args[0], args[1]); err != nil {
			return err
		}
		return f.checkValue(args[1], args[0])
	case operators.In:
		if args[1].Kind() != ast.ListKind {
			return nil
		}
		for _, element := range args[1].AsList().Elements() {
			if err := f.checkValue(args[0], element); err != nil {
				return err
			}
		}
	}
	return nil
}

// usesVariable matches the text of operands that depend on the change. Constants may be the values of a template.
var usesVariable = regexp.MustCompile(`\b(object|oldObject|change\.\w+)\b`)

// textOf returns an operand as it would be written; "" if it cannot be.
func textOf(e ast.Expr, source *ast.SourceInfo) string {
	text, err := cel.ExprToString(e, source)
	if err != nil {
		return ""
	}
	return text
}

// checkValue rejects the comparison of a fact with a value that it never has.
func (f *Filter) checkValue(fact, value ast.Expr) error {
	if fact.Kind() != ast.IdentKind || value.Kind() != ast.LiteralKind {
		return nil
	}
	values, listed := knownFactValues[fact.AsIdent()]
	if fact.AsIdent() == "change.type" && !f.withOld {
		values = append(slices.Clone(values), string(event.Attributed))
	}
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
