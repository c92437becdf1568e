package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

const (
	// failovers is how often the active one is killed, and how often it is frozen; KUBECDC_E2E_FAILOVERS sets it for
	// long proofs. It is stopped in order two times for five of those.
	failovers = 2
	// pipelineRate is how many writes a second there are meanwhile, where the machine can carry them; KUBECDC_E2E_RATE sets
	// it.
	pipelineRate = 200
)

// failoverRun takes the active one away again and again.
type failoverRun struct {
	*replicas
	buses  *replicatedBuses // nil where each bus is one server
	turns  int
	frozen map[*exporter.Exporter]freeze
	times  map[string][]time.Duration // from the signal to the first change of the next one on all buses
}

// freeze is how long an exporter is frozen.
type freeze struct {
	until       time.Time
	fencedTotal int // how often it had been fenced before
}

// TestFailoversNeverLoseRepeatOrReorder takes the active one away while objects are written: by SIGKILL with its
// volume, by standing still and waking up when others are active, and in order. Another one goes on each time. With
// KUBECDC_E2E_REPLICAS=3 the buses have three servers, and every fifth time their leaders are killed as well.
func TestFailoversNeverLoseRepeatOrReorder(t *testing.T) {
	servers(t)
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			n, rate := sizeOf(t, "KUBECDC_E2E_FAILOVERS", failovers), sizeOf(t, "KUBECDC_E2E_RATE", pipelineRate)
			kinds := workload.AllKinds()
			p := newFailoverRun(t, kinds, stateIn)
			p.start()
			p.must(p.load(100, kinds).Wait())
			p.awaitSettled()
			began := time.Now()

			load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: rate}, kinds)
			for _, turn := range p.plan(n) {
				turn()
			}
			p.resumeFrozen(len(p.all) - 1)
			load.Stop()
			t.Logf("%d writes a second for %v", load.Operations()/int(time.Since(began).Seconds()+1), time.Since(began).Round(time.Second))
			p.logDurations()
			p.active()
			p.awaitAll()
			p.judge(oracle.Rules{})
			p.checkNothingWasListedSince(began)
		})
	}
}

func newFailoverRun(t *testing.T, kinds []workload.Kind, stateIn string) *failoverRun {
	t.Helper()
	p := &failoverRun{frozen: map[*exporter.Exporter]freeze{}, times: map[string][]time.Duration{}}
	var changes []func(*exporter.Settings)
	if os.Getenv("KUBECDC_E2E_REPLICAS") != "" {
		p.buses = startReplicated(t, sizeOf(t, "KUBECDC_E2E_REPLICAS", 3))
		changes = append(changes, p.buses.settings)
	}
	p.replicas = newReplicas(t, 4, kinds, stateIn, changes...)
	return p
}

// plan is what happens to the active one, in random order, but for the longest freeze: that comes first, so that
// others overlap it.
func (p *failoverRun) plan(n int) []func() {
	var turns []func()
	for i := range n {
		turns = append(turns, p.killActive, func() { p.freezeActive(p.freezeFor(i)) })
	}
	for range max(1, n*2/5) {
		turns = append(turns, p.stopActive)
	}
	p.random.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	if n >= 50 {
		turns[0] = func() { p.freezeActive(5 * time.Minute) }
	}
	return turns
}

// freezeFor is how long the one that is frozen for the i-th time is frozen: for so long that another one takes over, about
// as long as the Lease lasts, so that it wakes before, while and after that, and now and then for so long that several take
// over.
func (p *failoverRun) freezeFor(i int) time.Duration {
	switch {
	case i%10 == 9:
		return time.Duration(10+p.random.IntN(50)) * time.Second
	case i%2 == 0:
		return time.Duration(4000+p.random.IntN(3000)) * time.Millisecond
	}
	return time.Duration(1000+p.random.IntN(3000)) * time.Millisecond
}

// killActive ends the active one with SIGKILL and takes its volume; it comes back when another one is active.
func (p *failoverRun) killActive() {
	active := p.active()
	p.failOver(active, "SIGKILL", func() { p.kill(active) })
	p.must(active.Launch(p.t.Context()))
	p.down[active] = false
}

// stopActive ends the active one in order.
func (p *failoverRun) stopActive() {
	active, stopped := p.active(), make(chan error, 1)
	p.failOver(active, "SIGTERM", func() { go func() { stopped <- active.Stop() }() }) // the next one need not wait for its end
	p.must(<-stopped)
	p.removeVolume(active)
	p.must(active.Launch(p.t.Context()))
	p.down[active] = false
}

// freezeActive lets the active one freeze for so long, and then go on where it was. The test does not wait for the end of
// a freeze that is long.
func (p *failoverRun) freezeActive(d time.Duration) {
	if len(p.frozen) == len(p.all)-2 {
		p.resumeFrozen(1)
	}
	active := p.active()
	p.frozen[active] = freeze{time.Now().Add(d), fencedTotal(p.t, active)}
	if d < 4*time.Second { // it may wake before another one notices
		p.must(active.Pause())
		pause(p.t, d)
		p.must(active.Resume())
		delete(p.frozen, active)
		return
	}
	p.failOver(active, "SIGSTOP", func() { p.must(active.Pause()) })
	if d < 10*time.Second {
		p.resumeFrozen(1)
	}
}

// resumeFrozen waits until so many of those that freeze are due, and lets them go on. Each finds out that others are
// active, which one that had just lost its Lease when it was stopped knows already.
func (p *failoverRun) resumeFrozen(n int) {
	order := slices.SortedFunc(maps.Keys(p.frozen), func(a, b *exporter.Exporter) int { return p.frozen[a].until.Compare(p.frozen[b].until) })
	for _, e := range order[:min(n, len(order))] {
		was := p.frozen[e]
		pause(p.t, time.Until(was.until))
		p.must(e.Resume())
		delete(p.frozen, e)
		p.down[e] = false
		standsBy := func() bool { return strings.Contains(metricsOf(p.t, e), "\nkubecdc_active 0\n") }
		for deadline := time.Now().Add(arriveWithin); fencedTotal(p.t, e) <= was.fencedTotal && !standsBy(); pause(p.t, lookEvery) {
			if time.Now().After(deadline) {
				p.t.Fatal("it was resumed and does not report that another one is active")
			}
		}
	}
}

// failOver takes the active one away by a signal, with the leaders of the buses every fifth time, and waits until another
// one has delivered something on every bus.
func (p *failoverRun) failOver(active *exporter.Exporter, how string, signal func()) {
	p.t.Helper()
	p.awaitStandby(active)
	p.turns++
	if p.buses != nil && p.turns%5 == 0 {
		how += " and the leaders of the buses"
		p.buses.killLeaders(p.name)
		defer p.buses.restart()
	}
	before := p.delivered()
	p.down[active] = true
	began := time.Now()
	signal()
	for deadline := began.Add(arriveWithin); !p.someDelivered(before); pause(p.t, lookEvery/4) {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: nothing new was delivered after %v", how, arriveWithin)
		}
	}
	p.times[how] = append(p.times[how], time.Since(began))
}

// awaitStandby waits until one stands by that may just have been started.
func (p *failoverRun) awaitStandby(active *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery/4) {
		for _, e := range p.all {
			if e != active && !p.down[e] && strings.Contains(metricsOf(p.t, e), "\nkubecdc_ready 1\n") {
				return
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("no standby is ready after %v", arriveWithin)
		}
	}
}

// delivered is how many changes each exporter that is there has delivered to each sink.
func (p *failoverRun) delivered() map[*exporter.Exporter]map[string]int {
	all := map[*exporter.Exporter]map[string]int{}
	for _, e := range p.all {
		if !p.down[e] {
			all[e] = series(metricsOf(p.t, e), "kubecdc_sink_delivered_total{")
		}
	}
	return all
}

// someDelivered reports whether one of the exporters has delivered something to each of the sinks since.
func (p *failoverRun) someDelivered(before map[*exporter.Exporter]map[string]int) bool {
	for e, now := range p.delivered() {
		grown := 0
		for sink, n := range now {
			if n > 0 && n != before[e][sink] {
				grown++
			}
		}
		if grown == len(p.fixture.buses) {
			return true
		}
	}
	return false
}

// logDurations logs the durations of the failovers. Nothing depends on them.
func (p *failoverRun) logDurations() {
	for _, how := range slices.Sorted(maps.Keys(p.times)) {
		all := slices.Sorted(slices.Values(p.times[how]))
		p.t.Logf("%d by %s: first change on every bus after %v (median), %v (most)", len(all), how,
			all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
}

// TestFailoverAfterCompactionEmitsDifferencesFromState kills the active one, takes its volume, and lets the other
// one start when the API server has forgotten what happened meanwhile: the gap, the differences and the deletes come from
// the state. The rules of the other one differ: it selects one more resource.
func TestFailoverAfterCompactionEmitsDifferencesFromState(t *testing.T) {
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

// TestFailoverBeforeFirstSnapshotStartsWithGap kills the active one, with its volume, while one bus is away: so the
// state cannot hold the first snapshot yet, and the next one begins with nothing.
func TestFailoverBeforeFirstSnapshotStartsWithGap(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats")
	p.must(p.kafka.Kill())
	p.must(p.all[0].Launch(t.Context())) // it is not ready: a bus is away
	p.active()
	p.must(p.load(20, kinds).Wait())
	p.awaitHistory(p.buses[1])
	p.removeReplica(p.all[0])
	p.must(p.kafka.Restart(t.Context()))
	p.must(p.all[1].Start(t.Context()))
	p.active()
	for _, b := range p.buses {
		p.await(b, func(records []bus.Record) string {
			for _, r := range records {
				if r.Type == "gap" && strings.Contains(r.Gap.Reason, "did not hold the first snapshot") {
					return ""
				}
			}
			return "the gap"
		})
	}
}

// TestStateOfAnotherDeploymentIsRejected gives two exporters one state by mistake: the second one has a Lease of its own,
// and then none.
func TestStateOfAnotherDeploymentIsRejected(t *testing.T) {
	servers(t)
	kinds := []workload.Kind{workload.ConfigMaps}
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			p := newPair(t, kinds, stateIn)
			p.must(p.all[0].Start(t.Context()))
			p.active()
			p.must(p.all[1].Configure(func(s *exporter.Settings) {
				s.Kubeconfig = p.controlPlane.Kubeconfig()
				s.Election = map[string]any{"lease": p.name + "/another", "duration": "2s", "identity": "stranger"}
			}))
			p.must(p.all[1].Launch(t.Context()))
			p.awaitAnswerOf(p.all[1], "/readyz", "[-]replica StateRefused: the replicated state belongs to the exporters of the Lease "+p.name+"/exporter")
			p.must(p.all[1].Stop())
			p.must(p.all[1].Configure(func(s *exporter.Settings) { s.Election = nil }))
			p.must(p.all[1].Launch(p.t.Context()))
			p.awaitAnswerOf(p.all[1], "/readyz", `[-]replica StateRefused: the replicated state is written by exporter "exporter-0" of deployment`)
			p.must(p.load(50, kinds).Wait())
			p.awaitAll()
			if n := fencedTotal(t, p.all[0]); n != 0 {
				t.Errorf("the first was fenced %d times", n)
			}
			p.judge(oracle.Rules{})
		})
	}
}

// TestActiveDeliversDuringAPIServerOutage and delivers what it has; no other takes over, and nothing is lost.
func TestActiveDeliversDuringAPIServerOutage(t *testing.T) {
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

// TestFailoverOfThousandsOfLanes has a lane for each of so many partitions, of which each is fenced and read back.
func TestFailoverOfThousandsOfLanes(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "kafka", keepLease, func(s *exporter.Settings) {
		s.Kafka = map[string]any{"createTopics": map[string]any{"enabled": true, "partitions": 1000}}
	})
	p.start()
	p.must(p.run(workload.Plan{Objects: sizeOf(t, "KUBECDC_E2E_LANES", 2000)}, kinds).Wait())
	p.awaitSettled()
	p.removeReplica(p.active())
	next := p.active()
	for line := range strings.Lines(metricsOf(t, next)) {
		if strings.HasPrefix(line, "kubecdc_takeover_seconds ") {
			t.Log(line)
		}
	}
	p.must(p.load(50, kinds).Wait())
	p.awaitAll()
	p.judge(oracle.Rules{})
}
