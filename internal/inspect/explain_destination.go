package inspect

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// fillDestinations says of each resource where each sink sends it.
func fillDestinations(r *Report, cfg *config.Config) {
	for _, s := range cfg.Sinks {
		kind, _ := ownDestination(s)
		r.Sinks = append(r.Sinks, sinkReport{s.Name, kind})
		for _, rule := range r.Rules {
			for _, resource := range rule.Resources {
				resource.Destinations[s.Name] = destinationWithRoutes(cfg.Routes, s, sampleChange(r.Cluster, resource.match))
			}
		}
	}
}

// destinationWithRoutes names where a sink sends the changes of a resource. Routes that decide about some of them follow in
// brackets, if they decide otherwise.
func destinationWithRoutes(routes []config.Route, s config.Sink, c *event.Change) string {
	_, own := ownDestination(s)
	rest := own(c)
	type part struct{ route, to string }
	var parts []part
	for i, r := range routes {
		if !routeMayMatch(r, c) {
			continue
		}
		to := "nowhere"
		for _, t := range r.To {
			if t.Sink == s.Name {
				_, name := ownDestination(withTopic(s, t.Topic))
				to = name(c)
			}
		}
		if r.IsUnconditional() {
			rest = to
			break
		}
		parts = append(parts, part{fmt.Sprintf("routes[%d]", i), to})
	}
	var others []string
	for i, p := range parts {
		if slices.ContainsFunc(parts[i:], func(later part) bool { return later.to != rest }) { // what comes first decides
			others = append(others, p.route+": "+p.to)
		}
	}
	if len(others) > 0 {
		rest += " (" + strings.Join(others, ", ") + ")"
	}
	return rest
}

// routeMayMatch says whether a route may match changes like the sample.
func routeMayMatch(r config.Route, sample *event.Change) bool {
	route := r.Selection()
	takes := route.Namespaces.Filter()
	if takes != nil && !strings.HasPrefix(sample.Namespace, "{") && !takes(sample.Namespace) {
		return false
	}
	return route.Matcher()(sample.Resource)
}

// withTopic is the sink with another topic or subject; "" is its own.
func withTopic(s config.Sink, topic string) config.Sink {
	switch {
	case topic == "":
	case s.Kafka != nil:
		k := *s.Kafka
		k.Topic, s.Kafka = topic, &k
	case s.NATS != nil:
		n := *s.NATS
		n.Subject, s.NATS = topic, &n
	}
	return s
}

// ownDestination returns what the sink is and a function that names the topic, subject or file of a change.
func ownDestination(s config.Sink) (kind string, name func(*event.Change) string) {
	switch {
	case s.Kafka != nil:
		return "kafka", templateNamer(s.Kafka.Topic, appendTopicValue)
	case s.NATS != nil:
		return "nats", templateNamer(s.NATS.SubjectTemplate(), nats.AppendToken)
	}
	if s.Webhook != nil {
		return "webhook", func(*event.Change) string { return s.Webhook.Origin() }
	}
	path := s.Stdout.Path
	if path == "" {
		path = "standard output"
	}
	return "stdout", func(*event.Change) string { return path }
}

// appendTopicValue takes values as Kafka does: everything of Kubernetes is legal in the name of a topic. Only the cluster's
// name, which people choose, may hold bytes that are not; then it stays a placeholder.
func appendTopicValue(dst []byte, value string) []byte {
	if !legalTopicPattern.MatchString(value) {
		value = "{cluster}"
	}
	return append(dst, value...)
}

var legalTopicPattern = regexp.MustCompile(`^[-._A-Za-z0-9]+$`)

// templateNamer names destinations by a template whose values escape writes. What differs from change to change stays a placeholder.
func templateNamer(template string, escape func([]byte, string) []byte) func(*event.Change) string {
	t, err := sinks.ParseTemplate(template)
	if err != nil { // not reached: the configuration was checked
		return func(*event.Change) string { return template }
	}
	return func(c *event.Change) string {
		return string(t.AppendName(nil, c, func(dst []byte, value string) []byte {
			if strings.HasPrefix(value, "{") {
				return append(dst, value...)
			}
			return escape(dst, value)
		}))
	}
}

// sampleChange stands for any change of a resource: what is not the same in all of them is a placeholder.
func sampleChange(cluster string, m selection.Match) *event.Change {
	c := &event.Change{Cluster: cluster, Resource: m.Resource, Name: "{name}", Type: "{type}"}
	if cluster == "" {
		c.Cluster = "{cluster}"
	}
	switch {
	case m.Namespaced && len(m.Scopes) == 1 && m.Scopes[0].Namespace != "":
		c.Namespace = m.Scopes[0].Namespace
	case m.Namespaced:
		c.Namespace = "{namespace}"
	}
	return c
}
