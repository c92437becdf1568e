package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// losingSink reports once, at the change at, that every change after from is lost.
type losingSink struct {
	at, from uint64

	mu           sync.Mutex
	lossReported bool
	restored     bool // since
	got          []uint64
}

func (f *losingSink) Lane(*event.Change) (sinks.Lane, error) { return "only", nil }
func (f *losingSink) Close(context.Context) error            { return nil }

func (f *losingSink) State(uint64) []byte { return nil }

func (f *losingSink) RestoreState([]byte, uint64, func(context.Context) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restored = f.lossReported
	return nil
}

func (f *losingSink) Publish(_ context.Context, _ sinks.Lane, batch []sinks.Message) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range batch {
		if m.Offset == f.at && !f.lossReported || f.lossReported && !f.restored {
			f.lossReported = true
			return i, &sinks.LostError{From: f.from, Reason: "restored"}
		}
		f.got = append(f.got, m.Offset)
	}
	return len(batch), nil
}

func TestLostChangesAreResent(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Sinks: []string{"a"}, KeepSettled: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	failed := func(err error) { t.Error(err) }
	committing := startTask("journal", j.Run, failed)
	sink := &losingSink{at: 8, from: 3}
	r := &runner{configuredSink: &configuredSink{name: "a", sink: sink},
		recoverLanes: func(_ context.Context, ready func()) error { ready(); return nil },
		unread:       condition.New(slog.New(slog.DiscardHandler), "sink/a", condition.Problem{}),
		lost:         condition.New(slog.New(slog.DiscardHandler), "sink/a", condition.Problem{}),
		journal:      sinkJournal{j, "a", nil}, log: slog.New(slog.DiscardHandler)}
	r.newPipeline = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New("a", sink, "layout", r.journal, start, delivery.Config{SettleInterval: time.Millisecond}, r.log)
	}
	r.pipeline = r.newPipeline(event.Cursor{})
	for n := range 10 {
		c := &event.Change{Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "pods"}, Name: "web", UID: "u", ResourceVersion: fmt.Sprint(n)}
		if err := j.Append(t.Context(), event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.deliveryTask = startTask("sink a", r.runPipelines, failed)
	r.drainUpTo(10) // begun before or after the loss, it ends the pipeline that takes over
	<-r.deliveryTask.done
	committing.stop()
	if want := []uint64{1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(sink.got, want) {
		t.Errorf("the sink got %d, want %d", sink.got, want)
	}
	if r.lossCount() != 1 {
		t.Errorf("%d losses counted", r.lossCount())
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
