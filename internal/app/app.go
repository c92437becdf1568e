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
	turns   turns

	changing sync.Mutex // held while a composition starts, begins to stop, or hands its parts over to another one
	now      atomic.Pointer[composition]

	serving, configuring *task
}

func newApp(version string, secrets mask, log *slog.Logger, level *slog.LevelVar) *app {
	return &app{
		version: version, log: log, level: level, secrets: secrets, failure: newFailure(),
		reloads: reloads{condition: condition.New(log, configCurrent)}, turns: turns{handovers: make(chan handover)},
	}
}

// run makes, runs and stops everything. It returns nil after an orderly stop.
func (a *app) run(ctx context.Context, cfg *config.Config) error {
	if err := a.open(cfg); err != nil {
		return exit.With(exit.Environment, errors.Join(err, a.close()))
	}
	if err := a.start(); err != nil {
		a.stop()
		return exit.With(exit.Environment, errors.Join(err, a.close()))
	}
	a.log.Info("started", "version", a.version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir, "admin", a.adminAddress(),
		"configuration", cfg.Hash)
	failed := a.takeTurns(ctx)
	a.stop()
	if err := errors.Join(failed, a.close()); err != nil {
		return failedRun(failed, err)
	}
	a.log.Info("stopped")
	return nil
}

// failedRun says what a failure is an instance of: the source finds out only after its start that it cannot begin.
func failedRun(cause, err error) error {
	var start *source.StartError
	var forbidden *source.ForbiddenError
	if errors.As(cause, &start) || errors.As(cause, &forbidden) && forbidden.AtStart {
		return exit.With(exit.Environment, err)
	}
	return exit.With(exit.Runtime, err)
}

// open makes everything and starts nothing. What it cannot make is the environment's fault.
func (a *app) open(cfg *config.Config) error {
	a.admin = admin.New(admin.Options{Listen: cfg.Admin.Listen, Version: a.version, Snapshot: a.snapshot, DeadLetters: a.newestDeadLetters, Logger: a.log})
	c, err := a.prepare(cfg, nil)
	if err != nil {
		return err
	}
	if err := a.turns.open(cfg, c, a.log); err != nil {
		return errors.Join(err, c.close())
	}
	a.now.Store(c)
	return c.open()
}

// start runs the tasks that outlive every composition.
func (a *app) start() error {
	if listen := a.now.Load().cfg.Admin.Listen; listen != "" {
		if err := a.admin.Listen(); err != nil {
			return fmt.Errorf("admin.listen: %w", err)
		}
		a.serving = start("admin", a.admin.Run, a.failure.report)
	}
	a.turns.start(a.failure.report)
	a.configuring = start("configuration", a.followConfiguration, a.failure.report)
	return nil
}

func (a *app) adminAddress() string {
	if a.serving == nil {
		return "off"
	}
	return a.admin.Addr().String()
}

// stop stops the tasks in the opposite order of start, the admin server last, so that the stop can be watched. The Lease is
// given up when nothing is published any more.
func (a *app) stop() {
	a.configuring.stop()
	a.turns.stop()
	a.serving.stop()
}

// close releases what open has taken.
func (a *app) close() error {
	a.reloads.condition.Close()
	c := a.now.Load()
	if c == nil {
		return nil
	}
	return c.close()
}
