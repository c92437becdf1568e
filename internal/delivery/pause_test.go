package delivery

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func TestAPausedSinkGetsNothingAndThenEverythingOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := changesIn(slices.Repeat([]string{"a", "b"}, 50)...)
		size := int64(records[0].Change.Size())
		pause := NewPauseSwitch()
		pause.Pause(time.Now())
		var s storedProgress
		var to laneRecorder
		// The window is smaller than what waits: no lane may start to lag because of the pause.
		p := startPipeline(t, acceptAll(&to), journalOf(records, &s), event.Cursor{}, Config{WindowBytes: 7 * size, Pause: pause})
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := p.Stats(); got.Delivered != 0 || got.LanesLagging != 0 || !got.Condition.OK() {
			t.Errorf("while paused: %+v", got)
		}
		to.wantLanes(t, "map[]")
		pause.Resume()
		p.drainUpTo(t, 100)
		for lane, got := range to.lanes {
			if len(got) != 50 || !slices.IsSorted(got) {
				t.Errorf("lane %s got %v", lane, got)
			}
		}
	})
}

func TestAPauseEndsWhenWhatIsInFlightIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pause, release := NewPauseSwitch(), make(chan struct{})
		var s storedProgress
		var calls atomic.Int64
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			calls.Add(1)
			<-release
			return 1, nil // the rest is in flight
		}}
		p := startPipeline(t, sink, journalOf(changesIn("a", "a", "a"), &s), event.Cursor{}, Config{BatchMessages: 2, Pause: pause})
		synctest.Wait()
		pause.Pause(time.Now())
		began, ctx := time.Now(), t.Context()
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := pause.AwaitQuiet(limited); err == nil || time.Since(began) < time.Second {
			t.Errorf("quiet although a call has not returned: %v", err)
		}
		close(release)
		if err := pause.AwaitQuiet(ctx); err != nil {
			t.Error(err)
		}
		published, delivered := calls.Load(), p.Stats().Delivered
		time.Sleep(time.Hour)
		if got := calls.Load(); got != published || p.Stats().Delivered != delivered || delivered == 3 {
			t.Errorf("%d calls, then %d during the pause; %d delivered", published, got, delivered)
		}
		pause.Resume()
		p.drainUpTo(t, 3)
	})
}

func TestAPauseInterruptsWhatWaitsForAnUnavailableDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pause := NewPauseSwitch()
		var s storedProgress
		var to laneRecorder
		var away atomic.Bool
		away.Store(true)
		sink := sinkFuncs{publish: func(_ context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if away.Load() {
				return 0, &sinks.UnavailableError{Reason: "away"}
			}
			to.recordBatch(lane, batch)
			return len(batch), nil
		}}
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "a", "b"), &s), event.Cursor{}, Config{Pause: pause})
		awaitSettle()
		pause.Pause(time.Now())
		if err := pause.AwaitQuiet(t.Context()); err != nil {
			t.Error(err)
		}
		away.Store(false)
		time.Sleep(time.Hour)
		to.wantLanes(t, "map[]")
		if got := p.Stats().Condition; !got.OK() {
			t.Errorf("nothing is known of the destination during a pause, and it is %v", got.Code)
		}
		pause.Resume()
		p.drainUpTo(t, 4)
		to.wantLanes(t, "map[a:[1 3] b:[2 4]]")
	})
}
