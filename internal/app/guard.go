package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// sourceGuard holds the rules that a signal has paused, and those that the protection holds. It implements [source.Guard].
type sourceGuard struct {
	*protection
	signals *signalControl
	rules   []pausableRule // by index
}

// pausableRule is a rule that a signal can pause, if it has a name.
type pausableRule struct {
	subject signals.Subject
	pause   *delivery.PauseSwitch
}

func newSourceGuard(cfg *config.Config, p *protection, c *signalControl) *sourceGuard {
	g := &sourceGuard{p, c, make([]pausableRule, len(cfg.Resources))}
	for i, r := range cfg.Resources {
		of := signals.Subject{Rule: r.Name}
		g.rules[i] = pausableRule{of, c.pauseSwitch(of)}
	}
	return g
}

// Held implements [source.Guard].
func (g *sourceGuard) Held(rule int) (condition.Problem, source.Changed) {
	paused, changed := g.rules[rule].pause.Paused()
	if paused {
		return g.pausedProblem(rule), source.Changed{changed}
	}
	reason, evaluated := g.heldBy(rule)
	return heldProblem(reason), source.Changed{changed, evaluated}
}

// BeginTurn implements [source.Guard].
func (g *sourceGuard) BeginTurn(rule int) (end func(), err error) {
	if pause := g.rules[rule].pause; pause.TryBeginTurn() {
		return pause.EndTurn, nil
	}
	return nil, &source.HeldError{Problem: g.pausedProblem(rule)}
}

// pausedProblem is the problem of the scopes of a rule whose switch is on, or was a moment ago. It follows from that of the
// rule.
func (g *sourceGuard) pausedProblem(rule int) condition.Problem {
	of, p := g.rules[rule].subject, condition.Problem{Code: condition.RulePaused, Cause: "its pause has just ended"}
	if s, ok := g.signals.registry.ActivePause(of); ok {
		p = s.PausedProblem(0)
	}
	p.From = of.Component()
	return p
}

func (g *sourceGuard) statuses() (all []condition.Status) {
	for _, r := range g.rules {
		if r.subject.Rule != "" {
			all = append(all, g.signals.pausedStatus(r.subject))
		}
	}
	return all
}

// The times between checks of the paths, unless types or requests ask for one: soon while a path is absent, because its type
// may come or be mended.
const (
	protectionRecheck = 10 * time.Second
	protectionRefresh = 10 * time.Minute
)

// protection checks that each of redactPaths matches some type of its rule, and has a condition for each rule where one does
// not. With redaction.strict nothing of such a rule is emitted, see [sourceGuard]. The match of a type is replaced whenever
// its definition is read. Safe for concurrent use.
type protection struct {
	strict bool
	client *apiserver.Client
	set    *condition.Set
	rules  map[int]*protectedRule // those with redactPaths
	wake   chan struct{}          // has room for one: the types or their definitions have changed

	mu    sync.Mutex
	types []source.GuardedType
}

type protectedRule struct {
	index     int
	policy    shape.Policy
	condition *condition.Condition

	// Guarded by protection.mu.
	types   map[event.Resource]*protectedType
	reason  string        // why the rule is held, "" if each path is known to match
	changed chan struct{} // closed, and replaced, when reason changes
}

type protectedType struct {
	reading chan struct{} // full while the definition is read: what is known is never replaced by something older

	// Guarded by protection.mu. Of the definition that was read last.
	identity string
	counter  *shape.PathCounter // nil if it could not be read yet
	failure  error              // of the last reading
}

func newProtection(cfg *config.Config, client *apiserver.Client, log *slog.Logger) *protection {
	p := &protection{
		strict: cfg.Redaction.Strict, client: client, set: condition.NewSet(log, "redaction", "rules"),
		rules: map[int]*protectedRule{}, wake: make(chan struct{}, 1),
	}
	for i, r := range cfg.Resources {
		if len(r.RedactPaths) > 0 {
			p.rules[i] = &protectedRule{
				index: i, policy: shape.Policy{RedactPaths: r.RedactPaths},
				condition: p.set.Add(fmt.Sprintf("resources[%d]", i), condition.Problem{}),
				types:     map[event.Resource]*protectedType{}, changed: make(chan struct{}),
				reason: fmt.Sprintf("redaction.strict: the redactPaths of resources[%d] are not known to match yet", i),
			}
		}
	}
	return p
}

// SetTypes implements [source.Guard].
func (p *protection) SetTypes(types []source.GuardedType) {
	p.mu.Lock()
	same := slices.EqualFunc(p.types, types, func(a, b source.GuardedType) bool {
		return a.Scope.ID == b.Scope.ID && a.Scope.Rule == b.Scope.Rule && a.Scope.Resource == b.Scope.Resource && a.Next == b.Next
	})
	p.types = types
	p.mu.Unlock()
	if !same {
		p.requestCheck()
	}
}

// requestCheck has the definitions read soon. It never blocks.
func (p *protection) requestCheck() {
	ratelimit.Wake(p.wake)
}

// heldBy returns why nothing of a rule may be emitted, "" if it may, and a channel that is closed when that changes.
func (p *protection) heldBy(rule int) (reason string, changed <-chan struct{}) {
	r := p.rules[rule]
	if r == nil || !p.strict {
		return "", nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return r.reason, r.changed
}

// BeginRequest implements [source.Guard]. A response may be emitted if the definition is the same before the request and
// after the begin of the response.
func (p *protection) BeginRequest(scope selection.Scope) (verify func(context.Context) error) {
	r := p.rules[scope.Rule]
	if r == nil || !p.strict {
		return func(context.Context) error {
			if r != nil { // an edit has ended the watch, perhaps
				p.requestCheck()
			}
			return nil
		}
	}
	_, before := p.findType(r, scope.Resource)
	return func(ctx context.Context) error {
		identity, err := p.checkType(ctx, p.newChecker(), r, scope.Resource, false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return &source.HeldError{Problem: heldProblem(unreadReason(scope.Resource, err))}
		}
		if reason, _ := p.heldBy(scope.Rule); reason != "" {
			return &source.HeldError{Problem: heldProblem(reason)}
		}
		if identity != before {
			return source.ErrRedefined
		}
		return nil
	}
}

// heldProblem is the problem of a scope that is held for a reason; none without.
func heldProblem(reason string) condition.Problem {
	if reason == "" {
		return condition.Problem{}
	}
	return condition.Problem{Code: condition.RedactionHeld, Cause: reason}
}

// newChecker returns a checker of definitions as they are now.
func (p *protection) newChecker() *PathChecker {
	c := NewPathChecker(p.client)
	c.lenient = !p.strict
	return c
}

// findType returns a type of a rule, and the identity of the definition that was read last; "" if none was.
func (p *protection) findType(r *protectedRule, resource event.Resource) (t *protectedType, identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t = r.types[resource]; t == nil {
		t = &protectedType{reading: make(chan struct{}, 1)}
		r.types[resource] = t
	}
	return t, t.identity
}

func unreadReason(r event.Resource, err error) string {
	text := fmt.Sprintf("redaction.strict: the definition of %s cannot be read: %s", r, apiserver.Reason(err))
	if apiserver.Classify(err) == apiserver.Forbidden {
		text += "; exporter rbac prints the right"
	}
	return text
}

// run checks the paths until ctx ends.
func (p *protection) run(ctx context.Context) error {
	defer p.set.Close()
	for len(p.rules) > 0 && ctx.Err() == nil {
		wait := protectionRefresh
		if !p.checkRules(ctx) {
			wait = protectionRecheck
		}
		_ = ratelimit.SleepUnlessWoken(ctx, wait, p.wake)
	}
	return nil
}

// checkRules reads the definitions of all types, and reports whether all paths are known to match.
func (p *protection) checkRules(ctx context.Context) (all bool) {
	all = true
	checker := p.newChecker()
	for _, r := range p.rules {
		selected := map[event.Resource]bool{}
		for _, t := range p.typesOf(r) {
			selected[t.Scope.Resource], selected[t.Next] = true, true
		}
		for resource := range selected {
			_, _ = p.checkType(ctx, checker, r, resource, true) // its rule has the failure
		}
		if ctx.Err() != nil {
			return false
		}
		p.mu.Lock()
		maps.DeleteFunc(r.types, func(resource event.Resource, _ *protectedType) bool { return !selected[resource] })
		all = p.evaluate(r) && all
		p.mu.Unlock()
	}
	return all
}

func (p *protection) typesOf(r *protectedRule) []source.GuardedType {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.types), func(t source.GuardedType) bool { return t.Scope.Rule != r.index })
}

// checkType reads the definition of a type, matches the paths of a rule with it unless that is done, and holds or releases
// the rule by the result. It returns the identity of the definition. One that cannot be read changes nothing. sampled is
// whether the objects of a type without a schema are read again.
func (p *protection) checkType(
	ctx context.Context, checker *PathChecker, r *protectedRule, resource event.Resource, sampled bool,
) (identity string, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, apiserver.SlowAfter, apiserver.ErrSlow)
	defer cancel()
	t, _ := p.findType(r, resource)
	select {
	case t.reading <- struct{}{}:
	case <-bounded.Done():
		return "", context.Cause(bounded)
	}
	defer func() { <-t.reading }()
	_, known := p.findType(r, resource)
	d, unchanged, err := checker.readDefinition(bounded, resource, known)
	var counter *shape.PathCounter
	if err == nil && (!unchanged || sampled && strings.HasPrefix(d.identity, noSchema)) {
		counter, err = p.matchPaths(bounded, checker, r, resource, d)
	}
	if bounded.Err() != nil {
		counter, err = nil, context.Cause(bounded)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.failure = err; counter != nil {
		t.identity, t.counter = d.identity, counter
	}
	p.evaluate(r)
	return d.identity, err
}

// matchPaths matches the paths of a rule with a definition, or with the objects of a type that has no schema.
func (p *protection) matchPaths(
	ctx context.Context, checker *PathChecker, r *protectedRule, resource event.Resource, d definition,
) (*shape.PathCounter, error) {
	counter, err := r.policy.NewPathCounter()
	if err != nil {
		return nil, err // impossible: the configuration was validated
	}
	if d.schema != nil {
		counter.AddSchema(d.schema)
		return counter, nil
	}
	for _, t := range p.typesOf(r) {
		if t.Scope.Resource == resource || t.Next == resource {
			t.Scope.Resource = resource
			checker.sample(ctx, t.Scope, counter)
		}
	}
	return counter, nil
}

// evaluate holds or releases a rule, and reports whether each of its paths is known to match. That is so if it matches in
// what is watched and in what would be watched after a restart. Requires p.mu.
func (p *protection) evaluate(r *protectedRule) (matches bool) {
	problem, reason := condition.Problem{}, ""
	var uncovered string
	for _, version := range []func(source.GuardedType) event.Resource{
		func(t source.GuardedType) event.Resource { return t.Scope.Resource },
		func(t source.GuardedType) event.Resource { return t.Next },
	} {
		counter, failure := p.countPaths(r, version)
		if counter.AllMatch() {
			uncovered = cmp.Or(uncovered, shape.DescribeUncovered(counter.Uncovered()))
			continue
		}
		if problem = unmatchedProblem(r.index, counter); problem.Code != "" {
			reason = "redaction.strict: " + problem.Cause
			break
		}
		reason = cmp.Or(failure, fmt.Sprintf("redaction.strict: the redactPaths of resources[%d] are not known to match yet", r.index))
	}
	switch {
	case p.strict && problem.Code != "":
		problem.Effect = condition.RedactionHeld.Kind().Effect
	case p.strict && reason == "" && uncovered != "":
		problem = condition.Problem{
			Code:   condition.RedactionUnmatched,
			Cause:  fmt.Sprintf("redaction.strict: the redactPaths of resources[%d] cover no value of the same type at %s", r.index, uncovered),
			Effect: "values at these places are emitted", Remedy: "add these paths to redactPaths",
		}
	}
	r.condition.Update(problem)
	if reason != r.reason {
		r.reason = reason
		close(r.changed)
		r.changed = make(chan struct{})
		p.requestCheck() // and the next ones soon, while a path is absent
	}
	return reason == ""
}

// countPaths adds up the matches of the types of a rule, each in a version, and returns why one could not be read, or "".
// Requires p.mu.
func (p *protection) countPaths(r *protectedRule, version func(source.GuardedType) event.Resource) (*shape.PathCounter, string) {
	counter, _ := r.policy.NewPathCounter() // the configuration was validated
	counted, failure := map[event.Resource]bool{}, ""
	for _, guarded := range p.types {
		resource := version(guarded)
		t := r.types[resource]
		if guarded.Scope.Rule != r.index || t == nil || counted[resource] {
			continue
		}
		if counted[resource] = true; t.counter != nil {
			counter.Add(t.counter)
		} else if t.failure != nil {
			failure = unreadReason(resource, t.failure)
		}
	}
	return counter, failure
}

// unmatchedProblem describes the paths of a rule that match nothing; a zero Problem for none.
func unmatchedProblem(rule int, counter *shape.PathCounter) condition.Problem {
	var all []string
	for _, p := range counter.Paths {
		if p.Match == shape.PathAbsent {
			text := fmt.Sprintf("resources[%d].%s: no selected type has %q", rule, p.Key, p.Path)
			if p.Nearest != "" {
				text += fmt.Sprintf(", did you mean %q?", p.Nearest)
			}
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return condition.Problem{}
	}
	return condition.Problem{Code: condition.RedactionUnmatched, Cause: strings.Join(all, "; ")}
}
