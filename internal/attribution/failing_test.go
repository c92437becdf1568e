package attribution_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/attribution/audit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// failingJournal is a journal that fails on request.
type failingJournal struct {
	*journal.Journal
	cancelAfterKeep atomic.Bool // StoreEvidence stores, but returns an error
	failConclude    atomic.Bool
}

func (j *failingJournal) StoreEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error {
	err := j.Journal.StoreEvidence(ctx, evidence, place, position)
	if j.cancelAfterKeep.Load() {
		return errors.Join(err, context.Canceled)
	}
	return err
}

var errConclude = errors.New("attributions cannot be appended")

func (j *failingJournal) AppendAttributions(
	ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
) error {
	if j.failConclude.Load() {
		return errConclude
	}
	return j.Journal.AppendAttributions(ctx, sink, c, changes, keep, drop)
}

// TestEvidenceOfCanceledCallIsDropped stores events although their sender gets an error and repeats them. Events that are
// stored with a position are not read again, so they stay.
func TestEvidenceOfCanceledCallIsDropped(t *testing.T) {
	p := startProcess(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	defer p.shutDown()
	events := []audit.Event{{
		Stage: audit.Complete, Verb: "create", Code: 201, Outcome: audit.Stored, User: "ann", Resource: "pods",
		Answer: audit.Object{UID: "u1", ResourceVersion: "5"},
	}}
	p.failing.cancelAfterKeep.Store(true)
	if err := p.StoreEvents(t.Context(), "origin", events, "", ""); err == nil {
		t.Error("events are acknowledged")
	}
	if err := p.RecordLoss(t.Context(), time.Time{}, "the log was eaten"); err == nil {
		t.Error("a loss is acknowledged")
	}
	p.awaitNoEvidence()
	if err := p.StoreEvents(t.Context(), "origin", events, "log", "1"); err == nil {
		t.Error("events of a log are acknowledged")
	}
	p.failing.cancelAfterKeep.Store(false)
	if err := p.StoreEvents(t.Context(), "origin", events, "", ""); err != nil {
		t.Fatal(err)
	}
	p.appendChange(event.Added, "u1", "5", "")
	p.awaitRecord(event.Attributed, 0)
	if kept := p.countEvidence(); kept != 1 {
		t.Errorf("%d pieces of evidence are kept", kept)
	}
}

func TestRunEndsWhenJournalFails(t *testing.T) {
	p := startProcess(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	p.failing.failConclude.Store(true)
	p.storeRequest("ann", "create", 201, "u1", "5")
	p.appendChange(event.Added, "u1", "5", "")
	select {
	case err := <-p.runEnded:
		if !errors.Is(err, errConclude) {
			t.Error(err)
		}
		p.runEnded <- context.Canceled
	case <-time.After(time.Minute):
		t.Error("Run continues")
	}
	p.shutDown()
}
