package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// runJournal runs a journal of a directory, for the sinks a and b unless others are named, until the returned function is
// called.
func runJournal(t *testing.T, dir string, sinks ...string) (*journal.Journal, func()) {
	t.Helper()
	if sinks == nil {
		sinks = []string{"a", "b"}
	}
	j, err := journal.Open(journal.Options{Dir: dir, Declaration: journal.Declaration{Sinks: sinks}, Logger: slog.New(slog.DiscardHandler)})
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

// mustAppend appends an observation, which is durable then.
func mustAppend(t *testing.T, j *journal.Journal, o event.Observation) {
	t.Helper()
	if err := errors.Join(j.Append(t.Context(), o), j.Flush(t.Context())); err != nil {
		t.Fatal(err)
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

// configured has the sinks a and b, and a rule with a name.
var configured = &config.Config{Sinks: []config.Sink{{Name: "a"}, {Name: "b"}}, Resources: []config.Resource{{}, {Name: "named"}}}

func submitTo(t *testing.T, c *signalControl, r signals.Request, cfg *config.Config) signals.Signal {
	t.Helper()
	s, err := c.submit(t.Context(), r, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// submitSignal submits a request for one of the sinks a and b, or for the rule.
func submitSignal(t *testing.T, c *signalControl, r signals.Request) signals.Signal {
	t.Helper()
	return submitTo(t, c, r, configured)
}

func TestAPauseIsInForceAfterARestartAndEndsWhenItIsOver(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	c := openControl(t, j)
	pause := submitSignal(t, c, signals.Request{Kind: signals.Pause, Sink: "a", For: time.Hour})
	if c.pauseSwitch(signals.Subject{Sink: "a"}).PausedSince().IsZero() || !c.pauseSwitch(signals.Subject{Sink: "b"}).PausedSince().IsZero() {
		t.Error("the pause is not in force, or for another sink too")
	}
	stop()

	j, stop = runJournal(t, dir)
	c = openControl(t, j)
	if got := c.pauseSwitch(signals.Subject{Sink: "a"}).PausedSince(); !got.Equal(pause.Since) {
		t.Errorf("after a restart paused since %v, not %v", got, pause.Since)
	}
	c.applyPauses(pause.Until.Add(-time.Second))
	if c.pausedStatus(signals.Subject{Sink: "a"}).OK() {
		t.Error("a pause has ended before its time")
	}
	c.applyPauses(pause.Until)
	if got := c.registry.List(); !c.pausedStatus(signals.Subject{Sink: "a"}).OK() || len(got) != 1 || got[0].State != signals.Done || got[0].Result != "resumed after 1h0m0s, as it asked for" {
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

// TestAPausedRuleIsHeldUnderItsName wherever it stands in the configuration, over a restart and until its time is over,
// beside what the protection holds. A sink of the same name is another thing.
func TestAPausedRuleIsHeldUnderItsName(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	c := openControl(t, j)
	pause := submitSignal(t, c, signals.Request{Kind: signals.Pause, Rule: "named", For: time.Hour})
	if pause.State != signals.Active || !c.pauseSwitch(signals.Subject{Sink: "named"}).PausedSince().IsZero() {
		t.Errorf("%+v, or a sink is paused", pause)
	}
	stop()

	j, stop = runJournal(t, dir)
	defer stop()
	c = openControl(t, j)
	edited := &config.Config{Resources: []config.Resource{{Name: "named"}, {Name: "other"}, {}}}
	edited.Resources[1].RedactPaths, edited.Redaction.Strict = []string{"spec.token"}, true
	g := newSourceGuard(edited, newProtection(edited, nil, slog.New(slog.DiscardHandler)), c)
	for i, want := range []condition.Code{condition.RulePaused, condition.RedactionHeld, ""} {
		held, _ := g.Held(i)
		end, err := g.BeginTurn(i)
		if held.Code != want || (err != nil) != (want == condition.RulePaused) {
			t.Errorf("rule %d: %+v, %v", i, held, err)
		}
		if err == nil {
			end()
		}
	}
	if held, _ := g.Held(0); held.From != "rule/named" || held.Remedy != "exporter signal resume --rule named" || !strings.Contains(held.Cause, pause.ID) {
		t.Errorf("the problem is %+v", held)
	}
	if got := condition.Summarize(g.statuses()); len(got) != 1 || got[0].Component != "rule/named" || !got[0].Since.Equal(pause.Since) {
		t.Errorf("the conditions are %+v", got)
	}
	_, paused := g.Held(0)
	c.applyPauses(pause.Until)
	<-paused[0]
	if held, changed := g.Held(0); held.Code != "" {
		t.Errorf("after its time: %+v", held)
	} else {
		submitSignal(t, c, signals.Request{Kind: signals.Pause, Rule: "named"})
		<-changed[0]
	}
	submitSignal(t, c, signals.Request{Kind: signals.Resume, Rule: "named"})
	_, changed := g.Held(1)
	submitTo(t, c, signals.Request{Kind: signals.Pause, Rule: "other"}, edited)
	<-changed[0]
	if held, _ := g.Held(1); held.Code != condition.RulePaused {
		t.Errorf("of two reasons it is %+v", held)
	}
}

// TestAPauseOfARuleWaitsForWhatIsBeingEmitted because nothing of it follows its answer.
func TestAPauseOfARuleWaitsForWhatIsBeingEmitted(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	g := newSourceGuard(configured, newProtection(configured, nil, slog.New(slog.DiscardHandler)), c)
	end, err := g.BeginTurn(1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan signals.Signal)
	go func() {
		s, err := c.submit(t.Context(), signals.Request{Kind: signals.Pause, Rule: "named"}, configured)
		if err != nil {
			t.Error(err)
		}
		done <- s
	}()
	for _, err := g.BeginTurn(1); err == nil; _, err = g.BeginTurn(1) {
		g.rules[1].pause.EndTurn()
	}
	select {
	case <-done:
		t.Error("the pause was answered before")
	default:
	}
	end()
	if s := <-done; s.State != signals.Active {
		t.Errorf("%+v", s)
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
		{signals.Request{Kind: signals.Pause, Sink: "a"}, signals.Active, ""},
		{signals.Request{Kind: signals.Pause, Sink: "a", For: time.Hour}, signals.Active, ""},
		{signals.Request{Kind: signals.Resume, Sink: "a"}, signals.Done, "0 changes waited"},
		{signals.Request{Kind: signals.Resume, Rule: "named"}, signals.Nothing, "the rule is not paused"},
		{signals.Request{Kind: signals.Pause, Rule: "a"}, signals.Refused, `no rule "a" is configured; those with a name are: named`},
		{signals.Request{Kind: signals.Pause, Rule: "named"}, signals.Active, ""},
		{signals.Request{Kind: signals.Resume, Rule: "named"}, signals.Done,
			"paused for 0s: it goes on where it was, or with a gap where the API server no longer has the history"},
	} {
		if got := submitSignal(t, c, step.request); got.State != step.state || got.Result != step.result {
			t.Errorf("%+v: %s, %q", step.request, got.State, got.Result)
		}
	}
	var states []signals.State
	for _, s := range c.registry.List() {
		states = append(states, s.State)
	}
	if len(states) != 9 || states[2] != signals.Superseded || states[3] != signals.Done {
		t.Errorf("in the end %v", states)
	}
}

// TestAPauseOfASinkThatIsNotConfiguredAnyMoreCanBeEnded because another replica may still have the sink: the pause stays.
func TestAPauseOfASinkThatIsNotConfiguredAnyMoreCanBeEnded(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	c := openControl(t, j)
	submitSignal(t, c, signals.Request{Kind: signals.Pause, Sink: "b"})
	s, err := c.submit(t.Context(), signals.Request{Kind: signals.Resume, Sink: "b"}, &config.Config{Sinks: []config.Sink{{Name: "a"}}})
	if err != nil || s.State != signals.Done || !c.pauseSwitch(signals.Subject{Sink: "b"}).PausedSince().IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
}

// openHandler returns the handler of all signals for a journal with the sinks a and b.
func openHandler(t *testing.T, j *journal.Journal, w *watchedScopes) signalHandler {
	t.Helper()
	control, sinks := openControl(t, j), []config.Sink{{Name: "a"}, {Name: "b"}}
	c := &composition{memory: &memory{journal: j, signals: control}, cfg: &config.Config{Sinks: sinks}}
	c.replays = newRequestedReplays(control, sinks)
	c.snapshots = newRequestedSnapshots(control, w, sinks, c.replays)
	c.open.Store(true)
	return signalHandler{func() *composition { return c }}
}

// TestASignalThatSeveralSendersSendAtOnceIsExecutedOnce, whatever it asks for, and all of them get its answer.
func TestASignalThatSeveralSendersSendAtOnceIsExecutedOnce(t *testing.T) {
	dir := t.TempDir()
	fillWithLetters(t, dir)
	j, stop := runJournal(t, dir)
	defer stop()
	h := openHandler(t, j, watchPods(t, j))
	snapshot := signals.NewID()
	for _, r := range []signals.Request{
		{Kind: signals.RetryDeadLetters, Sink: "a", All: true},
		{Kind: signals.DiscardDeadLetters, Sink: "b", All: true},
		{Kind: signals.Pause, Sink: "a", For: time.Hour},
		{Kind: signals.Pause, Sink: "a"},
		{Kind: signals.Resume, Sink: "a"},
		{Kind: signals.Replay, Sink: "a", Offset: 6},
		{ID: snapshot, Kind: signals.Snapshot, Sink: "a"},
		{Kind: signals.Cancel, Target: snapshot},
	} {
		r.ID = cmp.Or(r.ID, signals.NewID())
		before := len(h.current().signals.registry.List())
		answers, sending := make([]signals.Signal, 8), sync.WaitGroup{}
		for i := range answers {
			sending.Go(func() {
				var err error
				if answers[i], err = h.Submit(t.Context(), r); err != nil {
					t.Errorf("%s: %v", r.Kind, err)
				}
			})
		}
		sending.Wait()
		kept, _ := h.current().signals.registry.Find(r.ID)
		for _, s := range answers {
			if s.State == signals.Refused || s.State == signals.Nothing || !reflect.DeepEqual(s, kept) {
				t.Errorf("%s: an answer is %s %q of %v, and kept is %s %q of %v", r.Kind, s.State, s.Result, s.Since, kept.State, kept.Result, kept.Since)
			}
		}
		if n := len(h.current().signals.registry.List()) - before; n != 1 {
			t.Errorf("%s: %d signals", r.Kind, n)
		}
	}
	if n := j.Newest(); n != 5+2 {
		t.Errorf("the journal has %d changes, and 2 of 5 are retried", n)
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
			if c.pauseSwitch(signals.Subject{Sink: "a"}).PausedSince().IsZero() {
				t.Fatal("a pause that is in force was interrupted")
			}
		}
		submitSignal(t, c, signals.Request{Kind: signals.Resume, Sink: "a"})
	}
	end()
	<-done
}
