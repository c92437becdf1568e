package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/test/parts/await"
)

// openOrphanRemover returns the remover of the sink a, with brokers that do not answer, in a journal with the end of a
// snapshot.
func openOrphanRemover(t *testing.T) *orphanRemover {
	t.Helper()
	j, stop := runJournal(t, t.TempDir())
	t.Cleanup(stop)
	if err := j.Declare(t.Context(), journal.Declaration{Sinks: []string{"a", "b"}, ReadBack: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	end := &event.Change{
		Type: event.SnapshotEnd, Cluster: "c", Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"},
		Snapshot: &event.SnapshotInfo{ID: "1", Position: "100"},
	}
	mustAppend(t, j, event.Observation{Resource: end.Resource, Scope: "pods", Changes: []*event.Change{end}, Position: "100"})
	return &orphanRemover{
		sink:    config.Sink{Name: "a", Kafka: &kafka.Config{Brokers: []string{"127.0.0.1:1"}, Topic: "{cluster}.{resource}", Repair: true}},
		journal: j, log: slog.New(slog.DiscardHandler), failing: condition.New(slog.New(slog.DiscardHandler), "sink/a", condition.Problem{}),
	}
}

// TestADestinationThatCannotBeReadIsReportedAndReadAgain, once the sink has received the snapshot.
func TestADestinationThatCannotBeReadIsReportedAndReadAgain(t *testing.T) {
	o := openOrphanRemover(t)
	if due, err := o.duePasses(); err != nil || len(due) != 0 {
		t.Errorf("due before the sink has the snapshot: %v, %v", due, err)
	}
	settleAll(t, o.journal)
	if due, err := o.duePasses(); err != nil || len(due["c.pods"]) != 1 {
		t.Fatalf("due are %v, %v", due, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- o.run(ctx) }()
	for o.failing.Status().Code != condition.SinkMayLose {
		await.Pause(t, 10*time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil || !strings.Contains(o.failing.Status().Cause, "rows of deleted objects remain") {
		t.Errorf("%v, %q", err, o.failing.Status().Cause)
	}
	if due := o.journal.OrphanPasses("a"); len(due) != 1 {
		t.Errorf("due are %v", due)
	}
}

func TestAResourceThatASinkDoesNotGetIsNotReadThere(t *testing.T) {
	o := openOrphanRemover(t)
	o.route = func(*event.Change) delivery.Route { return delivery.Route{Skip: true} }
	settleAll(t, o.journal)
	due, err := o.duePasses()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.removeOrphans(t.Context(), due); err != nil || len(o.journal.OrphanPasses("a")) != 0 {
		t.Errorf("still due: %v, %v", o.journal.OrphanPasses("a"), err)
	}
}
