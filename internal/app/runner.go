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
	newPipeline func(start event.Cursor) *delivery.Pipeline
	fenced      bool                        // the pipeline does not restore the sink
	awaitFenced func(context.Context) error // until the sink may be used; nil where it may

	mu          sync.Mutex
	pipeline    *delivery.Pipeline
	drainTarget *uint64 // up to where, once it has begun
	rewindCount uint64  // how often the destination had lost what it had accepted

	deliveryTask *task // set when it runs
	closing      sync.Once
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
	return &runner{configuredSink: sink, id: runnerIdentity(c.cfg, s, c.routes), routes: c.routes, deadLetters: deadLetters, log: log}, nil
}

// runnerIdentity names everything that a runner is made from: a sink whose identity is the same goes on when the configuration
// changes.
func runnerIdentity(cfg *config.Config, s config.Sink, routes *routing) string {
	all := struct {
		Sink, DeadLettersTo config.Sink
		Delivery            config.Delivery
		Routes              string
	}{Sink: s, Delivery: cfg.Delivery, Routes: routes.id}
	all.Delivery.DrainTimeout = 0 // that of the configuration that works when it is stopped
	if to, err := sinkConfigByName(cfg, s.DeadLetters.Sink); err == nil {
		all.DeadLettersTo = to
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	sum := sha256.Sum256(text) // the text holds passwords
	return s.Name + " " + hex.EncodeToString(sum[:])
}

// attachPipeline gives a runner its pipeline, which begins where the journal says that the sink has got to.
func (c *composition) attachPipeline(r *runner, s config.Sink) error {
	start, _, err := c.journal.Cursor(s.Name)
	if err != nil {
		return fmt.Errorf("sink %s: stored cursor: %w", s.Name, err)
	}
	cfg := c.pipelineConfig(s, r.configuredSink, r.deadLetters)
	cfg.ObservePublish = func(took time.Duration) { c.admin.ObservePublish(s.Name, took) }
	cfg.OnAcknowledged = func(change *event.Change) { c.admin.ObserveDelivery(s.Name, time.Since(change.ObservedAt)) }
	layout := r.layout + c.routes.id
	r.journal, r.fenced = sinkJournal{c.journal, s.Name, c.attribution}, cfg.IsFenced
	r.newPipeline = func(start event.Cursor) *delivery.Pipeline {
		return delivery.New(s.Name, r.sink, layout, r.journal, start, cfg, c.log)
	}
	r.pipeline, r.awaitFenced = r.newPipeline(start), c.replica.fencingWaiter(s.Name, r.sink)
	cfg.AlreadyDelivered = nil // a pipeline that is made because the destination has lost what it had must not count on it
	return nil
}

// pipelineConfig joins what is configured for all pipelines with what a sink asks for.
func (c *composition) pipelineConfig(s config.Sink, sink *configuredSink, deadLetters *deadLetterPublisher) delivery.Config {
	d := c.cfg.Delivery
	cfg := delivery.Config{
		Retry:              delivery.RetryConfig{Min: d.Retry.Min, Max: d.Retry.Max},
		WindowBytes:        int64(d.Window),
		Rate:               d.Rate.PerSecond,
		Burst:              d.Rate.Burst,
		NewestOffset:       c.journal.Newest(),
		RoutingFingerprint: deliveryFingerprint(s) + c.routes.id,
		Route:              skipUnrepresentable(s, c.routes.routeFor(s.Name)),
		AlreadyDelivered:   c.replica.deliveredFilter(s.Name),
	}
	if c.replica != nil {
		_, cfg.IsFenced = sink.sink.(sinks.Fenced)
	}
	if s.OnOversize == config.Reduce {
		cfg.Truncate = shape.TruncateOnce
	}
	cfg.PublishDeadLetter = func(ctx context.Context, change *event.Change, reason string) error {
		if err := c.journal.CheckDeadLetterSpace(); err != nil || deadLetters == nil {
			return err
		}
		return deadLetters.publishDeadLetter(ctx, change, reason)
	}
	if concurrent, ok := sink.sink.(sinks.Concurrent); ok {
		cfg.Workers = concurrent.Concurrency()
	}
	if l, ok := sink.sink.(sinks.Batched); ok {
		cfg.BatchMessages, cfg.BatchBytes = l.BatchLimits()
	}
	return cfg
}

// startDelivery runs the pipeline.
func (r *runner) startDelivery(retry config.Retry, failed func(error)) {
	r.deliveryTask = startTask("sink "+r.name, r.runPipelines, failed)
	if r.deadLetters != nil {
		r.deadLetters.startPinging(retry, failed)
	}
}

// stopDelivery waits for a drain until ctx ends, then stops the pipeline.
func (r *runner) stopDelivery(ctx context.Context) {
	if r.deadLetters != nil {
		r.deadLetters.stopPinging()
	}
	if r.deliveryTask != nil {
		select {
		case <-r.deliveryTask.done:
		case <-ctx.Done():
		}
		r.deliveryTask.stop()
	}
}

// closeSinks closes the sink and what publishes its dead letters. Later calls do nothing.
func (r *runner) closeSinks(ctx context.Context) error {
	var errs []error
	r.closing.Do(func() {
		if err := r.sink.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("close sink %s: %w", r.name, err))
		}
		if p := r.deadLetters; p != nil {
			if err := p.router.Close(ctx); err != nil {
				errs = append(errs, fmt.Errorf("close sink %s for the dead letters of %s: %w", p.target.name, p.owner, err))
			}
		}
	})
	return errors.Join(errs...)
}

// sinkJournal is the journal as one pipeline sees it.
type sinkJournal struct {
	journal     *journal.Journal
	sink        string
	attribution *attributionRunner // that changes may wait for; nil where nobody is to be named
}

var _ delivery.Journal = sinkJournal{}

func (s sinkJournal) Read(ctx context.Context, after uint64) ([]event.Record, error) {
	records, err := s.journal.Read(ctx, after)
	if err != nil {
		return nil, err
	}
	return s.attribution.awaitAuthors(ctx, records)
}

func (s sinkJournal) Settle(ctx context.Context, c event.Cursor, dead []event.DeadLetter) error {
	return s.journal.Settle(ctx, s.sink, c, dead)
}
