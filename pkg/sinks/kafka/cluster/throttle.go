package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// unthrottledDelay is how long no broker must have throttled us before throttling counts as over. It is longer than the 11
// s over which Kafka measures rates by default (quota.window.num), because a client near its quota is throttled with every
// other answer.
const unthrottledDelay = 15 * time.Second

var (
	unthrottled = condition.State{Name: "ready", Message: "kafka no longer throttles requests"}
	throttled   = condition.State{
		Name: "throttled", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "kafka throttles requests; delivery is limited to the quota",
	}
)

// throttle holds the throttle times of brokers. After its quota is exhausted, a broker answers at once with a throttle time
// and reads nothing from that connection until it is over (KIP-219). Since the quota is that of the client, no request is
// sent to the broker meanwhile on any connection. It is safe for concurrent use.
type throttle struct {
	remedy    string
	condition *condition.Condition

	mu            sync.Mutex
	readyAt       map[string]time.Time // when the broker reads again, by its address
	latestReadyAt time.Time            // the maximum of readyAt
}

func newThrottle(clientID string, log *slog.Logger) *throttle {
	return &throttle{
		remedy:    fmt.Sprintf("if delivery is too slow, raise producer_byte_rate of the client ID %q or of its user", clientID),
		condition: condition.New(log, unthrottled), readyAt: map[string]time.Time{},
	}
}

// RecordThrottle records the throttle time of an answer.
func (m *throttle) RecordThrottle(broker string, wait time.Duration) {
	if wait <= 0 {
		return
	}
	m.condition.Update(throttled, "a Kafka quota throttles the sink", m.remedy, "broker", broker, "wait", wait)
	m.condition.UpdateAfter(m.extendThrottle(broker, wait)+unthrottledDelay, unthrottled)
}

// extendThrottle returns how long the last of all throttled brokers will not read.
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

// reason describes the throttling; "" when there is none.
func (m *throttle) reason() string { return m.condition.Status().Explanation() }

// Remaining returns how long the broker will not read requests.
func (m *throttle) Remaining(broker string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.readyAt[broker])
}

// WaitUntilReady returns when the broker reads requests, or ctx ends.
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

// close stops the timer that ends the condition.
func (m *throttle) close() { m.condition.Close() }
