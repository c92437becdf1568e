package delivery

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestAHeldLaneWaitsAloneAndSkipsWhatItTurnsOutToHold holds a lane of which the delivered changes become known later only.
func TestAHeldLaneWaitsAloneAndSkipsWhatItTurnsOutToHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		sink := acceptAll(&to)
		var s storedProgress
		var isRead atomic.Bool
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "a", "b", "a", "b"), &s), event.Cursor{}, Config{
			WhyHeld: func(lane sinks.Lane) error {
				if lane != "a" || isRead.Load() {
					return nil
				}
				return condition.Problem{Code: condition.LaneUnread}.Wrap(errors.New("its broker does not answer"))
			},
			AlreadyDelivered: func(lane sinks.Lane, c *event.Change) bool {
				return isRead.Load() && lane == "a" && c.ResourceVersion <= "3"
			},
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		now := p.Stats()
		if len(to.lanes["a"]) > 0 || !slices.Equal(to.lanes["b"], []uint64{2, 4, 6}) {
			t.Errorf("published %v while lane a is held", to.lanes)
		}
		if got := now.Conditions(); len(got) != 1 || got[0].Code != condition.LaneUnread || got[0].Severity != condition.Degraded {
			t.Errorf("the conditions are %v", got)
		}
		if cursor, _ := s.currentProgress(); cursor.Low != 0 || now.LanesLagging != 1 || now.LanesFailing != 1 || now.Lag != time.Since(time.Unix(1, 0)) {
			t.Errorf("settled up to %d: %+v", cursor.Low, now)
		}
		p.Drain(6)
		synctest.Wait()
		if !p.IsBlocked() {
			t.Error("the drain has nothing left but a lane that is held, and is not blocked")
		}
		isRead.Store(true)
		if err := <-p.done; err != nil {
			t.Errorf("drain ended with %v", err)
		}
		p.stop()
		if !slices.Equal(to.lanes["a"], []uint64{5}) {
			t.Errorf("published %v of lane a, want what its tail does not hold", to.lanes["a"])
		}
		if got := p.Stats(); got.LanesFailing != 0 || len(got.FailingLanes) != 0 {
			t.Errorf("after the hold: %+v", got)
		}
	})
}
