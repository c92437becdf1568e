package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/exit"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// closeTimeout bounds how long a stop waits for connections to close.
const closeTimeout = 5 * time.Second

// app is the wired process.
type app struct {
	cfg     *config.Config
	version string
	secrets mask
	log     *slog.Logger

	journal   *journal.Journal
	runners   []*runner // in the order of the configuration
	shaper    *shape.Shaper
	routes    *routing
	source    *source.Source
	admin     *admin.Server
	recovered bool // the journal was broken and begun anew

	// What runs. See stop for the order.
	journaling, watching, serving *task
	failure                       *failure
}

// run makes, runs and stops the app. It returns nil after an orderly stop.
func run(ctx context.Context, cfg *config.Config, version string, secrets mask, log *slog.Logger) error {
	a := &app{cfg: cfg, version: version, secrets: secrets, log: log, failure: newFailure()}
	if err := a.open(); err != nil {
		return exit.With(exit.Environment, errors.Join(err, a.close()))
	}
	if err := a.start(); err != nil {
		a.stop(true)
		return exit.With(exit.Environment, errors.Join(err, a.close()))
	}
	log.Info("started", "version", version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir, "admin", a.adminAddress())
	select {
	case <-ctx.Done():
	case <-a.failure.c:
		log.Error("stopping because a part failed", "error", a.failure.err)
	}
	failed := a.failure.get()
	a.stop(failed != nil)
	if err := errors.Join(failed, a.close()); err != nil {
		return failedRun(failed, err)
	}
	log.Info("stopped")
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

// open makes everything and starts nothing. What it cannot make is the environment's fault. Whatever reads files is made before
// what creates some: a credential that has vanished since the configuration was checked leaves nothing behind.
func (a *app) open() error {
	client, err := NewClient(a.cfg, a.version)
	if err != nil {
		return err
	}
	if a.routes, err = newRouting(a.cfg); err != nil {
		return err
	}
	nameTopics(a.cfg)
	a.runners = make([]*runner, len(a.cfg.Sinks))
	if err := a.newRunners(func(s config.Sink) bool { return s.Stdout == nil }); err != nil {
		return err
	}
	if a.journal, err = journal.Open(a.journalOptions()); err != nil {
		return err
	}
	if a.shaper, err = newShaper(a.cfg, a.journal, a.log); err != nil { // before anybody reads what the journal holds
		return err
	}
	a.admin = admin.New(admin.Options{Listen: a.cfg.Admin.Listen, Version: a.version, Snapshot: a.snapshot, DeadLetters: a.newestDeadLetters, Logger: a.log})
	if err := a.newRunners(func(s config.Sink) bool { return s.Stdout != nil }); err != nil {
		return err
	}
	for i, r := range a.runners {
		if err := a.connect(r, a.cfg.Sinks[i]); err != nil {
			return err
		}
	}
	a.source, err = a.newSource(client)
	return err
}

func (a *app) journalOptions() journal.Options {
	j := a.cfg.Journal
	o := journal.Options{Dir: j.Dir, MaxBytes: int64(j.MaxBytes), MaxDeadLetters: int64(j.MaxDeadLetters), Reserve: int64(j.Reserve), KeepSettled: j.Keep, Logger: a.log}
	for _, s := range a.cfg.Sinks {
		o.Sinks = append(o.Sinks, s.Name)
	}
	if j.Sync == "interval" {
		o.Sync = journal.Interval
	}
	return o
}

// newRunners makes those of the configured sinks that are meant.
func (a *app) newRunners(meant func(config.Sink) bool) (err error) {
	for i, s := range a.cfg.Sinks {
		if !meant(s) {
			continue
		}
		if a.runners[i], err = newRunner(a.cfg, s, a.log); err != nil {
			return err
		}
	}
	return nil
}

// start runs the tasks, each after what it writes to or reads from.
func (a *app) start() error {
	if err := a.startAdmin(); err != nil {
		return err
	}
	a.journaling = start("journal", a.journal.Run, a.failure.report)
	for _, r := range a.runners {
		r.start(a.cfg.Delivery.Retry, a.failure.report)
	}
	a.watching = start("source", a.source.Run, a.failure.report)
	return nil
}

func (a *app) startAdmin() error {
	if a.cfg.Admin.Listen == "" {
		return nil
	}
	if err := a.admin.Listen(); err != nil {
		return fmt.Errorf("admin.listen: %w", err)
	}
	a.serving = start("admin", a.admin.Run, a.failure.report)
	return nil
}

func (a *app) adminAddress() string {
	if a.serving == nil {
		return "off"
	}
	return a.admin.Addr().String()
}

// stop stops the tasks in the opposite order of start: the source, so that nothing new comes; delivery, after it has
// drained what the journal holds; the journal, because both write to it; the admin server last, so that the stop can be
// watched. hard stops without draining. It loses nothing: what is not delivered is in the journal.
func (a *app) stop(hard bool) {
	a.watching.stop()
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Delivery.DrainTimeout)
	defer cancel()
	if hard {
		cancel()
	} else if err := a.journal.Flush(ctx); err != nil {
		a.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
	}
	for _, r := range a.runners {
		r.drain(a.journal.Newest())
	}
	for _, r := range a.runners {
		r.stop(ctx)
	}
	a.journaling.stop()
	a.serving.stop()
}

// close releases what open has taken.
func (a *app) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := make([]error, len(a.runners))
	var closing sync.WaitGroup // together, so that a slow destination takes no other's time
	for i, r := range a.runners {
		if r != nil {
			closing.Go(func() { errs[i] = r.close(ctx) })
		}
	}
	closing.Wait()
	if a.journal != nil {
		if err := a.journal.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close journal: %w", err))
		}
	}
	return errors.Join(errs...)
}
