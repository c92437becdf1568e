package kafka

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/internal/condition"
)

// calm is for how long no broker must have made us wait for throttling to be over: longer than the 11 s over which Kafka by
// default measures rates (quota.window.num). A client that is near its quota is throttled with every other answer, and that
// is one story.
const calm = 15 * time.Second

var (
	unthrottled = condition.State{Name: "ready", Message: "kafka does not throttle us any more"}
	throttled   = condition.State{
		Name: "throttled", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "kafka throttles us; changes go at the pace of its quota",
	}
)

// throttle knows the brokers that do not listen for a while. One whose quota is used up answers at once with a throttle time, and
// then reads nothing from that connection until it is over (KIP-219). We leave it alone meanwhile, on all connections: the
// quota is that of the client. Safe for concurrent use.
type throttle struct {
	remedy    string
	condition *condition.Condition

	mu     sync.Mutex
	until  map[int32]time.Time // by broker
	latest time.Time           // of until
}

func newThrottle(clientID string, log *slog.Logger) *throttle {
	return &throttle{
		remedy:    fmt.Sprintf("where that is too slow, raise producer_byte_rate of the client ID %q or of its user", clientID),
		condition: condition.New(log, unthrottled), until: map[int32]time.Time{},
	}
}

// add notes the throttle time of an answer.
func (m *throttle) add(broker int32, wait time.Duration) {
	if wait <= 0 {
		return
	}
	m.condition.Become(throttled, "a quota of Kafka slows us down", m.remedy, "broker", broker, "wait", wait)
	m.condition.BecomeAfter(m.extend(broker, wait)+calm, unthrottled)
}

// extend leaves a broker alone for as long as it says, and returns for how long any is left alone.
func (m *throttle) extend(broker int32, wait time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if until := time.Now().Add(wait); until.After(m.until[broker]) {
		m.until[broker] = until
	}
	if m.until[broker].After(m.latest) {
		m.latest = m.until[broker]
	}
	return time.Until(m.latest)
}

// reason says what slows us down; "" while nothing does.
func (m *throttle) reason() string { return m.condition.Status().Explanation() }

// left is for how long a broker does not listen yet.
func (m *throttle) left(broker int32) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.until[broker])
}

// wait returns when the broker listens, or ctx ends.
func (m *throttle) wait(ctx context.Context, broker int32) error {
	for left := m.left(broker); left > 0; left = m.left(broker) {
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close ends the wait for calm.
func (m *throttle) close() { m.condition.Close() }

// exchangeDeadline is how long one pipelined produce is waited for: the request timeout and, when a broker stops reading the
// connection while a part of it is under way, as much again from the moment it listens. It belongs to one exchange.
type exchangeDeadline struct {
	throttle *throttle
	broker   int32
	timeout  time.Duration
	until    time.Time
	timer    *time.Timer // ends the call that waits for the exchange
	line     deadliner   // the connection
}

// deadliner is a connection whose reads and writes can be bounded in time.
type deadliner interface{ SetDeadline(time.Time) error }

// bind bounds the exchange on a connection, until release.
func (p *exchangeDeadline) bind(rw io.ReadWriter) error {
	p.line = rw.(deadliner)
	return p.extend(0)
}

// extend notes the throttle time of an answer.
func (p *exchangeDeadline) extend(wait time.Duration) error {
	p.throttle.add(p.broker, wait)
	if left := p.throttle.left(p.broker); left > 0 {
		p.until = time.Now().Add(left + p.timeout)
		p.timer.Reset(left + p.timeout)
	}
	return p.line.SetDeadline(p.until)
}

// release unbinds the connection, which serves other requests. One that cannot be unbound is broken, as its next use shows.
func (p *exchangeDeadline) release() { _ = p.line.SetDeadline(time.Time{}) }
