package source

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/crowd"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// readWithin bounds a wait for what a crowd is read for. It is no measurement.
const readWithin = 20 * time.Minute

// proof is a number of objects and the memory that the exporter may take with them, in bytes of its peak resident set.
type proof struct {
	objects, bytes int
	most           int64
}

// beside is what a process takes beside its heap, most of it the program itself.
const beside = 48 << 20

// The proofs at full size, and the smaller ones that a pipeline runs. Memory has a part that does not depend on the number.
var (
	many   = map[bool]proof{true: {150_000, 4 << 10, 512 << 20}, false: {25_000, 4 << 10, 160 << 20}}
	crowds = map[bool]proof{true: {1_000_000, 1 << 10, 600_000_000}, false: {60_000, 1 << 10, 160_000_000}}
)

// fullSize says whether the proofs run at full size.
func fullSize() bool { return os.Getenv("KUBECDC_E2E_MEMORY") == "1" }

// TestManyObjectsFitIntoLittleMemory lets the exporter read many objects for every reason that there is: at the first start,
// after a restart, behind a 410 with everything changed, because rules were edited, and because the journal was broken; by
// streaming lists and in pages.
func TestManyObjectsFitIntoLittleMemory(t *testing.T) {
	for name, pages := range map[string]bool{"streaming": false, "in pages": true} {
		t.Run(name, func(t *testing.T) {
			m := newMeasured(t, many[fullSize()], pages)
			m.phase("first start", func() { m.begin(m.objects) })
			m.phase("restart", func() { m.begin(0) })
			m.phase("410 with everything changed", func() {
				m.begin(0)
				m.server.ChangeAll()
				m.awaitDelivered(m.objects + 1) // and the gap
			})
			m.phase("edited rules", func() {
				m.edit(rule{"select": []string{"configmaps"}, "namespaces": rule{"exclude": []string{"crowd-3"}}})
				m.begin(m.objects / 4)
			})
			m.phase("broken journal", func() {
				spoil(t, m.settings.JournalDir())
				m.begin(m.objects * 3 / 4)
			})
		})
	}
}

// TestAMillionObjectsFitIntoMemory reads very many small objects, and starts again.
func TestAMillionObjectsFitIntoMemory(t *testing.T) {
	m := newMeasured(t, crowds[fullSize()], false)
	m.phase("first start", func() {
		m.launch()
		m.checkAnswers()
		m.awaitDelivered(m.objects)
	})
	m.phase("restart", func() { m.begin(0) })
}

// measured is a scene on a crowd, each phase of which may take so much memory.
type measured struct {
	*scene
	proof
	server *crowd.Server
}

func newMeasured(t *testing.T, p proof, pages bool) *measured {
	t.Helper()
	require.Integration(t)
	if os.Getenv("KUBECDC_E2E_RACE") == "1" {
		require.Skip(t, "the race detector takes the memory that is measured here")
	}
	program, err := program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := &measured{proof: p, server: crowd.Start(crowd.Options{Objects: p.objects, Bytes: p.bytes, Namespaces: 4, Pages: pages})}
	t.Cleanup(m.server.Close)
	m.scene = &scene{environment: &environment{program: program}, t: t}
	m.settings = exporter.Settings{
		Dir: t.TempDir(), Resources: []rule{{"select": []string{"configmaps"}}}, DrainTimeout: "10m",
		// How much garbage there is before it is collected depends on the machine, as long as nothing says what there may be.
		Env: []string{fmt.Sprintf("GOMEMLIMIT=%d", p.most-beside)},
	}
	m.settings.Kubeconfig, m.settings.File = filepath.Join(m.settings.Dir, "kubeconfig"), filepath.Join(m.settings.Dir, "changes")
	m.must(m.server.Kubeconfig(m.settings.Kubeconfig))
	m.exporter, err = exporter.New(program, m.settings)
	m.must(err)
	m.file = bus.NewFile(m.settings.File)
	t.Cleanup(m.end)
	return m
}

// phase runs the exporter for something and holds its memory to the proof.
func (m *measured) phase(name string, run func()) {
	m.t.Helper()
	lists, began := m.server.Lists(), time.Now()
	run()
	m.await(func() string {
		if code, text := m.answer("/readyz"); code != http.StatusOK {
			return "readiness: " + text
		}
		return ""
	})
	peak := m.exporter.Process().Usage().PeakRSS
	m.must(m.exporter.Stop())
	m.must(os.RemoveAll(m.settings.File)) // it is as large as everything together
	m.t.Logf("%s: peak RSS %d MiB, %d lists, %v", name, peak>>20, m.server.Lists()-lists, time.Since(began).Round(time.Second))
	if peak > m.most {
		m.t.Errorf("%s: peak RSS %d MiB, at most %d", name, peak>>20, m.most>>20)
	}
}

// launch starts the exporter.
func (m *measured) launch() {
	m.t.Helper()
	m.must(m.exporter.Launch(m.t.Context()))
}

// begin starts the exporter and waits until it has delivered so many changes at least.
func (m *measured) begin(changes int) {
	m.t.Helper()
	m.launch()
	m.awaitDelivered(changes)
}

// awaitDelivered waits until the exporter is ready and has delivered so many changes at least since it was started.
func (m *measured) awaitDelivered(changes int) {
	m.t.Helper()
	deadline := time.Now().Add(readWithin)
	for {
		code, text := m.answer("/readyz")
		delivered := 0
		if code != 0 {
			delivered = m.metric(`kubecdc_sink_delivered_total{sink="file"}`)
		}
		if code == http.StatusOK && delivered >= changes {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("after %v %d of %d changes are delivered; /readyz: %d %s", readWithin, delivered, changes, code, text)
		}
		pause(m.t, 4*lookEvery)
	}
}

// checkAnswers asks for every page while the first list is under way.
func (m *measured) checkAnswers() {
	m.t.Helper()
	m.awaitAnswer("/readyz", http.StatusServiceUnavailable, "first list is not complete")
	for _, path := range []string{"/readyz?verbose", "/metrics", "/"} {
		if code, text := m.answer(path); code == 0 {
			m.t.Errorf("%s does not answer within %v: %s", path, answersWithin, text)
		}
	}
}
