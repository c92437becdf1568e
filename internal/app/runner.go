package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	id          string // see identity
	routes      *routing
	deadLetters *deadLetterPublisher // where its dead letters go besides the journal; nil for nowhere
	journal     sinkJournal
	log         *slog.Logger
	renew       func(start event.Cursor) *delivery.Pipeline
	fenced      bool                        // the pipeline does not restore the sink
	await       func(context.Context) error // until the sink may be used; nil where it may

	mu       sync.Mutex
	pipeline *delivery.Pipeline
	draining *uint64 // up to where, once it has begun
	rewinds  uint64  // how often the destination had lost what it had accepted

	delivering *task // set when it runs
	closing    sync.Once
}

// newRunner makes a sink, and what publishes its dead letters. It contacts nothing and leaves the journal alone.
func (c *composition) newRunner(s config.Sink) (*runner, error) {
	deadLetters, err := openDeadLetterPublisher(c.cfg, s, c.log)
	if err != nil {
		return nil, err
	}
	log := c.log.With("sink", s.Name)
	sink, err := newSink(s, log)
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	return &runner{configuredSink: sink, id: identity(c.cfg, s, c.routes), routes: c.routes, deadLetters: deadLetters, log: log}, nil
}

// identity names everything that a runner is made from: a sink whose identity is the same goes on when the configuration
// changes.
func identity(cfg *config.Config, s config.Sink, routes *routing) string {
	all := struct {
		Sink, DeadLettersTo config.Sink
		Delivery            config.Delivery
		Routes              string
	}{Sink: s, Delivery: cfg.Delivery, Routes: routes.id}
	all.Delivery.DrainTimeout = 0 // that of the configuration that works when it is stopped
	if to, err := sinkConfig(cfg, s.DeadLetters.Sink); err == nil {
		all.DeadLettersTo = to
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	sum := sha256.Sum256(text) // the text holds passwords
	return s.Name + " " + hex.EncodeToString(sum[:])
}

// pipe gives a runner its pipeline, which begins where the journal says that the sink has got to.
func (c *composition) pipe(r *runner, s config.Sink) error {
	start, _, err := c.journal.Cursor(s.Name)
	if err != nil {
		return fmt.Errorf("sink %s: stored cursor: %w", s.Name, err)
	}
	cfg := c.pipelineConfig(s, r.configuredSink, r.deadLetters)
	cfg.Observe = func(took time.Duration) { c.admin.ObservePublish(s.Name, took) }
	cfg.Acknowledged = func(change *event.Change) { c.admin.ObserveDelivery(s.Name, time.Since(change.ObservedAt)) }
	layout := r.layout + c.routes.id
	r.journal, r.fenced = sinkJournal{c.journal, s.Name, c.naming}, cfg.Fenced
	r.renew = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New(s.Name, r.sink, layout, r.journal, start, cfg, c.log)
	}
	r.pipeline, r.await = r.renew(start), c.replica.awaiting(s.Name, r.sink)
	cfg.Delivered = nil // a pipeline that is made because the destination has lost what it had must not count on it
	return nil
}

// pipelineConfig joins what is configured for all pipelines with what a sink asks for.
func (c *composition) pipelineConfig(s config.Sink, sink *configuredSink, deadLetters *deadLetterPublisher) delivery.Config {
	d := c.cfg.Delivery
	cfg := delivery.Config{
		Retry:       delivery.RetryConfig{Min: d.Retry.Min, Max: d.Retry.Max},
		WindowBytes: int64(d.Window),
		Rate:        d.Rate.PerSecond,
		Burst:       d.Rate.Burst,
		Newest:      c.journal.Newest(),
		Selection:   fingerprint(s) + c.routes.id,
		Route:       withPlace(s, c.routes.of(s.Name)),
		Delivered:   c.replica.delivered(s.Name),
	}
	if c.replica != nil {
		_, cfg.Fenced = sink.sink.(sinks.Fenced)
	}
	if s.OnOversize == config.Reduce {
		cfg.Smaller = shape.Smaller
	}
	cfg.Bury = func(ctx context.Context, change *event.Change, reason string) error {
		if err := c.journal.DeadLetterRoom(); err != nil || deadLetters == nil {
			return err
		}
		return deadLetters.publish(ctx, change, reason)
	}
	if concurrent, ok := sink.sink.(sinks.Concurrent); ok {
		cfg.Workers = concurrent.Concurrency()
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

// close closes the sink and what publishes its dead letters. Later calls do nothing.
func (r *runner) close(ctx context.Context) error {
	var errs []error
	r.closing.Do(func() {
		if err := r.sink.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close sink %s: %w", r.name, err))
		}
		if p := r.deadLetters; p != nil {
			if err := p.sink.Close(ctx); err != nil {
				errs = append(errs, fmt.Errorf("close sink %s for the dead letters of %s: %w", p.to.name, p.of, err))
			}
		}
	})
	return errors.Join(errs...)
}

// sinkJournal is the journal as one pipeline sees it.
type sinkJournal struct {
	journal *journal.Journal
	sink    string
	naming  *naming // that changes may wait for; nil where nobody is to be named
}

var _ delivery.Journal = sinkJournal{}

func (s sinkJournal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	records, err := s.journal.Read(ctx, after)
	if err != nil {
		return nil, err
	}
	return s.naming.await(ctx, records)
}

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.journal.Settle(ctx, s.sink, c, dead)
}
