package ratelimit

import (
	"math/rand/v2"
	"testing"
	"testing/quick"
	"time"
)

func constantRandom(f float64) func() float64 { return func() float64 { return f } }

func TestWaitsDoubleUpToTheMaximum(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		random float64
		want   []time.Duration
	}{
		"shortest": {0, []time.Duration{100 * ms, 200 * ms, 400 * ms, 500 * ms, 500 * ms, 500 * ms}},
		"middle":   {0.5, []time.Duration{150 * ms, 300 * ms, 600 * ms, 750 * ms, 750 * ms, 750 * ms}},
	} {
		b := NewBackoff[string](100*ms, time.Second, constantRandom(c.random))
		for n, want := range c.want {
			if got := b.When("a"); got != want {
				t.Errorf("%s: failure %d waits %v, want %v", name, n, got, want)
			}
		}
	}
}

func TestWaitIsNeverOutsideItsBounds(t *testing.T) {
	inside := func(a, b int64, failures uint8, r uint32) bool {
		lo, hi := time.Duration(a&(1<<62-1))+1, time.Duration(b&(1<<62-1))+1
		if lo > hi {
			lo, hi = hi, lo
		}
		w := WaitAfter(int(failures), lo, hi, float64(r)/(1<<32))
		return lo <= w && w <= hi
	}
	if err := quick.Check(inside, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}

func TestItemsFailIndependentlyAndAreForgotten(t *testing.T) {
	b := NewBackoff[int](time.Second, time.Hour, constantRandom(0))
	for range 5 {
		b.When(1)
	}
	if got := b.When(2); got != time.Second {
		t.Errorf("first failure of another item waits %v, want 1s", got)
	}
	if b.NumRequeues(1) != 5 || b.NumRequeues(2) != 1 || b.NumRequeues(3) != 0 {
		t.Errorf("failures counted: %d %d %d, want 5 1 0", b.NumRequeues(1), b.NumRequeues(2), b.NumRequeues(3))
	}
	b.Forget(1)
	b.Forget(2)
	if got := b.When(1); got != time.Second {
		t.Errorf("first failure after success waits %v, want 1s", got)
	}
	b.Forget(1)
	if len(b.failures) != 0 {
		t.Errorf("%d items are in memory after all succeeded", len(b.failures))
	}
}

func TestBackoffRejectsInvalidBounds(t *testing.T) {
	for _, c := range [][2]time.Duration{{0, time.Second}, {-1, 1}, {2, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewBackoff(%v, %v) did not panic", c[0], c[1])
				}
			}()
			NewBackoff[int](c[0], c[1], rand.Float64)
		}()
	}
}
