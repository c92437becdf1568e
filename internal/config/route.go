package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Route sends the changes that it matches to some sinks, or drops them.
type Route struct {
	// Which resources, as in a rule: "pods", "deployments.apps", "*.cert-manager.io", "*".
	Select []string `mapstructure:"select"`
	// Resources that are not matched although select has them.
	Exclude []string `mapstructure:"exclude"`
	// Which namespaces.
	Namespaces Namespaces `mapstructure:"namespaces"`
	// Which types of changes: added, updated, deleted, snapshot, sync, attributed. Empty: all.
	Types []string `mapstructure:"types"`
	// Which classes of updates: spec, status, metadata, deleting. Empty: all changes.
	Classes []string `mapstructure:"classes"`
	// A CEL expression as in a rule, without oldObject, over objects as they are emitted.
	Filter string `mapstructure:"filter"`
	// The sinks that the changes go to. No other sink gets them.
	To []Target `mapstructure:"to"`
	// Whether the changes are dropped. Replaces to.
	Drop bool `mapstructure:"drop"`
	// How long the sinks in to wait for the author of a change, so that it comes in the member "by" of the change itself: the
	// user, or why that is not known. All records of the resources in select wait in order, each object on its own. 0: no
	// wait, and authors follow as records of type attributed.
	AwaitAuthor time.Duration `mapstructure:"awaitAuthor" json:"-"`
}

// Namespaces selects namespaces by name or glob ("team-*").
type Namespaces struct {
	// Namespaces that match. Empty: all. Objects without a namespace match if it is empty or has "*".
	Include []string `mapstructure:"include"`
	// Namespaces that do not match although include has them.
	Exclude []string `mapstructure:"exclude"`
}

// Target is one destination of a route.
type Target struct {
	// Name of the sink.
	Sink string `mapstructure:"sink"`
	// Template in place of kafka.topic or nats.subject of the sink. Empty: the sink's own.
	Topic string `mapstructure:"topic"`
}

// Selection returns the resources and namespaces of the route as a selection rule.
func (r Route) Selection() selection.Rule {
	return selection.Rule{Select: r.Select, Exclude: r.Exclude, Namespaces: selection.Namespaces(r.Namespaces)}
}

// IsUnconditional reports whether the route matches every change of its resources, so that none is left to later routes.
func (r Route) IsUnconditional() bool {
	return len(r.Namespaces.Include)+len(r.Namespaces.Exclude)+len(r.Types)+len(r.Classes) == 0 && r.Filter == ""
}

// changeTypes are the types of changes that routes tell apart.
var changeTypes = []string{"added", "updated", "deleted", "snapshot", "sync", "attributed"}

// matchesNoNamespace reports whether the route matches objects without a namespace.
func (r Route) matchesNoNamespace() bool {
	matches := selection.Namespaces(r.Namespaces).Filter()
	return matches == nil || matches("")
}

func validateRoutes(rep *reporter, c *Config) {
	reached := newReach(c)
	for i, r := range c.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		validateRouteReachable(rep, at, reached, i)
		validateRouteMatch(rep, at, r)
		switch {
		case len(r.To) == 0 && !r.Drop:
			rep.addProblem(at, Problem{Message: "has no destination", Expected: "to: [{sink: NAME}], or drop: true"})
		case len(r.To) > 0 && r.Drop:
			rep.addProblem(at+".drop", Problem{Message: "has no effect beside to; remove one of them"})
		}
		validateTargets(rep, at, r.To, c.Sinks)
		validateAwaitAuthor(rep, at+".awaitAuthor", r, c)
	}
}

// validateAwaitAuthor checks that authors may come, and that the sinks of a route have a place for them.
func validateAwaitAuthor(rep *reporter, at string, r Route, c *Config) {
	switch {
	case r.AwaitAuthor == 0:
		return
	case r.AwaitAuthor < 0 || r.AwaitAuthor > c.Audit.Window:
		rep.addProblem(at, Problem{Message: "not between 0 and audit.window", Found: r.AwaitAuthor.String(),
			Expected: "0, or at most " + c.Audit.Window.String()})
	case !c.Audit.Enabled():
		rep.addProblem(at, Problem{Message: "there is no source of authors", Expected: "a source in audit: webhook, kafka or stamps"})
	case r.Drop:
		rep.addProblem(at, Problem{Message: "has no effect beside drop; remove one of them"})
	}
	for i, t := range r.To {
		for _, s := range c.Sinks {
			if s.Name == t.Sink && (s.Format == "debezium" || s.Format == "upsert" || s.NATS != nil && s.NATS.KeepsRows()) {
				rep.addProblem(fmt.Sprintf("%s.to[%d].sink", strings.TrimSuffix(at, ".awaitAuthor"), i), Problem{
					Message: "awaitAuthor has no effect: rows have no place for an author", Found: strconv.Quote(t.Sink),
					Expected: "a sink with format json, cloudevents or cloudevents-structured"})
			}
		}
	}
}

// HeldFor returns what the records of a resource carry if routes hold them back; nil if none does.
func (c *Config) HeldFor(resource event.Resource) (held *event.HeldInfo) {
	for _, r := range c.Routes {
		if r.AwaitAuthor == 0 || !r.Selection().Matcher()(resource) {
			continue
		}
		if held == nil {
			held = &event.HeldInfo{}
		}
		held.Wait = max(held.Wait, r.AwaitAuthor)
		for _, t := range r.To {
			held.Sinks = append(held.Sinks, t.Sink)
		}
	}
	return held
}

// AwaitsAuthors reports whether a route holds changes back for their authors.
func (c *Config) AwaitsAuthors() bool {
	return slices.ContainsFunc(c.Routes, func(r Route) bool { return r.AwaitAuthor != 0 })
}

// validateRouteReachable reports a route that no change can reach: no rule selects its resources, or earlier routes match
// all of them.
func validateRouteReachable(rep *reporter, at string, r *reach, i int) {
	c := r.cfg
	route := c.Routes[i]
	if route.Selection().Validate(at) != nil || route.Selection().Namespaces.ExcludesAll() {
		return
	}
	if len(c.Resources) > 0 && !slices.ContainsFunc(c.Resources, func(rule Resource) bool { return rule.Overlaps(route.Selection()) }) {
		rep.addProblem(at+".select", Problem{Message: "is never reached: no rule in resources selects any of these", Found: strings.Join(route.Select, ", "),
			Expected: "resources that a rule selects"})
		return
	}
	if len(c.Resources) > 0 && !slices.ContainsFunc(c.Resources, func(rule Resource) bool { return sharesObjects(rule.Rule, route) }) {
		rep.addProblem(at+".namespaces", Problem{Message: "is never reached: no rule selects these resources in these namespaces",
			Found: describeNamespaces(route.Namespaces), Expected: "namespaces that a rule selects"})
		return
	}
	switch by := r.earlierMatches(i); len(by) {
	case 0:
	case 1:
		rep.addProblem(at, Problem{Message: "is never reached: " + by[0] + " matches every change of these resources", Expected: "the more specific routes first"})
	default:
		rep.addProblem(at, Problem{Message: "is never reached: " + strings.Join(by, " and ") + " match every change of these resources",
			Expected: "the more specific routes first"})
	}
}

// sharesObjects reports whether a route may match some object of a rule.
func sharesObjects(rule selection.Rule, route Route) bool {
	if !rule.Overlaps(route.Selection()) {
		return false
	}
	namespaced := selectsOnly(rule.Select, selection.IsNamespaced) || selectsOnly(route.Select, selection.IsNamespaced)
	clusterScoped := selectsOnly(rule.Select, selection.IsClusterScoped) || selectsOnly(route.Select, selection.IsClusterScoped)
	return !namespaced && route.matchesNoNamespace() ||
		!clusterScoped && rule.SelectedNamespaces().Overlaps(selection.Namespaces(route.Namespaces))
}

// selectsOnly reports whether a statement holds for each of the names.
func selectsOnly(names []string, is func(name string) bool) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !is(name) })
}

func describeNamespaces(n Namespaces) string {
	var parts []string
	if len(n.Include) > 0 {
		parts = append(parts, "include "+strings.Join(n.Include, ", "))
	}
	if len(n.Exclude) > 0 {
		parts = append(parts, "exclude "+strings.Join(n.Exclude, ", "))
	}
	return strings.Join(parts, "; ")
}

// validateRouteMatch checks the conditions of a route.
func validateRouteMatch(rep *reporter, at string, r Route) {
	rep.addJoined("", at, r.Selection().Validate(at))
	validateNamespaces(rep, at+".namespaces", selection.Namespaces(r.Namespaces))
	rep.refuseIf(selection.Namespaces(r.Namespaces).ExcludesAll() && selectsOnly(r.Select, selection.IsNamespaced), at+".namespaces.exclude",
		Problem{Message: "excludes every namespace, and each selected resource has one: nothing matches",
			Found: strings.Join(r.Namespaces.Exclude, ", "), Expected: "some namespaces"})
	for j, t := range r.Types {
		rep.checkOneOf(fmt.Sprintf("%s.types[%d]", at, j), t, changeTypes...)
	}
	for j, class := range r.Classes {
		rep.checkOneOf(fmt.Sprintf("%s.classes[%d]", at, j), class, "spec", "status", "metadata", "deleting")
	}
	rep.refuseIf(len(r.Classes) > 0 && len(r.Types) > 0 && !slices.Contains(r.Types, "updated"), at+".classes",
		Problem{Message: "only updates have a class, and types does not contain updated"})
	if r.Filter == "" {
		return
	}
	if err := shape.ValidateFilter(r.Filter); err != nil {
		rep.addProblem(at+".filter", Problem{Message: err.Error()})
	}
}

func validateTargets(rep *reporter, at string, targets []Target, sinks []Sink) {
	given := map[string]bool{}
	for j, t := range targets {
		at := fmt.Sprintf("%s.to[%d]", at, j)
		rep.refuseIf(given[t.Sink], at+".sink", Problem{Message: "given twice in one route", Found: strconv.Quote(t.Sink)})
		given[t.Sink] = validateTarget(rep, at, t, sinks)
	}
}

// validateTarget checks one target, and returns whether its sink exists.
func validateTarget(rep *reporter, at string, t Target, sinks []Sink) bool {
	sink, names := (*Sink)(nil), []string(nil)
	for i := range sinks {
		names = append(names, sinks[i].Name)
		if sinks[i].Name == t.Sink {
			sink = &sinks[i]
		}
	}
	if sink == nil {
		rep.addProblem(at+".sink", Problem{Message: "no such sink", Found: strconv.Quote(t.Sink), Expected: "one of " + strings.Join(names, ", ")})
		return false
	}
	if t.Topic != "" {
		validateTopic(rep, at+".topic", t.Topic, *sink)
	}
	return true
}

// validateTopic checks the topic by the sink package's own validation. Problems that the sink has without it are reported
// elsewhere.
func validateTopic(rep *reporter, at, topic string, s Sink) {
	var own, with error
	switch {
	case s.Kafka != nil:
		k := *s.Kafka
		k.Topic = topic
		own, with = s.Kafka.Validate(), k.Validate()
	case s.NATS != nil && s.NATS.Mode != "kv":
		n := *s.NATS
		n.Subject = topic
		own, with = s.NATS.Validate(), n.Validate()
	default:
		rep.addProblem(at, Problem{Message: "this sink has one fixed destination", Found: strconv.Quote(topic), Expected: "no topic, or a sink of kafka, or of nats but for mode: kv"})
		return
	}
	known := strings.Split(fmt.Sprint(own), "\n")
	for _, message := range strings.Split(fmt.Sprint(with), "\n") {
		rep.refuseIf(with != nil && !slices.Contains(known, message), at,
			Problem{Message: leadingPathPattern.ReplaceAllString(message, "")})
	}
}

// RoutedTopics returns the topics of a sink that routes and dead letters name, without duplicates.
func (c *Config) RoutedTopics(sink string) (topics []string) {
	named := routedTopicTexts(sink, c.Routes)
	for _, s := range c.Sinks {
		if to := s.DeadLetters; to.Sink == sink && to.Topic != "" {
			named = append(named, to.Topic)
		}
	}
	for _, topic := range named {
		if !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	return topics
}
