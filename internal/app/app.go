package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/internal/telemetry"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// closeTimeout bounds the time to close connections during a stop.
const closeTimeout = 5 * time.Second

// shared is the part of the process that every composition uses and none owns.
type shared struct {
	version    string
	log        *slog.Logger
	admin      *admin.Server
	telemetry  *telemetry.Telemetry // nil unless the environment asks for it
	membership membership
}

// app is the process: everything that stays the same under every configuration.
type app struct {
	*shared
	level    *slog.LevelVar // of log
	secrets  mask
	failure  *failure // of a task that belongs to no composition
	reloader *reloader
	terms    *terms
	tokens   *signals.TokenGuard // of signals at the admin server

	adminTask, configTask, handoverTask, signalTask *task
}

func newApp(version string, secrets mask, log *slog.Logger, level *slog.LevelVar) *app {
	a := &app{
		shared: &shared{version: version, log: log}, level: level, secrets: secrets, failure: newFailure(),
	}
	a.terms = newTerms(a.shared, a.failure)
	a.reloader = newReloader(log, a.terms.current.Load, a.applyConfig)
	a.reloader.refusal = func(began time.Time, err error) { a.telemetry.RecordSpan("reload", began, err) }
	return a
}

// run opens, runs and stops everything. It returns nil after an orderly stop.
func (a *app) run(ctx context.Context, cfg *config.Config) error {
	if err := a.openProcess(cfg); err != nil {
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	if err := a.startProcessTasks(); err != nil {
		a.stopProcessTasks()
		return exit.With(exit.Environment, errors.Join(err, a.closeProcess()))
	}
	a.log.Info("started", "version", a.version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir,
		"admin", a.adminAddress(), "configuration", cfg.Hash)
	failed := a.terms.runTerms(ctx, a.configTask.stop)
	a.stopProcessTasks()
	if err := errors.Join(failed, a.closeProcess()); err != nil {
		return withExitCode(failed, err)
	}
	a.log.Info("stopped")
	return nil
}

// withExitCode adds the exit code for a failed run to err. The source detects some problems of the environment only after
// the start; these have the code of a failed start.
func withExitCode(cause, err error) error {
	var start *source.StartError
	var forbidden *source.ForbiddenError
	if errors.As(cause, &start) || errors.As(cause, &forbidden) && forbidden.AtStart {
		return exit.With(exit.Environment, err)
	}
	return exit.With(exit.Runtime, err)
}

// openProcess makes everything and starts nothing. Its errors are problems of the environment.
func (a *app) openProcess(cfg *config.Config) error {
	a.tokens = signals.NewTokenGuard(func() string { return a.activeConfig().Admin.Signals.TokenFile }, a.log)
	a.admin = admin.New(admin.Options{
		Listen: cfg.Admin.Listen, Version: a.version, Snapshot: a.buildSnapshot, DeadLetters: a.newestDeadLetters, Logger: a.log,
		Signals: map[string]http.Handler{signals.Path: a.tokens.Wrap(signals.NewHTTPHandler(signalHandler{a.terms.current.Load}))},
	})
	a.telemetry = telemetry.Start(context.Background(), telemetry.Options{
		Version: a.version, Metrics: a.admin.Metrics(), Mask: a.secrets.maskText, Log: a.log,
	})
	c, err := newComposition(a.shared, cfg, "start")
	if err != nil {
		return err
	}
	if err := a.membership.openElection(cfg, a.version, a.log); err != nil {
		return errors.Join(err, c.closeParts())
	}
	a.terms.current.Store(c)
	a.reloader.activeHash.Store(&cfg.Hash)
	return c.openParts(context.Background(), nil, a.failure.reportError)
}

// startProcessTasks starts the tasks that outlive every composition.
func (a *app) startProcessTasks() error {
	if a.activeConfig().Admin.Listen != "" {
		if err := a.admin.Listen(); err != nil {
			return fmt.Errorf("admin.listen: %w", err)
		}
		a.adminTask = startTask("admin", a.admin.Run, a.failure.reportError)
	}
	if a.membership.election != nil {
		a.membership.startElection(a.failure.reportError)
		a.handoverTask = startTask("handover", a.terms.runHandovers, a.failure.reportError)
	}
	a.configTask = startTask("configuration", a.reloader.run, a.failure.reportError)
	a.startSignals()
	return nil
}

func (a *app) adminAddress() string {
	if a.adminTask == nil {
		return "off"
	}
	return a.admin.Addr().String()
}

// stopProcessTasks stops the tasks in the opposite order of startProcessTasks: the admin server last, so that the stop can
// be observed. The Lease is released only now, when nothing is published any more.
func (a *app) stopProcessTasks() {
	a.signalTask.stop()
	a.configTask.stop()
	a.handoverTask.stop()
	a.membership.stopElection()
	a.adminTask.stop()
}

// closeProcess releases everything that openProcess opened.
func (a *app) closeProcess() error {
	a.reloader.condition.Close()
	a.tokens.Close()
	defer a.telemetry.Stop()
	c := a.terms.current.Load()
	if c == nil {
		return nil
	}
	err := c.closeParts()
	if c.memory != nil {
		err = errors.Join(err, c.memory.close())
	}
	return err
}

func (a *app) activeConfig() *config.Config { return a.terms.current.Load().cfg }

// applyConfig stops the composition of the active configuration and starts one of cfg. accepted is called in between. An
// error before that means that cfg is refused and nothing has changed; a later failure ends the process, and the next start
// uses cfg. Only the task of the reloader calls it.
func (a *app) applyConfig(ctx context.Context, cfg *config.Config, accepted func()) error {
	before := a.activeConfig()
	if before.Journal.Dir == cfg.Journal.Dir { // a restart would not help
		if err := a.terms.current.Load().journal.CheckClusterName(cfg.Cluster.Name); errors.As(err, new(*journal.RenamedError)) {
			return refuseRenamed(cfg, err)
		}
	}
	if keys := changedFixedKeys(before, cfg); len(keys) > 0 {
		return fmt.Errorf("%s cannot change while the exporter runs: restart it", strings.Join(keys, ", "))
	}
	a.secrets.replaceSecrets(slices.Concat(before.Secrets(), cfg.Secrets(), telemetry.Secrets()))
	return a.terms.replace(ctx, cfg, func() {
		a.level.Set(cfg.Log.SlogLevel())
		logWarnings(a.log, cfg)
		accepted()
	})
}

// changedFixedKeys returns the changed keys that require a restart of the process.
func changedFixedKeys(before, now *config.Config) (keys []string) {
	for _, k := range []struct {
		key     string
		changed bool
	}{
		{"admin.listen", before.Admin.Listen != now.Admin.Listen},
		{"cluster", before.Cluster != now.Cluster},
		{"election", before.Election != now.Election},
		{"journal.dir", before.Journal.Dir != now.Journal.Dir},
		{"log.format", before.Log.Format != now.Log.Format},
		{"state", before.State != now.State},
	} {
		if k.changed {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// newestDeadLetters returns up to limit of the newest dead letters of a sink, for the status page. Secrets are masked.
func (a *app) newestDeadLetters(sink string, limit int) ([]admin.DeadLetter, error) {
	newest, err := a.terms.current.Load().journal.NewestDeadLetters(sink, limit)
	if err != nil {
		return nil, a.secrets.maskError(err)
	}
	shown := make([]admin.DeadLetter, len(newest))
	for i, d := range newest {
		object := d.Change.Name
		if d.Change.Namespace != "" {
			object = d.Change.Namespace + "/" + object
		}
		shown[i] = admin.DeadLetter{
			Offset: d.Offset, Time: d.Time, Type: string(d.Change.Type), Resource: d.Change.Resource.String(), Object: object,
			Reason: a.secrets.maskText(d.Reason),
		}
	}
	return shown, nil
}
