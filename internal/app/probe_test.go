package app

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
)

// visited is a destination that counts who asks for it.
type visited struct {
	away          atomic.Bool
	checks, pings atomic.Int64
}

func (v *visited) answer() error {
	if v.away.Load() {
		return errors.New("away")
	}
	return nil
}

func (v *visited) Check(context.Context) error {
	v.checks.Add(1)
	return v.answer()
}

func (v *visited) Ping(_ context.Context, quiet time.Duration) error {
	if quiet == pingEvery {
		v.pings.Add(1)
	}
	return v.answer()
}

func TestADestinationIsAskedForUntilItIsThereAndThenNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visited{}
		v.away.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- probe(ctx, v, config.Retry{Min: time.Second, Max: time.Second}) }()
		for _, phase := range []struct {
			what          string
			away          bool
			lasts         time.Duration
			checks, pings [2]int64 // at least, at most
		}{
			{"away from the start", true, time.Minute, [2]int64{30, 200}, [2]int64{}},
			{"there", false, 2 * time.Second, [2]int64{1, 3}, [2]int64{}},
			{"still there", false, 4 * pingEvery, [2]int64{}, [2]int64{3, 5}},
			{"away again", true, pingEvery + time.Minute, [2]int64{}, [2]int64{30, 200}},
			{"back", false, 4 * pingEvery, [2]int64{}, [2]int64{3, 8}},
		} {
			v.away.Store(phase.away)
			time.Sleep(phase.lasts)
			synctest.Wait()
			checks, pings := v.checks.Swap(0), v.pings.Swap(0)
			if checks < phase.checks[0] || checks > phase.checks[1] || pings < phase.pings[0] || pings > phase.pings[1] {
				t.Errorf("%s: %d checks, %d pings, want %v and %v", phase.what, checks, pings, phase.checks, phase.pings)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
