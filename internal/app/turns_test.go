package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/election"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestWhoIsDeposedWhileItStopsHasStoppedInOrder tells a process to stop that finds out at the same moment that another one
// has taken over.
func TestWhoIsDeposedWhileItStopsHasStoppedInOrder(t *testing.T) {
	for name, competes := range map[string]bool{"with an election": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			a := deposedApp(t, competes)
			ctx, stop := context.WithCancel(t.Context())
			stop()
			err := a.takeTurns(ctx)
			a.stop()
			if err := a.close(); err != nil {
				t.Error(err)
			}
			if (err == nil) != competes {
				t.Errorf("stopped with %v", err)
			}
		})
	}
}

// deposedApp is a process whose sink has just been told that another one works.
func deposedApp(t *testing.T, competes bool) *app {
	t.Helper()
	kubeconfig := write(t, "kubeconfig", `{"kind":"Config","clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],`+
		`"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`)
	dir := t.TempDir()
	cfg, err := config.Load(write(t, "config.yaml", fmt.Sprintf(`
cluster: {kubeconfig: %q}
resources: [{select: [pods]}]
journal: {dir: %q}
admin: {listen: ""}
sinks: [{name: file, stdout: {path: %q}}]
`, kubeconfig, filepath.Join(dir, "journal"), filepath.Join(dir, "lines"))))
	if err != nil {
		t.Fatal(err)
	}
	a := newApp("test", mask{}, slog.New(slog.DiscardHandler), &slog.LevelVar{})
	if err := a.open(cfg); err != nil {
		t.Fatal(err)
	}
	if competes {
		a.turns.election = &election.Election{}
	}
	a.now.Load().failed.report(fmt.Errorf("sink file: %w", &sinks.DeposedError{Reason: "another one has claimed it"}))
	return a
}
