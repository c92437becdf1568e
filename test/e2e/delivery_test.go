package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/oracle"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/controlplane"
)

const (
	manyObjects = 1000
	kills       = 10
)

// TestKilledAtRandomMomentsLosesNothing kills the exporter while objects are written, makes sure that some are deleted
// while it is away, and starts it again. The next kill may find it starting, resuming, writing its journal or delivering.
func TestKilledAtRandomMomentsLosesNothing(t *testing.T) {
	kinds := workload.AllKinds()
	s := newRestrictedFixture(t, kinds)
	s.must(s.exporter.Start(t.Context()))
	s.await(s.buses[0], func(records []bus.Record) string { return fewer(records, "snapshot.end", len(kinds)) }) // journaled, too
	moments := s.moments(workload.Plan{Objects: manyObjects, Updates: 3}.Operations())
	load := s.load(manyObjects, kinds)
	var firstKill time.Time
	for i, moment := range moments {
		load.AwaitOperations(moment)
		s.must(s.exporter.Kill())
		if i == 0 {
			firstKill = time.Now()
		}
		before := load.Deletes()
		load.AwaitDeletes(before + 3)
		s.must(s.exporter.Launch(t.Context()))
	}
	s.must(load.Wait())
	s.awaitAll()
	s.judge(oracle.Rules{Repetitions: true})
	s.buses[0].checkNothingIsThereTwice(t) // the next process reads Kafka's content
	s.checkNothingWasListedSince(firstKill)
}

func (b *received) checkNothingIsThereTwice(t *testing.T) {
	t.Helper()
	seen := make(map[string]int)
	repeated := 0
	for _, r := range b.records {
		if seen[r.ID]++; seen[r.ID] > 1 {
			repeated++
		}
	}
	if repeated > 0 {
		t.Errorf("%s: %d of %d records are repetitions", b.Name(), repeated, len(b.records))
	}
}

// moments draws after how many of all operations the exporter is killed. The last tenth is left, so that something
// happens after the last kill.
func (s *fixture) moments(operations int) []int {
	random := newRandom(s.t)
	var moments []int
	for range kills {
		moments = append(moments, operations/20+random.IntN(operations*17/20))
	}
	slices.Sort(moments)
	s.t.Logf("kills after %v of %d writes", moments, operations)
	return moments
}

// checkNothingWasListedSince asks the API server's audit log whether the exporter has read all objects of a resource again,
// by a LIST.
func (s *fixture) checkNothingWasListedSince(since time.Time) {
	s.t.Helper()
	entries, err := s.controlPlane.AuditEntries()
	s.must(err)
	watches := 0
	for _, e := range entries {
		if !strings.HasPrefix(e.UserAgent, "kubecdc/") || e.Time.Before(since) || !s.selects(e) {
			continue
		}
		if e.Verb == "watch" && e.Stage != "ResponseStarted" { // the end of one that began before
			continue
		}
		if e.Verb == "list" {
			s.t.Errorf("the exporter read everything again at %v: %s %s", e.Time, e.Verb, e.RequestURI)
		}
		if e.Verb == "watch" {
			watches++
		}
	}
	if watches == 0 {
		s.t.Error("the audit log shows no watch of the exporter, so it shows nothing at all")
	}
	s.t.Logf("%d watches and no list since the first kill", watches)
}

func (s *fixture) selects(e controlplane.AuditEntry) bool {
	return slices.ContainsFunc(s.resources, func(r oracle.Resource) bool {
		return r.Group == e.Group && r.Resource == e.Resource
	})
}
