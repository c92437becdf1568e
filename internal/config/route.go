package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// Route sends the changes it matches to some sinks, or to none.
type Route struct {
	// Which resources, as in a rule: "pods", "deployments.apps", "*.cert-manager.io", "*".
	Select []string `mapstructure:"select"`
	// Resources of those that are not matched.
	Exclude []string `mapstructure:"exclude"`
	// Which namespaces.
	Namespaces Namespaces `mapstructure:"namespaces"`
	// Which types of changes: added, updated, deleted, snapshot, sync, attributed. Empty: all.
	Types []string `mapstructure:"types"`
	// Which classes of updates: spec, status, metadata, deleting. Empty: all changes, whether they have a class or not.
	Classes []string `mapstructure:"classes"`
	// Which changes: a CEL expression over object and change, as in a rule but without oldObject. It sees objects as they
	// are emitted.
	Filter string `mapstructure:"filter"`
	// Where the changes go: to these sinks and no others.
	To []Target `mapstructure:"to"`
	// Whether they go nowhere. In place of to.
	Drop bool `mapstructure:"drop"`
}

// Namespaces chooses by name or glob ("team-*").
type Namespaces struct {
	// Those that match. Empty: all. Unless it is empty, or holds "*", objects without a namespace do not match.
	Include []string `mapstructure:"include"`
	// Those of them that do not.
	Exclude []string `mapstructure:"exclude"`
}

// Target is one place changes are routed to.
type Target struct {
	// Name of the sink.
	Sink string `mapstructure:"sink"`
	// Template in place of kafka.topic or nats.subject of the sink. Empty: the sink's own.
	Topic string `mapstructure:"topic"`
}

// Selection is the route's choice of resources, as a rule makes it.
func (r Route) Selection() selection.Rule {
	return selection.Rule{Select: r.Select, Exclude: r.Exclude, Namespaces: selection.Namespaces(r.Namespaces)}
}

// IsUnconditional says that no change of the resources that the route selects is left to later routes.
func (r Route) IsUnconditional() bool {
	return len(r.Namespaces.Include)+len(r.Namespaces.Exclude)+len(r.Types)+len(r.Classes) == 0 && r.Filter == ""
}

func (d *decoder) validateRoutes(c *Config) {
	for i, r := range c.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		d.validateRouteReachable(at, c, i)
		d.validateRouteMatch(at, r)
		switch {
		case len(r.To) == 0 && !r.Drop:
			d.addProblem(at, Problem{Message: "does not say where the changes go", Expected: "to: [{sink: NAME}], or drop: true"})
		case len(r.To) > 0 && r.Drop:
			d.addProblem(at+".drop", Problem{Message: "means nothing beside to; leave one of them out"})
		}
		d.validateTargets(at, r.To, c.Sinks)
	}
}

// validateRouteReachable sees to it that some change can come to a route: that a rule selects its resources, and that no earlier
// route decides about all of them.
func (d *decoder) validateRouteReachable(at string, c *Config, i int) {
	route := c.Routes[i]
	if route.Selection().Validate(at) != nil {
		return
	}
	if len(c.Resources) > 0 && !slices.ContainsFunc(c.Resources, func(rule Resource) bool { return rule.Overlaps(route.Selection()) }) {
		d.addProblem(at+".select", Problem{Message: "is never reached: no rule under resources selects any of this", Found: strings.Join(route.Select, ", "),
			Expected: "resources that a rule selects"})
		return
	}
	by := "" // which routes decide
	for _, name := range route.Select {
		j := slices.IndexFunc(c.Routes[:i], func(earlier Route) bool {
			_, taken := earlier.Selection().SelectsAll(name)
			return taken && (earlier.IsUnconditional() || earlier.subsumesRoute(route))
		})
		if j < 0 {
			return
		}
		by = fmt.Sprintf("routes[%d]", j)
	}
	if by != "" {
		d.addProblem(at, Problem{Message: "is never reached: " + by + " decides about every change of these resources", Expected: "the more particular routes first"})
	}
}

// subsumesRoute says that r asks for nothing of a change that other does not ask for too.
func (r Route) subsumesRoute(other Route) bool {
	return slices.Equal(r.Namespaces.Include, other.Namespaces.Include) && slices.Equal(r.Namespaces.Exclude, other.Namespaces.Exclude) &&
		choiceCovers(r.Types, other.Types) && choiceCovers(r.Classes, other.Classes) && (r.Filter == "" || r.Filter == other.Filter)
}

// choiceCovers says that a choice takes whatever the other one takes; an empty choice takes all.
func choiceCovers(choice, other []string) bool {
	return len(choice) == 0 || len(other) > 0 && !slices.ContainsFunc(other, func(value string) bool { return !slices.Contains(choice, value) })
}

// validateRouteMatch checks what a route says about the changes it takes.
func (d *decoder) validateRouteMatch(at string, r Route) {
	d.addJoined("", at, r.Selection().Validate(at))
	d.validateNamespaces(at+".namespaces", selection.Namespaces(r.Namespaces))
	for j, t := range r.Types {
		d.checkOneOf(fmt.Sprintf("%s.types[%d]", at, j), t, "added", "updated", "deleted", "snapshot", "sync", "attributed")
	}
	for j, class := range r.Classes {
		d.checkOneOf(fmt.Sprintf("%s.classes[%d]", at, j), class, "spec", "status", "metadata", "deleting")
	}
	if len(r.Classes) > 0 && len(r.Types) > 0 && !slices.Contains(r.Types, "updated") {
		d.addProblem(at+".classes", Problem{Message: "only updates have a class, and types does not hold updated"})
	}
	if r.Filter == "" {
		return
	}
	if err := shape.ValidateFilter(r.Filter); err != nil {
		d.addProblem(at+".filter", Problem{Message: err.Error()})
	}
}

func (d *decoder) validateTargets(at string, targets []Target, sinks []Sink) {
	given := map[string]bool{}
	for j, t := range targets {
		at := fmt.Sprintf("%s.to[%d]", at, j)
		if given[t.Sink] {
			d.addProblem(at+".sink", Problem{Message: "given twice in one route", Found: strconv.Quote(t.Sink)})
		}
		given[t.Sink] = d.validateTarget(at, t, sinks)
	}
}

// validateTarget checks one place, and returns whether there is such a sink.
func (d *decoder) validateTarget(at string, t Target, sinks []Sink) bool {
	sink, names := (*Sink)(nil), []string(nil)
	for i := range sinks {
		names = append(names, sinks[i].Name)
		if sinks[i].Name == t.Sink {
			sink = &sinks[i]
		}
	}
	if sink == nil {
		d.addProblem(at+".sink", Problem{Message: "no such sink", Found: strconv.Quote(t.Sink), Expected: "one of " + strings.Join(names, ", ")})
		return false
	}
	if t.Topic != "" {
		d.validateTopic(at+".topic", t.Topic, *sink)
	}
	return true
}

// validateTopic asks the sink's own package whether it could have this topic in place of its own. What is wrong with the
// sink anyway is reported there.
func (d *decoder) validateTopic(at, topic string, s Sink) {
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
		d.addProblem(at, Problem{Message: "this sink knows one place only", Found: strconv.Quote(topic), Expected: "no topic, or a sink of kafka, or of nats but for mode: kv"})
		return
	}
	known := strings.Split(fmt.Sprint(own), "\n")
	for _, message := range strings.Split(fmt.Sprint(with), "\n") {
		if with != nil && !slices.Contains(known, message) {
			d.addProblem(at, Problem{Message: leadingPathPattern.ReplaceAllString(message, "")})
		}
	}
}

// RoutedTopics are the topics that routes name for a sink, and those of dead letters, each once.
func (c *Config) RoutedTopics(sink string) []string {
	var topics []string
	seen := map[string]bool{"": true}
	for _, r := range c.Routes {
		for _, t := range r.To {
			if t.Sink == sink && !seen[t.Topic] {
				seen[t.Topic] = true
				topics = append(topics, t.Topic)
			}
		}
	}
	for _, s := range c.Sinks {
		if s.DeadLetters.Sink == sink && !seen[s.DeadLetters.Topic] {
			seen[s.DeadLetters.Topic] = true
			topics = append(topics, s.DeadLetters.Topic)
		}
	}
	return topics
}
