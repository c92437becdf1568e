package app

import (
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/event"
	natssink "github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/test/journaltest"
)

// openReplays opens the replays of a journal with the sinks a and b, and two that keep rows.
func openReplays(t *testing.T, j *journal.Journal) *requestedReplays {
	t.Helper()
	return newRequestedReplays(openControl(t, j), []config.Sink{
		{Name: "a"}, {Name: "b"}, {Name: "rows", Format: "debezium"}, {Name: "kv", NATS: &natssink.Config{Mode: "kv"}},
	})
}

func (s *requestedReplays) mustSubmit(t *testing.T, r signals.Request) signals.Signal {
	t.Helper()
	r.Kind = signals.Replay
	signal, err := s.registry.Execute(t.Context(), r, func(r signals.Request) (signals.Signal, error) { return s.submit(t.Context(), r) })
	if err != nil {
		t.Fatal(err)
	}
	return signal
}

// mustAdvance advances until nothing moves, and returns a signal.
func (s *requestedReplays) mustAdvance(t *testing.T, id string) signals.Signal {
	t.Helper()
	for moved := true; moved; {
		var err error
		if moved, err = s.advance(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	signal, _ := s.registry.Find(id)
	return signal
}

// settleAll settles everything that a journal holds for its sinks; without names for a and b.
func settleAll(t *testing.T, j *journal.Journal, sinks ...string) {
	t.Helper()
	if sinks == nil {
		sinks = []string{"a", "b"}
	}
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sink := range sinks {
		if err := j.Settle(t.Context(), sink, event.Cursor{Low: j.Newest()}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// appendPods appends changes of Pods.
func appendPods(t *testing.T, j *journal.Journal, first, n int) {
	t.Helper()
	for i := range n {
		c := journaltest.SmallChange(first + i)
		mustAppend(t, j, event.Observation{Resource: c.Resource, Scope: "pods", Changes: []*event.Change{c}, Position: "1"})
	}
	settleAll(t, j)
}

func TestAReplayEndsOnceItsEndIsDelivered(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	watchPods(t, j)
	appendPods(t, j, 1, 20)
	s := openReplays(t, j)
	signal := s.mustSubmit(t, signals.Request{Sink: "a", Offset: 6})
	if signal.State != signals.Active || signal.Result != "changes 6 to 20 follow, between live changes" {
		t.Fatalf("it is %+v", signal)
	}
	if again := s.mustSubmit(t, signals.Request{ID: signal.ID, Sink: "a", Offset: 6}); again.ID != signal.ID || again.State != signals.Active {
		t.Errorf("asked again it is %+v", again)
	}
	if other := s.mustSubmit(t, signals.Request{Sink: "a", Offset: 1}); other.State != signals.Refused || !strings.Contains(other.Result, signal.ID) {
		t.Errorf("a second one is %+v", other)
	}
	for _, held := range []uint64{20 + 15, 20 + 15 + 2} { // the ends follow what they are about
		if got := s.mustAdvance(t, signal.ID); got.State != signals.Active || j.Newest() != held {
			t.Errorf("before its delivery it is %+v, and there are %d changes", got, j.Newest())
		}
		stop()
		j, stop = runJournal(t, dir)
		s = openReplays(t, j)
		settleAll(t, j)
	}
	defer stop()
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Done || got.Count != 15 || got.Result != "15 changes of 1 resources" {
		t.Errorf("in the end it is %+v", got)
	}
	if left := j.Replays(); len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
}

func TestAReplayThatTheJournalLostIsAborted(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	watchPods(t, j)
	appendPods(t, j, 1, 20)
	s := openReplays(t, j)
	signal := s.mustSubmit(t, signals.Request{Sink: "a", Offset: 1})
	if err := j.RemoveReplay(t.Context(), signal.ID); err != nil {
		t.Fatal(err)
	}
	s.mustAdvance(t, signal.ID)
	settleAll(t, j)
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Aborted || got.Result != lostReplay+"; how much was emitted again is not known" {
		t.Errorf("it is %+v", got)
	}
	for after, ends := uint64(20), 0; after < j.Newest() || ends != 2; {
		records, err := j.Read(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if after = r.Offset; r.Change.Type != event.ReplayEnd || r.Change.Replay.State != "aborted" || r.Change.OnlySink != "a" {
				t.Errorf("the stream has %+v", r.Change)
			}
			ends++
		}
	}
}

// TestAReplayThatWasDeliveredIsDoneAfterAFailover has the next exporter find the signal of a replay that the sink has got,
// and not its journal: the end that the stream may have holds.
func TestAReplayThatWasDeliveredIsDoneAfterAFailover(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	watchPods(t, j)
	appendPods(t, j, 1, 20)
	s := openReplays(t, j)
	signal := s.mustSubmit(t, signals.Request{Sink: "a", Offset: 1})
	s.mustAdvance(t, signal.ID)
	settleAll(t, j)
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Active || j.Newest() != 20+20+2 {
		t.Fatalf("its end was delivered: %+v, %d changes", got, j.Newest())
	}
	book, err := j.Signals()
	if err != nil {
		t.Fatal(err)
	}
	next, stopNext := runJournal(t, t.TempDir())
	defer stopNext()
	watchPods(t, next)
	if err := next.StoreSignals(t.Context(), book); err != nil {
		t.Fatal(err)
	}
	s = openReplays(t, next)
	s.mustAdvance(t, signal.ID)
	settleAll(t, next)
	if got := s.mustAdvance(t, signal.ID); got.State != signals.Done || got.Count != 20 || got.Result != "20 changes of 1 resources" {
		t.Errorf("it is %+v", got)
	}
}

func TestACanceledReplayHasOneEnd(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	w := watchPods(t, j)
	appendPods(t, j, 1, 20)
	replays := openReplays(t, j)
	s := newRequestedSnapshots(replays.signalControl, w, replays.sinks, replays)
	signal := replays.mustSubmit(t, signals.Request{Sink: "a", Offset: 1})
	if _, err := replays.advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	canceled, err := s.cancel(t.Context(), signals.Request{Kind: signals.Cancel, Target: signal.ID})
	if err != nil || canceled.State != signals.Done {
		t.Fatalf("the cancel is %+v, %v", canceled, err)
	}
	if again, err := s.cancel(t.Context(), signals.Request{Kind: signals.Cancel, Target: signal.ID}); err != nil || again.State != signals.Nothing {
		t.Errorf("canceled twice it is %+v, %v", again, err)
	}
	if got := replays.mustAdvance(t, signal.ID); got.State != signals.Active { // an exporter that takes over now ends it
		t.Errorf("before the delivery of its end it is %+v", got)
	}
	settleAll(t, j)
	got := replays.mustAdvance(t, signal.ID)
	if got.State != signals.Aborted || got.Result != "canceled by signal "+canceled.ID+"; 20 changes of 1 resources were emitted again" {
		t.Errorf("it is %+v", got)
	}
	if left := j.Replays(); len(left) > 0 || j.Newest() != 20+20+2 {
		t.Errorf("left are %+v, and %d changes", left, j.Newest())
	}
	if again, err := s.cancel(t.Context(), signals.Request{Kind: signals.Cancel, Target: signal.ID}); err != nil || again.State != signals.Nothing {
		t.Errorf("canceled again it is %+v, %v", again, err)
	}
}

func TestAReplayIsRefusedWithItsRemedy(t *testing.T) {
	j, stop := runJournal(t, t.TempDir())
	defer stop()
	s := openReplays(t, j)
	observed := func(n int) time.Time { return journaltest.SmallChange(n).ObservedAt }
	check := func(r signals.Request, state signals.State, parts ...string) {
		t.Helper()
		got := s.mustSubmit(t, r)
		for _, part := range parts {
			if got.State != state || !strings.Contains(got.Result, part) {
				t.Errorf("%+v gives %s %q, without %q", r, got.State, got.Result, part)
			}
		}
	}
	check(signals.Request{Sink: "a", From: observed(1)}, signals.Refused, "keeps no change", "exporter signal snapshot --all")
	appendPods(t, j, 1, 20)
	check(signals.Request{Sink: "c", Offset: 1}, signals.Refused, "there are: a, b, rows, kv")
	check(signals.Request{Sink: "rows", Offset: 1}, signals.Refused, "rows", "exporter signal snapshot --all")
	check(signals.Request{Sink: "kv", Offset: 1}, signals.Refused, "rows", "exporter signal snapshot --all")
	check(signals.Request{Sink: "a", Offset: 22}, signals.Refused, "the newest change has the offset 20")
	check(signals.Request{Sink: "a", Offset: 21}, signals.Nothing, "nothing from there on")
	check(signals.Request{Sink: "b", From: observed(-5)}, signals.Active, "up to offset 20") // nothing was ever trimmed
	seedJournal(t, j)
	appendPods(t, j, 30, 5)
	check(signals.Request{Sink: "a", Offset: 5}, signals.Refused, "changes from offset 2", "exporter signal snapshot --all")
	check(signals.Request{Sink: "a", From: observed(29)}, signals.Refused, "observed at "+observed(30).Format(time.RFC3339))
	check(signals.Request{Sink: "a", From: observed(32)}, signals.Active, "follow, up to offset 25")
}

// seedJournal drops what a journal holds, as a take-over does.
func seedJournal(t *testing.T, j *journal.Journal) {
	t.Helper()
	seed := journal.Seed{ID: "x", Known: func(func(string, event.Known) error) error { return nil }}
	if err := j.Seed(t.Context(), seed); err != nil {
		t.Fatal(err)
	}
}

// TestSignalsContinueForARenamedSink pauses a sink and asks for a replay of it, and renames it: both continue under its new
// name, also after a restart.
func TestSignalsContinueForARenamedSink(t *testing.T) {
	dir := t.TempDir()
	j, stop := runJournal(t, dir)
	watchPods(t, j)
	appendPods(t, j, 1, 20)
	declare := func(sinks ...string) {
		t.Helper()
		to := map[string]string{"a": "here", "after": "here", "b": "there"}
		if err := j.Declare(t.Context(), journal.Declaration{Sinks: sinks, Destinations: to}); err != nil {
			t.Fatal(err)
		}
	}
	declare("a", "b")
	s := openReplays(t, j)
	replay := s.mustSubmit(t, signals.Request{Sink: "a", Offset: 1})
	pause := submitSignal(t, s.signalControl, signals.Request{Kind: signals.Pause, Sink: "a"})
	declare("after", "b")
	sinks := []config.Sink{{Name: "after"}, {Name: "b"}}
	for range 2 {
		if err := s.followRenames(t.Context(), sinks); err != nil {
			t.Fatal(err)
		}
		if !s.pauseSwitch(signals.Subject{Sink: "after"}).PausedSince().Equal(pause.Since) || !s.pauseSwitch(signals.Subject{Sink: "a"}).PausedSince().IsZero() {
			t.Error("the pause is not that of the renamed sink")
		}
		for _, signal := range s.registry.List() {
			if signal.Sink != "after" || signal.State != signals.Active {
				t.Errorf("after the edit a signal is %+v", signal)
			}
		}
		if err := s.registry.SaveUnsaved(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		if j, stop = runJournal(t, dir, "after", "b"); !t.Failed() {
			s = newRequestedReplays(openControl(t, j), sinks)
		}
	}
	defer stop()
	for range 2 { // and its ends
		s.mustAdvance(t, replay.ID)
		settleAll(t, j, "after", "b")
	}
	if got := s.mustAdvance(t, replay.ID); got.State != signals.Done || got.Count != 20 {
		t.Errorf("in the end the replay is %+v", got)
	}
}
