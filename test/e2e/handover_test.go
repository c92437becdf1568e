package e2e

import (
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// natsPair are two exporters that deliver to NATS alone, with their state there. The first one reaches it through a proxy.
type natsPair struct {
	*replicas
	route *proxy.Proxy
}

func newNATSPair(t *testing.T, kinds []workload.Kind) *natsPair {
	t.Helper()
	onlyNATS := func(s *exporter.Settings) { s.Sinks = s.WholeSinks()[1:] }
	p := &natsPair{replicas: newPair(t, kinds, "nats", onlyNATS, keepLease, func(s *exporter.Settings) {
		s.Election["yieldAfter"] = "1s"
	})}
	p.buses[0] = p.buses[1] // nothing is in Kafka
	var err error
	p.route, err = proxy.Start(strings.TrimPrefix(p.nats.URL(), "nats://"))
	p.must(err)
	t.Cleanup(func() { p.must(p.route.Close()) })
	p.must(p.all[0].Configure(func(s *exporter.Settings) {
		s.NATSURL, s.Sinks = "nats://"+p.route.Address(), nil
		onlyNATS(s)
	}))
	return p
}

// TestActiveYieldsToStandbyThatReachesBus cuts the active exporter alone off from the bus: the standby takes over. An outage
// that both of them have moves nothing.
func TestActiveYieldsToStandbyThatReachesBus(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newNATSPair(t, kinds)
	p.start()
	p.must(p.load(20, kinds).Wait())
	p.awaitSettled()

	p.must(p.nats.Kill())
	p.must(p.load(20, kinds).Wait())
	p.awaitAnswerOf(p.all[0], "/readyz", "[!]replica LeaseYielded: no sink delivers")
	p.awaitAnswerOf(p.all[1], "/readyz", "]replica StateUnreachable: ")
	p.must(p.nats.Restart(t.Context()))
	p.awaitSettled()
	if n := fencedTotal(t, p.all[0]); n != 0 {
		t.Errorf("the active exporter was replaced %d times by one that reached the bus no better", n)
	}

	p.route.Block()
	p.must(p.load(20, kinds).Wait())
	p.awaitAll()
	p.awaitAnswerOf(p.all[0], "/metrics", "\nkubecdc_active 0\n")
	p.route.Unblock()
	p.must(p.load(20, kinds).Wait())
	p.awaitAll()
	p.judge(oracle.Rules{})
}

// TestReplicasWithOneIdentityAreReported gives both exporters one identity: one of them is active, and the other one reports
// that. A deleted Lease costs one failover at most.
func TestReplicasWithOneIdentityAreReported(t *testing.T) {
	const deletions = 3
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats")
	p.must(p.all[1].Configure(func(s *exporter.Settings) { s.Election["identity"] = identity(0) }))
	p.must(p.all[0].Start(t.Context()))
	p.awaitCovered(p.active())
	p.must(p.all[1].Launch(t.Context()))
	p.awaitAnswerOf(p.all[1], "/readyz", `[-]replica IdentityShared: another process has the identity "exporter-0", too`)
	p.awaitAnswerOf(p.all[1], "/readyz", "give each exporter its own election.identity")
	for range deletions {
		p.deleteLease()
		p.must(p.load(20, kinds).Wait())
		p.awaitSettled()
	}
	if n := fencedTotal(t, p.all[0]) + fencedTotal(t, p.all[1]); n > deletions {
		t.Errorf("%d failovers after %d deletions of the Lease", n, deletions)
	}
	p.judge(oracle.Rules{})
}

// TestStopLeavesSinkThatIsAwayToStandby stops the active exporter in order while one of its two buses is away: it does not
// wait for that, so the other exporter takes over long before the end of the drain.
func TestStopLeavesSinkThatIsAwayToStandby(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "kafka", keepLease, func(s *exporter.Settings) { s.DrainTimeout = "30m" })
	p.start()
	p.must(p.load(20, kinds).Wait())
	active := p.awaitSettled()
	p.must(p.nats.Kill())
	p.must(p.load(20, kinds).Wait())
	p.awaitHistory(p.buses[0])
	p.awaitAnswerOf(active, "/readyz", "[-]sink/nats ")

	p.must(active.Stop())
	p.down[active] = true
	p.removeVolume(active)
	p.must(p.load(20, kinds).Wait())
	p.awaitHistory(p.buses[0])
	if log := readFile(t, active.Log()); !strings.Contains(log, "sinks are away; the next exporter delivers what they miss") {
		t.Error("the log does not name what is left to the next exporter")
	}
	p.must(p.nats.Restart(t.Context()))
	p.awaitAll()
	p.judge(oracle.Rules{})
}
