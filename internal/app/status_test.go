package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// openUnstarted opens an app with one sink, and runs nothing of it.
func openUnstarted(t *testing.T) *app {
	t.Helper()
	return openUnstartedWith(t, t.TempDir(), "sinks: [{name: out, stdout: {}}]\n")
}

// openUnstartedWith opens it on the directory of a journal, with the rest of a configuration.
func openUnstartedWith(t *testing.T, journalDir, rest string) *app {
	t.Helper()
	kubeconfig := writeTemp(t, "kubeconfig", awayKubeconfig)
	path := writeTemp(t, "c.yaml", "cluster: {kubeconfig: "+kubeconfig+"}\nresources: [{select: [pods]}]\n"+
		rest+"journal: {dir: "+journalDir+"}\n")
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	a := newApp("dev", mask{}, slog.New(slog.DiscardHandler), &slog.LevelVar{})
	if err := a.openProcess(cfg); err != nil {
		t.Fatal(errors.Join(err, a.closeProcess()))
	}
	return a
}

// TestNotReadyBeforeDiscovery checks the time between the start and the first answer of the API server, when no resource is
// known yet.
func TestNotReadyBeforeDiscovery(t *testing.T) {
	a := openUnstarted(t)
	s := a.buildSnapshot()
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
	discovery := slices.IndexFunc(s.Conditions, func(c condition.Status) bool { return c.Code == condition.DiscoveryPending })
	if len(s.Resources) != 0 || discovery < 0 || s.Conditions[discovery].Name() != "discovery" {
		t.Errorf("resources %+v, conditions %+v; want no resource and a reason", s.Resources, s.Conditions)
	}
}

// TestDeadLettersOfABrokenJournalAreReported breaks a journal with dead letters so that they can be counted, and so that
// nothing can be read (I5). A replicated state has everything else that was in the journal: no gap reports the loss.
func TestDeadLettersOfABrokenJournalAreReported(t *testing.T) {
	const lines, replicated = "sinks: [{name: out, stdout: {}}]\n", "sinks: [{name: out, kafka: {brokers: ['127.0.0.1:1'], topic: t}}]\nstate: {sink: out}\n"
	for _, c := range []struct{ file, config, want string }{
		{"BROKEN", lines, "2 dead letters of sink out"}, {"MANIFEST-*", lines, "cannot be read"}, {"BROKEN", replicated, "2 dead letters of sink out"},
	} {
		dir := t.TempDir()
		fillWithDeadLetters(t, dir)
		paths, err := filepath.Glob(filepath.Join(dir, "store", c.file))
		if err != nil {
			t.Fatal(err)
		}
		if c.file == "BROKEN" {
			paths = []string{filepath.Join(dir, "store", c.file)}
		}
		for _, path := range paths {
			if err := os.WriteFile(path, []byte("a bad block"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := openUnstartedWith(t, dir, c.config)
		s := a.buildSnapshot()
		if err := a.closeProcess(); err != nil {
			t.Error(err)
		}
		i := slices.IndexFunc(s.Conditions, func(s condition.Status) bool { return s.Code == condition.JournalRecovered })
		if i < 0 || !strings.Contains(s.Conditions[i].Cause, c.want) {
			t.Errorf("%+v: conditions %+v", c, s.Conditions)
		}
	}
}

// fillWithDeadLetters makes a journal in which a sink has two dead letters.
func fillWithDeadLetters(t *testing.T, dir string) {
	t.Helper()
	j, stop := runJournal(t, dir, "out")
	defer stop()
	var letters []event.DeadLetter
	o := event.Observation{Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Scope: "pods", Position: "2"}
	for i := range 2 {
		c := &event.Change{Type: event.Added, Resource: o.Resource, Name: "a", UID: "1", ResourceVersion: strconv.Itoa(i + 1), After: []byte("{}")}
		o.Changes, letters = append(o.Changes, c), append(letters, event.DeadLetter{Offset: uint64(i + 1), Reason: "too large", Change: c})
	}
	ctx := t.Context()
	if err := errors.Join(j.Append(ctx, o), j.Flush(ctx), j.Settle(ctx, "out", event.Cursor{Low: 2, High: 2}, letters)); err != nil {
		t.Fatal(err)
	}
}

// slowSink is a sink that its destination throttles.
type slowSink struct{ sinks.Sink }

func (slowSink) Conditions() []condition.Status {
	return []condition.Status{condition.NewStatus("", condition.Problem{Code: condition.SinkThrottled})}
}

func TestThrottledSinkIsReadyWithReason(t *testing.T) {
	a := openUnstarted(t)
	r := a.terms.current.Load().sinks.runners[0]
	r.sink = slowSink{r.sink}
	s := a.buildSnapshot()
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
	failing := condition.Summarize(s.Conditions)
	failing = slices.DeleteFunc(failing, func(c condition.Status) bool { return c.Component != "sink/out" })
	if len(failing) != 1 || failing[0].Severity != condition.Degraded || failing[0].Component != "sink/out" {
		t.Errorf("%+v", failing)
	}
}
