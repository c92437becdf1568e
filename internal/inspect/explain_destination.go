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

// fillDestinations sets the destination of each resource in each sink.
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

// destinationWithRoutes returns the destination of the changes of a resource in a sink. Different destinations by routes
// that match only some of the changes follow in brackets.
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
		if slices.ContainsFunc(parts[i:], func(later part) bool { return later.to != rest }) { // an earlier route takes precedence
			others = append(others, p.route+": "+p.to)
		}
	}
	if len(others) > 0 {
		rest += " (" + strings.Join(others, ", ") + ")"
	}
	return rest
}

// routeMayMatch reports whether a route may match changes like the sample.
func routeMayMatch(r config.Route, sample *event.Change) bool {
	route := r.Selection()
	takes := route.Namespaces.Filter()
	if takes != nil && !strings.HasPrefix(sample.Namespace, "{") && !takes(sample.Namespace) {
		return false
	}
	return route.Matcher()(sample.Resource)
}

// withTopic returns the sink with another topic or subject; "" keeps its own.
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

// ownDestination returns the kind of the sink and a function that returns the topic, subject, URL or file of a change.
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

// appendTopicValue appends a value to the name of a Kafka topic. All names of Kubernetes are legal there. Only the
// configured name of the cluster may contain illegal bytes; then it stays a placeholder.
func appendTopicValue(dst []byte, value string) []byte {
	if !legalTopicPattern.MatchString(value) {
		value = "{cluster}"
	}
	return append(dst, value...)
}

var legalTopicPattern = regexp.MustCompile(`^[-._A-Za-z0-9]+$`)

// templateNamer returns a function that names destinations by a template, with values encoded by escape. Values that differ
// between changes stay placeholders.
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

// sampleChange returns a representative change of a resource: values that differ between changes are placeholders.
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
