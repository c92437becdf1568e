package inspect

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
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
		writeUncovered(&b, rule.Uncovered)
		writeAuthors(&b, rule.Resources)
	}
	if r.Window > 0 {
		r.writeMeasured(&b)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// scopeNotes returns the scopes of which there is something to note.
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

// limitsText describes the limits of the rule.
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

// writeMeasured writes the rates, the busiest scope first.
func (r *Report) writeMeasured(b *bytes.Buffer) {
	var measured []*scopeReport
	for _, s := range r.allScopes() {
		if s.Measured != nil {
			measured = append(measured, s)
		}
	}
	slices.SortStableFunc(measured, func(a, b *scopeReport) int {
		return cmp.Or(cmp.Compare(b.Measured.Bytes, a.Measured.Bytes), cmp.Compare(b.Measured.Changes, a.Measured.Changes))
	})
	fmt.Fprintf(b, "\nmeasured for %s\n", r.Window)
	t := newTable(b)
	t.addRow("SCOPE", "CHANGES", "CHANGES/S", "BYTES/S", "BYTES/CHANGE")
	var all measureReport
	for _, s := range measured {
		m := s.Measured
		all.Changes, all.Bytes, all.Window = all.Changes+m.Changes, all.Bytes+m.Bytes, max(all.Window, m.Window)
		t.addRow(append(append([]string{s.ID}, m.rateCells()...), m.Error)...)
	}
	t.addRow(append([]string{"all"}, all.rateCells()...)...)
	t.flush()
}

func (m *measureReport) rateCells() []string {
	seconds := max(time.Duration(m.Window).Seconds(), 0.001)
	perChange := "-"
	if m.Changes > 0 {
		perChange = fmt.Sprint(m.Bytes / m.Changes)
	}
	return []string{fmt.Sprint(m.Changes), fmt.Sprintf("%.2f", float64(m.Changes)/seconds), fmt.Sprintf("%.0f", float64(m.Bytes)/seconds), perChange}
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
