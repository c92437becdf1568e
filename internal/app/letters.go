package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/internal/config"
	"github.com/kubecdc/kubecdc/internal/delivery"
	"github.com/kubecdc/kubecdc/internal/journal"
	"github.com/kubecdc/kubecdc/internal/signals"
	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/event"
	"github.com/kubecdc/kubecdc/pkg/format"
	"github.com/kubecdc/kubecdc/pkg/sinks"
)

// TreatDeadLetters does to the journal in a directory, on which no exporter runs, what a signal to retry or discard dead
// letters does to that of a running one. names are the configured sinks. The signal that it returns has no ID and is stored
// nowhere. Its errors are those of [journal.EditStopped]; the signal has an end if the journal could be opened.
func TreatDeadLetters(ctx context.Context, dir string, r signals.Request, names []string) (s signals.Signal, err error) {
	err = journal.EditStopped(ctx, dir, func(j *journal.Journal) (err error) {
		s = r.New(time.Now())
		s.ID = ""
		if refusal := refusalOfLetters(j, r, names); refusal != "" {
			s = s.End(signals.Refused, time.Now(), 0, refusal)
			return nil
		}
		s, err = treatLetters(ctx, j, s, r)
		return err
	})
	return s, err
}

// treatLetters retries or discards the dead letters at some offsets, or all of the sink, and returns the signal with its
// end.
func treatLetters(ctx context.Context, j *journal.Journal, s signals.Signal, r signals.Request) (signals.Signal, error) {
	var err error
	offsets := r.Offsets
	if r.All {
		if offsets, err = j.DeadLetterOffsets(s.Sink, 0); err != nil {
			return s.End(signals.Aborted, time.Now(), 0, err.Error()), err
		}
	}
	if len(offsets) == 0 {
		return s.End(signals.Nothing, time.Now(), 0, "the sink has no dead letters"), nil
	}
	var n int
	var kept map[string]int
	result := "%d discarded"
	if s.Kind == signals.RetryDeadLetters {
		result = "%d are delivered in their turn"
		n, kept, err = j.RequeueDeadLetters(ctx, s.Sink, offsets)
	} else {
		n, err = j.DropDeadLetters(ctx, s.Sink, offsets)
	}
	text, state := fmt.Sprintf(result, n), signals.Done
	for _, reason := range slices.Sorted(maps.Keys(kept)) {
		text += fmt.Sprintf("; %d stay: %s", kept[reason], reason)
	}
	id, failed := j.ID()
	if id != "" && n > 0 && s.Kind == signals.RetryDeadLetters { // there is a replicated state
		text += "; if another exporter takes over before that, they are dead letters again in the journal where they were"
	}
	if err = cmp.Or(err, failed); err != nil {
		text, state = text+"; then: "+err.Error(), signals.Aborted
	}
	return s.End(state, time.Now(), uint64(n), text), err
}

// refusalOfLetters returns why a request about dead letters is refused; "" if it is not. Those of a sink that is not
// configured any more can be discarded.
func refusalOfLetters(j *journal.Journal, r signals.Request, names []string) string {
	if r.Kind == signals.RetryDeadLetters && !slices.Contains(names, r.Sink) {
		return describeNotConfigured(r.Sink, names)
	}
	stored, err := j.DeadLetterOffsets(r.Sink, 0)
	if err != nil {
		return err.Error()
	}
	for _, offset := range r.Offsets {
		if _, found := slices.BinarySearch(stored, offset); !found {
			return fmt.Sprintf("sink %q has no dead letter at offset %d", r.Sink, offset)
		}
	}
	return ""
}

func describeNotConfigured(sink string, names []string) string {
	return fmt.Sprintf("no sink %q is configured; there are: %s", sink, strings.Join(names, ", "))
}

// letterReader reads dead letters of a journal, on which an exporter runs or not.
type letterReader interface {
	DeadLettersAfter(sink string, after uint64, limit int) ([]event.DeadLetter, error)
}

// lettersRead is how many dead letters are held at once: each has the bodies of an object.
const lettersRead = 16

// ReadDeadLetters returns dead letters of a sink in JSON, as [signals.Handler] does.
func ReadDeadLetters(j letterReader, sink string, offset, after uint64) (all []json.RawMessage, err error) {
	limit := lettersRead
	if offset > 0 {
		after, limit = offset-1, 1
	}
	found, err := j.DeadLettersAfter(sink, after, limit)
	if err == nil && offset > 0 && (len(found) == 0 || found[0].Offset != offset) {
		err = &signals.InvalidError{Reason: fmt.Sprintf("sink %q has no dead letter at offset %d", sink, offset)}
	}
	for _, d := range found {
		all = append(all, format.AppendDeadLetter(nil, d, offset > 0))
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

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
		delivery.PingRegularly(ctx, pinger.Ping, delivery.RetryConfig(retry), idle, func(err error) { p.recordOutcome(before, err) })
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
