package kafka

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// timestampCondition is raised while brokers reject timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type timestampCondition struct {
	condition *condition.Condition
	last      atomic.Int64 // when a timestamp was rejected last, Unix nanoseconds
}

func newTimestampCondition(log *slog.Logger) *timestampCondition {
	return &timestampCondition{condition: condition.New(log, "", condition.Problem{})}
}

// recordRefusal records that a broker has rejected the present time as a timestamp.
func (c *timestampCondition) recordRefusal(topic string, err error) {
	c.last.Store(time.Now().UnixNano())
	c.condition.Update(condition.Problem{Code: condition.SinkClockRefused, Cause: "a broker rejects the current time as a timestamp"},
		"topic", topic, "error", err)
}

// status returns whether brokers reject timestamps: each lane has tried one again since the last refusal.
func (c *timestampCondition) status() condition.Status {
	c.condition.UpdateIf(func(condition.Status) bool { return time.Since(time.Unix(0, c.last.Load())) >= 2*timestampPause }, condition.Problem{})
	return c.condition.Status()
}

func (c *timestampCondition) close() { c.condition.Close() }
