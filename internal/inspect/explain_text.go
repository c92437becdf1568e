package inspect

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kubecdc/kubecdc/internal/app"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/source/apiserver"
	"github.com/kubecdc/kubecdc/pkg/source/selection"
)

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "cluster %s at %s\n", cmp.Or(r.Cluster, "unknown ("+r.ClusterUnknown+")"), r.Server)
	for _, group := range r.Unanswered {
		fmt.Fprintf(&b, "%s does not answer: its resources are unknown and not shown\n", group)
	}
	for _, n := range r.Namespaces {
		fmt.Fprintf(&b, "namespace %s: %s\n", n.Name, n.statusText())
	}
	for _, rule := range r.Rules {
		fmt.Fprintf(&b, "\n%s selects %s%s\n", rule.Path, strings.Join(rule.Select, ", "), rule.limitsText())
		r.writeResources(&b, rule.Resources)
		writeNames(&b, "allowed, and cannot be followed", rule.scopeNotes(func(s *scopeReport) string { return s.Unfollowed }))
		writeNames(&b, "read in another way, because the server lacks one", rule.scopeNotes(func(s *scopeReport) string { return s.lacking }))
		writeNames(&b, "selected and not served", rule.Unserved)
		writeNames(&b, "left alone", rule.Left)
		writePaths(&b, rule.Paths)
		for _, u := range rule.Uncovered {
			fmt.Fprintf(&b, "  redactPaths leave out %s, of the same type as %s\n", u.Path, u.Like)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func (r ruleReport) scopeNotes(of func(*scopeReport) string) (notes []nameReport) {
	for _, resource := range r.Resources {
		for _, s := range resource.Scopes {
			if note := of(s); note != "" {
				notes = append(notes, nameReport{resource.SelectedBy, s.ID, note})
			}
		}
	}
	return notes
}

func (r ruleReport) limitsText() string {
	var all []string
	add := func(word string, values ...string) {
		if text := strings.Join(values, ", "); text != "" {
			all = append(all, word+" "+text)
		}
	}
	add("not", r.Exclude...)
	add("namespaces", r.Include...)
	add("not in namespaces", r.ExcludeSpaces...)
	add("labels", r.LabelSelector)
	add("fields", r.FieldSelector)
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, "; ") + ")"
}

func (r *Report) writeResources(b *bytes.Buffer, resources []resourceReport) {
	if len(resources) == 0 {
		fmt.Fprintln(b, "  nothing is watched by this rule")
		return
	}
	t := newTable(b)
	header := []string{"RESOURCE", "VERSION", "KIND", "SCOPE", "ACCESS"}
	for _, s := range r.Sinks {
		header = append(header, fmt.Sprintf("SINK %s (%s)", s.Name, s.Kind))
	}
	t.addRow(header...)
	for _, resource := range resources {
		cells := []string{resource.Name, resource.Version, resource.Kind, resource.scopeText(), resource.accessText()}
		for _, s := range r.Sinks {
			cells = append(cells, resource.Destinations[s.Name])
		}
		t.addRow(cells...)
	}
	t.flush()
}

func writeNames(b *bytes.Buffer, title string, names []nameReport) {
	if len(names) == 0 {
		return
	}
	fmt.Fprintf(b, "  %s:\n", title)
	t := newTable(b)
	for _, n := range names {
		t.addRow("  "+n.Name, n.Reason)
	}
	t.flush()
}

// scopeText describes the watches of the resource.
func (r resourceReport) scopeText() string {
	switch first := r.match.Scopes[0]; {
	case !r.Namespaced:
		return "cluster"
	case first.Namespace != "":
		return "in " + strings.Join(r.namespacesWhere(func(*scopeReport) bool { return true }), ", ")
	case first.Filter != nil:
		return "all namespaces, filtered"
	}
	return "all namespaces"
}

func (r resourceReport) namespacesWhere(where func(*scopeReport) bool) []string {
	var names []string
	for _, s := range r.Scopes {
		if where(s) {
			names = append(names, s.Namespace)
		}
	}
	return names
}

// accessText returns one word if all scopes have the same permission, else the namespaces that are not allowed.
func (r resourceReport) accessText() string {
	var parts []string
	for _, p := range []permission{denied, unknown} {
		names := r.namespacesWhere(func(s *scopeReport) bool { return s.worstPermission() == p })
		switch {
		case len(names) == 0:
		case len(names) == len(r.Scopes):
			return string(p) + r.Scopes[0].verbSuffix(p)
		default:
			parts = append(parts, string(p)+" in "+strings.Join(names, ", "))
		}
	}
	return cmp.Or(strings.Join(parts, "; "), string(allowed))
}

// worstPermission returns the worse of the two permissions.
func (s *scopeReport) worstPermission() permission {
	for _, p := range []permission{denied, unknown} {
		if s.List == p || s.Watch == p {
			return p
		}
	}
	return allowed
}

// verbSuffix names the verb that has the permission, if the other one has not.
func (s *scopeReport) verbSuffix(p permission) string {
	switch s.List {
	case s.Watch:
		return ""
	case p:
		return " (list)"
	default:
		return " (watch)"
	}
}

// table aligns columns, with an indentation of two.
type table struct{ w *tabwriter.Writer }

func newTable(b *bytes.Buffer) table { return table{tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)} }

func (t table) addRow(cells ...string) {
	for len(cells) > 1 && cells[len(cells)-1] == "" {
		cells = cells[:len(cells)-1]
	}
	fmt.Fprintln(t.w, "  "+strings.Join(cells, "\t"))
}

func (t table) flush() {
	_ = t.w.Flush() // writes to memory
}

// pathReport is the number of objects in which a path of a rule matches.
type pathReport struct {
	Key     string `json:"key"` // "redactPaths[0]"
	Path    string `json:"path"`
	Matched int    `json:"matched"`
	Objects int    `json:"objects"`           // sampled objects
	Absent  bool   `json:"absent,omitempty"`  // no selected type has it
	Nearest string `json:"nearest,omitempty"` // the nearest path that a selected type has
}

// uncoveredPlace is a place of the same type as one that redactPaths name, which none of them covers.
type uncoveredPlace struct {
	Path string `json:"path"`
	Like string `json:"like"`
}

// countPaths matches the paths of each rule as the running exporter does. Scopes that cannot be read are skipped; their
// access shows it.
func countPaths(ctx context.Context, client *apiserver.Client, r *Report, cfg *config.Config) error {
	checker := app.NewPathChecker(client)
	for i := range r.Rules {
		var scopes []selection.Scope
		for _, resource := range r.Rules[i].Resources {
			for _, s := range resource.Scopes {
				if s.List != denied {
					scopes = append(scopes, s.scope)
				}
			}
		}
		counter, err := checker.CountPaths(ctx, cfg.Resources[i].Policy, scopes)
		if err != nil {
			return err
		}
		for _, p := range counter.Paths {
			r.Rules[i].Paths = append(r.Rules[i].Paths,
				pathReport{p.Key, p.Path, p.Matched, counter.Objects, p.Match == shape.PathAbsent, p.Nearest})
		}
		for _, u := range counter.Uncovered() {
			r.Rules[i].Uncovered = append(r.Rules[i].Uncovered, uncoveredPlace(u))
		}
	}
	return nil
}

// writePaths writes the matches of each path as text.
func writePaths(b *bytes.Buffer, paths []pathReport) {
	for _, p := range paths {
		note := ""
		switch {
		case p.Nearest != "":
			note = fmt.Sprintf(": no selected type has it, did you mean %s?", p.Nearest)
		case p.Absent:
			note = ": no selected type has it"
		case p.Matched == 0 && p.Objects > 0:
			note = ": no object has it now"
		}
		fmt.Fprintf(b, "  %s %s matches %d of %d objects%s\n", p.Key, p.Path, p.Matched, p.Objects, note)
	}
}

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

// ownDestination returns the kind of the sink and a function that returns the topic, subject, URL, file or folder of a
// change.
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
	if s.History != nil {
		return "history", func(*event.Change) string { return s.History.Where() }
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
