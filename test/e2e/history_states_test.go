package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/await"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// momentsOfHistory is at how many random revisions the states of five types are compared; KUBECDC_E2E_MOMENTS sets it.
const momentsOfHistory = 10

// unknownExit is the exit code of an answer that the history does not have.
const unknownExit = 5

// TestHistoryEqualsThatOfEtcd kills the exporter while objects are written, and has etcd forget changes that it missed:
// at random revisions the history and what is served of it have exactly what etcd had, or say that they do not know. So do
// replays of it, to clients that list, to informers and to kubectl.
func TestHistoryEqualsThatOfEtcd(t *testing.T) {
	require.Long(t)
	kinds := workload.AllKinds()
	dir := filepath.Join(t.TempDir(), "history")
	s := newFixture(t, kinds, func(settings *exporter.Settings) {
		settings.Sinks = []map[string]any{{"name": "history", "history": map[string]any{"dir": dir}}}
	})
	s.must(s.exporter.Start(t.Context()))
	s.awaitInHistory(dir)
	first, err := s.etcd.Revision(t.Context())
	s.must(err)

	load := s.run(workload.Plan{Objects: 60, Updates: 3, Rate: 30}, kinds) // slowly: times of changes are known to seconds
	for i := range 3 {
		load.AwaitOperations(80 * (i + 1))
		s.must(s.exporter.Kill())
		s.must(s.exporter.Start(t.Context()))
	}
	s.must(load.Wait())
	s.awaitInHistory(dir)
	s.must(s.exporter.Stop())
	seen, err := s.etcd.Revision(t.Context())
	s.must(err)

	s.must(s.load(5, kinds).Wait())
	past := s.history()
	s.must(s.etcd.Compact(t.Context()))
	back, err := s.etcd.Revision(t.Context())
	s.must(err)
	s.must(s.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
	s.must(s.controlPlane.StartAPIServer(t.Context()))
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(10, kinds).Wait())
	s.awaitInHistory(dir)
	s.must(s.exporter.Stop())
	last, err := s.etcd.Revision(t.Context())
	s.must(err)
	recent, err := s.etcd.History(t.Context(), s.resources, back, last)
	s.must(err)

	historyAt := func(revision int64) *oracle.History {
		if revision >= back {
			return recent
		}
		return past
	}
	rnd, known, unknown, moments := newRandom(t), 0, 0, sizeOf(t, "KUBECDC_E2E_MOMENTS", momentsOfHistory)
	for range moments {
		at := first + rnd.Int64N(last-first+1)
		v := s.serve(dir, "--at", fmt.Sprint("rv:", at))
		for _, r := range s.resources {
			got, code := s.stateInHistory(dir, r, strconv.FormatInt(at, 10))
			listed, _, reason := v.state(r)
			switch want := stateOf(historyAt(at), r, at); {
			case (reason != "") != (code == unknownExit):
				t.Errorf("%s at %d: exit %d, and it is served: %s", selection(r), at, code, reason)
			case reason != "":
				if unknown++; !strings.Contains(reason, "unknown between") {
					t.Errorf("%s at %d: the gap is not named: %s", selection(r), at, reason)
				}
			case !maps.Equal(got, want) || !maps.Equal(listed, want):
				t.Errorf("%s at %d has %d objects, %d as it is served, in etcd %d: %s; served: %s", selection(r), at, len(got), len(listed), len(want),
					mismatches(got, want), mismatches(listed, want))
			default:
				known++
			}
		}
		s.must(v.Kill())
	}
	if _, code := s.stateInHistory(dir, s.resources[0], strconv.FormatInt((seen+back)/2, 10)); code != unknownExit {
		t.Errorf("exit %d in the gap from %d to %d", code, seen, back)
	}
	if t.Logf("%d states equal etcd's, %d are unknown", known, unknown); known < moments*len(kinds)/2 {
		t.Error("too few to be meaningful")
	}
	s.replayHistory(dir, first, first+(seen-first)/2, historyAt, false)
	s.replayHistory(dir, first, last, historyAt, true)
}

// stateOf returns the revisions of the objects that existed at a revision.
func stateOf(h *oracle.History, r oracle.Resource, at int64) map[bus.Object]int64 {
	state := map[bus.Object]int64{}
	for _, one := range append(append([]oracle.Revision{}, h.Existing...), h.Revisions...) {
		switch {
		case one.Object.Group != r.Group || one.Object.Resource != r.Resource || one.Revision > at:
		case one.Op == oracle.Deleted:
			delete(state, one.Object)
		default:
			state[one.Object] = one.Revision
		}
	}
	return state
}

// stateInHistory asks the history for the objects of a type at a moment.
func (s *fixture) stateInHistory(dir string, r oracle.Resource, version string, flags ...string) (map[bus.Object]int64, int) {
	s.t.Helper()
	args := append([]string{"history", "get", selection(r), "--at", "rv:" + version, "-o", "json", "--dir", dir}, flags...)
	c := exec.CommandContext(s.t.Context(), s.program, args...)
	output, err := c.Output()
	if code := c.ProcessState.ExitCode(); err != nil {
		return nil, code
	}
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name, ResourceVersion string }
		}
	}
	s.must(json.Unmarshal(output, &list))
	state := map[bus.Object]int64{}
	for _, item := range list.Items {
		m := item.Metadata
		revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
		s.must(err)
		state[bus.Object{Group: r.Group, Resource: r.Resource, Namespace: m.Namespace, Name: m.Name}] = revision
	}
	return state, 0
}

// awaitInHistory waits until the history has what exists now, while nothing is written.
func (s *fixture) awaitInHistory(dir string, flags ...string) {
	s.t.Helper()
	existing, err := s.etcd.State(s.t.Context(), s.resources)
	s.must(err)
	want := &oracle.History{Existing: existing}
	end, err := s.etcd.Revision(s.t.Context())
	s.must(err)
	for _, r := range s.resources {
		await.Condition(s.t, "history", arriveWithin, lookEvery, func() string {
			got, code := s.stateInHistory(dir, r, strconv.FormatInt(end, 10), flags...)
			if code == 0 && maps.Equal(got, stateOf(want, r, end)) {
				return ""
			}
			return fmt.Sprintf("what exists of %s: exit %d, %d objects", selection(r), code, len(got))
		})
	}
}
