package source

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestReadingContinuesOnRestartedServerWithoutWatchList restarts an API server that has no WatchList and no history from
// before its start: one gap covers the loss, and later changes are emitted.
func TestReadingContinuesOnRestartedServerWithoutWatchList(t *testing.T) {
	s, gateway := newFixtureBehindGateway(t, withoutWatchList(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	emitted, asked := len(s.records), len(gateway.Requests())

	// Other objects are written, so that the position is older than the history of the next API server.
	for i := range 5 {
		s.requireNoError(s.cluster.Create(t.Context(), workload.Services, s.name, fmt.Sprintf("other-%d", i)))
	}
	s.requireNoError(s.controlPlane.KillAPIServer())
	s.requireNoError(s.controlPlane.StartAPIServer(t.Context()))
	gateway.Cut()
	s.requireNoError(s.cluster.Change(t.Context(), workload.ConfigMaps, s.name, "one", 1))
	s.awaitEmitted(workload.ConfigMaps, s.name, "one", "updated")
	s.awaitPage("/readyz", http.StatusOK)
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()
	if n := len(gapRecords(s.records[emitted:], workload.ConfigMaps)); n > 1 {
		t.Errorf("%d gaps of one loss", n)
	}
	for _, r := range gateway.Requests()[asked:] {
		if r.Resource == "configmaps" && r.Query.Get("resourceVersionMatch") == "Exact" {
			t.Errorf("requested an old version: %s?%s", r.Path, r.Query.Encode())
		}
	}
}

// TestUnwatchableListIsAStateNotAGap answers every watch with 410 and every list with the same old response, like a cache
// that is stuck. The first gap is correct; there is no second one, and readiness names the resource until the cache
// recovers.
func TestUnwatchableListIsAStateNotAGap(t *testing.T) {
	t.Parallel()
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	s.requireNoError(s.cluster.Create(t.Context(), workload.ConfigMaps, s.name, "one"))
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	emitted := len(s.records)

	var old frozenList
	var lists atomic.Int32
	ours := func(r proxy.Request) bool { return r.Resource == "configmaps" }
	healLists := gateway.Fault(func(r proxy.Request) bool { return ours(r) && !r.Watch() }, func(w http.ResponseWriter, r *http.Request) {
		lists.Add(1)
		old.serveList(w, r, gateway.Pass)
	})
	healWatches := gateway.Fault(func(r proxy.Request) bool { return ours(r) && r.Watch() && !r.Initial() }, proxy.Expired)
	healInitial := gateway.Fault(func(r proxy.Request) bool { return ours(r) && r.Initial() }, proxy.NoWatchList)
	gateway.Cut()
	s.awaitCondition(func() string {
		if n := lists.Load(); n < 8 {
			return fmt.Sprintf("eight lists; have %d", n)
		}
		return ""
	})
	s.awaitPage("/readyz", http.StatusServiceUnavailable, "resource/configmaps")
	if n := len(gapRecords(s.readRecords()[emitted:], workload.ConfigMaps)); n > 1 {
		t.Errorf("%d gaps of one loss", n)
	}

	healLists()
	healWatches()
	healInitial()
	s.awaitPage("/readyz", http.StatusOK)
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()
	if n := len(gapRecords(s.records[emitted:], workload.ConfigMaps)); n > 2 {
		t.Errorf("%d gaps of one loss and one recovery", n)
	}
}

// frozenList answers every request like the first one of its kind.
type frozenList struct {
	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder
}

func (f *frozenList) serveList(w http.ResponseWriter, r *http.Request, ask http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers == nil {
		f.answers = map[string]*httptest.ResponseRecorder{}
	}
	query := r.URL.Query()
	query.Del("timeoutSeconds")
	question := query.Encode()
	if f.answers[question] == nil {
		f.answers[question] = httptest.NewRecorder()
		ask(f.answers[question], r)
	}
	old := f.answers[question]
	for name, values := range old.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(old.Code)
	_, _ = w.Write(old.Body.Bytes())
}

// TestListWithExpiredTokenRestartsInPages expires the continue token of every first list after some pages. The list starts
// again, in pages; no request asks for everything at once, nothing is emitted twice, and every object is emitted.
func TestListWithExpiredTokenRestartsInPages(t *testing.T) {
	t.Parallel()
	const objects = 60
	large := largeKind(100 << 10)
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	for i := range objects {
		s.requireNoError(s.cluster.Create(t.Context(), large, s.name, fmt.Sprintf("o-%02d", i)))
	}
	var expired atomic.Int32
	// The limit is always small, so that there are several pages.
	gateway.Fault(func(r proxy.Request) bool { return r.Resource == "configmaps" && !r.Watch() }, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("continue") != "" && expired.Load() < 2 {
			expired.Add(1)
			proxy.Expired(w, r)
			return
		}
		if limit, err := strconv.Atoi(query.Get("limit")); err == nil && limit > 20 {
			query.Set("limit", "20")
			r.URL.RawQuery = query.Encode()
		}
		gateway.Pass(w, r)
	})
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	s.stopExporter()

	snapshots := map[string]int{}
	for _, r := range s.records {
		if r.Type == "snapshot" && strings.HasPrefix(r.Name, "o-") {
			snapshots[r.Name]++
		}
	}
	for name, n := range snapshots {
		if n != 1 {
			t.Errorf("%s is emitted %d times", name, n)
		}
	}
	if len(snapshots) != objects || expired.Load() != 2 {
		t.Errorf("%d of %d objects are emitted; %d tokens have expired", len(snapshots), objects, expired.Load())
	}
	for _, r := range gateway.Requests() {
		if r.Resource == "configmaps" && !r.Watch() && r.Query.Get("limit") == "" {
			t.Errorf("one request asked for everything: %s?%s", r.Path, r.Query.Encode())
		}
	}
}

// maxRSSForLarge is the allowed peak RSS while 300 objects of 900 KB are read.
const maxRSSForLarge = int64(200_000_000)

// TestLargeObjectsAreReadInSmallPages has 300 ConfigMaps of 900 KB.
func TestLargeObjectsAreReadInSmallPages(t *testing.T) {
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
