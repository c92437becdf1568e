package source

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/proxy"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// TestEditsDuringListsKeepTheTableRight edits the rules of a running exporter while lists stand still in the middle, at a
// random byte, so that an edit follows before the previous one is in force. A consumer that follows the snapshots of lists
// read in part has the table of the last rules.
func TestEditsDuringListsKeepTheTableRight(t *testing.T) {
	require.Long(t)
	t.Parallel()
	env := sharedControlPlane(t)
	createFruitNamespaces(t, env)
	fruit := &fruitGroup{group: "interrupted.kubecdc.io"}
	fruit.install(t, env)
	s, gateway := newFixtureBehindGateway(t, env, nil)
	h := &history{fixture: s, fruitGroup: fruit, rnd: rand.New(rand.NewPCG(randomSeed(t), 0)), objects: map[bus.Object]bool{}}
	defer h.deleteObjects()
	h.writeRandom(5 * writesPerRun)
	var picks rulePicks
	for _, plural := range slices.Sorted(maps.Keys(fruits)) {
		picks = append(picks, drawPick(h.rnd, plural))
	}
	for round := range numberFromEnv(t, "KUBECDC_E2E_INTERRUPTED_EDITS", 8) {
		lists := holdLists(gateway, h.group, rand.New(rand.NewPCG(h.rnd.Uint64(), 0)))
		for edit := range 3 {
			h.applyRules(picks)
			if round+edit == 0 {
				h.launchExporter()
			}
			h.awaitCondition(func() string {
				if lists.areHeld() || h.isActive() {
					return ""
				}
				return "a list, or rules that need none"
			})
			h.writeRandom(h.rnd.IntN(4))
			if edit < 2 {
				picks = picks.editRandomly(h.rnd)
			}
		}
		lists.release()
		h.awaitActive()
		h.awaitAgreement()
		h.touchObjects()
		h.awaitAgreement()
		picks = picks.editRandomly(h.rnd)
	}
}

// applyRules writes rules to the file of the running exporter.
func (h *history) applyRules(picks rulePicks) {
	h.t.Helper()
	h.t.Logf("rules %v", picks)
	h.setRules(picks.toRules(h.group)...)
	h.runs = append(h.runs, exporterRun{picks: picks})
}

// heldLists are the lists of a group that stand still in the middle of the answer.
type heldLists struct {
	held    chan struct{} // receives when a list stands still
	release func()        // lets all of them go on, and later ones pass
}

// holdLists lets each list of a group stand still after a random number of bytes.
func holdLists(gateway *proxy.Gateway, group string, rnd *rand.Rand) *heldLists {
	limits := make(chan int, 1000)
	for range cap(limits) {
		limits <- rnd.IntN(4000)
	}
	released, release := context.WithCancel(context.Background())
	l := &heldLists{held: make(chan struct{}, 1)}
	heal := gateway.Fault(func(r proxy.Request) bool { return r.Group == group && !r.Watch() && !r.Discovery() },
		func(w http.ResponseWriter, r *http.Request) {
			until, end := context.WithCancel(r.Context())
			defer end()
			defer context.AfterFunc(released, end)()
			gateway.Pass(&limitedResponse{ResponseWriter: w, left: <-limits, until: until.Done(), onStop: func() {
				select {
				case l.held <- struct{}{}:
				default:
				}
			}}, r)
		})
	l.release = func() { heal(); release() }
	return l
}

// areHeld reports whether a list has come to stand still since the last call.
func (l *heldLists) areHeld() bool {
	select {
	case <-l.held:
		return true
	default:
		return false
	}
}

const plainText = "correct horse battery staple"

// withPlainText returns a kind of ConfigMaps that hold plainText.
func withPlainText() workload.Kind {
	kind := workload.ConfigMaps
	object := kind.Object
	kind.Object = func() *unstructured.Unstructured {
		o := object()
		o.Object["data"] = map[string]any{"password": plainText}
		return o
	}
	return kind
}

// TestStricterRedactionAppliesToWhatWaits gives a running exporter rules that redact what a sink that is away has not
// received yet. The sink that comes back receives everything, and nothing in plain.
func TestStricterRedactionAppliesToWhatWaits(t *testing.T) {
	t.Parallel()
	const objects = 30
	destination := newReceiver(t)
	s := newFixture(t, sharedControlPlane(t), nil)
	configure := func(more rule) {
		r := s.namespacedRule("configmaps")
		maps.Copy(r, more)
		s.requireNoError(s.exporter.Configure(func(settings *exporter.Settings) {
			settings.Resources, settings.Sinks = []rule{r}, []rule{destination.sink()}
		}))
	}
	configure(nil)
	s.launchExporter()
	for i := range objects {
		s.requireNoError(s.cluster.Create(t.Context(), withPlainText(), s.name, fmt.Sprintf("o%d", i)))
	}
	s.awaitCondition(func() string {
		if n := s.metricValue(`kubecdc_sink_backlog_changes{sink="receiver"}`); n < objects {
			return fmt.Sprintf("%d changes wait, want %d", n, objects)
		}
		return ""
	})
	configure(rule{"redactPaths": []string{"data"}})
	s.awaitCondition(func() string {
		if s.isActive() {
			return ""
		}
		return "the edit to be in force"
	})
	destination.setUp(true)
	s.awaitCondition(func() string {
		for i := range objects {
			if name := fmt.Sprintf("o%d", i); !destination.hasReceived(name) {
				return name
			}
		}
		return ""
	})
	if text := destination.received(); strings.Contains(text, plainText) {
		t.Errorf("plain text was sent after the edit that redacts it: %.2000s", text)
	}
}

// TestEditIsPendingUntilDiscoveryAnswers edits the rules while the API server does not answer what it serves. The edit is
// pending, visibly, and what it drops does not leave any more.
func TestEditIsPendingUntilDiscoveryAnswers(t *testing.T) {
	t.Parallel()
	s, gateway := newFixtureBehindGateway(t, sharedControlPlane(t), nil)
	s.setRules(s.namespacedRule("configmaps"))
	s.startExporter()
	s.createMarker(workload.ConfigMaps, s.name)
	s.readRecords()
	before := len(s.records)

	heal := gateway.Fault(proxy.Request.Discovery, func(w http.ResponseWriter, _ *http.Request) {
		proxy.Status(w, http.StatusServiceUnavailable, "ServiceUnavailable", "no discovery")
	})
	edited := s.namespacedRule("configmaps")
	edited["fields"] = rule{"drop": []string{"data"}}
	s.setRules(edited)
	s.awaitPage("/readyz", http.StatusServiceUnavailable, "[!]configuration ConfigPending: ", "discovery: ")
	s.awaitCondition(func() string {
		if s.metricValue(configPending) == 1 && !s.isActive() {
			return ""
		}
		return configPending
	})
	s.requireNoError(s.cluster.Create(t.Context(), withPlainText(), s.name, "written-meanwhile"))
	heal()
	s.awaitActive()
	s.awaitEmitted(workload.ConfigMaps, s.name, "written-meanwhile", "added")
	for _, r := range s.records[before:] {
		if strings.Contains(string(r.Payload), plainText) {
			t.Errorf("what the edit drops was emitted after it: %s", r.Payload)
		}
	}
}
