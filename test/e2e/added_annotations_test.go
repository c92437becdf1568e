package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestAddedAnnotationsAreInEachRecord of a real cluster, whatever the format, a route can use them, and verify expects them.
func TestAddedAnnotationsAreInEachRecord(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	const environment = "example.com/environment"
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Rule = map[string]any{"before": "full",
			"addAnnotations": []map[string]string{{"name": environment, "value": "prod"}, {"name": "tier", "value": "gold"}}}
		settings.Watermarks = "1s"
		prefix := settings.TopicPrefix
		all := settings.WholeSinks()
		settings.TopicPrefix, settings.Watermarks = prefix+"-rows", ""
		rows := settings.WholeSinks()[0]
		rows["name"], rows["format"], rows["rowsOnly"] = "rows", "upsert", true
		settings.TopicPrefix = prefix
		settings.Sinks = slices.Concat(all, []map[string]any{rows})
		settings.Routes = []map[string]any{{"select": []string{"*"}, "to": []map[string]string{{"sink": "kafka"}, {"sink": "rows"}},
			"filter": fmt.Sprintf(`object == null || object.metadata.annotations[%q] == "prod"`, environment)}}
	})
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "kept"))
	s.must(s.load(20, kinds).Wait())
	s.awaitSaid(func() string {
		counted := 0
		for _, r := range slices.Concat(s.readTopic(s.name + ".configmaps")...) {
			var c struct {
				Before, After *struct {
					Metadata struct{ Annotations map[string]string }
				}
			}
			s.must(json.Unmarshal(r.value, &c))
			if c.After == nil && c.Before == nil {
				continue // a control record
			}
			for _, o := range []any{c.Before, c.After} {
				text, _ := json.Marshal(o)
				var got struct {
					Metadata struct{ Annotations map[string]string }
				}
				s.must(json.Unmarshal(text, &got))
				if a := got.Metadata.Annotations; string(text) != "null" && (a[environment] != "prod" || a["tier"] != "gold") {
					t.Fatalf("a state has %v: %s", a, r.value)
				}
			}
			counted++
		}
		rows := 0
		for _, r := range slices.Concat(s.readTopic(s.name + "-rows.configmaps")...) {
			var o struct {
				Metadata struct{ Annotations map[string]string }
			}
			if len(r.value) == 0 {
				rows++
				continue
			}
			if s.must(json.Unmarshal(r.value, &o)); o.Metadata.Annotations[environment] != "prod" {
				t.Fatalf("a row is %s", r.value)
			}
			rows++
		}
		if counted < 60 || rows != counted {
			return fmt.Sprintf("%d records, %d rows", counted, rows)
		}
		return ""
	})
	if code, v, stderr := s.verify(s.exporter.Config(), "kafka", "--bodies"); code != 0 {
		t.Errorf("verify --bodies: exit code %d, %+v\n%s", code, v, stderr)
	}
}
