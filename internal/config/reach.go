package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// reach follows changes through the rules and the routes, by what is known without a change: resource, type and class.
type reach struct {
	cfg     *Config
	emits   []*filter.Filter // of each rule; nil if it has no valid filter
	matches []*filter.Filter // of each route
}

func newReach(c *Config) *reach {
	compile := func(text string, withOld bool) *filter.Filter {
		f, err := filter.Compile(text, withOld)
		if text == "" || err != nil { // reported elsewhere
			return nil
		}
		return f
	}
	r := &reach{cfg: c}
	for _, rule := range c.Resources {
		r.emits = append(r.emits, compile(rule.Filter, true))
	}
	for _, route := range c.Routes {
		r.matches = append(r.matches, compile(route.Filter, false))
	}
	return r
}

// knownFacts returns the members of change that all changes of a resource have in common. A name is written as in a rule.
func (r *reach) knownFacts(name string) map[string]string {
	facts := map[string]string{}
	if group, resource, ok := selection.LiteralName(name); ok {
		facts["change.group"], facts["change.resource"] = group, resource
	}
	if r.cfg.Cluster.Name != "" {
		facts["change.cluster"] = r.cfg.Cluster.Name
	}
	return facts
}

// emittedKinds returns the kinds of changes that a rule may emit of a resource.
func (r *reach) emittedKinds(rule int, name string) []filter.Kind {
	var kinds []filter.Kind
	for _, kind := range filter.Kinds() {
		switch {
		case kind.Type == event.Attributed:
		case kind.Type == event.Sync && r.cfg.Resources[rule].Resync == 0:
		case r.emits[rule] != nil && r.emits[rule].OutcomeFor(kind, r.knownFacts(name)) == filter.Never:
		default:
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 0 && r.cfg.Audit.Enabled() {
		kinds = append(kinds, filter.Kind{Type: event.Attributed})
	}
	return kinds
}

// ownOutcome returns which changes of a kind the types, the classes and the filter of a route match.
func (r *reach) ownOutcome(route int, kind filter.Kind, name string) filter.Outcome {
	to := r.cfg.Routes[route]
	switch {
	case len(to.Types) > 0 && !slices.Contains(to.Types, string(kind.Type)),
		len(to.Classes) > 0 && !slices.Contains(to.Classes, string(kind.Class)):
		return filter.Never
	case to.Filter == "":
		return filter.Always
	case r.matches[route] == nil:
		return filter.Sometimes
	}
	return r.matches[route].OutcomeFor(kind, r.knownFacts(name))
}

// selectsAll reports whether a route selects everything that a name stands for in the namespaces of a rule or another route.
func (r *reach) selectsAll(route int, name string, in selection.Namespaces) bool {
	_, whole := r.cfg.Routes[route].Selection().SelectsAll(name)
	return whole && r.cfg.Routes[route].coversNamespaces(in)
}

// sinksReached returns the sinks that can receive some change that the rules emit.
func (r *reach) sinksReached() map[string]bool {
	reached := map[string]bool{}
	for i, rule := range r.cfg.Resources {
		for _, name := range rule.Select {
			r.addReached(reached, i, name)
		}
	}
	return reached
}

// addReached adds the sinks that can receive changes of a resource that a rule selects by this name: those of the routes,
// until no kind of change is left to later ones, and otherwise all.
func (r *reach) addReached(reached map[string]bool, rule int, name string) {
	left := r.emittedKinds(rule, name)
	one := r.cfg.Resources[rule].Rule
	one.Select = []string{name}
	for i, to := range r.cfg.Routes {
		if !one.Overlaps(to.Selection()) {
			continue
		}
		left = slices.DeleteFunc(left, func(kind filter.Kind) bool {
			outcome := r.ownOutcome(i, kind, name)
			if outcome != filter.Never {
				for _, t := range to.To {
					reached[t.Sink] = true
				}
			}
			return outcome == filter.Always && r.selectsAll(i, name, one.Namespaces)
		})
	}
	if len(left) == 0 {
		return
	}
	for _, s := range r.cfg.Sinks {
		reached[s.Name] = true
	}
}

// earlierMatches returns the earlier routes that together match every change that a route matches; nil if some change is
// left to it, or if it matches none.
func (r *reach) earlierMatches(route int) (earlier []string) {
	to := r.cfg.Routes[route]
	for _, name := range to.Select {
		left := slices.DeleteFunc(filter.Kinds(), func(kind filter.Kind) bool { return r.ownOutcome(route, kind, name) == filter.Never })
		for j := range route {
			if !r.selectsAll(j, name, selection.Namespaces(to.Namespaces)) {
				continue
			}
			before := len(left)
			left = slices.DeleteFunc(left, func(kind filter.Kind) bool {
				outcome := r.ownOutcome(j, kind, name)
				return outcome == filter.Always || outcome == filter.Sometimes && to.Filter == r.cfg.Routes[j].Filter
			})
			if by := fmt.Sprintf("routes[%d]", j); len(left) < before && !slices.Contains(earlier, by) {
				earlier = append(earlier, by)
			}
		}
		if len(left) > 0 {
			return nil
		}
	}
	return earlier
}

// validateReach reports rules and routes with conditions that exclude each other, and what the routes leave nothing for:
// warnings of single sinks, or a problem if it is all of them. c has no other problems.
func validateReach(rep *reporter, c *Config) {
	if len(c.Resources) == 0 || len(c.Sinks) == 0 {
		return
	}
	r, before := newReach(c), len(rep.problems)
	r.validateRuleFilters(rep)
	r.validateRouteConditions(rep)
	if len(rep.problems) > before {
		return
	}
	reached := r.sinksReached()
	if len(reached) == 0 {
		rep.addProblem("routes", Problem{Message: "leave nothing for any sink: every change that the rules select is dropped",
			Found: "drop: true", Expected: "a rule without these resources, or a route to a sink"})
		return
	}
	for i, s := range c.Sinks {
		named := slices.ContainsFunc(c.Sinks, func(other Sink) bool { return other.DeadLetters.Sink == s.Name })
		if !reached[s.Name] && !named {
			rep.addWarning(fmt.Sprintf("sinks[%d]", i), Problem{
				Message: fmt.Sprintf("receives nothing: the routes send every change elsewhere or drop it, and none leads to %q", s.Name),
			})
		}
	}
}

// validateRuleFilters reports filters that are false for every change of what their rules select.
func (r *reach) validateRuleFilters(rep *reporter) {
	for i, rule := range r.cfg.Resources {
		if r.emits[i] != nil && !slices.ContainsFunc(rule.Select, func(name string) bool { return len(r.emittedKinds(i, name)) > 0 }) {
			rep.addProblem(fmt.Sprintf("resources[%d].filter", i), Problem{
				Message: "is false for every change that the rule selects: nothing is emitted", Found: rule.Filter,
				Expected: "an expression that is true for some changes of " + strings.Join(rule.Select, ", ")})
		}
	}
}

// validateRouteConditions reports routes with conditions that exclude each other, and warns of types that are not
// emitted.
func (r *reach) validateRouteConditions(rep *reporter) {
	resyncs := slices.ContainsFunc(r.cfg.Resources, func(rule Resource) bool { return rule.Resync > 0 })
	for i, to := range r.cfg.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		if !slices.ContainsFunc(to.Select, func(name string) bool {
			return slices.ContainsFunc(filter.Kinds(), func(kind filter.Kind) bool { return r.ownOutcome(i, kind, name) != filter.Never })
		}) {
			rep.addProblem(at+".filter", Problem{Message: "is false for every change that the rest of the route matches", Found: to.Filter,
				Expected: "an expression that is true for some of them"})
			continue
		}
		switch without := strings.Join(to.Types, ","); {
		case without == "sync" && !resyncs:
			rep.addWarning(at+".types", Problem{Message: "no rule has resync: there are no changes of this type", Found: "sync", Expected: "another type"})
		case without == "attributed" && !r.cfg.Audit.Enabled():
			rep.addWarning(at+".types", Problem{Message: "audit has no source: there are no records of this type", Found: "attributed",
				Expected: "another type"})
		}
	}
}
