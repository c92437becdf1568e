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
	owner  string // the sink whose dead letters they are
	target *configuredSink
	router sinks.Router // of to
	topic  *sinks.Template

	mu     sync.Mutex // one at a time: they are few
	offset uint64     // counts the attempts

	condition *condition.Condition
	lastError atomic.Pointer[error] // why the last could not be published, one for each attempt; nil before the first
	pingTask  *task                 // set when it runs
}

// The conditions of a dead-letter publisher.
var (
	deadLettersPublished = condition.State{Name: "published", Message: "dead letters are published again"}
	deadLettersHeld      = condition.State{
		Name: "held", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "a dead letter cannot be published; its lane waits until it is",
	}
)

// openDeadLetterPublisher makes what sink s has configured; nil where that is nothing. It contacts nothing.
func openDeadLetterPublisher(cfg *config.Config, s config.Sink, log *slog.Logger) (*deadLetterPublisher, error) {
	if s.DeadLetters.Sink == "" {
		return nil, nil
	}
	target, err := sinkConfigByName(cfg, s.DeadLetters.Sink)
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
	return &deadLetterPublisher{owner: s.Name, target: to, router: router, topic: topic, condition: condition.New(log, deadLettersPublished)}, restoreWithoutState(router)
}

// startPinging asks for the destination, so that it is known before the first dead letter that it cannot be reached.
func (p *deadLetterPublisher) startPinging(retry config.Retry, failed func(error)) {
	pinger, ok := p.router.(sinks.Pinger)
	if !ok {
		return
	}
	var before *error // the last attempt when the question was asked
	idle := func() bool {
		before = p.lastError.Load()
		return before == nil || *before == nil
	}
	p.pingTask = startTask("dead letters of sink "+p.owner, func(ctx context.Context) error {
		delivery.PingRegularly(ctx, pinger, delivery.RetryConfig(retry), idle, func(_ time.Time, err error) { p.recordOutcome(before, err) })
		return nil
	}, failed)
}

func (p *deadLetterPublisher) stopPinging() { p.pingTask.stop() }

// heldReason says why dead letters wait, or would; "" when they do not. Safe for concurrent use.
func (p *deadLetterPublisher) heldReason() string {
	reason := p.condition.Status().Degraded()
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("dead letters wait for sink %s: %s", p.target.name, reason)
}

// publishDeadLetter publishes a dead letter. An error that is a *sinks.RejectedError says that it cannot be published either, in
// whatever form; any other, that it is to be tried again.
func (p *deadLetterPublisher) publishDeadLetter(ctx context.Context, c *event.Change, reason string) error {
	letter := *c // shares its bodies
	letter.DeadLetter = &event.DeadLetterInfo{Sink: p.owner, Reason: reason}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offset++
	err := publishTruncated(ctx, p.router, sinks.Message{Offset: p.offset, Change: &letter, Topic: p.topic})
	var rejected *sinks.RejectedError
	if ctx.Err() == nil {
		held := err
		if errors.As(err, &rejected) {
			held = nil
		}
		p.lastError.Store(&held)
		p.recordOutcome(&held, held)
	}
	var lost *sinks.LostError
	if errors.As(err, &lost) { // those that are lost there are still in the journal
		return errors.Join(err, restoreWithoutState(p.router))
	}
	if err != nil {
		return fmt.Errorf("dead letter to sink %s: %w", p.target.name, err)
	}
	return nil
}

// recordOutcome keeps how an attempt went, or a question, unless there was another attempt since last: what was asked before says
// nothing of it.
func (p *deadLetterPublisher) recordOutcome(last *error, err error) {
	state, reason := deadLettersPublished, ""
	if err != nil {
		state, reason = deadLettersHeld, err.Error()
	}
	p.condition.UpdateIf(func(condition.Status) bool { return p.lastError.Load() == last }, state, reason, "")
}
