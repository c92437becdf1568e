package e2e

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

func TestDrainOnSIGTERM(t *testing.T) {
	const objects = 300
	kinds := workload.AllKinds()
	s := newFixture(t, kinds, func(settings *exporter.Settings) { settings.DrainTimeout = "4m" })
	s.must(s.exporter.Start(t.Context()))
	load := s.load(objects, kinds)
	operations := workload.Plan{Objects: objects, Updates: 3}.Operations()
	for i := range 3 {
		load.AwaitOperations(operations * (i + 1) / 4)
		s.must(s.exporter.Stop()) // exit code 0, while objects are written
		s.receiveAll()
		if wrong := oracle.Differ("kafka", s.buses[0].records, "nats", s.buses[1].records); len(wrong) > 0 {
			t.Errorf("after a drain the buses differ in %d points, the first ones:\n%s", len(wrong), first(wrong))
		}
		s.must(s.exporter.Start(t.Context()))
	}
	s.must(load.Wait())
	s.awaitAll()
	s.judge(oracle.Rules{}) // what was acknowledged is not sent again
}

// TestDrainEndsInTimeDuringBusOutage stops the exporter while it cannot deliver: it must give up in time, with exit code 0,
// and deliver after the next start.
func TestDrainEndsInTimeDuringBusOutage(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	s := newFixture(t, kinds, func(settings *exporter.Settings) { settings.DrainTimeout = "3s" })
	s.must(s.exporter.Start(t.Context()))
	s.must(s.nats.Kill())
	s.must(s.load(20, kinds).Wait())
	s.awaitHistory(s.buses[0])
	s.must(s.exporter.Stop())
	if log := s.exporter.LogTail(); !strings.Contains(log, "stopping: waiting for this sink") {
		t.Errorf("the log does not name the sink that the stop waits for:\n%s", log)
	}
	s.must(s.nats.Restart(t.Context()))
	s.must(s.exporter.Start(t.Context()))
	s.awaitAll()
	s.judge(oracle.Rules{})
}
