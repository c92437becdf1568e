package attribution_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/attribution"
	"github.com/kubecdc/kubecdc/internal/audit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// trouble is a journal that fails where it is told to.
type trouble struct {
	*journal.Journal
	untold       atomic.Bool // who keeps evidence leaves before hearing that it is stored
	inconclusive atomic.Bool
}

func (j *trouble) KeepEvidence(ctx context.Context, evidence []event.Evidence, place, position string) error {
	err := j.Journal.KeepEvidence(ctx, evidence, place, position)
	if j.untold.Load() {
		return errors.Join(err, context.Canceled)
	}
	return err
}

var errConclude = errors.New("nothing can be concluded")

func (j *trouble) Conclude(
	ctx context.Context, sink string, c event.Cursor, changes []*event.Change, keep []event.Evidence, drop []uint64,
) error {
	if j.inconclusive.Load() {
		return errConclude
	}
	return j.Journal.Conclude(ctx, sink, c, changes, keep, drop)
}

// TestEvidenceOfWhoLeftBeforeItWasStoredIsDropped has what was sent stored, while its sender, who sends it again, is told
// that it was not; what is stored with a place is not read again, and stays.
func TestEvidenceOfWhoLeftBeforeItWasStoredIsDropped(t *testing.T) {
	p := start(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	defer p.stop()
	events := []audit.Event{{
		Stage: audit.Complete, Verb: "create", Code: 201, User: "ann", Resource: "pods",
		Answer: audit.Object{UID: "u1", ResourceVersion: "5"},
	}}
	p.trouble.untold.Store(true)
	if err := p.Take(t.Context(), "origin", events, "", ""); err == nil {
		t.Error("events are acknowledged")
	}
	if err := p.Lost(t.Context(), time.Time{}, "the log was eaten"); err == nil {
		t.Error("a loss is acknowledged")
	}
	p.nothingIsLeft()
	if err := p.Take(t.Context(), "origin", events, "log", "1"); err == nil {
		t.Error("events of a log are acknowledged")
	}
	p.trouble.untold.Store(false)
	if err := p.Take(t.Context(), "origin", events, "", ""); err != nil {
		t.Fatal(err)
	}
	p.change(event.Added, "u1", "5", "")
	p.await(event.Attributed, 0)
	kept := 0
	if err := p.journal.Evidence(func(event.Evidence) error { kept++; return nil }); err != nil || kept != 1 {
		t.Errorf("%d pieces of evidence are kept, %v", kept, err)
	}
}

func TestAnAttributorEndsWhereNothingCanBeConcluded(t *testing.T) {
	p := start(t, t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20})
	p.trouble.inconclusive.Store(true)
	p.request("ann", "create", 201, "u1", "5")
	p.change(event.Added, "u1", "5", "")
	select {
	case err := <-p.ended:
		if !errors.Is(err, errConclude) {
			t.Error(err)
		}
		p.ended <- context.Canceled
	case <-time.After(time.Minute):
		t.Error("it goes on")
	}
	p.stop()
}

// asked is a context that tells when somebody waits for its end.
type asked struct {
	context.Context
	by chan struct{} // capacity 1
}

func (a asked) Done() <-chan struct{} {
	select {
	case a.by <- struct{}{}:
	default:
	}
	return a.Context.Done()
}

// TestWhatWasConcludedBeforeARestartIsNotWaitedFor asks before the attributor has learnt how far it has concluded, which is
// everything: nothing else wakes who waits.
func TestWhatWasConcludedBeforeARestartIsNotWaitedFor(t *testing.T) {
	dir, limits := t.TempDir(), attribution.Limits{Window: time.Hour, Bytes: 1 << 20}
	p := start(t, dir, limits)
	p.request("ann", "create", 201, "u1", "5")
	p.change(event.Added, "u1", "5", "")
	records := []event.Record{p.await(event.Added, 0)}
	p.await(event.Attributed, 0)
	p.stop()
	p, run := prepare(t, dir, limits, "pods")
	if err := p.journal.Settle(t.Context(), attribution.Sink, event.Cursor{Low: p.journal.Newest()}, nil); err != nil {
		t.Fatal(err)
	}
	limit, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiting, done := asked{limit, make(chan struct{}, 1)}, make(chan error, 1)
	go func() {
		_, err := p.Await(waiting, records, time.Hour)
		done <- err
	}()
	<-waiting.by
	run()
	defer p.stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
