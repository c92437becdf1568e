package e2e

import (
	"bytes"
	"maps"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kubecdc/kubecdc/test/e2e/internal/exporter"
	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
	"github.com/kubecdc/kubecdc/test/parts/require"
)

// momentsOfIndex is at how many random revisions the states of five types are compared, for each bus; KUBECDC_E2E_MOMENTS
// sets it.
const momentsOfIndex = 6

// TestAnIndexEqualsTheHistoryOfEtcd reads several topics with partitions, and a stream, while the exporter is killed,
// through indexes whose commands are killed too: at random revisions they have exactly what etcd had.
func TestAnIndexEqualsTheHistoryOfEtcd(t *testing.T) {
	require.Long(t)
	kinds := workload.AllKinds()
	s := newFixture(t, kinds, func(*exporter.Settings) {})
	s.must(s.exporter.Start(t.Context()))
	dirs := map[string]string{"kafka": filepath.Join(t.TempDir(), "kafka"), "nats": filepath.Join(t.TempDir(), "nats")}
	flags := func(sink string) []string { return []string{"--config", s.exporter.Config(), "--sink", sink} }
	for sink, dir := range dirs {
		s.awaitInHistory(dir, flags(sink)...)
	}
	first, err := s.etcd.Revision(t.Context())
	s.must(err)

	rnd := newRandom(t)
	load := s.run(workload.Plan{Objects: 60, Updates: 3, Rate: 60}, kinds)
	for i := range 3 {
		var followers []*exec.Cmd
		var said bytes.Buffer
		for sink, dir := range dirs {
			args := append([]string{"history", "log", "-f", "--dir", dir}, flags(sink)...)
			c := exec.CommandContext(t.Context(), s.program, args...)
			if sink == "kafka" {
				c.Stdout = &said
			}
			s.must(c.Start())
			followers = append(followers, c)
		}
		load.AwaitOperations(60*(i+1) + rnd.IntN(60))
		for _, c := range followers {
			s.must(c.Process.Kill())
			_ = c.Wait() // it was killed
		}
		s.must(s.exporter.Kill())
		s.must(s.exporter.Start(t.Context()))
		t.Logf("a log that was followed has %d bytes", said.Len())
	}
	s.must(load.Wait())
	last, err := s.etcd.Revision(t.Context())
	s.must(err)
	past := s.history()
	for sink, dir := range dirs {
		s.awaitInHistory(dir, flags(sink)...)
		for range sizeOf(t, "KUBECDC_E2E_MOMENTS", momentsOfIndex) {
			at := first + rnd.Int64N(last-first+1)
			for _, r := range s.resources {
				began := time.Now()
				got, code := s.stateInHistory(dir, r, strconv.FormatInt(at, 10), flags(sink)...)
				if want := stateOf(past, r, at); code != 0 || !maps.Equal(got, want) {
					t.Errorf("%s: %s at %d: exit %d, %d objects, in etcd %d, after %v:\n%v\n%v", sink, selection(r), at, code, len(got), len(want), time.Since(began), got, want)
				}
			}
		}
	}
}
