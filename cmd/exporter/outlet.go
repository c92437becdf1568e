package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
)

// outlet is one configured sink with the pipeline that feeds it.
type outlet struct {
	name     string
	kind     string
	sink     sinks.Sink
	pipeline *delivery.Pipeline
	part     *part // set when the pipeline runs
}

// openOutlet makes a sink and its pipeline. It contacts nothing. observe is told how long each Publish takes.
func openOutlet(s config.Sink, d config.Delivery, j *journal.Journal, observe func(time.Duration), log *slog.Logger) (*outlet, error) {
	kind, layout, sink, err := newSink(s, log.With("sink", s.Name))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", s.Name, err)
	}
	start, _, err := j.Cursor(s.Name)
	if err != nil {
		return nil, fmt.Errorf("sink %s: stored cursor: %w", s.Name, err)
	}
	cfg := delivery.Config{
		Retry:       delivery.RetryConfig{Min: d.Retry.Min, Max: d.Retry.Max},
		WindowBytes: int64(d.Window),
		Rate:        d.Rate.PerSecond,
		Burst:       d.Rate.Burst,
	}
	if c, ok := sink.(interface{ Concurrency() int }); ok {
		cfg.Workers = c.Concurrency()
	}
	pipeline := delivery.New(s.Name, timed{sink, observe}, layout, sinkJournal{j, s.Name}, delivery.Cursor(start), cfg, log)
	return &outlet{name: s.Name, kind: kind, sink: sink, pipeline: pipeline}, nil
}

// newSink makes the configured sink. layout names what its lane names depend on besides what they already say: with
// another layout the stored lane positions mean nothing.
func newSink(s config.Sink, log *slog.Logger) (kind, layout string, sink sinks.Sink, err error) {
	switch {
	case s.Kafka != nil:
		sink, err = kafka.New(*s.Kafka, log)
		return "kafka", "kafka " + strconv.Quote(s.Kafka.Topic), sink, err
	case s.NATS != nil:
		sink, err = nats.New(*s.NATS, log)
		return "nats", "nats " + strconv.Quote(s.NATS.Stream), sink, err
	default:
		sink, err = stdout.New(*s.Stdout)
		return "stdout", "stdout " + strconv.Quote(s.Stdout.Path), sink, err
	}
}

// drain lets a running pipeline end once everything up to an offset is settled.
func (o *outlet) drain(upTo uint64) {
	if o.part != nil {
		o.pipeline.Drain(upTo)
	}
}

// stop waits for a drain until ctx ends, then stops the pipeline.
func (o *outlet) stop(ctx context.Context) {
	if o.part != nil {
		select {
		case <-o.part.done:
		case <-ctx.Done():
		}
		o.part.stop()
	}
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

func (s sinkJournal) Settle(ctx context.Context, c delivery.Cursor, dead []delivery.DeadLetter) error {
	letters := make([]journal.DeadLetter, len(dead))
	for i, d := range dead {
		letters[i] = journal.DeadLetter(d)
	}
	return s.journal.Settle(ctx, s.sink, journal.Cursor(c), letters)
}
