package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// unthrottledDelay is for how long no broker must have made us wait for throttling to be over: longer than the 11 s over which Kafka by
// default measures rates (quota.window.num). A client that is near its quota is throttled with every other answer, and that
// is one story.
const unthrottledDelay = 15 * time.Second

var (
	unthrottled = condition.State{Name: "ready", Message: "kafka does not throttle us any more"}
	throttled   = condition.State{
		Name: "throttled", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "kafka throttles us; changes go at the pace of its quota",
	}
)

// throttle knows the brokers that do not listen for a while. One whose quota is used up answers at once with a throttle
// time, and then reads nothing from that connection until it is over (KIP-219). We leave it alone meanwhile, on all
// connections: the quota is that of the client. Safe for concurrent use.
type throttle struct {
	remedy    string
	condition *condition.Condition

	mu            sync.Mutex
	readyAt       map[string]time.Time // by address of the broker
	latestReadyAt time.Time            // of until
}

func newThrottle(clientID string, log *slog.Logger) *throttle {
	return &throttle{
		remedy:    fmt.Sprintf("where that is too slow, raise producer_byte_rate of the client ID %q or of its user", clientID),
		condition: condition.New(log, unthrottled), readyAt: map[string]time.Time{},
	}
}

// RecordThrottle notes the throttle time of an answer.
func (m *throttle) RecordThrottle(broker string, wait time.Duration) {
	if wait <= 0 {
		return
	}
	m.condition.Update(throttled, "a quota of Kafka slows us down", m.remedy, "broker", broker, "wait", wait)
	m.condition.UpdateAfter(m.extendThrottle(broker, wait)+unthrottledDelay, unthrottled)
}

// extendThrottle leaves a broker alone for as long as it says, and returns for how long any is left alone.
func (m *throttle) extendThrottle(broker string, wait time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if until := time.Now().Add(wait); until.After(m.readyAt[broker]) {
		m.readyAt[broker] = until
	}
	if m.readyAt[broker].After(m.latestReadyAt) {
		m.latestReadyAt = m.readyAt[broker]
	}
	return time.Until(m.latestReadyAt)
}

// reason says what slows us down; "" while nothing does.
func (m *throttle) reason() string { return m.condition.Status().Explanation() }

// Remaining is for how long a broker does not listen yet.
func (m *throttle) Remaining(broker string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.readyAt[broker])
}

// WaitUntilReady returns when the broker listens, or ctx ends.
func (m *throttle) WaitUntilReady(ctx context.Context, broker string) error {
	for left := m.Remaining(broker); left > 0; left = m.Remaining(broker) {
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
