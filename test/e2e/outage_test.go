package e2e

import (
	"context"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestAPIServerOutageLosesNothing stops and kills the API server under load. A restarted API server does not know what
// happened before its own start: a watch that was behind at that moment gets 410, and the gap that follows is the truth.
func TestAPIServerOutageLosesNothing(t *testing.T) {
	const objects = 300
	kinds := workload.AllKinds()
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	operations := workload.Plan{Objects: objects, Updates: 3}.Operations()
	load := s.load(objects, kinds)
	for i, end := range []func() error{s.controlPlane.KillAPIServer, s.controlPlane.StopAPIServer, s.controlPlane.KillAPIServer} {
		load.AwaitOperations(operations * (i + 1) / 4)
		s.must(end())
		s.must(s.controlPlane.StartAPIServer(t.Context()))
	}
	s.must(load.Wait())
	s.awaitAll()
	s.judge(oracle.Rules{Gaps: true})
}

// TestBusOutagesLoseNothing takes one broker away at a time, while objects are written, before it goes, while it is away
// and while it comes back. The other bus must hold all that happened meanwhile before the first one returns.
func TestBusOutagesLoseNothing(t *testing.T) {
	const objects = 130
	kinds := workload.AllKinds()
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	kafkaBus, natsBus := s.buses[0], s.buses[1]
	outages := []struct {
		kill    func() error
		restart func(context.Context) error
		other   *received
	}{
		{s.nats.Kill, s.nats.Restart, kafkaBus},
		{s.kafka.Kill, s.kafka.Restart, natsBus},
	}
	for _, o := range outages {
		load := s.load(objects, kinds)
		load.AwaitOperations(workload.Plan{Objects: objects, Updates: 3}.Operations() / 2)
		s.must(o.kill())
		s.must(load.Wait())
		s.must(s.load(20, kinds).Wait()) // the load before may have ended before the broker
		s.awaitHistory(o.other)
		load = s.load(objects, kinds)
		s.must(o.restart(t.Context()))
		s.must(load.Wait())
		s.awaitAll()
	}
	s.judge(oracle.Rules{})
}
