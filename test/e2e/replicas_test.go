package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// replicas are two or more exporters without volumes, which share a state in one of the buses, and of which one is active.
type replicas struct {
	*fixture
	all    []*exporter.Exporter // the first is that of the fixture
	down   map[*exporter.Exporter]bool
	random *rand.Rand
}

// newPair makes two exporters. Nothing runs yet.
func newPair(t *testing.T, kinds []workload.Kind, stateIn string, changes ...func(*exporter.Settings)) *replicas {
	t.Helper()
	return newReplicas(t, 2, kinds, stateIn, changes...)
}

// newReplicas makes n exporters. Nothing runs yet.
func newReplicas(t *testing.T, n int, kinds []workload.Kind, stateIn string, changes ...func(*exporter.Settings)) *replicas {
	t.Helper()
	var settings exporter.Settings
	shared := func(s *exporter.Settings) {
		s.State = map[string]any{"sink": stateIn, "name": s.Stream + "-state"}
		s.Election = electionOf(s.Stream, 0)
		for _, change := range changes {
			change(s)
		}
		settings = *s
	}
	p := &replicas{fixture: newRestrictedFixture(t, kinds, shared), down: map[*exporter.Exporter]bool{}, random: newRandom(t)}
	p.all = []*exporter.Exporter{p.exporter}
	for i := 1; i < n; i++ {
		settings.Dir = t.TempDir()
		settings.Election = maps.Clone(settings.Election)
		settings.Election["identity"] = identity(i)
		e, err := exporter.New(p.program, settings)
		p.must(err)
		p.all = append(p.all, e)
		t.Cleanup(func() {
			if err := e.Kill(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("the end of the log of %d:\n%s", i, e.LogTail())
			}
		})
	}
	return p
}

// electionOf is the election of one of several exporters.
func electionOf(namespace string, i int) map[string]any {
	return map[string]any{"lease": namespace + "/exporter", "duration": "2s", "identity": identity(i)}
}

func identity(i int) string { return fmt.Sprintf("exporter-%d", i) }

// keepLease is a setting for tests without a failover unless the active exporter is taken away: it keeps the Lease
// although a busy machine stops it for seconds.
func keepLease(s *exporter.Settings) { s.Election["duration"] = "15s" }

// start starts all, and waits until one of them is active. The others start when the state is complete: a failover before
// that, which a busy machine may bring about, begins with a gap.
func (p *replicas) start() {
	p.t.Helper()
	p.must(p.all[0].Start(p.t.Context()))
	p.awaitCovered(p.active())
	for _, e := range p.all[1:] {
		p.must(e.Start(p.t.Context()))
	}
	p.active()
}

// active waits until one of those that are not down is active, and returns it.
func (p *replicas) active() *exporter.Exporter {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery/4) {
		for _, e := range p.all {
			if !p.down[e] && strings.Contains(metricsOf(p.t, e), "\nkubecdc_active 1\n") {
				return e
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("no replica is active after %v", arriveWithin)
		}
	}
}

// other is one that stands by.
func (p *replicas) other(active *exporter.Exporter) *exporter.Exporter {
	return p.all[slices.IndexFunc(p.all, func(e *exporter.Exporter) bool { return e != active && !p.down[e] })]
}

// metricsWithin bounds one look at an exporter that may freeze.
const metricsWithin = 10 * time.Second

// metricsOf are the metrics of an exporter; "" while it does not answer.
func metricsOf(t *testing.T, e *exporter.Exporter) string {
	ctx, cancel := context.WithTimeout(t.Context(), metricsWithin)
	defer cancel()
	_, text, err := e.Get(ctx, "/metrics")
	if err != nil {
		return ""
	}
	return text
}

// removeVolume takes the volume of a stopped exporter away.
func (p *replicas) removeVolume(e *exporter.Exporter) {
	p.t.Helper()
	p.must(os.RemoveAll(filepath.Join(filepath.Dir(e.Config()), "journal")))
}

// kill ends an exporter with SIGKILL and takes its volume.
func (p *replicas) kill(e *exporter.Exporter) {
	p.t.Helper()
	p.must(e.Kill())
	p.removeVolume(e)
}

// removeReplica kills an exporter for good, takes its volume, and gives up the Lease that it may have, so that no other
// waits for the end of that.
func (p *replicas) removeReplica(e *exporter.Exporter) {
	p.t.Helper()
	p.kill(e)
	p.down[e] = true
	p.deleteLease()
}

// deleteLease deletes the Lease. The active exporter that holds it makes it again.
func (p *replicas) deleteLease() {
	p.t.Helper()
	p.must(p.cluster.Delete(p.t.Context(), leases, p.name, "exporter"))
}

var leases = workload.Kind{Resource: schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}}

// fencedTotal is how often an exporter found another one active in its place.
func fencedTotal(t *testing.T, e *exporter.Exporter) int {
	t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(t, lookEvery) {
		for _, n := range series(metricsOf(t, e), "kubecdc_fenced_total") {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not answer after %v", arriveWithin)
		}
	}
}

// awaitAnswerOf waits until the admin server of an exporter answers with a text that holds part.
func (p *replicas) awaitAnswerOf(e *exporter.Exporter, path, part string) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery) {
		_, text, err := e.Get(p.t.Context(), path)
		if err == nil && strings.Contains(text, part) {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s has no %q after %v: %v\n%s", path, part, arriveWithin, err, text)
		}
	}
}

// awaitSettled waits until both buses and the state hold everything that has happened up to now, and returns the active
// exporter. Both buses have to be there: what one of them misses is waited for.
func (p *replicas) awaitSettled() *exporter.Exporter {
	p.t.Helper()
	p.awaitAll()
	active := p.active()
	p.awaitCovered(active)
	return active
}

// awaitCovered waits until the state has all that was delivered up to now.
func (p *replicas) awaitCovered(active *exporter.Exporter) {
	p.t.Helper()
	p.awaitAnswerOf(active, "/metrics", "\nkubecdc_state_lag_seconds 0\n")
}

// judge ends all, and compares each bus with the truth. The buses may differ in what is no part of a change's identity: one
// may have it from the exporter before, which observed it at another time, and the other one from the next.
func (p *replicas) judge(rules oracle.Rules) {
	p.t.Helper()
	var errs []error
	for _, e := range p.all {
		errs = append(errs, e.Stop())
	}
	p.must(errors.Join(errs...))
	p.judgeEach(rules)
}
