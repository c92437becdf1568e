package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/shape"
	"github.com/kubecdc/kubecdc/pkg/sinks"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka"
	"github.com/kubecdc/kubecdc/pkg/sinks/nats"
	"github.com/kubecdc/kubecdc/pkg/sinks/stdout"
	"github.com/kubecdc/kubecdc/pkg/sinks/webhook"
)

// outlet is one configured sink with the pipeline that feeds it.
type outlet struct {
	name    string
	kind    string
	sink    sinks.Sink
	trouble func() string // why the destination is not reached, as the sink itself sees it; "" when it is
	slowed  func() string // why the destination takes changes slowly, as the sink itself sees it; "" when it does not; nil for never
	grave   *graveyard    // where its dead letters go besides the journal; nil for nowhere
	journal sinkJournal
	log     *slog.Logger
	renew   func(start delivery.Cursor) *delivery.Pipeline

	mu       sync.Mutex
	pipeline *delivery.Pipeline
	draining *uint64 // up to where, once it has begun
	wentBack uint64  // how often the destination had lost what it had accepted

	part, reaching *part // set when they run
}

// start runs the pipeline, and looks for the destination meanwhile.
func (o *outlet) start(retry config.Retry, failed func(error)) {
	o.part = start("sink "+o.name, o.deliver, failed)
	if c, ok := o.sink.(checker); ok {
		o.reaching = start("sink "+o.name, func(ctx context.Context) error { return reach(ctx, c, retry) }, failed)
	}
	if o.grave != nil {
		o.grave.start(retry, failed)
	}
}

// openOutlet makes a sink and its pipeline. It contacts nothing. grave, if there is one, takes its dead letters; observe is
// told how long each Publish takes.
func openOutlet(s config.Sink, d config.Delivery, routes *routing, grave *graveyard, j *journal.Journal, observe func(time.Duration), log *slog.Logger) (*outlet, error) {
	o, layout, err := newSink(s, log.With("sink", s.Name))
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
		Newest:      j.Newest(),
		Selection:   choice(s) + routes.id,
		Route:       routes.of(s.Name),
		Smaller:     shape.Smaller,
	}
	if grave != nil {
		cfg.Bury = grave.bury
	}
	if c, ok := o.sink.(interface{ Concurrency() int }); ok {
		cfg.Workers = c.Concurrency()
	}
	if l, ok := o.sink.(interface{ BatchLimits() (int, int64) }); ok {
		cfg.BatchMessages, cfg.BatchBytes = l.BatchLimits()
	}
	o.grave = grave
	o.journal, o.log = sinkJournal{j, s.Name}, log.With("sink", s.Name)
	o.renew = func(start delivery.Cursor) *delivery.Pipeline {
		return delivery.New(s.Name, timedSink(o.sink, observe), layout+routes.id, o.journal, start, cfg, log)
	}
	o.pipeline = o.renew(delivery.Cursor(start))
	return o, nil
}

// newSink makes the configured sink. layout names what its lane names depend on besides what they already say: with
// another layout the stored lane positions mean nothing.
func newSink(s config.Sink, log *slog.Logger) (o *outlet, layout string, err error) {
	f, err := format.Parse(s.Format)
	if err != nil {
		return nil, "", err
	}
	switch {
	case s.Kafka != nil:
		sink, err := kafka.New(*s.Kafka, f, log)
		if err != nil {
			return nil, "", err
		}
		reason := func(state kafka.State) func() string {
			return func() string {
				if now := sink.Status(); now.State == state {
					return now.Reason
				}
				return ""
			}
		}
		return &outlet{name: s.Name, kind: "kafka", sink: sink, trouble: reason(kafka.Unavailable), slowed: reason(kafka.Throttled)}, "kafka " + strconv.Quote(s.Kafka.Topic), nil
	case s.NATS != nil:
		sink, err := nats.New(*s.NATS, f, log)
		if err != nil {
			return nil, "", err
		}
		trouble := func() string { return sink.Status().Reason }
		kind := "nats"
		if s.NATS.Forgets() {
			kind = "nats core, which keeps nothing"
		}
		return &outlet{name: s.Name, kind: kind, sink: sink, trouble: trouble}, "nats " + strconv.Quote(s.NATS.StreamName()), nil
	case s.Webhook != nil:
		sink, err := webhook.New(*s.Webhook, f)
		if err != nil {
			return nil, "", err
		}
		trouble := func() string { return "" } // its gate says it all
		return &outlet{name: s.Name, kind: "webhook", sink: sink, trouble: trouble}, "webhook " + strconv.Quote(s.Webhook.Place()), nil
	default:
		sink, err := stdout.New(*s.Stdout, f)
		if err != nil {
			return nil, "", err
		}
		trouble := func() string { return "" }
		return &outlet{name: s.Name, kind: "stdout", sink: sink, trouble: trouble}, "stdout " + strconv.Quote(s.Stdout.Path), nil
	}
}

// choice names what decides which changes a sink gets, in which order and form: the program and the sink's configuration,
// but for how to get into the destination.
func choice(s config.Sink) string {
	s.Stdout = nil // it keeps no state
	s.DeadLetters = config.DeadLetters{}
	if s.NATS != nil { // its state speaks of a stream, and of nothing else
		s.NATS = &nats.Config{Stream: s.NATS.StreamName()}
	}
	if s.Kafka != nil {
		k := *s.Kafka
		k.TLS, k.SASL = kafka.TLS{}, kafka.SASL{}
		s.Kafka = &k
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("the configuration of a sink is plain data: %v", err))
	}
	return version + " " + string(b)
}

// stop waits for a drain until ctx ends, then stops the pipeline.
func (o *outlet) stop(ctx context.Context) {
	o.reaching.stop()
	if o.grave != nil {
		o.grave.stop()
	}
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
