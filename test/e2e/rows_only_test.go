package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestASinkWithRowsOnlyGetsNothingElse, around lost history, a snapshot of its own and deletes: each change that another
// sink gets is there, and each record without a value is a delete of an object.
func TestASinkWithRowsOnlyGetsNothingElse(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	formats := []string{"debezium", "upsert"}
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		prefix := settings.TopicPrefix
		all := settings.WholeSinks()
		for _, f := range formats {
			settings.TopicPrefix = prefix + "-" + f
			rows := settings.WholeSinks()[0]
			rows["name"], rows["format"], rows["rowsOnly"] = f, f, true
			all = append(all, rows)
		}
		settings.Sinks, settings.TopicPrefix = all, prefix
	})
	s.must(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "there-before"))
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(50, kinds).Wait())
	s.awaitAll()
	s.must(s.exporter.Stop())
	s.loseHistory()
	s.awaitAll()

	changes := make(map[string]bool)
	for _, r := range slices.Concat(s.readTopic(s.name + ".configmaps")...) {
		if stored := r.identify().stored; !stored.Type.IsControl() {
			changes[stored.ID] = true
		}
	}
	for _, f := range formats {
		s.awaitSaid(func() string {
			left, records := len(changes), slices.Concat(s.readTopic(s.name+"-"+f+".configmaps")...)
			for _, r := range records {
				stored := r.identify().stored
				if stored.Type.IsControl() || len(r.value) == 0 && (f == "debezium" || stored.Type != "deleted") {
					t.Fatalf("%s: a record that is no row: %s %s", f, stored.Type, stored.ID)
				}
				if changes[stored.ID] {
					left--
				}
			}
			if left > 0 || len(changes) == 0 {
				return fmt.Sprintf("%s: %d of %d changes", f, left, len(changes))
			}
			return ""
		})
		if code, v, stderr := s.verify(s.exporter.Config(), f, "--stream-only"); code == 4 || v.Records == 0 {
			t.Errorf("%s: verify --stream-only: exit code %d, %+v\n%s", f, code, v, stderr)
		}
		if code, _, stderr := s.verify(s.exporter.Config(), f); code != 3 {
			t.Errorf("%s: verify: exit code %d\n%s", f, code, stderr)
		}
	}
}
