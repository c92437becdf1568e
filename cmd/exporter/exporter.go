package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/admin"
	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/source"
)

// closeTimeout bounds how long a stop waits for connections to close.
const closeTimeout = 5 * time.Second

// exporter is the wired process.
type exporter struct {
	cfg *config.Config
	log *slog.Logger

	journal   *journal.Journal
	outlets   []*outlet
	graves    []*graveyard
	shaper    *shape.Shaper
	routes    *routing
	source    *source.Source
	admin     *admin.Server // nil without admin.listen
	recovered bool          // the journal was broken and begun anew

	// The running parts. See stop for their order.
	journalPart, sourcePart, adminPart *part
	failure                            *failure
}

// runExporter makes, runs and stops an exporter. It returns nil after an orderly stop.
func runExporter(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	e := &exporter{cfg: cfg, log: log, failure: newFailure()}
	if err := e.open(); err != nil {
		return errors.Join(err, e.close())
	}
	if err := e.start(); err != nil {
		e.stop(true)
		return errors.Join(err, e.close())
	}
	log.Info("started", "version", version, "rules", len(cfg.Resources), "sinks", len(cfg.Sinks), "journal", cfg.Journal.Dir, "admin", e.adminAddress())
	select {
	case <-ctx.Done():
	case <-e.failure.c:
		log.Error("stopping because a part failed", "error", e.failure.err)
	}
	failed := e.failure.get()
	e.stop(failed != nil)
	if err := errors.Join(failed, e.close()); err != nil {
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
		return &environmentError{err}
	}
	return &runtimeError{err}
}

// open makes everything and starts nothing. What it cannot make is an environmentError.
func (e *exporter) open() error {
	client, err := newClient(e.cfg) // first: without a cluster the journal is not touched
	if err != nil {
		return &environmentError{err}
	}
	var names []string
	for _, s := range e.cfg.Sinks {
		names = append(names, s.Name)
	}
	options := journal.Options{Dir: e.cfg.Journal.Dir, Sinks: names, MaxBytes: int64(e.cfg.Journal.MaxBytes), KeepSettled: e.cfg.Journal.Keep, Logger: e.log}
	if e.cfg.Journal.Sync == "interval" {
		options.Sync = journal.Interval
	}
	if e.journal, err = journal.Open(options); err != nil {
		return &environmentError{err}
	}
	e.admin = admin.New(admin.Options{Listen: e.cfg.Admin.Listen, Version: version, Snapshot: e.snapshot, Logger: e.log})
	routes, err := newRouting(e.cfg)
	if err != nil {
		return &environmentError{err}
	}
	e.routes = routes
	nameTopics(e.cfg)
	for _, s := range e.cfg.Sinks {
		grave, err := openGraveyard(e.cfg, s, e.log)
		if err != nil {
			return &environmentError{err}
		}
		if grave != nil {
			e.graves = append(e.graves, grave)
		}
		observe := func(took time.Duration) { e.admin.ObservePublish(s.Name, took) }
		o, err := openOutlet(s, e.cfg.Delivery, routes, grave, e.journal, observe, e.log)
		if err != nil {
			return &environmentError{err}
		}
		e.outlets = append(e.outlets, o)
	}
	if e.shaper, err = newShaper(e.cfg, e.journal); err != nil {
		return &environmentError{err}
	}
	if e.source, err = e.newSource(client); err != nil {
		return &environmentError{err}
	}
	return nil
}

// start runs the parts, each after what it writes to or reads from.
func (e *exporter) start() error {
	if err := e.startAdmin(); err != nil {
		return err
	}
	e.journalPart = start("journal", e.journal.Run, e.failure.report)
	for _, o := range e.outlets {
		o.start(e.cfg.Delivery.Retry, e.failure.report)
	}
	e.sourcePart = start("source", e.source.Run, e.failure.report)
	return nil
}

func (e *exporter) startAdmin() error {
	if e.cfg.Admin.Listen == "" {
		return nil
	}
	if err := e.admin.Listen(); err != nil {
		return &environmentError{fmt.Errorf("admin.listen: %w", err)}
	}
	e.adminPart = start("admin", e.admin.Run, e.failure.report)
	return nil
}

func (e *exporter) adminAddress() string {
	if e.adminPart == nil {
		return "off"
	}
	return e.admin.Addr().String()
}

// stop stops the parts in the opposite order of start: the source, so that nothing new comes; delivery, after it has
// drained what the journal holds; the journal, because both write to it; the admin server last, so that the stop can be
// watched. hard stops without draining. It loses nothing: what is not delivered is in the journal.
func (e *exporter) stop(hard bool) {
	e.sourcePart.stop()
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.Delivery.DrainTimeout)
	defer cancel()
	if hard {
		cancel()
	} else if err := e.journal.Flush(ctx); err != nil {
		e.log.Warn("the newest observations were not journaled and will be watched again", "error", err)
	}
	for _, o := range e.outlets {
		o.drain(e.journal.Newest())
	}
	for _, o := range e.outlets {
		o.stop(ctx)
	}
	e.journalPart.stop()
	e.adminPart.stop()
}

// close releases what open has taken.
func (e *exporter) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := make([]error, len(e.outlets))
	var closing sync.WaitGroup // together, so that a slow destination takes no other's time
	for i, o := range e.outlets {
		closing.Go(func() {
			if err := o.sink.Close(ctx); err != nil {
				errs[i] = fmt.Errorf("close sink %s: %w", o.name, err)
			}
		})
	}
	closing.Wait()
	for _, g := range e.graves {
		if err := g.sink.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close sink %s for the dead letters of %s: %w", g.in, g.of, err))
		}
	}
	if e.journal != nil {
		if err := e.journal.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close journal: %w", err))
		}
	}
	return errors.Join(errs...)
}
