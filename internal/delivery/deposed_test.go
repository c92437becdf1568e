package delivery

import (
	"context"
	"errors"
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
		var s stored
		p := run(t, sink, journalOf(changesIn("a", "b", "c", "b"), &s), event.Cursor{}, Config{Workers: 2})
		var deposed *sinks.DeposedError
		if err := <-p.done; !errors.As(err, &deposed) {
			t.Fatalf("Run ended with %v", err)
		}
		if cursor, dead := s.get(); cursor.Low != 0 || len(dead) > 0 {
			t.Errorf("settled up to %d, %d dead letters", cursor.Low, len(dead))
		}
	})
}
