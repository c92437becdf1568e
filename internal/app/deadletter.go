package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// deadLetterPublisher publishes the dead letters of one sink besides keeping them in the journal: to a topic of some sink,
// over a connection of its own.
type deadLetterPublisher struct {
	of    string // the sink whose dead letters they are
	to    *configuredSink
	sink  sinks.Router // of to
	topic *sinks.Template

	mu     sync.Mutex // one at a time: they are few
	offset uint64     // counts the attempts

	condition *condition.Condition
	last      atomic.Pointer[error] // why the last could not be published, one for each attempt; nil before the first
	pinging   *task                 // set when it runs
}

// The conditions of a dead-letter publisher.
var (
	lettersPass = condition.State{Name: "published", Message: "dead letters are published again"}
	lettersWait = condition.State{
		Name: "held", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a dead letter cannot be published; its lane waits until it is",
	}
)

// openDeadLetterPublisher makes what sink s has configured; nil where that is nothing. It contacts nothing.
func openDeadLetterPublisher(cfg *config.Config, s config.Sink, log *slog.Logger) (*deadLetterPublisher, error) {
	if s.DeadLetters.Sink == "" {
		return nil, nil
	}
	target, err := sinkConfig(cfg, s.DeadLetters.Sink)
	if err != nil {
		return nil, err
	}
	if target.Kafka != nil { // so that it looks for the topic of the dead letters, and not for its own
		own := *target.Kafka
		own.Topic = s.DeadLetters.Topic
		target.Kafka = &own
	}
	to, err := newSink(target, log.With("sink", target.Name, "deadLettersOf", s.Name))
	if err != nil {
		return nil, fmt.Errorf("deadLetters of sink %s: %w", s.Name, err)
	}
	router, ok := to.sink.(sinks.Router)
	if !ok {
		return nil, fmt.Errorf("deadLetters of sink %s: sink %s knows one place only", s.Name, target.Name)
	}
	topic, err := sinks.ParseTemplate(s.DeadLetters.Topic)
	if err != nil {
		return nil, fmt.Errorf("deadLetters.topic of sink %s: %w", s.Name, err)
	}
	log = log.With("sink", s.Name, "deadLettersTo", target.Name)
	return &deadLetterPublisher{of: s.Name, to: to, sink: router, topic: topic, condition: condition.New(log, lettersPass)}, restoreEmpty(router)
}

// start asks for the destination, so that it is known before the first dead letter that it cannot be reached.
func (p *deadLetterPublisher) start(retry config.Retry, failed func(error)) {
	pinger, ok := p.sink.(sinks.Pinger)
	if !ok {
		return
	}
	var before *error // the last attempt when the question was asked
	idle := func() bool {
		before = p.last.Load()
		return before == nil || *before == nil
	}
	p.pinging = start("dead letters of sink "+p.of, func(ctx context.Context) error {
		delivery.Ping(ctx, pinger, delivery.RetryConfig(retry), idle, func(_ time.Time, err error) { p.note(before, err) })
		return nil
	}, failed)
}

func (p *deadLetterPublisher) stop() { p.pinging.stop() }

// status says why dead letters wait, or would; "" when they do not. Safe for concurrent use.
func (p *deadLetterPublisher) status() string {
	reason := p.condition.Status().Degraded()
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("dead letters wait for sink %s: %s", p.to.name, reason)
}

// publish publishes a dead letter. An error that is a *sinks.RejectedError says that it cannot be published either, in
// whatever form; any other, that it is to be tried again.
func (p *deadLetterPublisher) publish(ctx context.Context, c *event.Change, reason string) error {
	letter := *c // shares its bodies
	letter.DeadLetter = &event.DeadLetterInfo{Sink: p.of, Reason: reason}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offset++
	err := publishSmaller(ctx, p.sink, sinks.Message{Offset: p.offset, Change: &letter, Topic: p.topic})
	var rejected *sinks.RejectedError
	if ctx.Err() == nil {
		held := err
		if errors.As(err, &rejected) {
			held = nil
		}
		p.last.Store(&held)
		p.note(&held, held)
	}
	var lost *sinks.LostError
	if errors.As(err, &lost) { // those that are lost there are still in the journal
		return errors.Join(err, restoreEmpty(p.sink))
	}
	if err != nil {
		return fmt.Errorf("dead letter to sink %s: %w", p.to.name, err)
	}
	return nil
}

// note keeps how an attempt went, or a question, unless there was another attempt since last: what was asked before says
// nothing of it.
func (p *deadLetterPublisher) note(last *error, err error) {
	state, reason := lettersPass, ""
	if err != nil {
		state, reason = lettersWait, err.Error()
	}
	p.condition.BecomeIf(func(condition.Status) bool { return p.last.Load() == last }, state, reason, "")
}
