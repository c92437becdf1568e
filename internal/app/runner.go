package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// runner is one configured sink with the pipeline that feeds it.
type runner struct {
	*configuredSink
	deadLetters *deadLetterPublisher // where its dead letters go besides the journal; nil for nowhere
	journal     sinkJournal
	log         *slog.Logger
	renew       func(start event.Cursor) *delivery.Pipeline

	mu       sync.Mutex
	pipeline *delivery.Pipeline
	draining *uint64 // up to where, once it has begun
	rewinds  uint64  // how often the destination had lost what it had accepted

	delivering *task // set when it runs
}

// newRunner makes a sink, and what publishes its dead letters. It contacts nothing and leaves the journal alone.
func newRunner(cfg *config.Config, s config.Sink, log *slog.Logger) (*runner, error) {
	deadLetters, err := openDeadLetterPublisher(cfg, s, log)
	if err != nil {
		return nil, err
	}
	log = log.With("sink", s.Name)
	sink, err := newSink(s, log)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	return &runner{configuredSink: sink, deadLetters: deadLetters, log: log}, nil
}

// connect gives a runner its pipeline, which begins where the journal says that the sink has got to.
func (a *app) connect(r *runner, s config.Sink) error {
	start, _, err := a.journal.Cursor(s.Name)
	if err != nil {
		return fmt.Errorf("sink %s: stored cursor: %w", s.Name, err)
	}
	cfg := a.pipelineConfig(s, r.configuredSink, r.deadLetters)
	cfg.Observe = func(took time.Duration) { a.admin.ObservePublish(s.Name, took) }
	cfg.Acknowledged = func(c *event.Change) { a.admin.ObserveDelivery(s.Name, time.Since(c.ObservedAt)) }
	layout := r.layout + a.routes.id
	r.journal = sinkJournal{a.journal, s.Name}
	r.renew = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New(s.Name, r.sink, layout, r.journal, start, cfg, a.log)
	}
	r.pipeline = r.renew(start)
	return nil
}

// pipelineConfig joins what is configured for all pipelines with what a sink asks for.
func (a *app) pipelineConfig(s config.Sink, sink *configuredSink, deadLetters *deadLetterPublisher) delivery.Config {
	d := a.cfg.Delivery
	cfg := delivery.Config{
		Retry:       delivery.RetryConfig{Min: d.Retry.Min, Max: d.Retry.Max},
		WindowBytes: int64(d.Window),
		Rate:        d.Rate.PerSecond,
		Burst:       d.Rate.Burst,
		Newest:      a.journal.Newest(),
		Selection:   fingerprint(a.version, s) + a.routes.id,
		Route:       a.routes.of(s.Name),
	}
	if s.OnOversize == config.Reduce {
		cfg.Smaller = shape.Smaller
	}
	cfg.Bury = func(ctx context.Context, c *event.Change, reason string) error {
		if err := a.journal.DeadLetterRoom(); err != nil || deadLetters == nil {
			return err
		}
		return deadLetters.publish(ctx, c, reason)
	}
	if c, ok := sink.sink.(sinks.Concurrent); ok {
		cfg.Workers = c.Concurrency()
	}
	if l, ok := sink.sink.(sinks.Batched); ok {
		cfg.BatchMessages, cfg.BatchBytes = l.BatchLimits()
	}
	return cfg
}

// start runs the pipeline.
func (r *runner) start(retry config.Retry, failed func(error)) {
	r.delivering = start("sink "+r.name, r.deliver, failed)
	if r.deadLetters != nil {
		r.deadLetters.start(retry, failed)
	}
}

// stop waits for a drain until ctx ends, then stops the pipeline.
func (r *runner) stop(ctx context.Context) {
	if r.deadLetters != nil {
		r.deadLetters.stop()
	}
	if r.delivering != nil {
		select {
		case <-r.delivering.done:
		case <-ctx.Done():
		}
		r.delivering.stop()
	}
}

// close closes the sink and what publishes its dead letters.
func (r *runner) close(ctx context.Context) error {
	var errs []error
	if err := r.sink.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("close sink %s: %w", r.name, err))
	}
	if p := r.deadLetters; p != nil {
		if err := p.sink.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close sink %s for the dead letters of %s: %w", p.to.name, p.of, err))
		}
	}
	return errors.Join(errs...)
}

// sinkJournal is the journal as one pipeline sees it.
type sinkJournal struct {
	journal *journal.Journal
	sink    string
}

var _ delivery.Journal = sinkJournal{}

func (s sinkJournal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	return s.journal.Read(ctx, after)
}

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.journal.Settle(ctx, s.sink, c, dead)
}
