package kafka

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// calm is for how long no broker must have made us wait for throttling to be over: longer than the 11 s over which Kafka by
// default measures rates (quota.window.num). A client that is near its quota is throttled with every other answer, and that
// is one story.
const calm = 15 * time.Second

// mutes are the brokers that do not listen for a while. One whose quota is used up answers at once with a throttle time, and
// then reads nothing from that connection until it is over (KIP-219). We leave it alone meanwhile, on all connections: the
// quota is that of the client. Safe for concurrent use.
type mutes struct {
	clientID string
	log      *slog.Logger

	mu     sync.Mutex
	closed bool
	until  map[int32]time.Time // by broker
	latest time.Time           // of until
	told   string              // the reason; "" while there is calm
	end    *time.Timer         // tells that there is calm; nil while there is
}

func newMutes(clientID string, log *slog.Logger) *mutes {
	return &mutes{clientID: clientID, log: log, until: map[int32]time.Time{}}
}

// add notes a throttle time that a broker has just told.
func (m *mutes) add(broker int32, wait time.Duration) {
	if wait <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if until := time.Now().Add(wait); until.After(m.until[broker]) {
		m.until[broker] = until
	}
	if m.until[broker].After(m.latest) {
		m.latest = m.until[broker]
	}
	m.told = fmt.Sprintf("a quota of Kafka slows us down: broker %d made us wait for %v; where that is too much, raise producer_byte_rate of the client ID %q or of its user",
		broker, wait.Round(time.Millisecond), m.clientID)
	switch {
	case m.closed:
	case m.end == nil:
		m.log.Warn("kafka throttles us; changes go at the pace of its quota", "reason", m.told)
		m.end = time.AfterFunc(time.Until(m.latest)+calm, m.calm)
	default:
		m.end.Reset(time.Until(m.latest) + calm)
	}
}

// calm tells that throttling is over.
func (m *mutes) calm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || time.Since(m.latest) < calm { // another throttle time was told in this moment, which has set the timer
		return
	}
	clear(m.until)
	m.told, m.end = "", nil
	m.log.Info("kafka does not throttle us any more")
}

// reason says what slows us down; "" while nothing does.
func (m *mutes) reason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told
}

// left is for how long a broker does not listen yet.
func (m *mutes) left(broker int32) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.until[broker])
}

// wait returns when the broker listens, or ctx ends.
func (m *mutes) wait(ctx context.Context, broker int32) error {
	for left := m.left(broker); left > 0; left = m.left(broker) {
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close stops what tells the end.
func (m *mutes) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.end != nil {
		m.end.Stop()
	}
}

// leeway is how long one train is waited for: the request timeout and, when a broker mutes the connection while a part of
// the train is on it, as much again from the moment it listens. It belongs to whoever exchanges the train.
type leeway struct {
	mutes   *mutes
	broker  int32
	timeout time.Duration
	until   time.Time
	timer   *time.Timer // ends the call that waits for the train
	line    deadliner   // the connection
}

// deadliner is a connection whose reads and writes can be bounded in time.
type deadliner interface{ SetDeadline(time.Time) error }

// bind bounds the exchange on a connection, until release.
func (p *leeway) bind(rw io.ReadWriter) error {
	p.line = rw.(deadliner)
	return p.told(0)
}

// told notes the throttle time of an answer.
func (p *leeway) told(wait time.Duration) error {
	p.mutes.add(p.broker, wait)
	if left := p.mutes.left(p.broker); left > 0 {
		p.until = time.Now().Add(left + p.timeout)
		p.timer.Reset(left + p.timeout)
	}
	return p.line.SetDeadline(p.until)
}

// release unbinds the connection, which serves other requests. One that cannot be unbound is broken, as its next use shows.
func (p *leeway) release() { _ = p.line.SetDeadline(time.Time{}) }
