package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// cutPair are two exporters, each of which reaches NATS through a proxy of its own.
type cutPair struct {
	*replicas
	routes map[*exporter.Exporter]*proxy.Proxy
	cuts   int
}

// newCutPair makes them. KUBECDC_E2E_CUTS is how often the active one is cut off, with the default of election.yieldAfter;
// once without, and soon.
func newCutPair(t *testing.T, kinds []workload.Kind, stateIn string, change func(*exporter.Settings)) *cutPair {
	t.Helper()
	p := &cutPair{routes: map[*exporter.Exporter]*proxy.Proxy{}, cuts: sizeOf(t, "KUBECDC_E2E_CUTS", 1)}
	p.replicas = newPair(t, kinds, stateIn, change, keepLease, func(s *exporter.Settings) {
		if p.cuts == 1 {
			s.Election["yieldAfter"] = "1s"
		}
	})
	for _, e := range p.all {
		route, err := proxy.Start(strings.TrimPrefix(p.nats.URL(), "nats://"))
		p.must(err)
		t.Cleanup(func() { p.must(route.Close()) })
		p.must(e.Configure(func(s *exporter.Settings) {
			s.NATSURL, s.Sinks = "nats://"+route.Address(), nil
			change(s)
		}))
		p.routes[e] = route
	}
	return p
}

// overtakenWithin bounds the time from a cut to the delivery of what has happened since.
const overtakenWithin = time.Minute

// cutActiveOff cuts the active exporter off from NATS, again and again: the other one takes over and delivers.
func (p *cutPair) cutActiveOff(kinds []workload.Kind) {
	p.t.Helper()
	var took []time.Duration
	for range p.cuts {
		active := p.awaitSettled()
		began := time.Now()
		p.routes[active].Block()
		p.must(p.load(20, kinds).Wait())
		p.awaitAll()
		took = append(took, time.Since(began).Round(time.Second/10))
		p.awaitAnswerOf(active, "/metrics", "\nkubecdc_active 0\n")
		p.routes[active].Unblock()
		p.must(p.load(20, kinds).Wait())
		p.awaitAll()
	}
	p.t.Logf("delivered after %v", took)
	if slowest := slices.Max(took); slowest > overtakenWithin {
		p.t.Errorf("delivered %v after a cut", slowest)
	}
	p.judge(oracle.Rules{})
}

// TestActiveYieldsToStandbyThatReachesBus cuts the active exporter alone off from the only bus: the standby takes over. An
// outage that both of them have moves nothing.
func TestActiveYieldsToStandbyThatReachesBus(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newCutPair(t, kinds, "nats", func(s *exporter.Settings) { s.Sinks = s.WholeSinks()[1:] })
	p.buses[0] = p.buses[1] // nothing is in Kafka
	p.start()
	p.must(p.load(20, kinds).Wait())
	p.awaitSettled()

	p.must(p.nats.Kill())
	p.must(p.load(20, kinds).Wait())
	if p.cuts == 1 { // otherwise that takes long
		p.awaitAnswerOf(p.all[0], "/readyz", "[!]replica LeaseYielded: no sink delivers")
	}
	p.awaitAnswerOf(p.all[1], "/readyz", "]replica StateUnreachable: ")
	p.must(p.nats.Restart(t.Context()))
	p.awaitSettled()
	if n := fencedTotal(t, p.all[0]); n != 0 {
		t.Errorf("the active exporter was replaced %d times by one that reached the bus no better", n)
	}
	p.cutActiveOff(kinds)
}

// TestActiveYieldsToStandbyThatReachesOneBusMore cuts the active exporter off from one of two buses, and not from that of
// the state: the standby, which reaches both, takes over, and delivers what the other one could not.
func TestActiveYieldsToStandbyThatReachesOneBusMore(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newCutPair(t, kinds, "kafka", func(*exporter.Settings) {})
	p.start()
	p.must(p.load(20, kinds).Wait())
	p.cutActiveOff(kinds)
}

// stopWhileDelivering stops the active exporter in order. The other one goes on with what arrives in the first bus, long
// before the end of the drain.
func (p *replicas) stopWhileDelivering(active *exporter.Exporter, kinds []workload.Kind) {
	p.t.Helper()
	p.must(active.Stop())
	p.down[active] = true
	p.removeVolume(active)
	p.must(p.load(20, kinds).Wait())
	p.awaitHistory(p.buses[0])
	if log := readFile(p.t, active.Log()); !strings.Contains(log, "sinks are away or paused; the next exporter delivers what they miss") {
		p.t.Error("the log does not name what is left to the next exporter")
	}
}

// drainForLong makes a stop that waits for a sink fail the test.
func drainForLong(s *exporter.Settings) { s.DrainTimeout = "30m" }

// TestStopLeavesSinkThatIsAwayToStandby stops the active exporter in order while one of its two buses is gone, or frozen, or
// has just been frozen, which the exporter cannot know yet: it does not wait for that, so the other exporter takes over.
func TestStopLeavesSinkThatIsAwayToStandby(t *testing.T) {
	require.Long(t)
	servers(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	for name, fault := range map[string]struct {
		stateIn    string // the bus without the fault
		start, end func(*replicas) error
		reported   bool
	}{
		"gone": {"kafka", func(p *replicas) error { return p.nats.Kill() },
			func(p *replicas) error { return p.nats.Restart(p.t.Context()) }, true},
		"frozen": {"kafka", func(p *replicas) error { return p.nats.Process().Freeze() },
			func(p *replicas) error { return p.nats.Process().Resume() }, true},
		"just frozen": {"nats", func(p *replicas) error { return p.kafka.Process().Freeze() },
			func(p *replicas) error { return p.kafka.Process().Resume() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, kinds, fault.stateIn, keepLease, drainForLong, func(s *exporter.Settings) {
				s.Kafka = map[string]any{"requestTimeout": "30m"}
			})
			p.start()
			p.must(p.load(20, kinds).Wait())
			active := p.awaitSettled()
			p.must(fault.start(p))
			cured := sync.OnceValue(func() error { return fault.end(p) })
			t.Cleanup(func() { p.must(cured()) })
			if fault.stateIn == "nats" { // the first bus is the one to watch
				p.buses[0], p.buses[1] = p.buses[1], p.buses[0]
			}
			p.must(p.load(20, kinds).Wait())
			p.awaitHistory(p.buses[0])
			if fault.reported {
				p.awaitAnswerOf(active, "/readyz", "[-]sink/nats ")
			}
			p.stopWhileDelivering(active, kinds)
			p.must(cured())
			p.awaitAll()
			p.judge(oracle.Rules{})
		})
	}
}

// TestStopLeavesFailingLanesToStandby stops the active exporter in order while one topic of its sink cannot be created: the
// lanes of that fail, the others have delivered everything.
func TestStopLeavesFailingLanesToStandby(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "nats", keepLease, drainForLong)
	client, err := kgo.NewClient(kgo.SeedBrokers(p.kafka.Brokers()...))
	p.must(err)
	t.Cleanup(client.Close)
	similar := p.name + "_pods" // Kafka allows no two topics whose names differ in this only
	p.must(createTopic(t.Context(), client, similar, 1, nil))
	all := p.resources
	watch := func(resources []oracle.Resource) {
		p.resources = resources
		for _, e := range p.all {
			p.must(e.Configure(func(s *exporter.Settings) {
				s.Select = nil
				for _, r := range resources {
					s.Select = append(s.Select, selection(r))
				}
			}))
		}
	}
	watch(all[:1])
	p.start()
	p.must(p.load(20, kinds[:1]).Wait())
	active := p.awaitSettled()
	watch(all) // there are no objects of the second kind yet: their topic lacks the beginning and the end of the snapshot
	p.must(p.load(20, kinds[:1]).Wait())
	p.awaitHistory(p.buses[1])
	p.awaitAnswerOf(active, "/readyz", "]sink/kafka SinkMisconfigured")
	p.buses[0], p.buses[1] = p.buses[1], p.buses[0]
	p.stopWhileDelivering(active, kinds[:1])
	p.must(deleteTopic(t.Context(), client, similar))
	p.awaitSettled()
	p.must(p.load(20, kinds).Wait())
	p.awaitAll()
	p.judge(oracle.Rules{Gaps: true}) // of the second kind, of which the state could not have a list yet
}

// TestLeaseInOtherHandsIsReportedByEachReplica gives the Lease to a program that is no exporter of this deployment, and to a
// process that is gone, for an hour each: nothing is delivered, and each replica names the holder. It ends with the Lease.
func TestLeaseInOtherHandsIsReportedByEachReplica(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats", func(s *exporter.Settings) { s.Election["yieldAfter"] = "2s" })
	p.start()
	p.must(p.load(20, kinds).Wait())
	p.awaitSettled()
	report := func(holder, cause string, by ...*exporter.Exporter) {
		p.must(p.cluster.Patch(t.Context(), leases, p.name, "exporter",
			fmt.Sprintf(`{"spec":{"holderIdentity":%q,"leaseDurationSeconds":3600}}`, holder)))
		for _, e := range by {
			p.awaitAnswerOf(e, "/readyz", fmt.Sprintf("[-]replica NoneActive: %q holds the Lease%s", holder, cause))
			p.awaitAnswerOf(e, "/readyz", "kubectl delete")
			p.awaitAnswerOf(e, "/metrics", "\nkubecdc_active 0\n")
		}
		p.must(p.load(20, kinds).Wait())
		p.deleteLease()
		p.awaitSettled()
		for _, e := range by {
			p.awaitAnswerOf(e, "/metrics", "\nkubecdc_ready 1\n")
		}
	}
	report("a-controller", " and has not taken over the state, whose owner is ", p.all...)

	gone := p.active()
	p.must(gone.Kill())
	p.down[gone] = true
	report(identity(slices.Index(p.all, gone)), ", which has not expired, and has not renewed it for more than 2s", p.other(gone))
	p.must(gone.Start(t.Context()))
	p.judge(oracle.Rules{})
}
