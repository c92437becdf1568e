package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

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

	mu     sync.Mutex // one at a time: they are few
	offset uint64     // counts the attempts
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
	return &graveyard{of: s.Name, in: in.Name, sink: router, topic: topic}, begin(router)
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
	var lost *sinks.LostError
	if errors.As(err, &lost) { // those that are lost there are still in the journal
		return errors.Join(err, begin(g.sink))
	}
	if err != nil {
		return fmt.Errorf("dead letter to sink %s: %w", g.in, err)
	}
	return nil
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
