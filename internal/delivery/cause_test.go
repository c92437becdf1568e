package delivery

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// pingedSink is a sink that can be pinged.
type pingedSink struct {
	sinkFuncs
	ping func(ctx context.Context) error
}

func (p pingedSink) Ping(ctx context.Context) error { return p.ping(ctx) }

// TestTheCauseOfAnOutageIsAtMostTenSecondsOld has a destination that is closed for minutes, and then accepts connections and
// does not answer for a minute: with changes that wait, and when idle.
func TestTheCauseOfAnOutageIsAtMostTenSecondsOld(t *testing.T) {
	const atMost = 10 * time.Second
	for _, idle := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var hangs atomic.Bool
			var attempts atomic.Int64
			call := func(ctx context.Context) error {
				attempts.Add(1)
				if !hangs.Load() {
					return &sinks.UnavailableError{Code: condition.SinkUnreachable, Reason: "connection refused"}
				}
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
				}
				return &sinks.UnavailableError{Code: condition.SinkTimeout, Reason: "no response within a minute"}
			}
			var sink sinks.Sink = sinkFuncs{publish: func(ctx context.Context, _ sinks.Lane, _ []sinks.Message) (int, error) { return 0, call(ctx) }}
			s := newEndlessJournal(100, 16)
			if idle {
				sink, s = pingedSink{sinkFuncs{}, call}, newEndlessJournal(0, 16)
			}
			p := startPipeline(t, sink, s, event.Cursor{}, Config{Retry: RetryConfig{Min: 100 * time.Millisecond, Max: time.Minute}})
			time.Sleep(5 * time.Minute)
			before := attempts.Load()
			if time.Sleep(time.Minute); attempts.Load()-before < int64(time.Minute/atMost) {
				t.Errorf("idle %v: %d attempts in a minute", idle, attempts.Load()-before)
			}
			if c := p.Stats().Condition; c.Code != condition.SinkUnreachable {
				t.Errorf("idle %v: while it is closed: %s", idle, c.Text(time.Now()))
			}
			hangs.Store(true)
			for time.Sleep(atMost); attempts.Load() < before+20; time.Sleep(7 * time.Second) {
				if c := p.Stats().Condition; c.Code != condition.SinkTimeout {
					t.Fatalf("idle %v: while it hangs: %s", idle, c.Text(time.Now()))
				}
			}
			p.stopAndWait(t)
		})
	}
}
