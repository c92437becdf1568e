package app

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kubecdc/kubecdc/internal/election"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TestDeposedDuringStopStopsInOrder stops a process at the moment at which another one has taken over.
func TestDeposedDuringStopStopsInOrder(t *testing.T) {
	for name, competes := range map[string]bool{"with an election": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			a := deposedApp(t, competes)
			ctx, stop := context.WithCancel(t.Context())
			stop()
			err := a.terms.runTerms(ctx, a.configTask.stop)
			a.stopProcessTasks()
			if err := a.closeProcess(); err != nil {
				t.Error(err)
			}
			if (err == nil) != competes {
				t.Errorf("stopped with %v", err)
			}
		})
	}
}

// TestReloadBeforeFirstTermStartsIt reloads a composition that is open and not running yet.
func TestReloadBeforeFirstTermStartsIt(t *testing.T) {
	a := openApp(t)
	c := a.terms.current.Load()
	reloaded := make(chan error, 1)
	go func() { reloaded <- a.applyConfig(t.Context(), c.cfg, func() {}) }()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.terms.runTerms(ctx, a.configTask.stop) }()
	if err := <-reloaded; err != nil {
		t.Error(err)
	}
	if a.terms.current.Load() == c {
		t.Error("the first configuration is still active")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	a.stopProcessTasks()
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
}

// TestAStopDuringAReloadIsOrderly stops a process when one composition has to make room for the next.
func TestAStopDuringAReloadIsOrderly(t *testing.T) {
	a := openApp(t)
	next, err := newComposition(a.shared, a.activeConfig(), "reload")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.terms.runTerms(ctx, a.configTask.stop) }()
	reload := handover{next, make(chan error, 1)}
	a.terms.handovers <- reload
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := <-reload.done; err != nil {
		t.Errorf("the configuration is refused: %v", err)
	}
	a.stopProcessTasks()
	if err := a.closeProcess(); err != nil {
		t.Error(err)
	}
}

// deposedApp returns a process with a sink that has just been fenced by another process.
func deposedApp(t *testing.T, competes bool) *app {
	t.Helper()
	a := openApp(t)
	if competes {
		a.membership.election = &election.Election{}
	}
	a.terms.current.Load().failed.reportError(fmt.Errorf("sink file: %w", &sinks.DeposedError{Reason: "another one has claimed it"}))
	return a
}

// openApp returns a process that is open and not started, and needs no port.
func openApp(t *testing.T) *app {
	t.Helper()
	return openUnstartedWith(t, t.TempDir(), fmt.Sprintf("admin: {listen: \"\"}\nsinks: [{name: file, stdout: {path: %q}}]\n",
		filepath.Join(t.TempDir(), "lines")))
}
