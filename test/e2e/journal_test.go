package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestALostJournalIsMarkedByGap takes the journal away from a killed exporter: what the buses hold shows that there
// was a past, which no memory holds.
func TestALostJournalIsMarkedByGap(t *testing.T) {
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	var dir string
	s := newFixture(t, kinds, func(settings *exporter.Settings) { dir = settings.JournalDir() })
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
	s.must(s.exporter.Kill())
	s.receiveAll()
	for _, b := range s.buses {
		if i := slices.IndexFunc(b.records, func(r bus.Record) bool { return r.Type == "gap" }); i >= 0 {
			t.Errorf("%s: a gap at the first start: %s", b.Name(), b.records[i].Payload)
		}
	}
	before := [2]int{len(s.buses[0].records), len(s.buses[1].records)}
	s.must(os.RemoveAll(dir))
	revision, err := s.etcd.Revision(t.Context())
	s.must(err)
	s.must(s.exporter.Start(t.Context()))
	s.beginning = revision
	for i, b := range s.buses {
		s.await(b, func(records []bus.Record) string { return s.missingAfterRestart(records[before[i]:]) })
	}
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
}

// corruptJournal writes over every file of the journal that describes its content.
func corruptJournal(t *testing.T, dir string) {
	t.Helper()
	spoiled := 0
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(entry.Name(), "MANIFEST") {
			return err
		}
		spoiled++
		return os.WriteFile(path, []byte("not what was written here"), 0o600)
	})
	if err != nil || spoiled == 0 {
		t.Fatalf("%d files of %s were spoiled: %v", spoiled, dir, err)
	}
}

// missingAfterRestart returns what is missing of a stream that starts again: for each resource a gap without a beginning,
// and a snapshot of every object that exists, whatever was emitted of it before.
func (s *fixture) missingAfterRestart(after []bus.Record) string {
	s.t.Helper()
	gaps, ends := make(map[bus.Object]bool), make(map[bus.Object]bool)
	snapshots := make(map[bus.Object]int64)
	for _, r := range after {
		switch {
		case r.Type == "gap" && r.Gap != nil && r.Gap.From == "" && r.Gap.Reason != "":
			gaps[r.Object] = true
		case r.Type == "snapshot":
			snapshots[r.Object] = r.Revision
		case r.Type == "snapshot.begin":
		case r.Type == "snapshot.end":
			ends[r.Object] = true
		default:
			s.t.Fatalf("neither a gap without a beginning nor part of a snapshot: %s", r.Payload)
		}
	}
	if len(gaps) < len(s.resources) || len(ends) < len(s.resources) {
		return fmt.Sprintf("gap records and ends of snapshots of %d resources, there are %v and %v", len(s.resources), gaps, ends)
	}
	for _, r := range s.history().Existing {
		if snapshots[r.Object] != r.Revision {
			return fmt.Sprintf("the snapshot of %v at %d", r.Object, r.Revision)
		}
	}
	return ""
}
