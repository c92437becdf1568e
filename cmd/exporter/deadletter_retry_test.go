package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
)

// retryConfig makes a configuration in which the sink "bus" is now a file, and returns its path and the file's.
func retryConfig(t *testing.T, dir string) (config, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "out.jsonl")
	return write(t, "config.yaml", fmt.Sprintf(`
resources: [{select: ["pods"]}]
sinks: [{name: bus, stdout: {path: %q}}]
journal: {dir: %q}
`, file, dir)), file
}

// observe adds what was observed of an object to the journal of a stopped exporter.
func observe(t *testing.T, dir string, c *event.Change, k event.Known) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir, Sinks: []string{"bus", "main"}, Logger: slog.New(slog.DiscardHandler)})
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
	config, file := retryConfig(t, dir)

	code, stdout, stderr := try(t, "deadletter", "retry", "--all", "--sink", "bus", "--config", config)
	if code != exit.Runtime || !strings.HasPrefix(stdout, "2 delivered\n3 kept: a newer change of the object") || !strings.Contains(stderr, "1 of 2 are still dead letters") {
		t.Fatalf("exit %d, %q, %q", code, stdout, stderr)
	}
	if list, _ := read(t, dir, "deadletter", "list", "--sink", "bus", "--dir", dir, "-o", "json"); strings.Count(list, "\n") != 1 || !strings.Contains(list, `"offset":3`) {
		t.Errorf("left are\n%s", list)
	}
	sent, err := os.ReadFile(file)
	if err != nil || string(sent) != string(format.AppendJSON(nil, change(2)))+"\n" {
		t.Errorf("sent %s, %v", sent, err)
	}
	code, _, stderr = try(t, "deadletter", "retry", "2", "--sink", "bus", "--config", config)
	if code != exit.Usage || !strings.Contains(stderr, "no dead letter at offset 2") {
		t.Errorf("again: exit %d, %q", code, stderr)
	}
}
