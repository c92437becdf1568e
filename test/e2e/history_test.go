package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/history"
	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// historyKills is how often the exporter is killed. It commits once a second.
const historyKills = 8

// TestAHistoryKilledAtRandomMomentsHasEachRevisionOnce kills the exporter while objects are written, which finds it writing
// and merging files, and compares the rows with etcd's own history.
func TestAHistoryKilledAtRandomMomentsHasEachRevisionOnce(t *testing.T) {
	kinds := workload.AllKinds()[:3]
	dir := filepath.Join(t.TempDir(), "history")
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Sinks = []map[string]any{{"name": "history", "history": map[string]any{"dir": dir}}}
	})
	s.must(s.exporter.Start(t.Context()))
	plan := workload.Plan{Objects: 300, Updates: 3}
	random := newRandom(t)
	var moments []int
	for range historyKills {
		moments = append(moments, random.IntN(plan.Operations()*9/10))
	}
	slices.Sort(moments)
	load := s.load(plan.Objects, kinds)
	for _, moment := range moments {
		load.AwaitOperations(moment)
		s.must(s.exporter.Kill())
		s.must(s.exporter.Start(t.Context()))
	}
	s.must(load.Wait())
	await.Condition(t, "the history", arriveWithin, lookEvery, func() string {
		if err := s.compareHistory(dir, false); err != nil {
			return err.Error()
		}
		return ""
	})
	s.must(s.exporter.Stop())
	s.must(s.compareHistory(dir, true))
}

// compareHistory returns which revisions of etcd have no row, and if doubled is set, which have several.
func (s *fixture) compareHistory(dir string, doubled bool) (err error) {
	h, err := history.Open(history.Folder(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.must(err)
	defer h.Close()
	type version struct {
		bus.Object
		revision string
	}
	rows := map[version][]string{}
	for row, err := range h.Rows(s.t.Context(), history.Query{WithoutObjects: true}) {
		s.must(err)
		if row.IsState() && row.Type != "snapshot" {
			of := version{bus.Object{Group: row.Group, Resource: row.Resource, Namespace: row.Namespace, Name: row.Name}, row.ResourceVersion}
			rows[of] = append(rows[of], row.Type)
		}
	}
	types := map[oracle.Op]string{oracle.Created: "added", oracle.Updated: "updated", oracle.Deleted: "deleted"}
	for _, r := range s.history().Revisions {
		switch found := rows[version{r.Object, fmt.Sprint(r.Revision)}]; {
		case len(found) == 0 || found[0] != types[r.Op]:
			return fmt.Errorf("%v has the rows %v", r, found)
		case doubled && len(found) > 1:
			return fmt.Errorf("%v is there %d times: %v", r, len(found), found)
		}
	}
	return nil
}
