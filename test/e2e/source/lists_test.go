package source

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// maxRSSForLarge is the allowed peak RSS while 300 objects of 900 KB are read.
const maxRSSForLarge = int64(200_000_000)

// TestLargeObjectsAreReadInSmallPages has 300 ConfigMaps of 900 KB.
func TestLargeObjectsAreReadInSmallPages(t *testing.T) {
	require.Long(t)
	const objects = 300
	large := largeKind(900 << 10)
	s := newFixture(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	for i := range objects {
		s.requireNoError(s.cluster.Create(t.Context(), large, s.name, fmt.Sprintf("o-%03d", i)))
	}
	s.requireNoError(s.exporter.Launch(t.Context()))
	s.awaitCount(s.newTally(), "snapshot", objects)
	s.awaitPage("/readyz", http.StatusOK)
	peak := s.exporter.Process().Usage().PeakRSS
	s.requireNoError(s.exporter.Stop())
	t.Logf("peak RSS %d MB", peak/1e6)
	if peak > maxRSSForLarge {
		t.Errorf("peak RSS %d MB, at most %d", peak/1e6, maxRSSForLarge/1e6)
	}
}

// largeKind returns a kind of ConfigMaps with the given number of extra bytes.
func largeKind(bytes int) workload.Kind {
	kind := workload.ConfigMaps
	kind.Object = func() *unstructured.Unstructured {
		o := workload.ConfigMaps.Object()
		o.Object["data"] = map[string]any{"step": "0", "ballast": strings.Repeat("0123456789abcdef", bytes/16)}
		return o
	}
	return kind
}
