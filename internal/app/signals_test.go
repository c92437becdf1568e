package app

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
)

// runJournal runs a journal of a directory, for the sinks a and b unless others are named, until the returned function is
// called.
func runJournal(t *testing.T, dir string, sinks ...string) (*journal.Journal, func()) {
	t.Helper()
	if sinks == nil {
		sinks = []string{"a", "b"}
	}
	j, err := journal.Open(journal.Options{Dir: dir, Sinks: sinks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	return j, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

func openControl(t *testing.T, j *journal.Journal) *signalControl {
	t.Helper()
	c, err := newSignalControl(j, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// submitSignal submits a request for one of the sinks a and b.
func submitSignal(t *testing.T, c *signalControl, r signals.Request) signals.Signal {
	t.Helper()
	s, err := c.submit(t.Context(), r, []config.Sink{{Name: "a"}, {Name: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAPauseIsInForceAfterARestartAndEndsWhenItIsOver(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	c := openControl(t, j)
	pause := submitSignal(t, c, signals.Request{Kind: signals.Pause, Sink: "a", For: time.Hour})
	if c.pauseSwitch("a").PausedSince().IsZero() || !c.pauseSwitch("b").PausedSince().IsZero() {
		t.Error("the pause is not in force, or for another sink too")
	}
	stop()

	j, stop = runJournal(t, dir)
	c = openControl(t, j)
	if got := c.pauseSwitch("a").PausedSince(); !got.Equal(pause.Since) {
		t.Errorf("after a restart paused since %v, not %v", got, pause.Since)
	}
	c.applyPauses(pause.Until.Add(-time.Second))
	if c.pausedStatus("a").OK() {
		t.Error("a pause has ended before its time")
	}
	c.applyPauses(pause.Until)
	if got := c.registry.List(); !c.pausedStatus("a").OK() || len(got) != 1 || got[0].State != signals.Done || got[0].Result != "resumed after 1h0m0s, as it asked for" {
		t.Errorf("after its time: %+v", got)
	}
	if err := c.registry.SaveUnsaved(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()

	j, stop = runJournal(t, dir)
	defer stop()
	if got := openControl(t, j).registry.List(); len(got) != 1 || got[0].State != signals.Done {
		t.Errorf("stored is %+v", got)
	}
}

func TestEverySignalHasAnEnd(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	for _, step := range []struct {
		request signals.Request
		state   signals.State
		result  string
	}{
		{signals.Request{Kind: signals.Resume, Sink: "a"}, signals.Nothing, "the sink is not paused"},
		{signals.Request{Kind: signals.Pause, Sink: "c"}, signals.Refused, `no sink "c" is configured; there are: a, b`},
		{signals.Request{Kind: "stop", Sink: "a"}, signals.Refused, `this exporter knows no signal "stop"`},
		{signals.Request{Kind: signals.Pause, Sink: "a"}, signals.Active, ""},
		{signals.Request{Kind: signals.Pause, Sink: "a", For: time.Hour}, signals.Active, ""},
		{signals.Request{Kind: signals.Resume, Sink: "a"}, signals.Done, "0 changes waited"},
	} {
		if got := submitSignal(t, c, step.request); got.State != step.state || got.Result != step.result {
			t.Errorf("%+v: %s, %q", step.request, got.State, got.Result)
		}
	}
	var states []signals.State
	for _, s := range c.registry.List() {
		states = append(states, s.State)
	}
	if len(states) != 6 || states[3] != signals.Superseded || states[4] != signals.Done {
		t.Errorf("in the end %v", states)
	}
}

// TestAPauseOfASinkThatIsNotConfiguredAnyMoreCanBeEnded because another replica may still have the sink: the pause stays.
func TestAPauseOfASinkThatIsNotConfiguredAnyMoreCanBeEnded(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	submitSignal(t, c, signals.Request{Kind: signals.Pause, Sink: "b"})
	s, err := c.submit(t.Context(), signals.Request{Kind: signals.Resume, Sink: "b"}, []config.Sink{{Name: "a"}})
	if err != nil || s.State != signals.Done || !c.pauseSwitch("b").PausedSince().IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestASignalIsExecutedOnceUnderItsID because a sender without an answer sends it again, by a bus perhaps much later.
func TestASignalIsExecutedOnceUnderItsID(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	pause := signals.Request{ID: signals.NewID(), Kind: signals.Pause, Sink: "a"}
	submitSignal(t, c, pause)
	submitSignal(t, c, signals.Request{Kind: signals.Resume, Sink: "a"})
	if again := submitSignal(t, c, pause); again.State != signals.Done || again.ID != pause.ID || !c.pauseSwitch("a").PausedSince().IsZero() {
		t.Errorf("a pause that has ended is in force again: %+v", again)
	}
	if all := c.registry.List(); len(all) != 2 {
		t.Errorf("the signals are %+v", all)
	}
}

func TestARecordThatIsNoRequestIsRefusedWithItsReason(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	r := signals.Record{Topic: "t", Partition: 1, Offset: 7}
	s := submitSignal(t, c, r.Request([]byte("{"), time.Now()))
	if s.State != signals.Refused || s.Result != "the record is no signal: unexpected end of JSON input" || *s.Record != r {
		t.Errorf("the signal is %+v", s)
	}
	if got := c.registry.Position(signals.Place("t", 1)); got != "8" {
		t.Errorf("the position is %q", got)
	}
}

func TestAPauseIsNeverInterruptedByTheLookForThoseThatAreOver(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c.applyPauses(time.Now())
		}
	}()
	for range 30 {
		submitSignal(t, c, signals.Request{Kind: signals.Pause, Sink: "a"})
		for range 1000 {
			if c.pauseSwitch("a").PausedSince().IsZero() {
				t.Fatal("a pause that is in force was interrupted")
			}
		}
		submitSignal(t, c, signals.Request{Kind: signals.Resume, Sink: "a"})
	}
	end()
	<-done
}
