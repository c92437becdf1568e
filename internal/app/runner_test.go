package app

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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
	at   uint64
	lost sinks.LostError

	mu           sync.Mutex
	lossReported bool
	recorded     bool // before it was restored
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
			lost := f.lost
			return i, &lost
		}
		f.got = append(f.got, m.Offset)
	}
	return len(batch), nil
}

func TestLostChangesAreResent(t *testing.T) {
	t.Run("from the journal", func(t *testing.T) {
		testLoss(t, sinks.LostError{From: 3}, []uint64{1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10}, 0)
	})
	t.Run("and those of another journal are counted", func(t *testing.T) {
		lost := sinks.LostError{From: math.MaxUint64, Lanes: map[sinks.Lane]uint64{}, Gone: 5}
		testLoss(t, lost, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5)
	})
	t.Run("and a destination that is begun anew gets a gap and what exists", func(t *testing.T) {
		lost := sinks.LostError{From: math.MaxUint64, Lanes: map[sinks.Lane]uint64{}, Gone: 5, Renew: true}
		testLoss(t, lost, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5)
	})
}

// testLoss delivers ten changes to a sink that loses something before the eighth.
func testLoss(t *testing.T, lost sinks.LostError, want []uint64, missing uint64) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Declaration: journal.Declaration{Sinks: []string{"a"}}, KeepSettled: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	failed := func(err error) { t.Error(err) }
	committing := startTask("journal", j.Run, failed)
	lost.Reason = "restored"
	sink := &losingSink{at: 8, lost: lost}
	r := &runner{configuredSink: &configuredSink{name: "a", sink: sink},
		recoverLanes: func(_ context.Context, ready func()) error { ready(); return nil },
		recordLoss: func(context.Context) error {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			sink.recorded = sink.lossReported && !sink.restored
			return nil
		},
		unread:  condition.New(slog.New(slog.DiscardHandler), "sink/a", condition.Problem{}),
		lost:    condition.New(slog.New(slog.DiscardHandler), "sink/a", condition.Problem{}),
		journal: sinkJournal{j, "a"}, log: slog.New(slog.DiscardHandler)}
	emitted := 0
	r.renew = func(ctx context.Context, sink, reason string) error { emitted++; return j.RenewSink(ctx, sink, reason) }
	r.newPipeline = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New("a", sink, "layout", r.journal, start, delivery.Config{SettleInterval: time.Millisecond}, r.log)
	}
	r.pipeline = r.newPipeline(event.Cursor{})
	for n := range 10 {
		c := &event.Change{Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "pods"}, Name: "web", UID: "u", ResourceVersion: fmt.Sprint(n)}
		mustAppend(t, j, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}})
	}
	r.deliveryTask = startTask("sink a", r.runPipelines, failed)
	r.drainUpTo(10) // begun before or after the loss, it ends the pipeline that takes over
	<-r.deliveryTask.done
	committing.stop()
	newest := j.Newest()
	if len(sink.got) > 0 && sink.got[len(sink.got)-1] > 10 { // the gap comes before or after the end of the drain
		sink.got = sink.got[:len(sink.got)-1]
	}
	if renewed := emitted == 1 && newest == 11; renewed != lost.Renew || !renewed && newest != 10 {
		t.Errorf("%d snapshots are requested, and the newest change is %d", emitted, newest)
	}
	if !slices.Equal(sink.got, want) {
		t.Errorf("the sink got %d, want %d", sink.got, want)
	}
	if r.losses.Load() != 1 || !sink.recorded {
		t.Errorf("%d losses counted, recorded before they are sent again: %t", r.losses.Load(), sink.recorded)
	}
	if n, code := r.missing.Load(), r.lost.Status().Code; n != missing || (code == condition.SinkLost) != (missing > 0) {
		t.Errorf("%d changes are missing, with the condition %q; want %d", n, code, missing)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}
