package filter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/rawjson"
)

// maxCost bounds one evaluation, in CEL's cost units of about one per step. It is a tenth of the limit for admission
// policies of the API server, and takes about ten milliseconds.
const maxCost = 100_000

// maxBytes bounds the text of an expression.
const maxBytes = 16 << 10

// changeFacts are the members of the variable change.
var changeFacts = map[string]struct {
	kind *cel.Type
	of   func(c *event.Change) any
}{
	"type":              {cel.StringType, func(c *event.Change) any { return string(c.Type) }},
	"class":             {cel.StringType, func(c *event.Change) any { return string(c.Class) }},
	"cluster":           {cel.StringType, func(c *event.Change) any { return c.Cluster }},
	"group":             {cel.StringType, func(c *event.Change) any { return c.Resource.Group }},
	"version":           {cel.StringType, func(c *event.Change) any { return c.Resource.Version }},
	"resource":          {cel.StringType, func(c *event.Change) any { return c.Resource.Resource }},
	"kind":              {cel.StringType, func(c *event.Change) any { return c.Resource.Kind }},
	"namespace":         {cel.StringType, func(c *event.Change) any { return c.Namespace }},
	"name":              {cel.StringType, func(c *event.Change) any { return c.Name }},
	"uid":               {cel.StringType, func(c *event.Change) any { return c.UID }},
	"coalesced":         {cel.BoolType, func(c *event.Change) any { return c.Coalesced }},
	"finalStateUnknown": {cel.BoolType, func(c *event.Change) any { return c.FinalStateUnknown }},
	"actor.manager":     {cel.StringType, func(c *event.Change) any { return actorOf(c).Manager }},
	"actor.operation":   {cel.StringType, func(c *event.Change) any { return actorOf(c).Operation }},
	"actor.subresource": {cel.StringType, func(c *event.Change) any { return actorOf(c).Subresource }},
}

func actorOf(c *event.Change) event.Actor {
	if c.Actor == nil {
		return event.Actor{}
	}
	return *c.Actor
}

// newEnvironment declares the variables and functions of expressions. Each fact is a variable with a dot in its name, so
// that the compiler checks its name and type.
func newEnvironment(withOld bool) (*cel.Env, error) {
	options := []cel.EnvOption{
		ext.Strings(ext.StringsVersion(4)), cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true), cel.ParserExpressionSizeLimit(maxBytes), cel.Variable("object", cel.DynType),
	}
	if withOld {
		options = append(options, cel.Variable("oldObject", cel.DynType))
	}
	for name, fact := range changeFacts {
		options = append(options, cel.Variable("change."+name, fact.kind))
	}
	return cel.NewEnv(options...)
}

// Filter is a compiled expression. It is immutable and safe for concurrent use.
type Filter struct {
	program       cel.Program
	partial       cel.Program // evaluates what can be known without a change
	text          string
	withOld       bool // oldObject is declared
	usesOldObject bool // uses oldObject
	usesMoment    bool // uses members of change about its writer, or how it was observed
	indexesFreely bool // names a member by a value, so that it is not known which one
}

// Compile compiles an expression over object, change and, if withOld is set, oldObject. Its errors are for display and give
// the position in the expression.
func Compile(text string, withOld bool) (*Filter, error) {
	env, err := newEnvironment(withOld)
	if err != nil {
		return nil, err
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes long, at most %d are allowed", len(text), maxBytes)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, explainIssues(issues, withOld)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf(
			"its result is %s, expected bool (if CEL cannot infer the type: compare it, or write bool(…))", t)
	}
	if cost, err := env.EstimateCost(ast, unknownSizes{}); err == nil && cost.Min > maxCost {
		return nil, fmt.Errorf("costs at least %d, at most %d are allowed", cost.Min, maxCost)
	}
	f := &Filter{text: text, withOld: withOld, indexesFreely: indexesFreely(ast)}
	if f.partial, err = env.Program(ast, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptPartialEval)); err != nil {
		return nil, err
	}
	if err := f.checkSatisfiable(ast); err != nil {
		return nil, err
	}
	for _, reference := range ast.NativeRep().ReferenceMap() {
		f.usesOldObject = f.usesOldObject || reference.Name == "oldObject"
		f.usesMoment = f.usesMoment || reference.Name == "change.coalesced" || reference.Name == "change.finalStateUnknown" ||
			strings.HasPrefix(reference.Name, "change.actor.")
	}
	f.program, err = env.Program(ast, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	return f, err
}

// unknownCharacter is the prefix of the compiler's message for an unknown character.
const unknownCharacter = "Syntax error: token recognition error at: '"

// explainIssues combines the compiler's messages into one line.
func explainIssues(issues *cel.Issues, withOld bool) error {
	var all []string
	for _, e := range issues.Errors() {
		message, line, column := e.Message, e.Location.Line(), e.Location.Column()+1
		text, unknown := strings.CutPrefix(message, unknownCharacter)
		if unknown && text != "" && strings.ContainsRune("=&|", rune(text[0])) {
			// The remaining messages are consequences of this one.
			return fmt.Errorf("line %d, column %d: %q is not an operator; write %q",
				line, column, text[:1], text[:1]+text[:1])
		}
		if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
			name, _, _ = strings.Cut(name, "'")
			if name = strconv.Quote(name); name == `"change"` {
				name = "this member of change"
			}
			message = fmt.Sprintf("%s is unknown; known variables are %s", name, strings.Join(variableNames(withOld), ", "))
		}
		text = fmt.Sprintf("line %d, column %d: %s", line, column, strings.ReplaceAll(message, "\n", " "))
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return errors.New(strings.Join(all, "; "))
}

func variableNames(withOld bool) []string {
	names := []string{"object"}
	if withOld {
		names = append(names, "oldObject")
	}
	for name := range changeFacts {
		names = append(names, "change."+name)
	}
	slices.Sort(names)
	return names
}

// unknownSizes makes cost estimates depend on the expression only.
type unknownSizes struct{}

var _ checker.CostEstimator = unknownSizes{}

func (unknownSizes) EstimateSize(checker.AstNode) *checker.SizeEstimate { return nil }

func (unknownSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// UsesOldObject reports whether the expression needs the state before the change.
func (f *Filter) UsesOldObject() bool { return f.usesOldObject }

// SelectsObjects reports whether the expression distinguishes objects: one whose state it does not match is left out.
func (f *Filter) SelectsObjects() bool {
	return !f.usesMoment && f.OutcomeFor(Kind{Type: event.Added}, Known{}) != Never
}

// ExcludesDeletes reports whether the expression is false for every delete, whatever the object is.
func (f *Filter) ExcludesDeletes() bool {
	return f.OutcomeFor(Kind{Type: event.Deleted}, Known{}) == Never
}

// Matches reports whether the expression is true for a change. For a delete, object is the state before it. old is the state
// emitted last; it may be nil. The result is undefined after an error; the error does not quote the object.
func (f *Filter) Matches(c *event.Change, old []byte) (bool, error) {
	v := &changeActivation{change: c, object: c.After, old: old}
	if c.Type == event.Deleted {
		v.object = c.Before
	}
	result, _, err := f.program.Eval(v)
	if v.err != nil {
		return false, v.err
	}
	if err != nil {
		return false, sanitizeError(err, f.text)
	}
	yes, ok := result.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the result is %s, not bool", result.Type())
	}
	return bool(yes), nil
}

// changeActivation provides the variables of a change. Bodies are decoded on first use.
type changeActivation struct {
	change      *event.Change
	object, old []byte // nil if not known
	values      [2]ref.Val
	err         error // of the decoder
}

var _ interpreter.Activation = (*changeActivation)(nil)

// ResolveName returns the value of a variable, as required by interpreter.Activation.
func (v *changeActivation) ResolveName(name string) (any, bool) {
	switch name {
	case "object":
		return v.decodeOnce(0, v.object), true
	case "oldObject":
		return v.decodeOnce(1, v.old), true
	}
	fact, ok := changeFacts[strings.TrimPrefix(name, "change.")]
	if !ok || !strings.HasPrefix(name, "change.") {
		return nil, false
	}
	return fact.of(v.change), true
}

// Parent returns nil: there is no enclosing scope.
func (v *changeActivation) Parent() interpreter.Activation { return nil }

func (v *changeActivation) decodeOnce(i int, body []byte) ref.Val {
	switch {
	case v.values[i] != nil:
	case body == nil:
		v.values[i] = types.NullValue
	default:
		object, err := decodeObject(body)
		if err != nil {
			v.err = err
			return types.NullValue
		}
		v.values[i] = types.DefaultTypeAdapter.NativeToValue(object)
	}
	return v.values[i]
}

// evaluationError describes a failed evaluation without quoting values of the object, because it is shown on the status
// page.
type evaluationError struct{ reason string }

func (e *evaluationError) Error() string { return e.reason }

// knownCELErrors maps prefixes of CEL's error messages to the text that is shown. The rest of a message may quote the
// object.
var knownCELErrors = []struct{ begins, shown string }{
	{"no such key", "no such key"},
	{"no such attribute", "no such key"},
	{"no such overload", "no such overload: a value has another type than the expression expects"},
	{"division by zero", "division by zero"},
	{"modulus by zero", "division by zero"},
	{"index out of bounds", "index out of bounds"},
	{"operation cancelled: actual cost limit exceeded", "actual cost limit exceeded"},
	{"actual cost limit exceeded", "actual cost limit exceeded"},
	{"integer overflow", "integer overflow"},
	{"type conversion error", "a value cannot be converted"},
	{"unsupported type conversion", "a value cannot be converted"},
	{"duplicate map key", "duplicate map key"},
}

var missingKey = regexp.MustCompile(`^no such (?:key|attribute)[^:]*: ([A-Za-z0-9_.-]+)`)

// sanitizeError returns an error that quotes only names from the expression itself.
func sanitizeError(err error, expression string) error {
	var malformed *rawjson.MalformedError
	if errors.As(err, &malformed) {
		return err
	}
	text := err.Error()
	m := missingKey.FindStringSubmatch(text)
	if m != nil && (strings.Contains(expression, "."+m[1]) || strings.Contains(expression, `"`+m[1]+`"`)) {
		return &evaluationError{"no such key: " + m[1]}
	}
	for _, f := range knownCELErrors {
		if strings.HasPrefix(text, f.begins) {
			return &evaluationError{f.shown}
		}
	}
	return &evaluationError{"the expression failed on an object"}
}

// knownFactValues are the possible values of facts; a comparison with another value is always false.
var knownFactValues = map[string][]string{
	"change.type": {string(event.Added), string(event.Updated), string(event.Deleted), string(event.Snapshot),
		string(event.Sync)},
	"change.class": {"", string(event.ClassDeleting), string(event.ClassSpec), string(event.ClassStatus),
		string(event.ClassMetadata)},
	"change.actor.operation": {"", "Apply", "Update"},
}

// checkSatisfiable rejects expressions that compile but can never have the intended effect: a comparison with itself or
// with an impossible value, or an expression that fails, or is false, for every change.
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
		outcome, err := f.evaluateFor(kind, Known{})
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
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		if text := textOf(args[0], source); text == textOf(args[1], source) && usesVariable.MatchString(text) {
			return fmt.Errorf("it compares %s with itself", text)
		}
		return cmp.Or(f.checkValue(args[0], args[1]), f.checkValue(args[1], args[0]))
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

// decodeObject decodes an object into CEL's native types: maps, lists, strings, booleans, nil, integers as int64 if they
// fit, and other numbers as float64.
func decodeObject(object []byte) (map[string]any, error) {
	d := decoder{b: object}
	start := rawjson.SkipSpace(object, 0)
	v, end := d.decodeValue(start, 0)
	if err := rawjson.CheckEnd(object, end); err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, rawjson.MalformedAt(object, rawjson.FailAt(start))
	}
	return m, nil
}

type decoder struct{ b []byte }

// decodeValue returns the value at i and the index after it.
func (d *decoder) decodeValue(i, depth int) (any, int) {
	if i >= len(d.b) || depth > rawjson.MaxDepth {
		return nil, rawjson.FailAt(i)
	}
	switch d.b[i] {
	case '{':
		object := map[string]any{}
		m := rawjson.EnterObject(d.b, i)
		for m.Next() {
			name := string(m.Key)
			object[name], m.I = d.decodeValue(m.I, depth+1)
		}
		return object, m.I
	case '[':
		list := []any{}
		e := rawjson.EnterArray(d.b, i)
		for e.Next() {
			var v any
			v, e.I = d.decodeValue(e.I, depth+1)
			list = append(list, v)
		}
		return list, e.I
	}
	end := rawjson.SkipValue(d.b, i, depth)
	if end < 0 {
		return nil, end
	}
	return decodeScalar(d.b[i:end]), end
}

func decodeScalar(v []byte) any {
	switch v[0] {
	case '"':
		return string(rawjson.Unquote(v))
	case 't':
		return true
	case 'f':
		return false
	case 'n':
		return nil
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n
	}
	f, _ := json.Number(v).Float64() // out of range: infinity
	return f
}
