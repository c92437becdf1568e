package kafka

import (
	"log/slog"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

// timestampCondition is raised while brokers reject timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type timestampCondition struct{ condition *condition.Condition }

func newTimestampCondition(log *slog.Logger) timestampCondition {
	return timestampCondition{condition.New(log, "", condition.Problem{})}
}

// recordRefusal records that a broker has rejected the present time as a timestamp.
func (c timestampCondition) recordRefusal(topic string, err error) {
	c.condition.Update(condition.Problem{Code: condition.SinkClockRefused, Cause: "a broker rejects the current time as a timestamp"},
		"topic", topic, "error", err)
	c.condition.ClearAfter(2 * timestampPause) // unless it happens again
}

func (c timestampCondition) close() { c.condition.Close() }
