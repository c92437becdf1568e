package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// configMapsOf is the kind of ConfigMaps with so many bytes of ballast.
func configMapsOf(bytes int) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		o := workload.ConfigMaps.Object()
		o.Object["data"] = map[string]any{"step": "0", "ballast": strings.Repeat("0123456789abcdef", bytes/16)}
		return o
	}
	return kind
}

// TestSlowWatcherLosesNothing lets the exporter freeze until the API server closes its watch.
func TestSlowWatcherLosesNothing(t *testing.T) {
	require.Long(t)
	large := configMapsOf(64 << 10) // fills every buffer on the way soon
	s := newRestrictedFixture(t, []workload.Kind{large})
	s.must(s.exporter.Start(t.Context()))
	s.must(s.cluster.Create(t.Context(), large, s.name, "first"))
	s.awaitAll()
	before := s.closedAsSlow("configmaps")
	s.must(s.exporter.Pause())
	load := s.run(workload.Plan{Objects: 150, Updates: 3}, []workload.Kind{large})
	s.must(load.Wait())
	for deadline := time.Now().Add(arriveWithin); s.closedAsSlow("configmaps") == before; await.Pause(t, lookEvery) {
		if time.Now().After(deadline) {
			t.Fatal("the API server has closed no watch: there was nothing to be too slow for")
		}
	}
	s.must(s.exporter.Resume())
	s.awaitAll()
	s.judge(oracle.Rules{})
}

// closedAsSlow is how many watches of a resource the API server has closed because they did not read.
func (s *fixture) closedAsSlow(resource string) int {
	s.t.Helper()
	text, err := s.cluster.Metrics(s.t.Context())
	s.must(err)
	for name, value := range series(text, "apiserver_terminated_watchers_total{") {
		if strings.Contains(name, fmt.Sprintf("resource=%q", resource)) {
			return value
		}
	}
	return 0
}
