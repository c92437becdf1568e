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
	// takeOvers is how often the one that works is killed, and how often it is frozen; KUBECDC_E2E_TAKEOVERS sets it for
	// long proofs. It is stopped in order two times for five of those.
	takeOvers = 2
	// pipelineRate is how many writes a second there are meanwhile, where the machine can carry them; KUBECDC_E2E_RATE sets
	// it.
	pipelineRate = 200
)

// takeOverProof takes the one that works away again and again.
type takeOverProof struct {
	*pair
	buses *replicatedBuses // nil where each bus is one server
	turns int
	still map[*exporter.Exporter]stillness
	times map[string][]time.Duration // from the signal to the first change of the next one on all buses
}

// stillness is how long an exporter stands still.
type stillness struct {
	until  time.Time
	fenced int // how often it had been turned away before
}

// TestTakeOversNeverLoseRepeatOrReorder takes the one that works away while objects are written: by SIGKILL with its
// volume, by standing still and waking up when others work, and in order. Another one goes on each time. With
// KUBECDC_E2E_REPLICAS=3 the buses have three servers, and every fifth time their leaders are killed as well.
func TestTakeOversNeverLoseRepeatOrReorder(t *testing.T) {
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			n, rate := sizeOf(t, "KUBECDC_E2E_TAKEOVERS", takeOvers), sizeOf(t, "KUBECDC_E2E_RATE", pipelineRate)
			kinds := workload.AllKinds()
			p := newTakeOverProof(t, kinds, stateIn)
			p.start()
			p.must(p.load(100, kinds).Wait())
			p.settle()
			began := time.Now()

			load := p.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: rate}, kinds)
			for _, turn := range p.plan(n) {
				turn()
			}
			p.wake(len(p.all) - 1)
			load.Stop()
			t.Logf("%d writes a second for %v", load.Operations()/int(time.Since(began).Seconds()+1), time.Since(began).Round(time.Second))
			p.say()
			p.active()
			p.awaitAll()
			p.judge(oracle.Rules{})
			p.checkNothingWasListedSince(began)
		})
	}
}

func newTakeOverProof(t *testing.T, kinds []workload.Kind, stateIn string) *takeOverProof {
	t.Helper()
	p := &takeOverProof{still: map[*exporter.Exporter]stillness{}, times: map[string][]time.Duration{}}
	var changes []func(*exporter.Settings)
	if os.Getenv("KUBECDC_E2E_REPLICAS") != "" {
		p.buses = startReplicated(t, sizeOf(t, "KUBECDC_E2E_REPLICAS", 3))
		changes = append(changes, p.buses.settings)
	}
	p.pair = newReplicas(t, 4, kinds, stateIn, changes...)
	return p
}

// plan is what happens to the one that works, in random order, but for the longest stillness: that comes first, so that
// others overlap it.
func (p *takeOverProof) plan(n int) []func() {
	var turns []func()
	for i := range n {
		turns = append(turns, p.killed, func() { p.frozen(p.stillFor(i)) })
	}
	for range max(1, n*2/5) {
		turns = append(turns, p.replaced)
	}
	p.random.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	if n >= 50 {
		turns[0] = func() { p.frozen(5 * time.Minute) }
	}
	return turns
}

// stillFor is how long the one that is frozen for the i-th time stands still: for so long that another one takes over, about
// as long as the Lease lasts, so that it wakes before, while and after that, and now and then for so long that several take
// over.
func (p *takeOverProof) stillFor(i int) time.Duration {
	switch {
	case i%10 == 9:
		return time.Duration(10+p.random.IntN(50)) * time.Second
	case i%2 == 0:
		return time.Duration(4000+p.random.IntN(3000)) * time.Millisecond
	}
	return time.Duration(1000+p.random.IntN(3000)) * time.Millisecond
}

// killed ends the one that works with SIGKILL and takes its volume; it comes back when another one works.
func (p *takeOverProof) killed() {
	works := p.active()
	p.taken(works, "SIGKILL", func() { p.kill(works) })
	p.must(works.Launch(p.t.Context()))
	p.away[works] = false
}

// replaced ends the one that works in order.
func (p *takeOverProof) replaced() {
	works, stopped := p.active(), make(chan error, 1)
	p.taken(works, "SIGTERM", func() { go func() { stopped <- works.Stop() }() }) // the next one need not wait for its end
	p.must(<-stopped)
	p.wipe(works)
	p.must(works.Launch(p.t.Context()))
	p.away[works] = false
}

// frozen lets the one that works stand still for so long, and then go on where it was. The test does not wait for the end of
// a stillness that is long.
func (p *takeOverProof) frozen(d time.Duration) {
	if len(p.still) == len(p.all)-2 {
		p.wake(1)
	}
	works := p.active()
	p.still[works] = stillness{time.Now().Add(d), fenced(p.t, works)}
	if d < 4*time.Second { // it may wake before anybody notices
		p.must(works.Pause())
		pause(p.t, d)
		p.must(works.Resume())
		delete(p.still, works)
		return
	}
	p.taken(works, "SIGSTOP", func() { p.must(works.Pause()) })
	if d < 10*time.Second {
		p.wake(1)
	}
}

// wake waits until so many of those that stand still are due, and lets them go on. Each finds out that others work, which
// one that had just lost its Lease when it was stopped knows already.
func (p *takeOverProof) wake(n int) {
	order := slices.SortedFunc(maps.Keys(p.still), func(a, b *exporter.Exporter) int { return p.still[a].until.Compare(p.still[b].until) })
	for _, e := range order[:min(n, len(order))] {
		was := p.still[e]
		pause(p.t, time.Until(was.until))
		p.must(e.Resume())
		delete(p.still, e)
		p.away[e] = false
		standsBy := func() bool { return strings.Contains(metricsOf(p.t, e), "\nkubecdc_active 0\n") }
		for deadline := time.Now().Add(arriveWithin); fenced(p.t, e) <= was.fenced && !standsBy(); pause(p.t, lookEvery) {
			if time.Now().After(deadline) {
				p.t.Fatal("it has woken up, and nobody has told it that another one works")
			}
		}
	}
}

// taken takes the one that works away by a signal, with the leaders of the buses every fifth time, and waits until another
// one has delivered something on every bus.
func (p *takeOverProof) taken(works *exporter.Exporter, how string, signal func()) {
	p.t.Helper()
	p.awaitStandby(works)
	p.turns++
	if p.buses != nil && p.turns%5 == 0 {
		how += " and the leaders of the buses"
		p.buses.killLeaders(p.name)
		defer p.buses.restart()
	}
	before := p.delivered()
	p.away[works] = true
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
func (p *takeOverProof) awaitStandby(works *exporter.Exporter) {
	p.t.Helper()
	for deadline := time.Now().Add(arriveWithin); ; pause(p.t, lookEvery/4) {
		for _, e := range p.all {
			if e != works && !p.away[e] && strings.Contains(metricsOf(p.t, e), "\nkubecdc_ready 1\n") {
				return
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("nobody stands by after %v", arriveWithin)
		}
	}
}

// delivered is how many changes each exporter that is there has delivered to each sink.
func (p *takeOverProof) delivered() map[*exporter.Exporter]map[string]int {
	all := map[*exporter.Exporter]map[string]int{}
	for _, e := range p.all {
		if !p.away[e] {
			all[e] = series(metricsOf(p.t, e), "kubecdc_sink_delivered_total{")
		}
	}
	return all
}

// someDelivered reports whether one of the exporters has delivered something to each of the sinks since.
func (p *takeOverProof) someDelivered(before map[*exporter.Exporter]map[string]int) bool {
	for e, now := range p.delivered() {
		grown := 0
		for sink, n := range now {
			if n > 0 && n != before[e][sink] {
				grown++
			}
		}
		if grown == len(p.scene.buses) {
			return true
		}
	}
	return false
}

// say logs the durations of the failovers. Nothing depends on them.
func (p *takeOverProof) say() {
	for _, how := range slices.Sorted(maps.Keys(p.times)) {
		all := slices.Sorted(slices.Values(p.times[how]))
		p.t.Logf("%d by %s: first change on every bus after %v (median), %v (most)", len(all), how,
			all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
}

// TestHistoryThatNobodyFollowedIsComparedWithTheStateAlone kills the one that works, takes its volume, and lets the other
// one start when the API server has forgotten what happened meanwhile: the gap, the differences and the deletes come from
// the state. The rules of the other one differ: it selects one more resource.
func TestHistoryThatNobodyFollowedIsComparedWithTheStateAlone(t *testing.T) {
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
					p.must(p.cluster.Allow(t.Context(), p.name+"-more", account, workload.Pods))
					p.must(p.all[1].Start(t.Context()))
					p.awaitOf(p.all[1], "/readyz?verbose", "[+]resource/pods ok")
				},
				func() { p.must(p.all[1].Stop()) })
		})
	}
}

// TestATakeOverBeforeTheFirstSnapshotIsWholeIsAGap kills the one that works, with its volume, while one bus is away: so the
// state cannot hold the first snapshot yet, and the next one begins with nothing.
func TestATakeOverBeforeTheFirstSnapshotIsWholeIsAGap(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats")
	p.must(p.kafka.Kill())
	p.must(p.all[0].Launch(t.Context())) // it is not ready: a bus is away
	p.active()
	p.must(p.load(20, kinds).Wait())
	p.awaitHistory(p.buses[1])
	p.leave(p.all[0])
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

// TestAStateBelongsToOneDeployment gives two exporters one state and a Lease each, by mistake.
func TestAStateBelongsToOneDeployment(t *testing.T) {
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
			p.awaitOf(p.all[1], "/readyz", "[-]replica the replicated state belongs to the exporters of the Lease "+p.name+"/exporter")
			p.must(p.load(50, kinds).Wait())
			p.awaitAll()
			if n := fenced(t, p.all[0]); n != 0 {
				t.Errorf("the first was turned away %d times", n)
			}
			p.judge(oracle.Rules{})
		})
	}
}

// TestWhoWorksGoesOnWhileTheAPIServerIsAway and delivers what it has; no other takes over, and nothing is lost.
func TestWhoWorksGoesOnWhileTheAPIServerIsAway(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps}
	p := newPair(t, kinds, "nats", stays)
	p.start()
	p.must(p.kafka.Kill())
	p.must(p.load(100, kinds).Wait())
	p.awaitHistory(p.buses[1]) // so the exporter has it all, and one bus has nothing of it
	works := p.active()
	before := fenced(t, works)
	p.must(p.controlPlane.KillAPIServer())
	p.must(p.kafka.Restart(t.Context()))
	p.awaitAll() // etcd has what was written
	p.awaitOf(p.other(works), "/readyz", "[!]replica read the Lease")
	p.must(p.controlPlane.StartAPIServer(t.Context()))
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	if n := fenced(t, works) - before; n != 0 {
		t.Errorf("who worked was turned away %d times while nobody could be elected", n)
	}
	p.judge(oracle.Rules{Gaps: true}) // the only API server knows no history from before its start
}

// TestAPairIsReconfiguredWhileItRuns edits the files of both: a rule, which is taken up live, and a sink, for which all
// begins again where it is. The one that stood by works under the new files.
func TestAPairIsReconfiguredWhileItRuns(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "kafka", stays)
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
			p.awaitOf(e, "/metrics", fmt.Sprintf("\nkubecdc_config_reloads_total{result=\"taken\"} %d\n", n+1))
		}
	}
	p.must(load.Wait())
	p.leave(p.active())
	p.active()
	p.must(p.load(100, kinds).Wait())
	p.awaitAll()
	p.judge(oracle.Rules{Gaps: true})
}

// TestClocksAnHourApartChangeNothing runs a pair of which one's clock is ahead, and lets them take over from each other.
func TestClocksAnHourApartChangeNothing(t *testing.T) {
	if os.Getenv("KUBECDC_E2E_CLOCKS") == "" {
		t.Skip("builds the exporter and all it needs with another clock, which takes minutes: set KUBECDC_E2E_CLOCKS=1")
	}
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	forEachStateBus(t, kinds, func(p *pair, _ stateBus) {
		ahead, err := exporter.BuildAhead(p.t.Context(), p.t.TempDir(), time.Hour+time.Minute)
		p.must(err)
		p.all[1].Replace(ahead)
		p.start()
		p.must(p.load(50, kinds).Wait())
		p.settle()
		for range 4 {
			works, load := p.active(), p.load(100, kinds)
			p.kill(works)
			p.away[works] = true
			p.active()
			p.must(load.Wait())
			p.awaitAll()
			p.must(works.Launch(p.t.Context()))
			p.away[works] = false
		}
		for _, e := range p.all {
			p.awaitOf(e, "/readyz", "ok")
		}
		p.goesOn(kinds, oracle.Rules{})
	})
}

// TestATakeOverOfThousandsOfLanes has a lane for each of so many partitions, of which each is fenced and read back.
func TestATakeOverOfThousandsOfLanes(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Pods}
	p := newPair(t, kinds, "kafka", stays, func(s *exporter.Settings) {
		s.Kafka = map[string]any{"createTopics": map[string]any{"enabled": true, "partitions": 1000}}
	})
	p.start()
	p.must(p.run(workload.Plan{Objects: sizeOf(t, "KUBECDC_E2E_LANES", 2000)}, kinds).Wait())
	p.settle()
	p.leave(p.active())
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
