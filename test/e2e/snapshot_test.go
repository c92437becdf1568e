package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestSnapshotResumesAfterKill kills the exporter while half of the first list has come. Listed objects are then
// changed, deleted, or deleted and made again under its name; the next exporter emits that within the same snapshot.
func TestSnapshotResumesAfterKill(t *testing.T) {
	const objects, size = 400, 4 << 10
	env := servers(t)
	between, kubeconfig := startProxy(t, env, "admin")
	large := configMapsOf(size)
	s := newFixtureIn(t, env, []workload.Kind{large}, func(settings *exporter.Settings) {
		settings.Kubeconfig = kubeconfig
		settings.Rule = map[string]any{"namespaces": map[string]any{"include": []string{settings.Stream}}}
	})
	s.resources[0].Namespace = s.name
	for i := range objects {
		s.must(s.cluster.Create(t.Context(), large, s.name, fmt.Sprintf("o-%03d", i)))
	}

	between.Ration(objects * size / 2)
	s.must(s.exporter.Launch(t.Context()))
	for _, b := range s.buses {
		s.await(b, func(records []bus.Record) string { return fewer(records, "snapshot", 100) })
	}
	s.awaitAnswer("/readyz", http.StatusServiceUnavailable, "[-]resource/configmaps;ns="+s.name+" ResourceSyncing: ")
	s.must(s.exporter.Kill())
	for i, r := range s.buses[0].records {
		if r.Type != "snapshot" {
			continue
		}
		switch i % 3 {
		case 0:
			s.must(s.cluster.Change(t.Context(), large, s.name, r.Name, 1))
		case 1:
			s.must(s.cluster.Delete(t.Context(), large, s.name, r.Name))
		case 2:
			s.must(s.cluster.Delete(t.Context(), large, s.name, r.Name))
			s.must(s.cluster.Create(t.Context(), large, s.name, r.Name))
		}
	}

	between.Ration(0)
	s.must(s.exporter.Start(t.Context()))
	s.awaitAll()
	s.judge(oracle.Rules{Repetitions: true})
	for _, b := range s.buses {
		within := map[string]int{}
		of := map[string]bool{}
		for _, r := range b.records {
			if r.Snapshot != nil {
				within[r.Type]++
				of[r.Snapshot.ID] = true
			}
		}
		if len(of) != 1 || within["updated"] == 0 || within["deleted"] == 0 || within["added"] == 0 {
			t.Errorf("%s: within %d snapshots: %v, want changes of every type within one", b.Name(), len(of), within)
		}
	}
}
