package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/bus"
	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
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
	s.startWithoutMemory(func() { s.must(os.RemoveAll(dir)) })
	s.must(s.load(20, kinds).Wait())
	s.awaitAll()
}

// startWithoutMemory starts the exporter after its memory was taken away: the streams start again, with gaps.
func (s *fixture) startWithoutMemory(lose func()) {
	s.t.Helper()
	before := [2]int{len(s.buses[0].records), len(s.buses[1].records)}
	lose()
	revision, err := s.etcd.Revision(s.t.Context())
	s.must(err)
	s.must(s.exporter.Start(s.t.Context()))
	s.beginning = revision
	for i, b := range s.buses {
		s.await(b, func(records []bus.Record) string { return s.missingAfterRestart(records[before[i]:]) })
	}
}

// TestWhatStandsBeforeADamagedByteIsDelivered pauses a sink, and changes a byte in the journal's log. The sink stays paused,
// and then gets what stands before that in order, and the gaps and the snapshots; the other sink gets these alone.
func TestWhatStandsBeforeADamagedByteIsDelivered(t *testing.T) {
	require.Long(t)
	kinds := []workload.Kind{workload.ConfigMaps, workload.Widgets}
	var dir string
	s := newFixture(t, kinds, func(settings *exporter.Settings) { dir = settings.JournalDir() })
	s.must(s.exporter.Start(t.Context()))
	s.must(s.load(5, kinds).Wait())
	s.awaitAll()
	s.ask("signal", "pause", "--sink", "kafka", "--config", s.exporter.Config())
	s.must(s.load(40, kinds).Wait())
	s.awaitHistory(s.buses[1])
	s.must(s.exporter.Stop())
	s.receiveAll()
	before := [2]int{len(s.buses[0].records), len(s.buses[1].records)}
	behind := before[1] - before[0]
	damageLog(t, dir)

	s.must(s.exporter.Start(t.Context()))
	s.await(s.buses[1], func(records []bus.Record) string { return s.missingAfterRestart(records[before[1]:]) })
	s.awaitMetric(`kubecdc_sink_paused{sink="kafka"}`, "1") // still
	s.ask("signal", "resume", "--sink", "kafka", "--config", s.exporter.Config())
	isChange := func(r bus.Record) bool { return slices.Contains([]string{"added", "updated", "deleted"}, r.Type) }
	s.await(s.buses[0], func(records []bus.Record) string {
		return s.missingAfterRestart(slices.DeleteFunc(slices.Clone(records[before[0]:]), isChange))
	})
	carried, marked := 0, map[string]bool{} // places with a gap or a snapshot
	for _, r := range s.buses[0].records[before[0]:] {
		if !isChange(r) {
			marked[r.Place] = true
		} else if carried++; marked[r.Place] {
			t.Errorf("%s: a change behind the gap: %s", r.Place, r.ID)
		}
	}
	if t.Logf("%d of %d undelivered changes stood before the damage", carried, behind); carried == 0 || carried >= behind {
		t.Errorf("%d of %d undelivered changes are delivered", carried, behind)
	}
}

// damageLog changes a byte in the last part of the largest log of the journal.
func damageLog(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "store", "*.log"))
	var largest []byte
	var path string
	for _, log := range logs {
		if b, failed := os.ReadFile(log); failed == nil && len(b) > len(largest) {
			path, largest = log, b
		}
	}
	if err != nil || path == "" {
		t.Fatalf("no log in %s: %v", dir, err)
	}
	end := len(bytes.TrimRight(largest, "\x00")) // the rest is allocated only
	largest[end/8*7] ^= 1
	if err := os.WriteFile(path, largest, 0o600); err != nil {
		t.Fatal(err)
	}
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
