package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
)

// retryConfig makes a configuration with the sink "bus", and returns its path.
func retryConfig(t *testing.T, dir string) string {
	t.Helper()
	return write(t, "config.yaml", fmt.Sprintf(`
resources: [{select: ["pods"]}]
sinks: [{name: bus, stdout: {path: %q}}]
journal: {dir: %q}
`, filepath.Join(t.TempDir(), "out.jsonl"), dir))
}

// observe adds what was observed of an object to the journal of a stopped exporter.
func observe(t *testing.T, dir string, c *event.Change, k event.Known) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir, Declaration: journal.Declaration{Sinks: []string{"bus", "main"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	o := event.Observation{Resource: c.Resource, Scope: c.Resource.String(), Changes: []*event.Change{c}, Known: []event.Known{k}}
	err = errors.Join(j.Append(ctx, o), j.Flush(ctx))
	stop()
	if err := errors.Join(err, <-done, j.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestADeadLetterIsRetriedUnlessANewerChangeHasFollowed(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir)
	newer := change(3)
	newer.ResourceVersion = "200"
	observe(t, dir, newer, event.Known{Key: "shop/web-3", UID: newer.UID, ResourceVersion: newer.ResourceVersion})
	config := retryConfig(t, dir)

	code, stdout, stderr := try(t, "deadletters", "retry", "--all", "--sink", "bus", "--config", config)
	if want := "deadletters.retry of sink bus: done: 1 are delivered in their turn; 1 stay: a newer change"; code != exit.OK || !strings.HasPrefix(stdout, want) {
		t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
	}
	if list, _ := read(t, dir, "deadletters", "list", "--sink", "bus", "--dir", dir, "-o", "json"); strings.Count(list, "\n") != 1 || !strings.Contains(list, `"offset":3`) {
		t.Errorf("left are\n%s", list)
	}
	dump, _ := read(t, dir, "journal", "dump", "--dir", dir)
	lines := strings.Split(strings.TrimSpace(dump), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, change(2).ID()) {
		t.Errorf("the last change is %s", last)
	}
	for arg, refusal := range map[string]string{"--sink=bus": "no dead letter at offset 2", "--sink=other": `no sink "other" is configured; there are: bus`} {
		code, _, stderr = try(t, "deadletters", "retry", "2", arg, "--config", config)
		if code != exit.Usage || !strings.Contains(stderr, refusal) {
			t.Errorf("%s: exit %d, %q", arg, code, stderr)
		}
	}
}
