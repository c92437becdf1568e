package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape/filter"
	"github.com/kubecdc/kubecdc/pkg/sinks"
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

// known returns what all changes have in common that a rule, which may be nil, emits of a resource. A name is written as in
// a rule.
func (r *reach) known(name string, rule *Resource) filter.Known {
	values := map[string]string{}
	if group, resource, ok := selection.LiteralName(name); ok {
		values["change.group"], values["change.resource"] = group, resource
	}
	if r.cfg.Cluster.Name != "" {
		values["change.cluster"] = r.cfg.Cluster.Name
	}
	if selection.IsClusterScoped(name) {
		values["change.namespace"] = ""
	}
	if rule == nil {
		return filter.Known{Values: values}
	}
	if names := rule.SelectedNamespaces().Names(); len(names) == 1 && selection.IsNamespaced(name) {
		values["change.namespace"] = names[0]
	}
	if object := (selection.Scope{FieldSelector: rule.FieldSelector}).ObjectName(); object != "" {
		values["change.name"] = object
	}
	return filter.Known{Values: values, MetadataOnly: rule.Capture == selection.CaptureMetadata}
}

// possibleKinds returns the kinds of changes that a rule may have, apart from records of authors. The class of an update is
// not known of metadata alone, but for objects that begin to be deleted.
func possibleKinds(rule Resource) []filter.Kind {
	return slices.DeleteFunc(filter.Kinds(), func(kind filter.Kind) bool {
		return kind.Type == event.Attributed ||
			rule.Capture == selection.CaptureMetadata && kind.Class != "" && kind.Class != event.ClassDeleting
	})
}

// withoutSync removes the kind that rules without resync do not emit.
func withoutSync(rule Resource, kinds []filter.Kind) []filter.Kind {
	return slices.DeleteFunc(kinds, func(kind filter.Kind) bool { return kind.Type == event.Sync && rule.Resync == 0 })
}

// emittedKinds returns the kinds of changes that a rule may emit of a resource.
func (r *reach) emittedKinds(rule int, name string) []filter.Kind {
	one := r.cfg.Resources[rule]
	kinds := withoutSync(one, possibleKinds(one))
	if r.emits[rule] != nil {
		known := r.known(name, &one)
		kinds = slices.DeleteFunc(kinds, func(kind filter.Kind) bool { return r.emits[rule].OutcomeFor(kind, known) == filter.Never })
	}
	if len(kinds) > 0 && r.cfg.Audit.Enabled() {
		kinds = append(kinds, filter.Kind{Type: event.Attributed})
	}
	return kinds
}

// ownOutcome returns which changes of a kind the types, the classes and the filter of a route match.
func (r *reach) ownOutcome(route int, kind filter.Kind, known filter.Known) filter.Outcome {
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
	return r.matches[route].OutcomeFor(kind, known)
}

// selectsAll reports whether a route selects everything that a name stands for in these namespaces and, if withNone is set,
// outside of namespaces.
func (r *reach) selectsAll(route int, name string, in selection.Namespaces, withNone bool) bool {
	to := r.cfg.Routes[route]
	_, whole := to.Selection().SelectsAll(name)
	return whole && (!withNone || selection.IsNamespaced(name) || to.matchesNoNamespace()) &&
		(selection.IsClusterScoped(name) || selection.Namespaces(to.Namespaces).Covers(in))
}

// addReached adds the sinks that can receive changes of a resource that a rule selects by this name: those of the routes,
// until no kind of change is left to later ones, and otherwise all.
func (r *reach) addReached(reached map[string]bool, rule int, name string) {
	left := r.emittedKinds(rule, name)
	one := r.cfg.Resources[rule]
	one.Select = []string{name}
	known := r.known(name, &one)
	for i, to := range r.cfg.Routes {
		if !sharesObjects(one.Rule, to) {
			continue
		}
		left = slices.DeleteFunc(left, func(kind filter.Kind) bool {
			outcome := r.ownOutcome(i, kind, known)
			if outcome != filter.Never {
				for _, t := range to.To {
					reached[t.Sink] = true
				}
			}
			return outcome == filter.Always && r.selectsAll(i, name, one.SelectedNamespaces(), true)
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
		known := r.known(name, nil)
		left := slices.DeleteFunc(filter.Kinds(), func(kind filter.Kind) bool { return r.ownOutcome(route, kind, known) == filter.Never })
		for j := range route {
			if !r.selectsAll(j, name, selection.Namespaces(to.Namespaces), to.matchesNoNamespace()) {
				continue
			}
			before := len(left)
			left = slices.DeleteFunc(left, func(kind filter.Kind) bool {
				outcome := r.ownOutcome(j, kind, known)
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
	reached, dropped := map[string]bool{}, []int(nil)
	for i, rule := range c.Resources {
		own := map[string]bool{}
		for _, name := range rule.Select {
			r.addReached(own, i, name)
		}
		maps.Copy(reached, own)
		if len(own) == 0 {
			dropped = append(dropped, i)
		}
	}
	if len(reached) == 0 {
		rep.addProblem("routes", Problem{Message: "leave nothing for any sink: every change that the rules select is dropped",
			Found: "drop: true", Expected: "a rule without these resources, or a route to a sink"})
		return
	}
	for _, i := range dropped {
		rep.addWarning(fmt.Sprintf("resources[%d].select", i), Problem{Message: "is read and stored, and the routes drop every change of it",
			Found: strings.Join(c.Resources[i].Select, ", "), Expected: "no such rule, or a route to a sink"})
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

// validateRuleFilters reports filters that are false, or fail, for every change of what their rules select, and warns of
// those that have no effect or fail for some kinds of changes.
func (r *reach) validateRuleFilters(rep *reporter) {
	for i, rule := range r.cfg.Resources {
		if r.emits[i] == nil {
			continue
		}
		outcomes := outcomes{}
		for _, name := range rule.Select {
			known := r.known(name, &rule)
			for _, kind := range withoutSync(rule, possibleKinds(rule)) {
				outcome := r.emits[i].OutcomeFor(kind, known)
				outcomes[outcome] = append(outcomes[outcome], kind)
			}
		}
		of := strings.Join(rule.Select, ", ")
		if rule.Capture == selection.CaptureMetadata {
			of += ", of which capture: metadata reads only apiVersion, kind and metadata"
		}
		outcomes.report(rep, fmt.Sprintf("resources[%d].filter", i), rule.Filter, of)
	}
}

// outcomes are those of one filter, with the kinds of changes that have them.
type outcomes map[filter.Outcome][]filter.Kind

// report reports a filter that is never true, and warns of one that always is, or that always fails for a kind of changes.
func (o outcomes) report(rep *reporter, at, text, of string) {
	const which = "that the rule selects"
	p := Problem{Found: text, Expected: "an expression that is true for some changes of " + of}
	useful := len(o[filter.Always])+len(o[filter.Sometimes]) > 0
	switch fails := o[filter.Fails]; {
	case !useful && len(fails) > 0:
		p.Message = "fails, or is false, for every change " + which
		rep.addProblem(at, p)
	case !useful:
		p.Message = "is false for every change " + which + ": nothing is emitted"
		rep.addProblem(at, p)
	case len(fails) > 0:
		p.Message = fmt.Sprintf("fails for every change %s of type %s, which is then emitted", which, fails[0].Type)
		p.Expected = "an expression that has a value for those"
		rep.addWarning(at, p)
	case len(o) == 1 && len(o[filter.Always]) > 0:
		p.Message, p.Expected = "is true for every change "+which+": it has no effect", "an expression that is false for some"
		rep.addWarning(at, p)
	}
}

// validateRouteConditions reports routes with conditions that exclude each other, and warns of types that are not
// emitted.
func (r *reach) validateRouteConditions(rep *reporter) {
	resyncs := slices.ContainsFunc(r.cfg.Resources, func(rule Resource) bool { return rule.Resync > 0 })
	for i, to := range r.cfg.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		switch may := r.mayMatch(i); {
		case !may && to.Filter == "":
			rep.addProblem(at+".classes", Problem{Message: "no change of these resources has such a class: with capture: metadata it is not known",
				Found: strings.Join(to.Classes, ", "), Expected: "no classes, or capture: full"})
			continue
		case !may:
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

// mayMatch reports whether a route may match some change of what a rule selects, emitted or not.
func (r *reach) mayMatch(route int) bool {
	to := r.cfg.Routes[route]
	for _, rule := range r.cfg.Resources {
		for _, selected := range rule.Select {
			for _, name := range to.Select {
				one, narrow := rule, to
				one.Select, narrow.Select = []string{selected}, []string{name}
				if !sharesObjects(one.Rule, narrow) {
					continue
				}
				if selection.IsWildcard(name) {
					name = selected
				}
				known := r.known(name, &one)
				if slices.ContainsFunc(append(possibleKinds(rule), filter.Kind{Type: event.Attributed}), func(kind filter.Kind) bool {
					outcome := r.ownOutcome(route, kind, known)
					return outcome != filter.Never && outcome != filter.Fails
				}) {
					return true
				}
			}
		}
	}
	return false
}

func validateListen(rep *reporter, path, listen string) {
	if listen == "" {
		return
	}
	p := Problem{Message: "not an address to listen on", Found: strconv.Quote(listen),
		Expected: `host:port, such as "127.0.0.1:8080" or ":8080"`}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || strings.ContainsFunc(host, unicode.IsSpace) {
		rep.addProblem(path, p)
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		p.Message = "not a port to listen on"
		rep.addProblem(path, p)
		return
	}
	if err := sinks.CheckHost(host); err != nil {
		p.Message = err.Error()
		rep.addProblem(path, p)
	}
}
