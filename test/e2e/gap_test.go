package e2e

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// told is the content of a record, without name and revision.
type told struct {
	kind                         string
	coalesced, finalStateUnknown bool
}

// absence is what happens to the objects of one kind while the exporter is away, by their names, and the expected records of
// it: the differences and nothing else.
var absence = map[string]struct {
	happens func(s *fixture, kind workload.Kind, name string) error
	told    []told
}{
	"untouched": {func(*fixture, workload.Kind, string) error { return nil }, nil},
	"changed": {func(s *fixture, kind workload.Kind, name string) error {
		if err := s.cluster.Change(s.t.Context(), kind, s.name, name, 1); err != nil {
			return err
		}
		return s.cluster.Change(s.t.Context(), kind, s.name, name, 2)
	}, []told{{kind: "updated", coalesced: true}}},
	"gone": {func(s *fixture, kind workload.Kind, name string) error {
		return s.cluster.Delete(s.t.Context(), kind, s.name, name)
	}, []told{{kind: "deleted", coalesced: true, finalStateUnknown: true}}},
	"replaced": {func(s *fixture, kind workload.Kind, name string) error {
		if err := s.cluster.Delete(s.t.Context(), kind, s.name, name); err != nil {
			return err
		}
		return s.cluster.Create(s.t.Context(), kind, s.name, name)
	}, []told{{kind: "deleted", coalesced: true, finalStateUnknown: true}, {kind: "added", coalesced: true}}},
	"new": {func(s *fixture, kind workload.Kind, name string) error {
		return s.cluster.Create(s.t.Context(), kind, s.name, name)
	}, []told{{kind: "added", coalesced: true}}},
	"never-seen": {func(s *fixture, kind workload.Kind, name string) error {
		if err := s.cluster.Create(s.t.Context(), kind, s.name, name); err != nil {
			return err
		}
		return s.cluster.Delete(s.t.Context(), kind, s.name, name)
	}, nil},
}

// existsBefore returns which objects are there before the absence.
func existsBefore(name string) bool { return name != "new" && name != "never-seen" }

// ofEach is how many objects meet each fate, per kind.
const ofEach = 5

func TestCompactedHistoryIsMarkedByGap(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Deployments, workload.Widgets}
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	s.checkAbsence(kinds,
		func() { s.must(s.exporter.Stop()) },
		func() { s.must(s.exporter.Start(t.Context())) },
		func() { s.must(s.exporter.Stop()) })
}

// checkAbsence lets things happen between leave and comeBack that etcd forgets, and checks the records of them. end stops
// what has come back.
func (s *fixture) checkAbsence(kinds []workload.Kind, leave, comeBack, end func()) {
	s.t.Helper()
	s.each(kinds, func(kind workload.Kind, fate, name string) error {
		if !existsBefore(fate) {
			return nil
		}
		return s.cluster.Create(s.t.Context(), kind, s.name, name)
	})
	s.awaitAll()
	leave()
	s.receiveAll()
	before := [2]int{len(s.buses[0].records), len(s.buses[1].records)}

	s.each(kinds, func(kind workload.Kind, fate, name string) error { return absence[fate].happens(s, kind, name) })
	h := s.history()
	s.must(s.etcd.Compact(s.t.Context()))
	s.must(s.controlPlane.StopAPIServer()) // its watch cache remembers what etcd has forgotten
	s.must(s.controlPlane.StartAPIServer(s.t.Context()))

	comeBack()
	for i, b := range s.buses {
		s.await(b, func(records []bus.Record) string {
			if missing := h.Missing(records); len(missing) > 0 {
				return fmt.Sprintf("%d revisions, the first ones:\n%s", len(missing), first(missing))
			}
			if got, want := len(records)-before[i], len(kinds)*(1+ofEach*5); got < want {
				return fmt.Sprintf("%d more records", want-got)
			}
			return ""
		})
	}
	end()
	s.receiveAll()
	for i, b := range s.buses {
		if wrong := h.Judge(b.records, oracle.Rules{Gaps: true}); len(wrong) > 0 {
			s.t.Errorf("%s: %d points, the first ones:\n%s", b.Name(), len(wrong), first(wrong))
		}
		s.checkGaps(b.Name(), b.records[before[i]:])
		s.checkDifferences(b.Name(), kinds, b.records[before[i]:])
	}
	if wrong := oracle.Differ("kafka", s.buses[0].records, "nats", s.buses[1].records); len(wrong) > 0 {
		s.t.Errorf("the buses differ in %d points, the first ones:\n%s", len(wrong), first(wrong))
	}
}

// each does something for every object of the test.
func (s *fixture) each(kinds []workload.Kind, do func(kind workload.Kind, fate, name string) error) {
	s.t.Helper()
	for _, kind := range kinds {
		for fate := range absence {
			for i := range ofEach {
				s.must(do(kind, fate, fmt.Sprintf("%s-%d", fate, i)))
			}
		}
	}
}

// checkGaps checks that each resource has one gap record, with a beginning, an end and a reason.
func (s *fixture) checkGaps(name string, records []bus.Record) {
	s.t.Helper()
	gaps := make(map[bus.Object]int)
	for _, r := range records {
		if r.Type != "gap" {
			continue
		}
		gaps[r.Object]++
		if r.Gap == nil || r.Gap.Reason == "" {
			s.t.Errorf("%s: a gap that says nothing: %s", name, r.Payload)
			continue
		}
		from, fromErr := strconv.ParseInt(r.Gap.From, 10, 64)
		to, toErr := strconv.ParseInt(r.Gap.To, 10, 64)
		if fromErr != nil || toErr != nil || from >= to || r.Gap.To != r.ResourceVersion {
			s.t.Errorf("%s: a gap without bounds: %s", name, r.Payload)
		}
	}
	for _, r := range s.resources {
		if n := gaps[bus.Object{Group: r.Group, Resource: r.Resource}]; n != 1 {
			s.t.Errorf("%s: %d gap records for %s, want 1", name, n, selection(r))
		}
	}
}

// checkDifferences compares the records after the absence, object by object, with the expected ones.
func (s *fixture) checkDifferences(name string, kinds []workload.Kind, records []bus.Record) {
	s.t.Helper()
	got := make(map[bus.Object][]told)
	for _, r := range records {
		if r.Type != "gap" {
			got[r.Object] = append(got[r.Object], told{kind: r.Type, coalesced: r.Coalesced, finalStateUnknown: r.FinalStateUnknown})
		}
	}
	s.each(kinds, func(kind workload.Kind, fate, object string) error {
		o := bus.Object{Group: kind.Resource.Group, Resource: kind.Resource.Resource, Namespace: s.name, Name: object}
		if g, w := fmt.Sprint(got[o]), fmt.Sprint(absence[fate].told); g != w {
			s.t.Errorf("%s: %v: told %s, want %s", name, o, g, w)
		}
		delete(got, o)
		return nil
	})
	for o, all := range got {
		if o.Namespace == s.name {
			s.t.Errorf("%s: %v: told %v of an object that was not touched", name, o, all)
		}
	}
}
