package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// BenchmarkPipeline measures dispatch and bookkeeping alone: a journal that has everything in memory, a sink that
// accepts everything at once. One operation is one change.
func BenchmarkPipeline(b *testing.B) {
	for _, lanes := range []int{1, 12, 512, 4096} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) { benchmarkLanes(b, lanes) })
	}
}

func benchmarkLanes(b *testing.B, lanes int) {
	names := make([]sinks.Lane, lanes)
	for i := range names {
		names[i] = sinks.Lane(fmt.Sprintf("k8s.core.pods/%d", i))
	}
	changes := make([]event.Change, 4096)
	for i := range changes {
		changes[i] = event.Change{Generation: int64(i % lanes), After: make([]byte, 4096)}
	}
	frame := make([]event.Record, 256)
	journal := journalFuncs{
		read: func(ctx context.Context, after uint64) ([]event.Record, error) {
			n := min(uint64(len(frame)), uint64(b.N)-after)
			if n == 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			for i := range frame[:n] {
				offset := after + uint64(i) + 1
				frame[i] = event.Record{Offset: offset, Change: &changes[offset%uint64(len(changes))]}
			}
			return frame[:n], nil
		},
		settle: func(context.Context, event.Cursor, []event.DeadLetter) error { return nil },
	}
	sink := sinkFuncs{
		lane:    func(c *event.Change) (sinks.Lane, error) { return names[c.Generation], nil },
		publish: func(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) { return len(batch), nil },
	}
	p := New("null", sink, "", journal, event.Cursor{}, Config{}, slog.New(slog.DiscardHandler))
	p.Drain(uint64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	if err := p.Run(context.Background()); err != nil {
		b.Fatal(err)
	}
}
