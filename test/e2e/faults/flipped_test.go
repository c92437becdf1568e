package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubecdc/kubecdc/test/e2e/internal/workload"
)

// TestFlippedBytesInTheJournalAreFoundAndRecoveredFromInOneStart flips bytes in what a stopped exporter has stored: two dead
// letters, and changes that are not delivered yet. Both commands that read a journal find that and name the place; the next
// start sets the store aside, continues, and reports what went with it.
func TestFlippedBytesInTheJournalAreFoundAndRecoveredFromInOneStart(t *testing.T) {
	s := surround(t)
	c := s.fixture(t)
	var away atomic.Bool
	server := c.receiver(func(body string) int {
		switch {
		case away.Load():
			return http.StatusServiceUnavailable
		case len(body) > heavyBytes:
			return http.StatusUnprocessableEntity
		}
		return http.StatusNoContent
	})
	server.Start()
	c.settings.DrainTimeout = "1s"
	c.sink("webhook", mapping{"url": server.URL}, cloudEvents)
	c.start()
	c.create(workload.ConfigMaps, "accepted")
	c.create(noise(heavyBytes), "rejected-1")
	c.create(noise(heavyBytes), "rejected-2")
	c.awaitMetric(`kubecdc_sink_dead_letters_total{sink="webhook"} 2`)
	away.Store(true)
	for i := range 8 {
		c.create(noise(heavyBytes), fmt.Sprint("waits-", i))
	}
	c.awaitMetric(`kubecdc_sink_backlog_changes{sink="webhook"} 8`)
	c.must(c.exporter.Stop())
	c.must(c.exporter.Launch(t.Context())) // what a log has is written into a table
	c.awaitMetric(`kubecdc_sink_backlog_changes{sink="webhook"} 8`)
	c.must(c.exporter.Stop())
	if code, out := c.command("journal", "stat", "--dir", c.settings.JournalDir()); code != 0 {
		t.Fatalf("before anything is flipped: exit %d\n%s", code, out)
	}

	flipped := c.flip("*.sst")
	for _, command := range []string{"stat", "dump"} {
		code, out := c.command("journal", command, "--dir", c.settings.JournalDir())
		if code != 1 || !strings.Contains(out, "journal is broken") || !strings.Contains(out, c.settings.JournalDir()) {
			t.Errorf("journal %s with a flipped byte in %s: exit %d\n%.2000s", command, flipped, code, out)
		}
	}
	away.Store(false)
	c.must(c.exporter.Start(t.Context()))
	c.awaitNamed("[!]journal", "2 dead letters")
	c.awaitNamed("[!]journal", "that were not delivered to sink webhook")
	c.awaitMetric(`kubecdc_sink_backlog_changes{sink="webhook"} 0`)
	if text, err := os.ReadFile(c.exporter.Log()); err != nil || !strings.Contains(string(text), "2 dead letters of sink webhook") {
		t.Errorf("%v: the log does not name the dead letters", err)
	}
}

// flip changes one byte in the middle of the largest file of the store that matches a pattern.
func (c *fixture) flip(pattern string) (path string) {
	c.t.Helper()
	all, err := filepath.Glob(filepath.Join(c.settings.JournalDir(), "store", pattern))
	c.must(err)
	var most int64
	for _, one := range all {
		info, err := os.Stat(one)
		c.must(err)
		if info.Size() > most {
			most, path = info.Size(), one
		}
	}
	if path == "" {
		c.t.Fatalf("there is no %s", pattern)
	}
	text, err := os.ReadFile(path)
	c.must(err)
	text[len(text)/2] ^= 0xff
	c.must(os.WriteFile(path, text, 0o600))
	return path
}

// awaitMetric waits for a line of the metrics.
func (c *fixture) awaitMetric(line string) {
	c.t.Helper()
	c.await(line, func() string {
		if text := c.page("/metrics"); !strings.Contains(text, line+"\n") {
			return text
		}
		return ""
	})
}
