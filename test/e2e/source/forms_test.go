package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/values"
)

// checkForms checks that no record mixes the forms of an object: its versions, and whole objects with their metadata.
func (h *history) checkForms(records []bus.Record) {
	h.t.Helper()
	for o, life := range recordsByObject(records) {
		for i, r := range life {
			if wrong := formError(life[:i], r); wrong != "" {
				h.t.Errorf("%v: %s: %s", o, wrong, r.Payload)
			}
		}
	}
}

// formError describes what is wrong with the states and the list of a record that follows others of its object.
func formError(earlier []bus.Record, r bus.Record) string {
	before, after := decodeState(r.Before), decodeState(r.After)
	switch {
	case r.Type != "updated" || before == nil:
		return listWithoutBefore(earlier, r)
	case before["apiVersion"] != after["apiVersion"]:
		return "before and after are of different versions"
	case (before["spec"] == nil) != (after["spec"] == nil):
		return "only one of before and after has a spec"
	}
	if last := len(earlier) - 1; earlier[last].Type != "deleted" && versionOf(before) != earlier[last].ResourceVersion {
		return "before is not the version of the record before, " + earlier[last].ResourceVersion
	}
	return listError(before, r)
}

// listError describes a list of what changed that does not turn a state into that of the record.
func listError(state map[string]any, r bus.Record) string {
	var c struct{ Changed []any }
	if _ = json.Unmarshal(r.Payload, &c); len(c.Changed) == 0 {
		return ""
	}
	if _, isPath := c.Changed[0].(string); isPath { // changed: paths
		return ""
	}
	if got, err := values.Apply(any(state), c.Changed); err != nil || !reflect.DeepEqual(got, any(decodeState(r.After))) {
		return fmt.Sprintf("changed makes %v of before, %v", got, err)
	}
	return ""
}

// listWithoutBefore describes a list that turns no earlier state into that of the record.
func listWithoutBefore(earlier []bus.Record, r bus.Record) string {
	for _, e := range slices.Backward(earlier) {
		if len(e.After) > 0 {
			return listError(decodeState(e.After), r)
		}
	}
	return ""
}

func decodeState(text json.RawMessage) (state map[string]any) {
	_ = json.Unmarshal(text, &state) // nil without a state
	return state
}

func versionOf(state map[string]any) string {
	metadata, _ := state["metadata"].(map[string]any)
	version, _ := metadata["resourceVersion"].(string)
	return version
}

// applyRulesBy configures rules of a running exporter, which applies them by a reload or by a restart.
func (s *fixture) applyRulesBy(restart bool, rules ...rule) {
	s.t.Helper()
	if restart {
		s.requireNoError(s.exporter.Stop())
	}
	s.setRules(rules...)
	if restart {
		s.launchExporter()
	}
	s.awaitCondition(func() string {
		if s.isActive() {
			return ""
		}
		return "the edit to be in force"
	})
}

// forBothWays runs a test for an edit that is applied by a reload, and for one that is applied by a restart.
func forBothWays(t *testing.T, do func(t *testing.T, restart bool)) {
	t.Parallel()
	for name, restart := range map[string]bool{"reload": false, "restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do(t, restart)
		})
	}
}

// installVersions defines a type with two versions in a group of its own, and returns its kind and its group.
func (s *fixture) installVersions() (kind workload.Kind, group string) {
	s.t.Helper()
	group = s.name + ".forms.kubecdc.io"
	return s.installDefinition(workload.Definition{Group: group, Plural: "pins", Kind: "Pin", Versions: []string{"v1", "v2"}}), group
}

// TestWhatWaitsBelongsToTheRuleThatIsWatched edits the version of a rule, together with the redaction, while changes wait
// for a sink that is away: they are redacted by the rule that selects the resource, in whatever version they were read.
func TestWhatWaitsBelongsToTheRuleThatIsWatched(t *testing.T) {
	redacted := rule{"redactPaths": []string{"spec.secret"}}
	for name, c := range map[string]struct {
		before, after []rule
		masked        bool
	}{
		"a wildcard follows": {
			before: []rule{{"select": []string{"pins.v1.GROUP"}}, {"select": []string{"*.GROUP"}}},
			after:  []rule{{"select": []string{"pins.v2.GROUP"}, "redactPaths": redacted["redactPaths"]}, {"select": []string{"*.GROUP"}}},
			masked: true,
		},
		"no version is served": {
			before: []rule{{"select": []string{"pins.v1.GROUP"}}, {"select": []string{"*.GROUP"}}},
			after:  []rule{{"select": []string{"pins.v9.GROUP"}, "redactPaths": redacted["redactPaths"]}, {"select": []string{"*.GROUP"}}},
			masked: true,
		},
		"another resource is redacted": {
			before: []rule{{"select": []string{"pins.v1.GROUP"}}, {"select": []string{"others.GROUP"}, "redactPaths": redacted["redactPaths"]}},
			after:  []rule{{"select": []string{"pins.v2.GROUP"}}, {"select": []string{"others.GROUP"}, "redactPaths": redacted["redactPaths"]}},
		},
		"only metadata is read": {
			before: []rule{{"select": []string{"pins.v1.GROUP"}, "before": "full", "changed": "values"}},
			after:  []rule{{"select": []string{"pins.v2.GROUP"}, "before": "full", "changed": "values", "capture": "metadata"}},
			masked: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			forBothWays(t, func(t *testing.T, restart bool) {
				const objects = 5
				destination := newReceiver(t)
				s := newFixture(t, sharedControlPlane(t), nil, func(settings *exporter.Settings) { settings.DrainTimeout = "1s" })
				kind, group := s.installVersions()
				fill := func(rules []rule) (all []rule) {
					for _, r := range rules {
						r = maps.Clone(r)
						selected := r["select"].([]string)
						r["select"] = []string{strings.ReplaceAll(selected[0], "GROUP", group)}
						all = append(all, r)
					}
					return all
				}
				s.requireNoError(s.exporter.Configure(func(settings *exporter.Settings) {
					settings.Resources, settings.Sinks = fill(c.before), []rule{destination.sink()}
				}))
				s.launchExporter()
				for i := range objects {
					object := fmt.Sprintf("o%d", i)
					s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, object))
					s.requireNoError(s.cluster.Patch(t.Context(), kind, s.name, object, `{"spec":{"secret":"`+plainText+`"}}`))
					s.requireNoError(s.cluster.Patch(t.Context(), kind, s.name, object, `{"metadata":{"labels":{"last":"yes"}}}`))
				}
				s.awaitCondition(func() string {
					if n := s.metricValue(`kubecdc_sink_backlog_changes{sink="receiver"}`); n < 3*objects {
						return fmt.Sprintf("%d changes wait, want %d", n, 3*objects)
					}
					return ""
				})
				s.applyRulesBy(restart, fill(c.after)...)
				destination.setUp(true)
				s.awaitCondition(func() string {
					for i := range objects {
						if name := fmt.Sprintf("o%d", i); !destination.hasReceived(name) {
							return name
						}
					}
					if n := s.metricValue(`kubecdc_sink_backlog_changes{sink="receiver"}`); n > 0 {
						return fmt.Sprintf("%d changes to be delivered", n)
					}
					return ""
				})
				if text := destination.received(); strings.Contains(text, plainText) == c.masked {
					t.Errorf("masked: want %t: %.3000s", c.masked, text)
				}
			})
		})
	}
}

// TestEditedVersionKeepsBeforeAndRedaction edits the version of a rule together with what is emitted of its changes.
func TestEditedVersionKeepsBeforeAndRedaction(t *testing.T) {
	forBothWays(t, func(t *testing.T, restart bool) {
		s := newFixture(t, sharedControlPlane(t), nil)
		kind, group := s.installVersions()
		next := func(keys rule) bus.Record {
			t.Helper()
			s.applyRulesBy(restart, keys)
			s.readRecords()
			emitted := len(s.records)
			s.requireNoError(s.cluster.Change(t.Context(), kind, s.name, "one", emitted))
			s.awaitCondition(func() string {
				if all := s.readRecords(); len(all) > emitted && all[len(all)-1].Type == "updated" {
					return ""
				}
				return "an update"
			})
			return s.records[len(s.records)-1]
		}
		s.requireNoError(s.cluster.Create(t.Context(), kind, s.name, "one"))
		s.setRules(rule{"select": []string{"pins.v1." + group}})
		s.startExporter()
		s.awaitEmitted(kind, s.name, "one", "snapshot")
		shaped := func(version string, more rule) rule {
			r := rule{"select": []string{"pins." + version + "." + group}, "before": "full", "changed": "values"}
			maps.Copy(r, more)
			return r
		}
		for i, one := range []rule{
			shaped("v2", nil), shaped("v1", nil), shaped("v2", rule{"capture": "metadata"}), shaped("v2", nil),
			shaped("v1", rule{"redactPaths": []string{"spec.size"}}),
		} {
			r := next(one)
			var facts struct{ RedactionChanged bool }
			s.requireNoError(json.Unmarshal(r.Payload, &facts))
			redacted := one["redactPaths"] != nil
			life := slices.DeleteFunc(slices.Clone(s.records), func(r bus.Record) bool { return r.Name != "one" })
			if wrong := formError(life[:len(life)-1], r); wrong != "" || len(r.Before) == 0 || facts.RedactionChanged != redacted {
				t.Errorf("edit %d, %v: %s: %s", i, one, wrong, r.Payload)
			}
		}
	})
}

// TestEditedFilterIsCompared edits a filter: objects that it does not match any more leave, and those that it matches are
// added. An object that leaves it by a change is deleted when it is.
func TestEditedFilterIsCompared(t *testing.T) {
	forBothWays(t, func(t *testing.T, restart bool) {
		s := newFixture(t, sharedControlPlane(t), nil)
		kind := workload.ConfigMaps
		color := func(name, value string) {
			s.requireNoError(s.cluster.Patch(t.Context(), kind, s.name, name, `{"metadata":{"labels":{"color":"`+value+`"}}}`))
		}
		filtered := func(value string) rule {
			r := s.namespacedRule("configmaps")
			r["filter"] = fmt.Sprintf(`object.metadata.?labels.?color.orValue("none") == %q || object.metadata.name.startsWith("marker")`, value)
			return r
		}
		for _, name := range []string{"red", "blue"} {
			s.requireNoError(s.cluster.Create(t.Context(), withLabels(kind, "color="+name), s.name, name))
		}
		s.setRules(s.namespacedRule("configmaps"))
		s.startExporter()
		s.createMarker(kind, s.name)
		check := func(what string, from int, want ...string) {
			t.Helper()
			s.createMarker(kind, s.name)
			got := slices.DeleteFunc(transcript(s.records[from:], kind), func(line string) bool {
				return line == "gap" || strings.Contains(line, "kube-root-ca.crt")
			})
			slices.Sort(got)
			for i := range want {
				want[i] = strings.ReplaceAll(want[i], "NS", s.name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: emitted %q, want %q", what, got, want)
			}
		}
		edits := []struct {
			rule rule
			want []string
		}{
			{filtered("red"), []string{"deleted NS/blue left"}},
			{filtered("blue"), []string{"added NS/blue", "deleted NS/red left"}},
			{s.namespacedRule("configmaps"), []string{"added NS/red"}},
			{filtered("red"), []string{"deleted NS/blue left"}},
		}
		for i, edit := range edits {
			from := len(s.readRecords())
			s.applyRulesBy(restart, edit.rule)
			check(fmt.Sprintf("edit %d", i), from, edit.want...)
		}
		from := len(s.readRecords())
		color("red", "green") // leaves the filter
		if restart {
			s.applyRulesBy(true, filtered("red"))
		}
		s.requireNoError(s.cluster.Delete(t.Context(), kind, s.name, "red"))
		s.requireNoError(s.cluster.Delete(t.Context(), kind, s.name, "blue")) // has left before
		check("a delete of what was emitted", from, "deleted NS/red")
	})
}
