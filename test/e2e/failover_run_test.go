package e2e

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

const (
	// failovers is how often the active one is taken away in each of four ways; KUBECDC_E2E_FAILOVERS sets it for long proofs.
	failovers = 1
	// pipelineRate is how many writes a second there are meanwhile, where the machine can carry them; KUBECDC_E2E_RATE sets
	// it.
	pipelineRate = 200
	// failoverRate is pipelineRate where two deployments deliver what is written.
	failoverRate = pipelineRate / 2
)

// failoverRun takes the active one away again and again.
type failoverRun struct {
	*replicas
	around *surroundings // nil where only the exporters have faults
	frozen map[*exporter.Exporter]freeze
	times  map[string][]time.Duration // from the signal to the first change of the next one on all buses
}

// freeze is how long an exporter is frozen.
type freeze struct {
	until       time.Time
	fencedTotal int // how often it had been fenced before
}

// TestFailoversNeverLoseRepeatOrReorder takes the active one of three away while objects are written: by SIGKILL with its
// volume, by standing still for 2 to 14 seconds, in order, and by standing still and the next one killed or stopped as soon
// as it is active. Around each failover, a broker or a NATS server freezes, one configuration is edited, a topic grows or is
// recreated; and a second deployment writes the same changes of the same objects, under the name of another cluster, to the
// same topics and stream. With KUBECDC_E2E_REPLICAS=3 the buses have three servers, and their leaders are killed as well.
func TestFailoversNeverLoseRepeatOrReorder(t *testing.T) {
	servers(t)
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			if stateIn == "nats" { // sinktest has the same promises of each bus
				require.Long(t)
			}
			n, rate := sizeOf(t, "KUBECDC_E2E_FAILOVERS", failovers), sizeOf(t, "KUBECDC_E2E_RATE", failoverRate)
			kinds := workload.AllKinds()
			p := newFailoverRun(t, kinds, stateIn)
			p.start()
			p.around.start()
			p.must(p.load(50, kinds).Wait())
			p.awaitSettled()
			began := time.Now()

			load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: rate * 3 / 4}, p.around.steady)
			p.around.writeToRemade(rate / 4)
			for _, turn := range p.plan(n) {
				p.around.change()
				turn()
				p.history() // so that there is little left to read at the end
			}
			p.resumeFrozen(len(p.frozen))
			load.Stop()
			p.around.stopWriting()
			t.Logf("%d writes a second for %v", load.Operations()/int(time.Since(began).Seconds()+1), time.Since(began).Round(time.Second))
			p.logDurations()
			p.active()
			p.awaitAll()
			p.around.judge()
			p.judge(oracle.Rules{})
			p.checkNothingWasListedSince(began)
		})
	}
}

func newFailoverRun(t *testing.T, kinds []workload.Kind, stateIn string) *failoverRun {
	t.Helper()
	p := &failoverRun{frozen: map[*exporter.Exporter]freeze{}, times: map[string][]time.Duration{}}
	var settings exporter.Settings
	var buses *replicatedBuses
	changes := []func(*exporter.Settings){stampTopics}
	if os.Getenv("KUBECDC_E2E_REPLICAS") != "" {
		buses = startReplicated(t, sizeOf(t, "KUBECDC_E2E_REPLICAS", 3))
		changes = append(changes, buses.settings)
	}
	changes = append(changes, func(s *exporter.Settings) { settings = *s })
	p.replicas = newReplicas(t, 3, kinds, stateIn, changes...)
	p.around = newSurroundings(p.replicas, buses, kinds, settings)
	return p
}

// plan is how the active one is taken away, n times in each way, in random order.
func (p *failoverRun) plan(n int) []func() {
	var turns []func()
	for range n {
		turns = append(turns, p.killActive, func() { p.freezeActive(p.freezeFor()) }, p.stopActive, p.takeTwoAway)
	}
	p.random.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	return turns
}

// freezeFor is how long one is frozen: it wakes before another one is active, while that takes over, or long after.
func (p *failoverRun) freezeFor() time.Duration {
	return 2*time.Second + time.Duration(p.random.Int64N(int64(12*time.Second)))
}

// killActive ends the active one with SIGKILL and takes its volume; it comes back when another one is active.
func (p *failoverRun) killActive() {
	active := p.active()
	p.failOver(active, "SIGKILL", func() { p.kill(active) })
	p.relaunch(active)
}

// stopActive ends the active one in order.
func (p *failoverRun) stopActive() {
	active, stopped := p.active(), make(chan error, 1)
	p.failOver(active, "SIGTERM", func() { go func() { stopped <- active.Stop() }() }) // the next one need not wait for its end
	p.must(<-stopped)
	p.removeVolume(active)
	p.relaunch(active)
}

// relaunch starts one again that was taken away.
func (p *failoverRun) relaunch(e *exporter.Exporter) {
	p.must(e.Launch(p.t.Context()))
	p.down[e] = false
}

// freezeActive lets the active one freeze for so long, and then go on where it was. The test does not wait for the end of
// a freeze that is long.
func (p *failoverRun) freezeActive(d time.Duration) {
	if len(p.frozen) == len(p.all)-2 {
		p.resumeFrozen(1)
	}
	active := p.active()
	if d < 4*time.Second { // it may wake before another one notices
		fault := p.around.startFault()
		p.must(active.Pause())
		await.Pause(p.t, d)
		p.must(active.Resume())
		fault.end()
		p.times["SIGSTOP below 4 s"] = append(p.times["SIGSTOP below 4 s"], d)
		return
	}
	p.failOver(active, "SIGSTOP", func() { p.pauseFor(active, d) })
}

// pauseFor freezes one that is resumed later.
func (p *failoverRun) pauseFor(e *exporter.Exporter, d time.Duration) {
	p.frozen[e] = freeze{time.Now().Add(d), fencedTotal(p.t, e)}
	p.must(e.Pause())
}

// takeTwoAway freezes the active one, and kills the next one, or stops it in order, as soon as that is active.
func (p *failoverRun) takeTwoAway() {
	p.resumeFrozen(len(p.frozen))
	first := p.active()
	for _, e := range p.all { // the third one has to be there
		if e != first {
			p.awaitAnswerOf(e, "/metrics", "\nkubecdc_ready 1\n")
		}
	}
	var second *exporter.Exporter
	p.failOver(first, "SIGSTOP, and the next one too", func() {
		p.pauseFor(first, p.freezeFor())
		second = p.active()
		p.down[second] = true
		if p.random.IntN(2) == 0 {
			p.kill(second)
			return
		}
		p.must(second.Stop())
		p.removeVolume(second)
	})
	p.relaunch(second)
}

// resumeFrozen waits until so many of those that freeze are due, and lets them go on. Each finds out that others are
// active, which one that had just lost its Lease when it was stopped knows already.
func (p *failoverRun) resumeFrozen(n int) {
	order := slices.SortedFunc(maps.Keys(p.frozen), func(a, b *exporter.Exporter) int { return p.frozen[a].until.Compare(p.frozen[b].until) })
	for _, e := range order[:min(n, len(order))] {
		was := p.frozen[e]
		await.Pause(p.t, time.Until(was.until))
		p.must(e.Resume())
		delete(p.frozen, e)
		p.down[e] = false
		standsBy := func() bool { return strings.Contains(metricsOf(p.t, e), "\nkubecdc_active 0\n") }
		for deadline := time.Now().Add(arriveWithin); fencedTotal(p.t, e) <= was.fencedTotal && !standsBy(); await.Pause(p.t, lookEvery) {
			if time.Now().After(deadline) {
				p.t.Fatal("it was resumed and does not report that another one is active")
			}
		}
	}
}

// failOver takes the active one away by a signal, while a bus may have a fault, and waits until another one has delivered
// something on every bus.
func (p *failoverRun) failOver(active *exporter.Exporter, how string, signal func()) {
	p.t.Helper()
	p.awaitStandby(active)
	before := p.delivered()
	fault := p.around.startFault()
	if fault.name != "" {
		how += ", " + fault.name
	}
	p.down[active] = true
	began := time.Now()
	signal()
	var oneBus time.Duration
	for deadline := began.Add(arriveWithin); ; await.Pause(p.t, lookEvery/4) {
		n := p.busesDelivered(before)
		if n > 0 && oneBus == 0 {
			oneBus = time.Since(began)
		}
		if n == len(p.buses) {
			break
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: nothing new was delivered after %v", how, arriveWithin)
		}
	}
	fault.end()
	p.times[how] = append(p.times[how], time.Since(began))
	p.times[how+" (one bus)"] = append(p.times[how+" (one bus)"], oneBus)
}

// awaitStandby waits until one stands by that may just have been started.
func (p *failoverRun) awaitStandby(active *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; await.Pause(p.t, lookEvery/4) {
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

// busesDelivered is to how many of the sinks one of the exporters has delivered something since.
func (p *failoverRun) busesDelivered(before map[*exporter.Exporter]map[string]int) (most int) {
	for e, now := range p.delivered() {
		grown := 0
		for sink, n := range now {
			if n > 0 && n != before[e][sink] {
				grown++
			}
		}
		most = max(most, grown)
	}
	return most
}

// logDurations logs the durations of the failovers. Nothing depends on them.
func (p *failoverRun) logDurations() {
	for _, how := range slices.Sorted(maps.Keys(p.times)) {
		all := slices.Sorted(slices.Values(p.times[how]))
		p.t.Logf("%d by %s: first change after %v (median), %v (most)", len(all), how,
			all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
}
