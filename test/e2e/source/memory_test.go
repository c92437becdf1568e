package source

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/crowd"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// readTimeout bounds each wait of the memory tests. It is not a measurement.
const readTimeout = 20 * time.Minute

// memoryBound is a number of objects and the memory that the exporter may use with them, in bytes of its peak resident set.
type memoryBound struct {
	objects, bytes int
	maxRSS         int64
}

// The bounds at full size, and the smaller ones of the pipeline. A part of the memory does not depend on the number.
var (
	crowdBounds = map[bool]memoryBound{true: {150_000, 4 << 10, 256 << 20}, false: {25_000, 4 << 10, 160 << 20}}
	largeCrowds = map[bool]memoryBound{true: {1_000_000, 3 << 9, 430_000_000}, false: {60_000, 3 << 9, 160_000_000}}
)

// fullSize reports whether the memory tests run at full size.
func fullSize() bool { return os.Getenv("KUBECDC_E2E_MEMORY") == "1" }

// TestManyObjectsFitIntoLittleMemory makes the exporter list many objects for every possible reason: at the first start,
// after a restart, after a 410 with everything changed, because rules were edited, and because the journal was broken.
func TestManyObjectsFitIntoLittleMemory(t *testing.T) {
	m := newMeasuredFixture(t, crowdBounds[fullSize()])
	m.runPhase("first start", func() { m.startAndAwait(m.objects) })
	m.runPhase("restart", func() { m.startAndAwait(0) })
	m.runPhase("410 with everything changed", func() {
		m.startAndAwait(0)
		m.server.ChangeAll()
		m.awaitDelivered(m.objects + 1) // plus the gap
	})
	m.runPhase("edited rules", func() {
		m.setRules(rule{"select": []string{"configmaps"}, "namespaces": rule{"exclude": []string{"crowd-3"}}})
		m.startAndAwait(m.objects / 4)
	})
	m.runPhase("broken journal", func() {
		breakJournal(t, m.settings.JournalDir())
		m.startAndAwait(m.objects * 3 / 4)
	})
}

// TestAMillionObjectsFitIntoMemory reads very many small objects, and restarts.
func TestAMillionObjectsFitIntoMemory(t *testing.T) {
	require.Long(t)
	m := newMeasuredFixture(t, largeCrowds[fullSize()])
	m.runPhase("first start", func() {
		m.launch()
		m.checkAnswers()
		m.awaitDelivered(m.objects)
	})
	m.runPhase("restart", func() { m.startAndAwait(0) })
}

// measuredFixture is a fixture with a crowd server; each phase has the same memory bound.
type measuredFixture struct {
	*fixture
	memoryBound
	server *crowd.Server
}

func newMeasuredFixture(t *testing.T, p memoryBound) *measuredFixture {
	t.Helper()
	require.Integration(t)
	if os.Getenv("KUBECDC_E2E_RACE") == "1" {
		require.Skip(t, "the race detector uses the memory that is measured here")
	}
	program, err := buildProgram(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &measuredFixture{memoryBound: p, server: crowd.Start(crowd.Options{Objects: p.objects, Bytes: p.bytes, Namespaces: 4})}
	t.Cleanup(m.server.Close)
	m.fixture = &fixture{environment: &environment{program: program}, t: t}
	m.settings = exporter.Settings{
		Dir: t.TempDir(), Resources: []rule{{"select": []string{"configmaps"}}}, DrainTimeout: "10m",
	}
	m.settings.Kubeconfig, m.settings.File = filepath.Join(m.settings.Dir, "kubeconfig"), filepath.Join(m.settings.Dir, "changes")
	m.requireNoError(m.server.Kubeconfig(m.settings.Kubeconfig))
	m.exporter, err = exporter.New(program, m.settings)
	m.requireNoError(err)
	m.file = bus.NewFile(m.settings.File)
	t.Cleanup(m.cleanUp)
	return m
}

// runPhase runs the exporter and compares its peak memory with the bound.
func (m *measuredFixture) runPhase(name string, run func()) {
	m.t.Helper()
	lists, began := m.server.Lists(), time.Now()
	run()
	m.awaitCondition(func() string {
		if code, text := m.getPage("/readyz"); code != http.StatusOK {
			return "readiness: " + text
		}
		return ""
	})
	peak := m.exporter.Process().Usage().PeakRSS
	m.requireNoError(m.exporter.Stop())
	m.requireNoError(os.RemoveAll(m.settings.File)) // as large as all objects together
	m.t.Logf("%s: peak RSS %d MiB, %d lists, %v", name, peak>>20, m.server.Lists()-lists, time.Since(began).Round(time.Second))
	if peak > m.maxRSS {
		m.t.Errorf("%s: peak RSS %d MiB, at most %d", name, peak>>20, m.maxRSS>>20)
	}
}

// launch starts the exporter.
func (m *measuredFixture) launch() {
	m.t.Helper()
	m.requireNoError(m.exporter.Launch(m.t.Context()))
}

// startAndAwait starts the exporter and waits until it has delivered at least that many changes.
func (m *measuredFixture) startAndAwait(changes int) {
	m.t.Helper()
	m.launch()
	m.awaitDelivered(changes)
}

// awaitDelivered waits until the exporter is ready and has delivered at least that many changes since its start.
func (m *measuredFixture) awaitDelivered(changes int) {
	m.t.Helper()
	deadline := time.Now().Add(readTimeout)
	for {
		code, text := m.getPage("/readyz")
		delivered := 0
		if code != 0 {
			delivered = m.metricValue(`kubecdc_sink_delivered_total{sink="file"}`)
		}
		if code == http.StatusOK && delivered >= changes {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("after %v, %d of %d changes are delivered; /readyz: %d %s", readTimeout, delivered, changes, code, text)
		}
		await.Pause(m.t, 4*pollInterval)
	}
}

// checkAnswers requests every page during the first list.
func (m *measuredFixture) checkAnswers() {
	m.t.Helper()
	m.awaitPage("/readyz", http.StatusServiceUnavailable, "ResourceSyncing")
	for _, path := range []string{"/readyz?verbose", "/metrics", "/"} {
		if code, text := m.getPage(path); code == 0 {
			m.t.Errorf("%s does not answer within %v: %s", path, answerTimeout, text)
		}
	}
}
