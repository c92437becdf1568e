package app

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// openUnstarted opens an app with one sink, and runs nothing of it.
func openUnstarted(t *testing.T) *app {
	t.Helper()
	kubeconfig := writeTemp(t, "kubeconfig", `{"apiVersion":"v1","kind":"Config","current-context":"c",`+
		`"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u"}]}`)
	path := writeTemp(t, "c.yaml", "cluster: {kubeconfig: "+kubeconfig+"}\nresources: [{select: [pods]}]\n"+
		"sinks: [{name: out, stdout: {}}]\njournal: {dir: "+t.TempDir()+"}\n")
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
	if len(s.Resources) != 0 || !strings.Contains(s.Discovery, "discovery: ") {
		t.Errorf("resources %+v, discovery %q; want no resource and a reason", s.Resources, s.Discovery)
	}
}

// TestMetricsHaveASeriesForEveryState compares the states of the source with those of the metrics.
func TestMetricsHaveASeriesForEveryState(t *testing.T) {
	var words []string
	for _, s := range source.States {
		words = append(words, string(s))
	}
	if !slices.Equal(words, admin.ResourceStates) {
		t.Errorf("the source has %v, the metrics %v", words, admin.ResourceStates)
	}
}

// slowSink is a sink that its destination throttles.
type slowSink struct{ sinks.Sink }

func (slowSink) SlowdownReason() string { return "a quota" }

func TestThrottledSinkIsReadyWithReason(t *testing.T) {
	a := openUnstarted(t)
	r := a.terms.current.Load().sinks.runners[0]
	r.sink = slowSink{r.sink}
	s := a.buildSnapshot().Sinks[0]
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
	if s.NotReady != "" || s.Reason != "a quota" {
		t.Errorf("not ready %q, reason %q", s.NotReady, s.Reason)
	}
}

func TestReadinessFollowsTheStateOfAResource(t *testing.T) {
	for state, notReady := range map[source.State]bool{
		source.Live: false, source.Stale: true, source.Unreachable: true,
		// These degrade alone: one resource that may not be read must not take the others out of service.
		source.Forbidden: false, source.Waiting: false, source.Gone: false,
	} {
		s := resourceStatus(source.Status{Scope: "pods", State: state, Reason: "because"})
		if (s.NotReady != "") != notReady {
			t.Errorf("%s: not ready %q", state, s.NotReady)
		}
		if leftOut := state == source.Forbidden || state == source.Waiting; (s.Degraded != "") != leftOut {
			t.Errorf("%s: degraded %q", state, s.Degraded)
		}
	}
	first := resourceStatus(source.Status{State: source.Syncing, Reason: "reading"})
	again := resourceStatus(source.Status{State: source.Syncing, Synced: true, Reason: "reading"})
	if first.NotReady == "" || again.NotReady != "" {
		t.Errorf("syncing: not ready %q the first time, %q after a gap", first.NotReady, again.NotReady)
	}
}
