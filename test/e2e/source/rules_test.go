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

// edited is an edit of the rules of one type, which is its own, so that all are made at once. In rules NS stands for the
// scene's name, TYPE for the type and GROUP for its group. Namespaces a and b hold the objects "red" and "blue" each, with
// the label of that color.
type edited struct {
	plural        string
	before, after []rule
	left, entered []string // objects, as "a/red", that the edit takes out of the selection or into it
	same          bool     // the selection is the same: nothing is told, not even a gap
	anew          bool     // nothing is selected any more, so that a rule that comes back begins with a snapshot
}

var allEdits = []edited{
	{plural: "namespaceadded", before: selects(nil), after: selects(include("NS-a")), left: []string{"b/red", "b/blue"}},
	{plural: "namespaceremoved", before: selects(include("NS-a")), after: selects(nil), entered: []string{"b/red", "b/blue"}},
	{plural: "namespacechanged", before: selects(include("NS-a")), after: selects(include("NS-b")),
		left: []string{"a/red", "a/blue"}, entered: []string{"b/red", "b/blue"}},
	{plural: "namespacemore", before: selects(include("NS-a")), after: selects(include("NS-a", "NS-b")), entered: []string{"b/red", "b/blue"}},
	{plural: "globadded", before: selects(nil), after: selects(include("*-a")), left: []string{"b/red", "b/blue"}},
	{plural: "globexcluded", before: selects(nil), after: selects(rule{"namespaces": rule{"exclude": []string{"*-a"}}}),
		left: []string{"a/red", "a/blue"}},
	{plural: "labeladded", before: selects(nil), after: selects(label("red")), left: []string{"a/blue", "b/blue"}},
	{plural: "labelchanged", before: selects(label("red")), after: selects(label("blue")),
		left: []string{"a/red", "b/red"}, entered: []string{"a/blue", "b/blue"}},
	{plural: "fieldadded", before: selects(nil), after: selects(rule{"fieldSelector": "metadata.name=red"}), left: []string{"a/blue", "b/blue"}},
	{plural: "removed", before: selects(nil), after: []rule{}, left: []string{"a/red", "a/blue", "b/red", "b/blue"}, anew: true},
	{plural: "pinned", before: selects(nil), after: selects(rule{"select": []string{"pinned.v1.GROUP"}}), same: true},
	{plural: "unpinned", before: selects(rule{"select": []string{"unpinned.v1.GROUP"}}), after: selects(nil), same: true},
	{plural: "overtaken", before: selects(everything), after: selects(label("red"), everything), left: []string{"a/blue", "b/blue"}},
	{plural: "moved", before: selects(nil, nothing), after: selects(nothing, nil), same: true},
	{plural: "widened", before: selects(nil), after: selects(everything), same: true},
}

// selects are rules that select the type of the edit, with further keys.
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

func include(namespaces ...string) rule { return rule{"namespaces": rule{"include": namespaces}} }
func label(color string) rule           { return rule{"labelSelector": "color=" + color} }

func (e edited) group() string       { return e.plural + ".kubecdc.io" }
func (e edited) kind() workload.Kind { return custom(e.group(), "v2", e.plural, "Edited") }

// TestEditedRulesAreComparedWithWhatIsKnown edits rules in every way a person would, and edits them back. What is still
// selected stays silent or tells its true difference, what is selected now is added, what is not any more is deleted and
// says why; a gap comes before differences. An edit that selects the same tells nothing. Each time has IDs of its own.
func TestEditedRulesAreComparedWithWhatIsKnown(t *testing.T) {
	s := newScene(t, control(t), nil)
	s.installEdits()
	s.rules(func(e edited) []rule { return e.before })
	s.start()
	s.stop()

	// Something happens while nobody watches.
	each(t, allEdits, func(ctx context.Context, e edited) error {
		return s.cluster.Change(ctx, e.kind(), s.name+"-a", "blue", 1)
	})
	s.rules(func(e edited) []rule { return e.after })
	s.judgeEdits("there", edited.there)
	s.rules(func(e edited) []rule { return e.before })
	s.judgeEdits("and back", edited.back)

	ids := map[string]bus.Record{}
	for _, r := range s.records {
		if other, twice := ids[r.ID]; twice {
			t.Errorf("two records have the ID %s:\n%s\n%s", r.ID, other.Payload, r.Payload)
		}
		ids[r.ID] = r
	}
}

// installEdits defines the types and creates their objects.
func (s *scene) installEdits() {
	s.t.Helper()
	for _, part := range []string{"-a", "-b"} {
		s.must(s.cluster.CreateNamespace(s.t.Context(), s.name+part))
	}
	each(s.t, allEdits, func(ctx context.Context, e edited) error {
		if err := s.cluster.Install(ctx, workload.Definition{Group: e.group(), Plural: e.plural, Kind: "Edited", Versions: []string{"v1", "v2"}}); err != nil {
			return err
		}
		for _, object := range []string{"a/red", "a/blue", "b/red", "b/blue"} {
			part, name, _ := strings.Cut(object, "/")
			if err := s.cluster.Create(ctx, labelled(e.kind(), "color="+name), s.name+"-"+part, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// rules configures the rules of all edits, and one rule that stays.
func (s *scene) rules(of func(edited) []rule) {
	s.t.Helper()
	all := []rule{{"select": []string{"namespaces"}}}
	for _, e := range allEdits {
		for _, r := range of(e) {
			all = append(all, s.named(r, e))
		}
	}
	s.edit(all...)
}

// named fills in what stands for the scene's name and the type.
func (s *scene) named(r rule, e edited) rule {
	all := rule{}
	for key, value := range r {
		switch v := value.(type) {
		case string:
			all[key] = s.fill(v, e)
		case []string:
			var filled []string
			for _, text := range v {
				filled = append(filled, s.fill(text, e))
			}
			all[key] = filled
		case rule:
			all[key] = s.named(v, e)
		}
	}
	return all
}

func (s *scene) fill(text string, e edited) string {
	return strings.NewReplacer("NS", s.name, "TYPE", e.plural+"."+e.group(), "GROUP", e.group()).Replace(text)
}

// there is what the first edit tells, without the gap.
func (e edited) there() []string {
	lines := e.crossing(e.left, e.entered)
	if !slices.Contains(e.left, "a/blue") && !slices.Contains(e.entered, "a/blue") {
		lines = append(lines, "updated NS-a/blue")
	}
	return lines
}

// back is what it tells that the rules become again what they were.
func (e edited) back() []string {
	lines := e.crossing(e.entered, e.left)
	if !e.anew {
		return lines
	}
	for i, line := range lines {
		lines[i] = strings.Replace(line, "added", "snapshot", 1)
	}
	return append(lines, "snapshot.begin", "snapshot.end")
}

func (e edited) crossing(left, entered []string) []string {
	var lines []string
	for _, object := range left {
		lines = append(lines, "deleted NS-"+object+" left")
	}
	for _, object := range entered {
		lines = append(lines, "added NS-"+object)
	}
	return lines
}

// judgeEdits runs the exporter until all that edits are to tell is told, and judges what was.
func (s *scene) judgeEdits(way string, want func(edited) []string) {
	s.t.Helper()
	told := len(s.records)
	s.start()
	s.await(func() string {
		records := s.read()[told:]
		for _, e := range allEdits {
			got := transcript(records, e.kind())
			for _, line := range want(e) {
				if line = s.fill(line, e); !slices.Contains(got, line) {
					return fmt.Sprintf("%q of %s, there are\n  %s", line, e.plural, strings.Join(got, "\n  "))
				}
			}
		}
		return ""
	})
	s.stop()
	for _, e := range allEdits {
		s.t.Run(e.plural+" "+way, func(t *testing.T) { s.judgeEdit(t, e, s.records[told:], want(e)) })
	}
}

// judgeEdit compares what was told of an edit with what was to be.
func (s *scene) judgeEdit(t *testing.T, e edited, records []bus.Record, want []string) {
	got := transcript(records, e.kind())
	var lines []string
	for _, line := range want {
		lines = append(lines, s.fill(line, e))
	}
	judgeGaps(t, records, e.kind())
	if !e.same {
		got = slices.DeleteFunc(got, func(line string) bool { return line == "gap" })
	}
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		t.Errorf("told\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
	judgeDeletes(t, records, e.kind())
}

// judgeGaps checks that a gap which speaks of the edited rules comes before every difference that it explains; a delete that
// says that its object left needs none.
func judgeGaps(t *testing.T, records []bus.Record, kind workload.Kind) {
	t.Helper()
	covers := func(gap, r bus.Record) bool { return gap.Namespace == "" || gap.Namespace == r.Namespace }
	all := gaps(records, kind)
	for _, r := range all {
		if !strings.Contains(r.Gap.Reason, "rules") {
			t.Errorf("the gap does not speak of the rules: %s", r.Payload)
		}
		if to, err := strconv.ParseInt(r.Gap.To, 10, 64); err != nil || to == 0 {
			t.Errorf("the gap ends nowhere: %s", r.Payload)
		}
	}
	before := []bus.Record{}
	for _, r := range records {
		switch {
		case !isOf(r, kind):
		case r.Type == "gap":
			before = append(before, r)
		case r.Left:
		case slices.ContainsFunc(all, func(gap bus.Record) bool { return covers(gap, r) }) != r.Coalesced:
			t.Errorf("coalesced is %t, with the gaps %v: %s", r.Coalesced, transcript(all, kind), r.Payload)
		case r.Coalesced && !slices.ContainsFunc(before, func(gap bus.Record) bool { return covers(gap, r) }):
			t.Errorf("comes before its gap: %s", r.Payload)
		}
	}
}

// judgeDeletes checks that each delete says what was deleted.
func judgeDeletes(t *testing.T, records []bus.Record, kind workload.Kind) {
	t.Helper()
	for _, r := range records {
		if isOf(r, kind) && r.Type == "deleted" && (r.Version == "" || r.Kind == "") {
			t.Errorf("a delete without version or kind: %s", r.Payload)
		}
	}
}
