package source

import (
	"context"
	"fmt"

	"github.com/kubecdc/kubecdc/pkg/event"
)

// Explanation says what rules select, and why. It is a copy; the caller owns it.
type Explanation struct {
	// Matches are the resources that the names of the rules select, in the order of the rules. Where several rules select
	// a resource, the first has its scopes and the others say so in Left.
	Matches []Match
	// Unserved are the selected names that nothing serves, in the order of the rules.
	Unserved []Unserved
	// Unanswered are the groups whose API server did not say what it serves: nothing is known about them.
	Unanswered []string
}

// Match is one resource that a name of a rule selects.
type Match struct {
	Rule, Select int // the name is rules[Rule].Select[Select]
	Resource     event.Resource
	Namespaced   bool
	Assumed      bool    // whether it is namespaced was not known and taken to be so
	Scopes       []Scope // what is watched; empty if Left is set
	Left         string  // why this rule leaves the resource alone, a few words; empty if it does not
}

// Unserved is a selected name that nothing serves now.
type Unserved struct {
	Rule, Select int
	Name         string // as written
	Reason       string
	Assumed      bool    // as in Match
	Scopes       []Scope // what will be watched, as far as the name tells; empty for a wildcard, or if an earlier rule has it
}

// Explain asks the API server what it serves and says what the rules select of it. It tries once. That some groups could
// not be asked is no error.
func (c *Client) Explain(ctx context.Context, rules []Rule) (*Explanation, error) {
	if err := validateAll(rules); err != nil {
		return nil, err
	}
	client, err := c.discovery()
	if err != nil {
		return nil, err
	}
	found, unanswered, err := discover(ctx, client, nil)
	if err != nil {
		return nil, fmt.Errorf("asking the API server at %s what it serves: %w", c.Host(), err)
	}
	e := explain(rules, found)
	e.Unanswered = unanswered
	return e, nil
}

// ExplainWritten says what the rules select as far as their text tells, without a cluster. Each literal name counts as
// served; a wildcard is a match whose resource is "*", and whose group is "*" where it selects every group. Kinds are
// empty, versions too where the name has none.
func ExplainWritten(rules []Rule) (*Explanation, error) {
	if err := validateAll(rules); err != nil {
		return nil, err
	}
	e := explain(rules, written(rules))
	for i := range e.Matches {
		e.Matches[i].Assumed = !isScopeKnown(e.Matches[i].Resource)
	}
	return e, nil
}

func validateAll(rules []Rule) error {
	for i, rule := range rules {
		if err := rule.Validate(fmt.Sprintf("resources[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

// explain retraces resolve, which decides, and adds the reasons.
func explain(rules []Rule, c catalog) *Explanation {
	e := &explainer{rules: rules, catalog: c, leave: twin(rules, c), scopes: map[event.Resource][]Scope{}, owner: map[event.Resource]int{}}
	scopes, _ := resolve(rules, c)
	for _, s := range scopes {
		e.scopes[nameOf(s.Resource)] = append(e.scopes[nameOf(s.Resource)], s)
	}
	for i, rule := range rules {
		for j, p := range patterns(rule.Select) {
			found := c.find(p)
			if len(found) == 0 {
				e.miss(i, j, p)
			}
			for _, s := range found {
				e.match(i, j, s)
			}
		}
	}
	return &e.out
}

// nameOf is the resource without version and kind: what rules tell apart.
func nameOf(r event.Resource) event.Resource {
	return event.Resource{Group: r.Group, Resource: r.Resource}
}

type explainer struct {
	rules   []Rule
	catalog catalog
	leave   event.Resource
	scopes  map[event.Resource][]Scope // by name
	owner   map[event.Resource]int     // the rule that has the resource, or waits for it, by name
	out     Explanation
}

func (e *explainer) match(rule, name int, s served) {
	id := nameOf(s.resource)
	owner, taken := e.owner[id]
	m := Match{Rule: rule, Select: name, Resource: s.resource, Namespaced: s.namespaced}
	switch {
	case matchesResource(e.rules[rule].Exclude, id):
		m.Left = "excluded by this rule"
	case id == e.leave:
		m.Left = fmt.Sprintf("the same objects as %s, which are watched", otherTwin(id))
	case taken && owner == rule:
		return // another name of the same rule has said it
	case taken:
		m.Left = fmt.Sprintf("resources[%d] has it already", owner)
	default:
		e.owner[id] = rule
		m.Scopes = e.scopes[id]
	}
	if m.Left != "" && e.said(m) {
		return
	}
	e.out.Matches = append(e.out.Matches, m)
}

// said says whether another name of the same rule was left alone for the same resource.
func (e *explainer) said(m Match) bool {
	for _, other := range e.out.Matches {
		if other.Rule == m.Rule && other.Left != "" && isSame(other.Resource, m.Resource) {
			return true
		}
	}
	return false
}

func (e *explainer) miss(rule, name int, p pattern) {
	u := Unserved{Rule: rule, Select: name, Name: p.text}
	if p.wildcard() {
		u.Reason = "nothing of this group is served; it will be watched as soon as something is"
		e.out.Unserved = append(e.out.Unserved, u)
		return
	}
	u.Reason = e.catalog.whyUnserved(p)
	s := p.served()
	if _, taken := e.owner[nameOf(s.resource)]; !taken {
		e.owner[nameOf(s.resource)] = rule
		u.Assumed, u.Scopes = !isScopeKnown(s.resource), e.rules[rule].scopes(rule, s)
	}
	e.out.Unserved = append(e.out.Unserved, u)
}

func matchesResource(names []string, r event.Resource) bool {
	for _, p := range patterns(names) {
		if p.matches(r) {
			return true
		}
	}
	return false
}

func otherTwin(r event.Resource) event.Resource {
	if isSame(r, coreEvents) {
		return newEvents
	}
	return coreEvents
}
