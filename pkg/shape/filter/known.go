package filter

import (
	"errors"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Known is what is known of all changes that an expression is evaluated for, beside their kind.
type Known struct {
	Facts        map[string]Fact // by variable, such as "change.namespace"
	MetadataOnly bool            // objects have apiVersion, kind and metadata, and no other member
}

// Fact is what is known of a member of change.
type Fact struct {
	Values []string                // all values that it can have; nil if they are too many or not known
	Allows func(value string) bool // whether it can have a value, if Values is nil; nil: it can have any
}

// factUse is how an expression uses a member of change. If it only compares it and its size with literals, a few values
// stand for all.
type factUse struct {
	literals []string // values that it is compared with
	sizes    []int64  // numbers that its size is compared with
	freely   bool     // it is used in another way, too
}

// maxSize bounds the numbers in comparisons with a size: a name or a UID is never as long.
const maxSize = 4096

// findFactUses returns how an expression uses each member of change that is a string.
func findFactUses(compiled *cel.Ast) map[string]*factUse {
	uses := map[string]*factUse{}
	all := ast.MatchDescendants(ast.NavigateAST(compiled.NativeRep()), ast.KindMatcher(ast.IdentKind))
	for _, e := range all {
		fact, is := changeFacts[strings.TrimPrefix(e.AsIdent(), "change.")]
		if !is || fact.kind != cel.StringType || !strings.HasPrefix(e.AsIdent(), "change.") {
			continue
		}
		u := uses[e.AsIdent()]
		if u == nil {
			u = &factUse{}
			uses[e.AsIdent()] = u
		}
		u.addUse(e)
	}
	return uses
}

// addUse adds one place where the member is used.
func (u *factUse) addUse(e ast.NavigableExpr) {
	if values, ok := literalsComparedWith(e, operators.Equals, operators.NotEquals, operators.In); ok {
		for _, v := range values {
			text, isText := v.(types.String) // it never equals anything else
			if isText && !slices.Contains(u.literals, string(text)) {
				u.literals = append(u.literals, string(text))
			}
		}
		return
	}
	parent, _ := e.Parent()
	if parent != nil && parent.Kind() == ast.CallKind && parent.AsCall().FunctionName() == overloads.Size {
		values, ok := literalsComparedWith(parent, operators.Equals, operators.NotEquals, operators.In,
			operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals)
		for _, v := range values {
			n, isInt := v.(types.Int)
			ok = ok && isInt && -maxSize <= n && n <= maxSize
			u.sizes = append(u.sizes, int64(n))
		}
		u.freely = u.freely || !ok
		return
	}
	u.freely = true
}

// literalsComparedWith returns the literals that an expression is compared with by the call that it is an operand of; false
// if it is used in another way.
func literalsComparedWith(e ast.NavigableExpr, comparisons ...string) ([]ref.Val, bool) {
	parent, ok := e.Parent()
	if !ok || parent.Kind() != ast.CallKind || !slices.Contains(comparisons, parent.AsCall().FunctionName()) {
		return nil, false
	}
	args := parent.AsCall().Args()
	other := args[0]
	if other.ID() == e.ID() {
		other = args[1]
	}
	operands := []ast.Expr{other}
	if parent.AsCall().FunctionName() == operators.In {
		if other.Kind() != ast.ListKind || args[1].ID() != other.ID() {
			return nil, false
		}
		operands = other.AsList().Elements()
	}
	var values []ref.Val
	for _, operand := range operands {
		if operand.Kind() != ast.LiteralKind {
			return nil, false
		}
		values = append(values, operand.AsLiteral())
	}
	return values, true
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

// possibleValues returns values that stand for all that the member can have; nil if there are none such.
func (u *factUse) possibleValues(known Fact) []string {
	if len(known.Values) > 0 {
		return known.Values
	}
	if u.freely {
		return nil
	}
	var values []string
	for _, text := range u.literals {
		if known.Allows == nil || known.Allows(text) {
			values = append(values, text)
		}
	}
	lengths := []int64{1}
	for _, n := range u.sizes {
		lengths = append(lengths, n-1, n, n+1)
	}
	slices.Sort(lengths)
	for _, n := range slices.Compact(lengths) {
		if n == 0 && !slices.Contains(u.literals, "") {
			values = append(values, "")
		}
		if n > 0 {
			values = append(values, u.otherText(int(n)))
		}
	}
	return values
}

// otherText returns a text of a length, which is not among the literals.
func (u *factUse) otherText(length int) string {
	for c := rune(0xE000); ; c++ { // a range for private use
		if text := strings.Repeat(string(c), length); !slices.Contains(u.literals, text) {
			return text
		}
	}
}

// maxAssignments bounds how often an expression is evaluated for one kind of change.
const maxAssignments = 256

// assignments returns combinations of values of the members of change, which stand for all changes of a kind. Members that
// are not in them are unknown.
func (f *Filter) assignments(kind Kind, known Known) []map[string]any {
	all := []map[string]any{kind.facts()}
	for _, name := range f.usedFacts() {
		var values []any
		fact, restricted := known.Facts[name]
		if !restricted {
			fact.Values = knownFactValues[name]
		}
		for _, text := range f.uses[name].possibleValues(fact) {
			values = append(values, text)
		}
		if _, decided := all[0][name]; decided || len(values) == 0 || len(all)*len(values) > maxAssignments {
			continue
		}
		var more []map[string]any
		for _, before := range all {
			for _, v := range values {
				one := map[string]any{name: v}
				for k, other := range before {
					one[k] = other
				}
				more = append(more, one)
			}
		}
		all = more
	}
	return all
}

// usedFacts returns the names of the members of change that the expression uses and that are strings, sorted.
func (f *Filter) usedFacts() []string {
	var names []string
	for name := range f.uses {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
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
	outcome, _ := f.evaluateAll(kind, known)
	return outcome
}

// evaluateAll returns the result for the changes of a kind, and the error if it is Fails.
func (f *Filter) evaluateAll(kind Kind, known Known) (Outcome, error) {
	results := map[Outcome]bool{}
	var failure error
	for _, facts := range f.assignments(kind, known) {
		result, err := f.evaluateKnown(kind, facts, known.MetadataOnly)
		switch {
		case err != nil:
			results[Fails], failure = true, err
		case result == types.True:
			results[Always] = true
		case result == types.False:
			results[Never] = true
		default:
			return Sometimes, nil
		}
		if results[Always] && len(results) > 1 {
			return Sometimes, nil
		}
	}
	switch {
	case results[Always]:
		return Always, nil
	case results[Fails]:
		return Fails, failure
	}
	return Never, nil
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
