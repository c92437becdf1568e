package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// closeTimeout bounds how long a stop waits for connections to close.
const closeTimeout = 5 * time.Second

// app is the process: what stays the same under every configuration, and the composition that works now.
type app struct {
	version string
	log     *slog.Logger
	level   *slog.LevelVar // of log
	secrets mask
	failure *failure // of what is no part of a composition
	admin   *admin.Server
	reloads reloads
	terms   terms

	changeMu sync.Mutex // held while a composition starts, begins to stop, or hands its parts over to another one
	current  atomic.Pointer[composition]

	adminTask, configTask *task
}

func newApp(version string, secrets mask, log *slog.Logger, level *slog.LevelVar) *app {
	return &app{
		version: version, log: log, level: level, secrets: secrets, failure: newFailure(),
		reloads: reloads{condition: condition.New(log, configCurrent)}, terms: terms{handovers: make(chan handover)},
	}
}

// run makes, runs and stops everything. It returns nil after an orderly stop.
func (a *app) run(ctx context.Context, cfg *config.Config) error {
	if err := a.openProcess(cfg); err != nil {
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	if err := a.startProcessTasks(); err != nil {
		a.stopProcessTasks()
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	a.log.Info("started", "version", a.version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir, "admin", a.adminAddress(),
		"configuration", cfg.Hash)
	failed := a.runTerms(ctx)
	a.stopProcessTasks()
	if err := errors.Join(failed, a.closeProcess()); err != nil {
		return withExitCode(failed, err)
	}
	a.log.Info("stopped")
	return nil
}

// withExitCode says what a failure is an instance of: the source finds out only after its start that it cannot begin.
func withExitCode(cause, err error) error {
	var start *source.StartError
	var forbidden *source.ForbiddenError
	if errors.As(cause, &start) || errors.As(cause, &forbidden) && forbidden.AtStart {
		return exit.With(exit.Environment, err)
	}
	return exit.With(exit.Runtime, err)
}

// openProcess makes everything and starts nothing. What it cannot make is the environment's fault.
func (a *app) openProcess(cfg *config.Config) error {
	a.admin = admin.New(admin.Options{Listen: cfg.Admin.Listen, Version: a.version, Snapshot: a.buildSnapshot, DeadLetters: a.newestDeadLetters, Logger: a.log})
	c, err := a.prepareComposition(cfg, nil)
	if err != nil {
		return err
	}
	if err := a.terms.openElection(cfg, c, a.log); err != nil {
		return errors.Join(err, c.closeParts())
	}
	a.current.Store(c)
	return c.openParts()
}

// startProcessTasks runs the tasks that outlive every composition.
func (a *app) startProcessTasks() error {
	if listen := a.current.Load().cfg.Admin.Listen; listen != "" {
		if err := a.admin.Listen(); err != nil {
			return fmt.Errorf("admin.listen: %w", err)
		}
		a.adminTask = startTask("admin", a.admin.Run, a.failure.reportError)
	}
	a.terms.startElection(a.failure.reportError)
	a.configTask = startTask("configuration", a.watchConfigFile, a.failure.reportError)
	return nil
}

func (a *app) adminAddress() string {
	if a.adminTask == nil {
		return "off"
	}
	return a.admin.Addr().String()
}

// stopProcessTasks stops the tasks in the opposite order of start, the admin server last, so that the stop can be watched. The Lease is
// given up when nothing is published any more.
func (a *app) stopProcessTasks() {
	a.configTask.stop()
	a.terms.stopElection()
	a.adminTask.stop()
}

// closeProcess releases what open has taken.
func (a *app) closeProcess() error {
	a.reloads.condition.Close()
	c := a.current.Load()
	if c == nil {
		return nil
	}
	return c.closeParts()
}
