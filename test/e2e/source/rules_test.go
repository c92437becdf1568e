package source

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// ruleEdit is an edit of the rules of one type. Each edit has its own type, so that all run at once. In rules, NS is the
// fixture's name, TYPE the type and GROUP its group. Namespaces a and b have the objects "red" and "blue" each, labeled with
// that color.
type ruleEdit struct {
	plural        string
	before, after []rule
	left, entered []string // objects, as "a/red", that leave or enter the selection
	same          bool     // the selection stays the same: nothing is emitted, not even a gap
	restarted     bool     // nothing stays selected, so that the edit back begins with a snapshot
}

var allEdits = []ruleEdit{
	{plural: "namespaceadded", before: selects(nil), after: selects(includeNamespaces("NS-a")), left: []string{"b/red", "b/blue"}},
	{plural: "namespaceremoved", before: selects(includeNamespaces("NS-a")), after: selects(nil), entered: []string{"b/red", "b/blue"}},
	{plural: "namespacechanged", before: selects(includeNamespaces("NS-a")), after: selects(includeNamespaces("NS-b")),
		left: []string{"a/red", "a/blue"}, entered: []string{"b/red", "b/blue"}},
	{plural: "namespacemore", before: selects(includeNamespaces("NS-a")), after: selects(includeNamespaces("NS-a", "NS-b")), entered: []string{"b/red", "b/blue"}},
	{plural: "globadded", before: selects(nil), after: selects(includeNamespaces("*-a")), left: []string{"b/red", "b/blue"}},
	{plural: "globexcluded", before: selects(nil), after: selects(rule{"namespaces": rule{"exclude": []string{"*-a"}}}),
		left: []string{"a/red", "a/blue"}},
	{plural: "labeladded", before: selects(nil), after: selects(colorLabel("red")), left: []string{"a/blue", "b/blue"}},
	{plural: "labelchanged", before: selects(colorLabel("red")), after: selects(colorLabel("blue")),
		left: []string{"a/red", "b/red"}, entered: []string{"a/blue", "b/blue"}},
	{plural: "fieldadded", before: selects(nil), after: selects(rule{"fieldSelector": "metadata.name=red"}), left: []string{"a/blue", "b/blue"}},
	{plural: "removed", before: selects(nil), after: []rule{}, left: []string{"a/red", "a/blue", "b/red", "b/blue"}, restarted: true},
	{plural: "pinned", before: selects(nil), after: selects(rule{"select": []string{"pinned.v1.GROUP"}}), same: true},
	{plural: "unpinned", before: selects(rule{"select": []string{"unpinned.v1.GROUP"}}), after: selects(nil), same: true},
	{plural: "overtaken", before: selects(everything), after: selects(colorLabel("red"), everything), left: []string{"a/blue", "b/blue"}},
	{plural: "moved", before: selects(nil, nothing), after: selects(nothing, nil), same: true},
	{plural: "widened", before: selects(nil), after: selects(everything), same: true},
}

// selects returns rules that select the type of the edit, with further keys.
func selects(more ...rule) []rule {
	var all []rule
	for _, one := range more {
		r := rule{"select": []string{"TYPE"}}
		for key, value := range one {
			r[key] = value
		}
		all = append(all, r)
	}
	return all
}

var (
	everything = rule{"select": []string{"*.GROUP"}}
	nothing    = rule{"select": []string{"nothings.GROUP"}}
)

func includeNamespaces(namespaces ...string) rule {
	return rule{"namespaces": rule{"include": namespaces}}
}
func colorLabel(color string) rule { return rule{"labelSelector": "color=" + color} }

func (e ruleEdit) group() string       { return e.plural + ".kubecdc.io" }
func (e ruleEdit) kind() workload.Kind { return customKind(e.group(), "v2", e.plural, "Edited") }

// TestEditedRulesAreComparedWithKnownObjects edits rules in many ways, and edits them back. Objects that stay selected emit
// only their true differences, newly selected ones are added, and unselected ones are deleted with left; a gap precedes the
// differences. An equivalent edit emits nothing. Each comparison has its own IDs.
func TestEditedRulesAreComparedWithKnownObjects(t *testing.T) {
	s := newFixture(t, sharedControlPlane(t), nil)
	s.installEdits()
	s.configureEdits(func(e ruleEdit) []rule { return e.before })
	s.startExporter()
	s.stopExporter()

	// Objects change while the exporter is stopped.
	forEach(t, allEdits, func(ctx context.Context, e ruleEdit) error {
		return s.cluster.Change(ctx, e.kind(), s.name+"-a", "blue", 1)
	})
	s.configureEdits(func(e ruleEdit) []rule { return e.after })
	s.checkEdits("there", ruleEdit.changesForward)
	s.configureEdits(func(e ruleEdit) []rule { return e.before })
	s.checkEdits("and back", ruleEdit.changesBack)

	ids := map[string]bus.Record{}
	for _, r := range s.records {
		if other, twice := ids[r.ID]; twice {
			t.Errorf("two records have the ID %s:\n%s\n%s", r.ID, other.Payload, r.Payload)
		}
		ids[r.ID] = r
	}
}

// installEdits defines the types and creates their objects.
func (s *fixture) installEdits() {
	s.t.Helper()
	for _, part := range []string{"-a", "-b"} {
		s.requireNoError(s.cluster.CreateNamespace(s.t.Context(), s.name+part))
	}
	forEach(s.t, allEdits, func(ctx context.Context, e ruleEdit) error {
		if err := s.cluster.Install(ctx, workload.Definition{Group: e.group(), Plural: e.plural, Kind: "Edited", Versions: []string{"v1", "v2"}}); err != nil {
			return err
		}
		for _, object := range []string{"a/red", "a/blue", "b/red", "b/blue"} {
			part, name, _ := strings.Cut(object, "/")
			if err := s.cluster.Create(ctx, withLabels(e.kind(), "color="+name), s.name+"-"+part, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// configureEdits configures the rules of all edits, and one rule that stays the same.
func (s *fixture) configureEdits(of func(ruleEdit) []rule) {
	s.t.Helper()
	all := []rule{{"select": []string{"namespaces"}}}
	for _, e := range allEdits {
		for _, r := range of(e) {
			all = append(all, s.fillRule(r, e))
		}
	}
	s.setRules(all...)
}

// fillRule replaces the placeholders for the fixture's name and the type.
func (s *fixture) fillRule(r rule, e ruleEdit) rule {
	all := rule{}
	for key, value := range r {
		switch v := value.(type) {
		case string:
			all[key] = s.fillText(v, e)
		case []string:
			var filled []string
			for _, text := range v {
				filled = append(filled, s.fillText(text, e))
			}
			all[key] = filled
		case rule:
			all[key] = s.fillRule(v, e)
		}
	}
	return all
}

func (s *fixture) fillText(text string, e ruleEdit) string {
	return strings.NewReplacer("NS", s.name, "TYPE", e.plural+"."+e.group(), "GROUP", e.group()).Replace(text)
}

// changesForward returns the records of the first edit, without the gap.
func (e ruleEdit) changesForward() []string {
	lines := e.changesFor(e.left, e.entered)
	if !slices.Contains(e.left, "a/blue") && !slices.Contains(e.entered, "a/blue") {
		lines = append(lines, "updated NS-a/blue")
	}
	return lines
}

// changesBack returns the records of the edit back to the original rules.
func (e ruleEdit) changesBack() []string {
	lines := e.changesFor(e.entered, e.left)
	if !e.restarted {
		return lines
	}
	for i, line := range lines {
		lines[i] = strings.Replace(line, "added", "snapshot", 1)
	}
	return append(lines, "snapshot.begin", "snapshot.end")
}

func (e ruleEdit) changesFor(left, entered []string) []string {
	var lines []string
	for _, object := range left {
		lines = append(lines, "deleted NS-"+object+" left")
	}
	for _, object := range entered {
		lines = append(lines, "added NS-"+object)
	}
	return lines
}

// checkEdits runs the exporter until all expected records of the edits are emitted, and checks them.
func (s *fixture) checkEdits(way string, want func(ruleEdit) []string) {
	s.t.Helper()
	emitted := len(s.records)
	s.startExporter()
	s.awaitCondition(func() string {
		records := s.readRecords()[emitted:]
		for _, e := range allEdits {
			got := transcript(records, e.kind())
			for _, line := range want(e) {
				if line = s.fillText(line, e); !slices.Contains(got, line) {
					return fmt.Sprintf("%q of %s; have\n  %s", line, e.plural, strings.Join(got, "\n  "))
				}
			}
		}
		return ""
	})
	s.stopExporter()
	for _, e := range allEdits {
		s.t.Run(e.plural+" "+way, func(t *testing.T) { s.checkEdit(t, e, s.records[emitted:], want(e)) })
	}
}

// checkEdit compares the records of an edit with the expected ones.
func (s *fixture) checkEdit(t *testing.T, e ruleEdit, records []bus.Record, want []string) {
	got := transcript(records, e.kind())
	var lines []string
	for _, line := range want {
		lines = append(lines, s.fillText(line, e))
	}
	checkGaps(t, records, e.kind())
	if !e.same {
		got = slices.DeleteFunc(got, func(line string) bool { return line == "gap" })
	}
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		t.Errorf("emitted\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
	checkDeletes(t, records, e.kind())
}

// checkGaps checks that a gap with the edited rules as its reason precedes every difference that it explains. A delete with
// left needs no gap.
func checkGaps(t *testing.T, records []bus.Record, kind workload.Kind) {
	t.Helper()
	covers := func(gap, r bus.Record) bool { return gap.Namespace == "" || gap.Namespace == r.Namespace }
	all := gapRecords(records, kind)
	for _, r := range all {
		if !strings.Contains(r.Gap.Reason, "rules") {
			t.Errorf("the reason of the gap is not the rules: %s", r.Payload)
		}
		if to, err := strconv.ParseInt(r.Gap.To, 10, 64); err != nil || to == 0 {
			t.Errorf("the gap has no end: %s", r.Payload)
		}
	}
	before := []bus.Record{}
	for _, r := range records {
		switch {
		case !isAbout(r, kind):
		case r.Type == "gap":
			before = append(before, r)
		case r.Left:
		case slices.ContainsFunc(all, func(gap bus.Record) bool { return covers(gap, r) }) != r.Coalesced:
			t.Errorf("coalesced is %t, with the gaps %v: %s", r.Coalesced, transcript(all, kind), r.Payload)
		case r.Coalesced && !slices.ContainsFunc(before, func(gap bus.Record) bool { return covers(gap, r) }):
			t.Errorf("precedes its gap: %s", r.Payload)
		}
	}
}

// checkDeletes checks that each delete has version and kind.
func checkDeletes(t *testing.T, records []bus.Record, kind workload.Kind) {
	t.Helper()
	for _, r := range records {
		if isAbout(r, kind) && r.Type == "deleted" && (r.Version == "" || r.Kind == "") {
			t.Errorf("a delete without version or kind: %s", r.Payload)
		}
	}
}
