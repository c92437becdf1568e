package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// equalityRounds is how often each fault comes, with and without an edit; KUBECDC_E2E_EQUALITIES sets it for long proofs.
const equalityRounds = 1

// twins are two deployments that deliver the changes of one namespace: replicas that take over from a state, and one
// exporter that restarts on its journal. The same faults happen to both.
type twins struct {
	*failoverRun
	single *fixture
	kinds  []workload.Kind // those that are selected come first
	chosen int             // how many are
	edits  int
}

func newTwins(t *testing.T, kinds []workload.Kind, stateIn string) *twins {
	t.Helper()
	var settings exporter.Settings
	p := newReplicas(t, 3, kinds, stateIn, func(s *exporter.Settings) { settings = *s })
	settings.Dir, settings.State, settings.Election = t.TempDir(), nil, nil
	settings.TopicPrefix, settings.Stream = p.name+"-single", p.name+"-single"
	e, err := exporter.New(p.program, settings)
	p.must(err)
	single := *p.fixture
	single.exporter = e
	single.openReaders(settings)
	t.Cleanup(func() {
		if err := e.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of the single one:\n%s", e.LogTail())
		}
	})
	run := &failoverRun{replicas: p, frozen: map[*exporter.Exporter]freeze{}, times: map[string][]time.Duration{}}
	w := &twins{failoverRun: run, single: &single, kinds: kinds}
	w.edit()
	w.judgeSelected()
	return w
}

// judgeSelected makes both deployments wait for the resources that are selected.
func (w *twins) judgeSelected() {
	w.resources = resources(w.kinds[:w.chosen])
	w.single.resources = w.resources
}

// edit edits the configurations of all exporters: they select one more kind, of which there are no objects yet, so that both
// deployments read the same of it at any time. When all are selected, another setting changes.
func (w *twins) edit() {
	w.t.Helper()
	w.edits++
	w.chosen = min(w.chosen+1, len(w.kinds))
	for _, e := range slices.Concat(w.all, []*exporter.Exporter{w.single.exporter}) {
		w.must(e.Configure(func(s *exporter.Settings) {
			s.Select, s.DrainTimeout = nil, fmt.Sprintf("%ds", 20+w.edits)
			for _, r := range resources(w.kinds[:w.chosen]) {
				s.Select = append(s.Select, selection(r))
			}
		}))
	}
}

// awaitSelected waits until both deployments have read the newest kind in all buses, and the state has that.
func (w *twins) awaitSelected() {
	w.t.Helper()
	newest := w.kinds[w.chosen-1].Resource.Resource
	for _, s := range []*fixture{w.fixture, w.single} {
		for _, b := range s.buses {
			s.await(b, func(records []bus.Record) string {
				if slices.ContainsFunc(records, func(r bus.Record) bool { return r.Type == "snapshot.end" && r.Resource == newest }) {
					return ""
				}
				return "the snapshot of " + newest
			})
		}
	}
	w.judgeSelected()
}

// fault is what happens to both deployments at the same time.
type fault struct {
	name string
	// begin and end are those of the single exporter; the active one of the replicas is taken away in between.
	begin, end func(*exporter.Exporter) error
	takeAway   func()
}

func (w *twins) faults() []fault {
	restart := func(e *exporter.Exporter) error { return e.Start(w.t.Context()) }
	return []fault{
		{"kill", (*exporter.Exporter).Kill, restart, w.killActive},
		{"stop and continue", (*exporter.Exporter).Pause, (*exporter.Exporter).Resume, func() {
			w.freezeActive(4 * time.Second)
			w.resumeFrozen(1)
		}},
		{"term", (*exporter.Exporter).Stop, restart, w.stopActive},
	}
}

// meet lets both deployments meet a fault while objects are written, with or without an edit in the middle of it.
func (w *twins) meet(f fault, edits bool) {
	w.t.Helper()
	load := w.run(workload.Plan{Objects: 1 << 30, Updates: 3, Rate: pipelineRate / 2}, w.kinds[:w.chosen])
	load.AwaitOperations(pipelineRate / 4)
	w.must(f.begin(w.single.exporter))
	if edits {
		w.edit()
	}
	f.takeAway()
	w.must(f.end(w.single.exporter))
	load.Stop()
	if edits {
		w.awaitSelected()
	}
	w.single.awaitAll()
	w.awaitSettled()
}

// streamOf returns what a bus holds of each object, in order, without control records.
func streamOf(b *received) map[bus.Object][]string {
	all := map[bus.Object][]string{}
	for _, r := range b.records {
		switch r.Type {
		case "gap", "snapshot.begin", "snapshot.end":
		default:
			text := fmt.Sprintf("%s %s %s coalesced=%v unknown=%v left=%v", // the ID of a snapshot is in the IDs of its records
				r.Type, r.UID, r.ResourceVersion, r.Coalesced, r.FinalStateUnknown, r.Left)
			all[r.Object] = append(all[r.Object], text)
		}
	}
	return all
}

// TestFailoversEqualRestarts takes the active exporter of several away, and a single one beside it, by the same faults
// while objects are written, each with an edit of the configurations in the middle and without. What takes over from the
// state, and what restarts on its journal, deliver the same changes of each object in the same order, each of them once.
func TestFailoversEqualRestarts(t *testing.T) {
	require.Long(t)
	servers(t)
	for _, stateIn := range []string{"kafka", "nats"} {
		t.Run("state in "+stateIn, func(t *testing.T) {
			rounds := sizeOf(t, "KUBECDC_E2E_EQUALITIES", equalityRounds)
			w := newTwins(t, workload.AllKinds(), stateIn)
			w.start()
			w.must(w.single.exporter.Start(t.Context()))
			for range rounds {
				turns := slices.Concat(w.faults(), w.faults())
				for _, i := range w.random.Perm(len(turns)) {
					edits := i < len(turns)/2
					t.Logf("%s, with an edit: %v", turns[i].name, edits)
					w.meet(turns[i], edits)
				}
			}
			w.must(w.single.exporter.Stop())
			w.judge(oracle.Rules{})
			w.single.judgeEach(oracle.Rules{})
			for i, b := range w.fixture.buses {
				failovers, restarts := streamOf(b), streamOf(w.single.buses[i])
				for o, want := range restarts {
					if got := failovers[o]; !slices.Equal(got, want) {
						t.Errorf("%s, %v: failovers deliver\n%q\nand restarts\n%q", b.Name(), o, got, want)
					}
				}
				if len(failovers) != len(restarts) {
					t.Errorf("%s: failovers deliver %d objects, and restarts %d", b.Name(), len(failovers), len(restarts))
				}
			}
		})
	}
}
