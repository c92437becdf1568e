package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestEachChangeIsAcknowledgedOnce: the accepted part of a batch counts at once, the rest when it is accepted after a retry.
func TestEachChangeIsAcknowledgedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s storedProgress
		var mu sync.Mutex
		var versions []string
		failed := false
		sink := sinkFuncs{publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
			if !failed && len(batch) > 1 {
				failed = true
				return 1, errors.New("the leader has moved")
			}
			return len(batch), nil
		}}
		p := startPipeline(t, sink, journalOf(changesIn("a", "a", "a"), &s), event.Cursor{}, Config{OnAcknowledged: func(c *event.Change) {
			mu.Lock()
			defer mu.Unlock()
			versions = append(versions, c.ResourceVersion)
		}})
		time.Sleep(5 * time.Second)
		p.drainUpTo(t, 3)
		if want := []string{"1", "2", "3"}; !slices.Equal(versions, want) {
			t.Errorf("acknowledged %v, want %v", versions, want)
		}
	})
}
