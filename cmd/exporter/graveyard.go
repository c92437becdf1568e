package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// graveyard is where the dead letters of one sink go besides the journal: a topic of some sink, over a connection of its own.
type graveyard struct {
	of    string // the sink whose dead letters they are
	in    string // the sink they go to
	sink  sinks.Router
	topic *sinks.Template

	trouble func() string // why the destination is not reached, as the sink itself sees it; "" when it is
	log     *slog.Logger

	mu     sync.Mutex // one at a time: they are few
	offset uint64     // counts the attempts

	held     atomic.Pointer[string] // why the last one could not be published; nil when it was
	reaching *part                  // set when it runs
}

// openGraveyard makes what sink s has configured; nil where that is nothing. It contacts nothing.
func openGraveyard(cfg *config.Config, s config.Sink, log *slog.Logger) (*graveyard, error) {
	if s.DeadLetters.Sink == "" {
		return nil, nil
	}
	in, err := configured(cfg, s.DeadLetters.Sink)
	if err != nil {
		return nil, err
	}
	if in.Kafka != nil { // so that it looks for the topic of the dead letters, and not for its own
		own := *in.Kafka
		own.Topic = s.DeadLetters.Topic
		in.Kafka = &own
	}
	o, _, err := newSink(in, log.With("sink", in.Name, "deadLettersOf", s.Name))
	if err != nil {
		return nil, fmt.Errorf("deadLetters of sink %s: %w", s.Name, err)
	}
	router, ok := o.sink.(sinks.Router)
	if !ok {
		return nil, fmt.Errorf("deadLetters of sink %s: sink %s knows one place only", s.Name, in.Name)
	}
	topic, err := sinks.ParseTemplate(s.DeadLetters.Topic)
	if err != nil {
		return nil, fmt.Errorf("deadLetters.topic of sink %s: %w", s.Name, err)
	}
	log = log.With("sink", s.Name, "deadLettersTo", in.Name)
	return &graveyard{of: s.Name, in: in.Name, sink: router, topic: topic, trouble: o.trouble, log: log}, begin(router)
}

// start looks for the destination, so that it is told before the first dead letter that it cannot be reached.
func (g *graveyard) start(retry config.Retry, failed func(error)) {
	if c, ok := g.sink.(checker); ok {
		g.reaching = start("dead letters of sink "+g.of, func(ctx context.Context) error { return reach(ctx, c, retry) }, failed)
	}
}

func (g *graveyard) stop() { g.reaching.stop() }

// status says why dead letters wait, or would; "" when they do not. Safe for concurrent use.
func (g *graveyard) status() string {
	reason := g.trouble()
	if held := g.held.Load(); held != nil {
		reason = *held
	}
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("dead letters wait for sink %s: %s", g.in, reason)
}

// bury publishes a dead letter. An error that is a *sinks.RejectedError says that it cannot be published either, in whatever
// form; any other, that it is to be tried again.
func (g *graveyard) bury(ctx context.Context, c *event.Change, reason string) error {
	letter := *c // shares its bodies
	letter.DeadLetter = &event.DeadLetterInfo{Sink: g.of, Reason: reason}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.offset++
	err := publishSmaller(ctx, g.sink, sinks.Message{Offset: g.offset, Change: &letter, Topic: g.topic})
	g.note(ctx, err)
	var lost *sinks.LostError
	if errors.As(err, &lost) { // those that are lost there are still in the journal
		return errors.Join(err, begin(g.sink))
	}
	if err != nil {
		return fmt.Errorf("dead letter to sink %s: %w", g.in, err)
	}
	return nil
}

// note keeps how the last attempt went, with one line of the log for each change.
func (g *graveyard) note(ctx context.Context, err error) {
	var rejected *sinks.RejectedError
	switch {
	case err == nil, errors.As(err, &rejected):
		if g.held.Swap(nil) != nil {
			g.log.Info("dead letters are published again")
		}
	case ctx.Err() == nil:
		reason := err.Error()
		if g.held.Swap(&reason) == nil {
			g.log.Warn("a dead letter cannot be published; its lane waits until it is", "error", err)
		}
	}
}

// configured returns the sink of a name.
func configured(cfg *config.Config, name string) (config.Sink, error) {
	for _, s := range cfg.Sinks {
		if s.Name == name {
			return s, nil
		}
	}
	return config.Sink{}, &usageError{fmt.Sprintf("no sink %q is configured", name)}
}

// begin makes a sink ready that keeps no state with a journal.
func begin(s sinks.Sink) error {
	stateful, ok := s.(sinks.Stateful)
	if !ok {
		return nil
	}
	return stateful.Restore(nil, 0, func(context.Context) error { return nil })
}
