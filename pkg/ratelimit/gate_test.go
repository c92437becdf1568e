package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/test/parts/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func mustPass(t *testing.T, g *Gate) Pass {
	t.Helper()
	p, err := g.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProbesComeAtGrowingDelaysUntilOneSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Second, 8*time.Second, constantRandom(0), nil)
		start := time.Now()
		var tries []time.Duration
		for range 6 {
			p := mustPass(t, g)
			tries = append(tries, time.Since(start))
			p.Failed("away", 0)
		}
		want := []time.Duration{0, 1e9, 3e9, 7e9, 11e9, 15e9}
		if !slices.Equal(tries, want) {
			t.Errorf("tries at %v, want %v", tries, want)
		}
		mustPass(t, g).Succeeded()
		if s := g.Status(); s.State != Open || s.Reason != "" || s.Probes != 0 || !s.Until.IsZero() {
			t.Errorf("after a successful probe: %+v", s)
		}
		mustPass(t, g).Failed("away again", 0)
		if got := time.Until(g.Status().Until); got != time.Second {
			t.Errorf("a new outage starts with %v, want the shortest delay", got)
		}
	})
}

func TestOneProbeAtATimeAndSuccessOpensForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Second, time.Minute, constantRandom(0), nil)
		mustPass(t, g).Failed("away", 0)
		var inside, most, passed atomic.Int32
		available := time.Now().Add(10 * time.Second)
		for range 20 {
			go func() {
				for {
					p, err := g.Wait(t.Context())
					if err != nil {
						return
					}
					if time.Now().After(available) {
						p.Succeeded()
						passed.Add(1)
						return
					}
					most.Store(max(most.Load(), inside.Add(1)))
					time.Sleep(100 * time.Millisecond)
					inside.Add(-1)
					p.Failed("still away", 0)
				}
			}()
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if s := g.Status(); s.State == Open || s.Reason != "still away" || s.Probes != 3 {
			t.Errorf("in the outage: %+v", s)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if most.Load() != 1 || passed.Load() != 20 {
			t.Errorf("%d probes at once, want 1; %d passed at the end, want 20", most.Load(), passed.Load())
		}
	})
}

func TestManyFailuresAtOnceCloseTheGateOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Second, time.Minute, constantRandom(0), nil)
		var passes []Pass
		for range 8 {
			passes = append(passes, mustPass(t, g))
		}
		for i, p := range passes[:7] {
			p.Failed(fmt.Sprint("failure ", i), 0)
		}
		s := g.Status()
		if s.State != Closed || s.Reason != "failure 0" || time.Until(s.Until) != time.Second || s.Probes != 0 {
			t.Errorf("after seven failures at once: %+v", s)
		}
		passes[7].Succeeded()
		if got := g.Status().State; got != Closed {
			t.Errorf("a try that began before the outage left the gate %v, want closed", got)
		}
		probe := mustPass(t, g)
		passes[7].Failed("late", 0)
		passes[7].Abandoned()
		if got := g.Status(); got.State != Probing || got.Reason != "failure 0" {
			t.Errorf("a late result disturbed the probe: %+v", got)
		}
		probe.Succeeded()
	})
}

func TestARequestedDelayReplacesTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Second, time.Minute, constantRandom(0), nil)
		for _, c := range []struct{ after, want time.Duration }{
			{17 * time.Second, 17 * time.Second},
			{2 * time.Hour, 2 * time.Hour}, // not cut to our maximum
			{time.Nanosecond, time.Second}, // never a hot loop
			{0, 8 * time.Second},           // the back-off counted the failures meanwhile
		} {
			mustPass(t, g).Failed("throttled", c.after)
			if got := time.Until(g.Status().Until); got != c.want {
				t.Errorf("asked for %v: next probe in %v, want %v", c.after, got, c.want)
			}
		}
	})
}

func TestAnAbandonedProbePassesToTheNextWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Second, time.Minute, constantRandom(0), nil)
		mustPass(t, g).Failed("away", 0)
		probe := mustPass(t, g)
		start, next := time.Now(), make(chan Pass)
		go func() {
			p, _ := g.Wait(t.Context())
			next <- p
		}()
		synctest.Wait()
		probe.Abandoned()
		p := <-next
		if s := g.Status(); s.State != Probing || s.Reason != "away" || s.Probes != 0 || time.Since(start) != 0 {
			t.Errorf("next probe after %v: %+v", time.Since(start), s)
		}
		p.Succeeded()
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(time.Hour, time.Hour, constantRandom(0), nil)
		mustPass(t, g).Failed("away", 0)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("closed: got %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Hour)
		if _, err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an ended context was given the probe: %v", err)
		}
		if got := g.Status().State; got != Closed {
			t.Errorf("gate is %v, want closed", got)
		}
	})
}

func TestTheObserverIsCalledForOutagesNotForProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed []string
		g := NewGate(time.Second, time.Minute, constantRandom(0), func(from, to GateStatus) {
			observed = append(observed, fmt.Sprintf("%v→%v %q→%q after %v", from.State, to.State, from.Reason, to.Reason, to.Since.Sub(from.Since)))
		})
		time.Sleep(time.Minute)
		mustPass(t, g).Failed("away", 0)
		for range 3 {
			mustPass(t, g).Failed("still away", 0)
		}
		mustPass(t, g).Abandoned()
		mustPass(t, g).Succeeded()
		mustPass(t, g).Succeeded()
		want := []string{
			`open→closed ""→"away" after 1m0s`,
			`probing→open "still away"→"" after 15s`,
		}
		if !slices.Equal(observed, want) {
			t.Errorf("observed %q, want %q", observed, want)
		}
	})
}
