package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestFailoverAfterCompactionEmitsDifferencesFromState kills the active one, takes its volume, and lets the other
// one start when the API server has forgotten what happened meanwhile: the gap, the differences and the deletes come from
// the state. The rules of the other one differ: it selects one more resource.
func TestFailoverAfterCompactionEmitsDifferencesFromState(t *testing.T) {
	require.Long(t)
	servers(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			p := newPair(t, kinds, stateIn)
			p.must(p.all[0].Start(t.Context()))
			p.active()
			p.checkAbsence(kinds,
				func() {
					p.awaitCovered(p.all[0]) // objects that the state lacks would be emitted as added
					p.kill(p.all[0])
				},
				func() {
					p.must(p.all[1].Configure(func(s *exporter.Settings) { s.Select = append(slices.Clone(s.Select), "pods") }))
					p.allow(workload.Pods)
					p.must(p.all[1].Start(t.Context()))
					p.awaitAnswerOf(p.all[1], "/readyz?verbose", "[+]resource/pods ok")
				},
				func() { p.must(p.all[1].Stop()) })
		})
	}
}

// TestActiveDeliversDuringAPIServerOutage and delivers what it has; no other takes over, and nothing is lost.
func TestActiveDeliversDuringAPIServerOutage(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats", keepLease)
	p.start()
	p.must(p.kafka.Kill())
	p.must(p.load(100, kinds).Wait())
	p.awaitHistory(p.buses[1]) // so the exporter has it all, and one bus has nothing of it
	active := p.active()
	before := fencedTotal(t, active)
	p.must(p.controlPlane.KillAPIServer())
	p.must(p.kafka.Restart(t.Context()))
	p.awaitAll() // etcd has what was written
	p.awaitAnswerOf(p.other(active), "/readyz", "[!]replica LeaseUnknown: ")
	p.must(p.controlPlane.StartAPIServer(t.Context()))
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	if n := fencedTotal(t, active) - before; n != 0 {
		t.Errorf("the active one was fenced %d times while no other could be elected", n)
	}
	p.judge(oracle.Rules{Gaps: true}) // the only API server knows no history from before its start
}

// TestReplicasReloadWhileRunning edits the files of both: a rule, which is taken up live, and a sink, for which all
// begins again where it is. The standby becomes active with the new files.
func TestReplicasReloadWhileRunning(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "kafka", keepLease)
	for _, e := range p.all {
		p.must(e.Configure(func(s *exporter.Settings) { s.Select = s.Select[:1] }))
	}
	p.start()
	load := p.load(300, kinds)
	for n, edit := range []func(*exporter.Settings){
		func(s *exporter.Settings) { s.Select = []string{selection(p.resources[0]), selection(p.resources[1])} },
		func(s *exporter.Settings) { s.Kafka = map[string]any{"compression": "none"} },
	} {
		for _, e := range p.all {
			p.must(e.Configure(edit))
		}
		for _, e := range p.all {
			p.awaitAnswerOf(e, "/metrics", fmt.Sprintf("\nkubecdc_config_reloads_total{result=\"taken\"} %d\n", n+1))
		}
	}
	p.must(load.Wait())
	p.removeReplica(p.active())
	p.active()
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	p.judge(oracle.Rules{Gaps: true})
}

// TestFailoverWithClocksAnHourApart runs a pair of which one's clock is ahead, and lets them take over from each other.
func TestFailoverWithClocksAnHourApart(t *testing.T) {
	require.Long(t)
	if os.Getenv("KUBECDC_E2E_CLOCKS") == "" {
		t.Skip("builds the exporter and all it needs with another clock, which takes minutes: set KUBECDC_E2E_CLOCKS=1")
	}
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *replicas, _ stateBus) {
		ahead, err := exporter.BuildAhead(p.t.Context(), p.t.TempDir(), time.Hour+time.Minute)
		p.must(err)
		p.all[1].Replace(ahead)
		p.start()
		p.must(p.load(50, kinds).Wait())
		p.awaitSettled()
		for range 4 {
			active, load := p.active(), p.load(100, kinds)
			p.kill(active)
			p.down[active] = true
			p.active()
			p.must(load.Wait())
			p.awaitAll()
			p.must(active.Launch(p.t.Context()))
			p.down[active] = false
		}
		for _, e := range p.all {
			p.awaitAnswerOf(e, "/readyz", "ok")
		}
		p.checkContinues(kinds, oracle.Rules{})
	})
}
