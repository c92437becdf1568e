package app

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/condition"
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
	discovery := slices.IndexFunc(s.Conditions, func(c condition.Status) bool { return c.Code == condition.DiscoveryPending })
	if len(s.Resources) != 0 || discovery < 0 || s.Conditions[discovery].Name() != "discovery" {
		t.Errorf("resources %+v, conditions %+v; want no resource and a reason", s.Resources, s.Conditions)
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

func (slowSink) Conditions() []condition.Status {
	return []condition.Status{condition.NewStatus("", condition.Problem{Code: condition.SinkThrottled})}
}

func TestThrottledSinkIsReadyWithReason(t *testing.T) {
	a := openUnstarted(t)
	r := a.terms.current.Load().sinks.runners[0]
	r.sink = slowSink{r.sink}
	s := a.buildSnapshot().Sinks[0]
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
	failing := condition.Summarize(s.Conditions)
	if len(failing) != 1 || failing[0].Severity != condition.Degraded || failing[0].Component != "sink/out" {
		t.Errorf("%+v", failing)
	}
}
