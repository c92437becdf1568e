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

// deadLetterPublisher publishes the dead letters of one sink, in addition to the journal, to a topic of some sink, over a
// connection of its own.
type deadLetterPublisher struct {
	owner  string // name of the sink that rejected the changes
	target *configuredSink
	router sinks.Router // the sink of target
	topic  *sinks.Template

	mu     sync.Mutex // serializes attempts, which are rare
	offset uint64     // number of attempts

	condition *condition.Condition
	lastError atomic.Pointer[error] // result of the last attempt, a new pointer for each; nil before the first
	pingTask  *task                 // nil before startPinging
}

// openDeadLetterPublisher makes the publisher that sink s has configured; nil for none. It opens no connection.
func openDeadLetterPublisher(cfg *config.Config, s config.Sink, log *slog.Logger) (*deadLetterPublisher, error) {
	if s.DeadLetters.Sink == "" {
		return nil, nil
	}
	target, err := sinkConfigByName(cfg, s.DeadLetters.Sink)
	if err != nil {
		return nil, err
	}
	if target.Kafka != nil { // the connection checks the topic of the dead letters instead of its own
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
		return nil, fmt.Errorf("deadLetters of sink %s: sink %s has one fixed destination", s.Name, target.Name)
	}
	topic, err := sinks.ParseTemplate(s.DeadLetters.Topic)
	if err != nil {
		return nil, fmt.Errorf("deadLetters.topic of sink %s: %w", s.Name, err)
	}
	log = log.With("sink", s.Name, "deadLettersTo", target.Name)
	return &deadLetterPublisher{owner: s.Name, target: to, router: router, topic: topic, condition: condition.New(log, "sink/"+s.Name, condition.Problem{})}, restoreWithoutState(router)
}

// startPinging pings the destination regularly, so that an unreachable one is reported before the first dead letter.
func (p *deadLetterPublisher) startPinging(retry config.Retry, failed func(error)) {
	pinger, ok := p.router.(sinks.Pinger)
	if !ok {
		return
	}
	var before *error // the last attempt when the ping was sent
	idle := func() bool {
		before = p.lastError.Load()
		return before == nil || *before == nil
	}
	p.pingTask = startTask("dead letters of sink "+p.owner, func(ctx context.Context) error {
		delivery.PingRegularly(ctx, pinger.Ping, delivery.RetryConfig(retry), idle, func(_ time.Time, err error) { p.recordOutcome(before, err) })
		return nil
	}, failed)
}

func (p *deadLetterPublisher) stopPinging() { p.pingTask.stop() }

// publishDeadLetter publishes a dead letter once. A *sinks.RejectedError is permanent: the letter is rejected even when
// truncated, and stays in the journal alone. After any other error the caller tries again.
func (p *deadLetterPublisher) publishDeadLetter(ctx context.Context, c *event.Change, reason string) error {
	letter := *c // shares the bodies
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
	if errors.As(err, &lost) { // lost dead letters are still in the journal
		return errors.Join(err, restoreWithoutState(p.router))
	}
	if err != nil && rejected == nil {
		return p.heldProblem(err).AsError()
	}
	return err
}

// recordOutcome records the result of an attempt or a ping. It is ignored if another attempt was made since last, because a
// ping that was sent earlier is outdated.
func (p *deadLetterPublisher) recordOutcome(last *error, err error) {
	problem := condition.Problem{}
	if err != nil {
		problem = p.heldProblem(err)
	}
	p.condition.UpdateIf(func(condition.Status) bool { return p.lastError.Load() == last }, problem)
}

// heldProblem returns the problem that dead letters wait for the other sink because of err.
func (p *deadLetterPublisher) heldProblem(err error) condition.Problem {
	held := condition.Caused(condition.DeadLettersHeld, err)
	held.Cause = fmt.Sprintf("dead letters wait for sink %s: %s", p.target.name, held.Cause)
	held.From = "sink/" + p.target.name
	return held
}
