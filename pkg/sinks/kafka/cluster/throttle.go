package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
	"github.com/kubecdc/kubecdc/pkg/ratelimit"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/connection"
	"github.com/kubecdc/kubecdc/pkg/sinks/kafka/protocol"
)

const (
	// unthrottledDelay is how long no broker must have throttled us before throttling counts as over. It is longer than the
	// 11 s over which Kafka measures rates by default (quota.window.num), because a client near its quota is throttled with
	// every other answer.
	unthrottledDelay = 15 * time.Second
	// throttleCheckInterval is how long an announced throttle time is trusted. Kafka announces any time, and does not take it
	// back when the quota is raised.
	throttleCheckInterval = 5 * time.Second
	// maxMuteExcess is how much longer than its quota demands a broker may not read a connection before that is replaced.
	maxMuteExcess = time.Second
)

var errMuted = errors.New("the broker does not read this connection for longer than its quota demands")

// throttleSet holds the throttle times of all brokers. It is safe for concurrent use.
type throttleSet struct {
	ctx       context.Context // checks end when it ends
	remedy    string
	condition *condition.Condition
	query     func(ctx context.Context, to endpoint) (time.Duration, error)
	replace   func(endpoint) // replaces connections that a broker does not read although their quota allows it
	checks    sync.WaitGroup

	mu    sync.Mutex
	times map[endpoint]*throttle // by address and quota
}

// throttle is the throttle time of one broker for the connections of one quota. After a quota is exhausted, a broker answers
// at once with a throttle time and reads nothing from that connection until it is over (KIP-219). Since the quota is that of
// the client, nothing is sent meanwhile on any connection that it concerns.
type throttle struct {
	set *throttleSet
	to  endpoint

	// Guarded by set.mu.
	readyAt  time.Time     // when the broker reads again
	changed  chan struct{} // closed when readyAt becomes earlier
	checking bool
}

var _ connection.Throttle = (*throttle)(nil)

// quota returns the purpose that stands for all purposes with the same quota.
func (p Purpose) quota() Purpose {
	if p == ForSlowReplicas {
		return ForProducing
	}
	return p
}

// throttleOf returns the throttle time that concerns the connections to an endpoint.
func (s *throttleSet) throttleOf(to endpoint) *throttle {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.purpose = to.purpose.quota()
	t := s.times[to]
	if t == nil {
		t = &throttle{set: s, to: to, changed: make(chan struct{})}
		s.times[to] = t
	}
	return t
}

// remaining returns how long the last of all throttled brokers will not read; negative if all read.
func (s *throttleSet) remaining() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last time.Time
	for _, t := range s.times {
		if t.readyAt.After(last) {
			last = t.readyAt
		}
	}
	return time.Until(last)
}

// status returns whether a quota delays requests, and for how long.
func (s *throttleSet) status() condition.Status {
	s.condition.UpdateIf(func(condition.Status) bool { return s.remaining() <= -unthrottledDelay }, condition.Problem{})
	now := s.condition.Status()
	if left := s.remaining(); !now.OK() && left > 0 {
		now.Cause = fmt.Sprintf("%s for another %v", now.Cause, left.Round(time.Second))
	}
	return now
}

// close returns when no check is under way. The context and all connections, which start checks, have ended before.
func (s *throttleSet) close() {
	s.condition.Close()
	s.checks.Wait()
}

// RecordThrottle implements [connection.Throttle].
func (t *throttle) RecordThrottle(wait time.Duration) {
	t.set.mu.Lock()
	if until := time.Now().Add(wait); until.After(t.readyAt) {
		t.readyAt = until
	}
	check := !t.checking && wait > throttleCheckInterval
	t.checking = t.checking || check
	t.set.mu.Unlock()
	t.set.condition.Update(condition.Problem{ // after readyAt, which ends the condition
		Code: condition.SinkThrottled, Cause: "a Kafka quota throttles the sink", Remedy: t.set.remedy,
	}, "broker", t.to.address, "wait", wait)
	if check {
		t.set.checks.Go(t.checkUntilReady)
	}
}

// endCheck reports whether the throttle time is over, and then no longer being checked.
func (t *throttle) endCheck() bool {
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	t.checking = time.Now().Before(t.readyAt)
	return !t.checking
}

// Remaining implements [connection.Throttle].
func (t *throttle) Remaining() time.Duration {
	left, _ := t.state()
	return left
}

func (t *throttle) state() (left time.Duration, changed <-chan struct{}) {
	t.set.mu.Lock()
	defer t.set.mu.Unlock()
	return time.Until(t.readyAt), t.changed
}

// WaitUntilReady implements [connection.Throttle].
func (t *throttle) WaitUntilReady(ctx context.Context) error {
	for {
		left, changed := t.state()
		if left <= 0 {
			return nil
		}
		select {
		case <-time.After(left):
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkUntilReady checks the throttle time regularly until it is over, and then replaces the connections that the broker
// does not read although the quota allows it.
func (t *throttle) checkUntilReady() {
	for !t.endCheck() {
		left := t.Remaining()
		if ratelimit.Sleep(t.set.ctx, min(left, throttleCheckInterval)) != nil {
			return
		}
		if left <= throttleCheckInterval {
			continue
		}
		if left, err := t.set.query(t.set.ctx, t.to); err == nil { // else the announced time counts
			t.set.mu.Lock()
			t.readyAt = time.Now().Add(left)
			close(t.changed)
			t.changed = make(chan struct{})
			t.set.mu.Unlock()
		}
	}
	t.set.replace(t.to)
}

// queryThrottle asks a broker for the present throttle time. A produce request without batches gets it. For other quotas it
// is zero: the next request on a new connection gets the time, and nothing is done if that exceeds the quota.
func (p *connectionPool) queryThrottle(ctx context.Context, to endpoint) (time.Duration, error) {
	if to.purpose != ForProducing {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.dialer.Timeout)
	defer cancel()
	var answer throttleAnswer
	on := connection.Open(ctx, p.dialer, to.address, &answer)
	_, err := on.RoundTrip(ctx, protocol.NewProduceRequest(0, p.dialer.Timeout/2))
	on.Fail(connection.ErrClosed)
	if err := errors.Join(err, on.Wait(ctx)); err != nil {
		return 0, err // the answer may be arriving
	}
	return answer.wait, nil
}

type throttleAnswer struct{ wait time.Duration }

func (a *throttleAnswer) RecordThrottle(wait time.Duration)    { a.wait = wait }
func (*throttleAnswer) Remaining() time.Duration               { return 0 }
func (*throttleAnswer) WaitUntilReady(_ context.Context) error { return nil }

// Coalescer answers concurrent questions in as few rounds as possible: questions that arrive while a round is being answered
// form the next one. It is safe for concurrent use.
type Coalescer[Q, A any] struct {
	start  func(func())
	answer func([]Q) (A, error)
	slot   chan struct{} // capacity 1: held by the round that is being answered

	mu   sync.Mutex
	next *round[Q, A] // collects questions; nil when none is waiting
}

type round[Q, A any] struct {
	questions []Q
	done      chan struct{} // closed when answer and err are set
	answer    A
	err       error
}

// NewCoalescer returns a coalescer. answer is called for one round at a time, on a goroutine that start begins.
func NewCoalescer[Q, A any](start func(func()), answer func([]Q) (A, error)) *Coalescer[Q, A] {
	return &Coalescer[Q, A]{start: start, answer: answer, slot: make(chan struct{}, 1)}
}

// Submit adds a question to the next round and returns the answer of that round. When ctx ends it returns its error; the
// round goes on for the others.
func (c *Coalescer[Q, A]) Submit(ctx context.Context, question Q) (answer A, err error) {
	one := c.joinRound(question)
	select {
	case <-one.done:
		return one.answer, one.err
	case <-ctx.Done():
		return answer, ctx.Err()
	}
}

// joinRound adds a question to the round that collects questions, and starts one if there is none.
func (c *Coalescer[Q, A]) joinRound(question Q) *round[Q, A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		one := &round[Q, A]{done: make(chan struct{})}
		c.next = one
		c.start(func() { c.runRound(one) })
	}
	c.next.questions = append(c.next.questions, question)
	return c.next
}

// runRound closes the round for questions once the round before is answered, and answers it.
func (c *Coalescer[Q, A]) runRound(one *round[Q, A]) {
	defer close(one.done)
	c.slot <- struct{}{}
	defer func() { <-c.slot }()
	c.mu.Lock()
	c.next = nil
	c.mu.Unlock()
	one.answer, one.err = c.answer(one.questions)
}
