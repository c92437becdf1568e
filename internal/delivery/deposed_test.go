package delivery

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

func TestADeposedProcessEndsAllLanesAndSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		sink := sinkFuncs{publish: func(ctx context.Context, lane sinks.Lane, batch []sinks.Message) (int, error) {
			if lane == "b" {
				if tries.Add(1) > 1 {
					t.Error("tried again after another process had claimed")
				}
				return 0, &sinks.DeposedError{Reason: "exporter-1 has claimed"}
			}
			<-ctx.Done() // in flight when it happens
			return 0, ctx.Err()
		}}
		var s storedProgress
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "c", "b"), &s), event.Cursor{}, Config{Workers: 2})
		var deposed *sinks.DeposedError
		if err := <-p.done; !errors.As(err, &deposed) {
			t.Fatalf("Run ended with %v", err)
		}
		if cursor, dead := s.currentProgress(); cursor.Low != 0 || len(dead) > 0 {
			t.Errorf("settled up to %d, %d dead letters", cursor.Low, len(dead))
		}
	})
}

func TestChangesDeliveredByAnEarlierProcessAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var to laneRecorder
		sink := acceptAll(&to)
		var s storedProgress
		p := startPipeline(t, sink, journalOf(changesIn("a", "b", "a", "b"), &s), event.Cursor{}, Config{
			AlreadyDelivered: func(lane sinks.Lane, c *event.Change) bool {
				return lane == "a" && c.ResourceVersion == "1" || lane == "b" && c.ResourceVersion == "1"
			},
		})
		p.drainUpTo(t, 4)
		if got := p.Stats(); got.AlreadySettled != 1 || got.Delivered != 3 || !slices.Equal(to.lanes["a"], []uint64{3}) || !slices.Equal(to.lanes["b"], []uint64{2, 4}) {
			t.Errorf("skipped %d, delivered %d: %v", got.AlreadySettled, got.Delivered, to.lanes)
		}
		if cursor, _ := s.currentProgress(); cursor.Low != 4 {
			t.Errorf("settled up to %d", cursor.Low)
		}
	})
}
