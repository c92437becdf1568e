package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestBeforeStatesAreRestoredAfterFailover kills the active one and takes its journal: the first update of each object that
// the other one emits carries the state before it, whether it was made before the take-over or later. It lists each resource
// once, and objects by name.
func TestBeforeStatesAreRestoredAfterFailover(t *testing.T) {
	require.Long(t)
	const objects = 30
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	p := newPair(t, kinds, "kafka", func(s *exporter.Settings) { s.Rule = map[string]any{"before": "full"} })
	p.must(p.all[0].Start(t.Context()))
	p.active()
	each := func(do func(kind workload.Kind, name string) error) {
		for _, kind := range kinds {
			for i := range objects {
				p.must(do(kind, fmt.Sprintf("o-%02d", i)))
			}
		}
	}
	each(func(kind workload.Kind, name string) error { return p.cluster.Create(t.Context(), kind, p.name, name) })
	p.awaitSettled() // what the state lacks is watched again, and brings its state
	p.kill(p.all[0])
	killed := time.Now()
	for step := range 2 {
		each(func(kind workload.Kind, name string) error {
			return p.cluster.Change(t.Context(), kind, p.name, name, step+1)
		})
		if step == 0 {
			p.must(p.all[1].Start(t.Context()))
			p.awaitLog(p.all[1], "the states of known objects were read", len(p.resources))
		}
	}
	p.awaitAll()
	lists := map[string]int{}
	entries, err := p.controlPlane.AuditEntries()
	p.must(err)
	for _, e := range entries {
		if strings.HasPrefix(e.UserAgent, "kubecdc/") && e.Time.After(killed) && p.selects(e) && e.Verb == "list" && e.Code == http.StatusOK {
			at, err := url.Parse(e.RequestURI)
			p.must(err)
			if at.Query().Get("continue") == "" && at.Query().Get("fieldSelector") == "" {
				lists[e.Resource]++
			}
		}
	}
	for _, r := range p.resources {
		if lists[r.Resource] != 1 {
			t.Errorf("%d lists of %s, want one", lists[r.Resource], r.Resource)
		}
	}
	for _, b := range p.buses {
		p.checkBeforeStates(b, 2*objects*len(kinds))
	}
	p.must(p.all[1].Stop())
	p.judgeEach(oracle.Rules{})
}

// checkBeforeStates checks that updates carry the state that was emitted before.
func (p *replicas) checkBeforeStates(b *received, updates int) {
	p.t.Helper()
	last, n := map[bus.Object]bus.Record{}, 0
	for _, r := range b.records {
		if r.Type == "updated" && r.Namespace == p.name {
			n++
			if told := last[r.Object]; !same(told.After, r.Before) {
				p.t.Errorf("%s: %s %s@%s has before %.300s, told was %.300s", b.Name(), r.Resource, r.Name, r.ResourceVersion, r.Before, told.After)
			}
		}
		last[r.Object] = r
	}
	if n < updates {
		p.t.Errorf("%s: %d updates, want %d", b.Name(), n, updates)
	}
}

// awaitLog waits until an exporter has logged a text often enough.
func (p *replicas) awaitLog(e *exporter.Exporter, what string, times int) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); strings.Count(e.LogTail(), what) < times; await.Pause(p.t, lookEvery) {
		if time.Now().After(deadline) {
			p.t.Fatalf("it has not said %d times that %s; the end of its log:\n%s", times, what, e.LogTail())
		}
	}
}
