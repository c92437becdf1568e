package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// maxSampledObjects bounds the objects of a scope that are sampled for its paths.
const maxSampledObjects = 200

// PathChecker matches paths with types. It reads the OpenAPI document of each group and version once. Not safe for
// concurrent use.
type PathChecker struct {
	client  *apiserver.Client
	schemas map[groupVersion]*shape.Schemas // nil where the API server has none
}

type groupVersion struct{ group, version string }

// NewPathChecker returns a checker that asks an API server.
func NewPathChecker(client *apiserver.Client) *PathChecker {
	return &PathChecker{client, map[groupVersion]*shape.Schemas{}}
}

// CountPaths matches the paths of a rule with the types that it selects: with their OpenAPI schema, where the API server has
// one, and, if sampled or where it has none, with some of their objects. A type that cannot be read counts as unknown.
func (p *PathChecker) CountPaths(ctx context.Context, policy shape.Policy, scopes []selection.Scope, sampled bool) (*shape.PathCounter, error) {
	counter, err := policy.NewPathCounter()
	if err != nil || len(counter.Paths) == 0 {
		return counter, err
	}
	types := map[event.Resource]bool{} // whether the schema is known
	for _, s := range scopes {
		known, asked := types[s.Resource]
		if !asked {
			var found *shape.Schema
			if found, known = p.findSchema(ctx, s.Resource); known {
				counter.AddSchema(found)
			}
			types[s.Resource] = known
		}
		if sampled || !known {
			if e, err := p.client.Endpoint(s); err == nil {
				_ = e.Sample(ctx, maxSampledObjects, counter.AddObject) // the scope's own condition has the reason
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return counter, nil
}

// findSchema returns the schema of a type; false if the API server has none.
func (p *PathChecker) findSchema(ctx context.Context, r event.Resource) (*shape.Schema, bool) {
	of := groupVersion{r.Group, r.Version}
	document, asked := p.schemas[of]
	if !asked {
		if text, err := p.client.OpenAPI(ctx, of.group, of.version); err == nil {
			document, _ = shape.ParseSchemas(text) // nil if it is none
		}
		p.schemas[of] = document
	}
	if document == nil {
		return nil, false
	}
	return document.Find(r.Group, r.Version, r.Kind)
}

// The times between checks of the paths: soon while one is absent, because its type may come or be mended.
const (
	protectionRecheck = 10 * time.Second
	protectionRefresh = 10 * time.Minute
)

// protection checks that each of redactPaths matches some type of its rule, and has a condition for each rule where one does
// not. With redaction.strict the changes of such a rule wait. Safe for concurrent use.
type protection struct {
	cfg    *config.Config
	client *apiserver.Client
	set    *condition.Set
	rules  map[int]*protectedRule // those with redactPaths
}

// protectedRule is a rule with redactPaths.
type protectedRule struct {
	condition *condition.Condition
	matched   chan struct{} // closed once each path is known to match

	// Owned by protection.run.
	done bool // matched is closed
}

func newProtection(cfg *config.Config, client *apiserver.Client, log *slog.Logger) *protection {
	p := &protection{cfg: cfg, client: client, set: condition.NewSet(log, "redaction", "rules"), rules: map[int]*protectedRule{}}
	for i, r := range cfg.Resources {
		if len(r.RedactPaths) > 0 {
			c := p.set.Add(fmt.Sprintf("resources[%d]", i), condition.Problem{})
			p.rules[i] = &protectedRule{condition: c, matched: make(chan struct{})}
		}
	}
	return p
}

// admit waits, with redaction.strict, until each path of a rule is known to match, see source.Config.
func (p *protection) admit(ctx context.Context, rule int, waiting func(reason string)) error {
	r := p.rules[rule]
	if r == nil || !p.cfg.Redaction.Strict {
		return nil
	}
	select {
	case <-r.matched:
		return nil
	default:
		waiting(fmt.Sprintf("redaction.strict: the redactPaths of resources[%d] are not known to match yet", rule))
	}
	select {
	case <-r.matched:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run checks the paths until ctx ends.
func (p *protection) run(ctx context.Context) error {
	defer p.set.Close()
	for len(p.rules) > 0 && ctx.Err() == nil {
		wait := protectionRefresh
		if !p.checkRules(ctx) {
			wait = protectionRecheck
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// checkRules updates each rule, and reports whether all paths are known to match.
func (p *protection) checkRules(ctx context.Context) bool {
	found, err := p.client.Explain(ctx, SelectionRules(p.cfg))
	if err != nil {
		return false // the source reports it
	}
	all, checker := true, NewPathChecker(p.client)
	for i, r := range p.rules {
		var scopes []selection.Scope
		for _, m := range found.Matches {
			if m.Rule == i {
				scopes = append(scopes, m.Scopes...)
			}
		}
		counter, err := checker.CountPaths(ctx, shape.Policy{RedactPaths: p.cfg.Resources[i].RedactPaths}, scopes, false)
		if err != nil {
			return false // ctx has ended: the paths are valid
		}
		r.condition.Update(unmatchedProblem(i, counter))
		switch {
		case !counter.AllMatch():
			all = false
		case !r.done:
			r.done = true
			close(r.matched)
		}
	}
	return all
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
