package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestChangesLostByStreamAreResent lets the NATS server come back with the store of an earlier moment, as after a power
// loss, while the exporter is away. At the first message the exporter sees it, and sends again what is missing.
func TestChangesLostByStreamAreResent(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	s := newFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(30, kinds).Wait())
	s.awaitAll()
	store := filepath.Join(s.dir, "nats", "store")
	earlier := filepath.Join(t.TempDir(), "store")
	s.must(s.nats.Kill())
	s.must(os.CopyFS(earlier, os.DirFS(store)))
	s.must(s.nats.Restart(t.Context()))
	s.must(s.load(30, kinds).Wait())
	s.awaitAll()
	s.must(s.exporter.Stop())

	s.must(s.nats.Kill())
	s.must(os.RemoveAll(store))
	s.must(os.CopyFS(store, os.DirFS(earlier)))
	s.must(s.nats.Restart(t.Context()))
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(30, kinds).Wait())
	anew, err := bus.NewNATS(s.nats.URL(), s.name) // the reader so far is further than the stream
	s.must(err)
	t.Cleanup(anew.Close)
	s.awaitHistory(&received{Reader: anew})
	s.awaitHistory(s.buses[0])
	s.awaitMetric(`kubecdc_sink_losses_total{sink="nats"}`, "1")
	s.awaitMetric(`kubecdc_sink_losses_total{sink="kafka"}`, "0")
}
