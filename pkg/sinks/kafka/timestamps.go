package kafka

import (
	"log/slog"

	"github.com/kubecdc/kubecdc/pkg/condition"
)

var (
	timestampsAccepted = condition.State{Name: "ready", Message: "brokers accept the timestamps of records"}
	timestampsRefused  = condition.State{
		Name: "untrusted", Severity: condition.Degraded, Level: slog.LevelWarn,
		Message: "brokers reject the timestamps of records; records are sent without one",
	}
)

// timestampCondition is raised while brokers reject timestamps because their clock differs too much from ours
// (message.timestamp.before.max.ms, message.timestamp.after.max.ms). It is safe for concurrent use.
type timestampCondition struct{ condition *condition.Condition }

func newTimestampCondition(log *slog.Logger) timestampCondition {
	return timestampCondition{condition.New(log, timestampsAccepted)}
}

// recordRefusal records that a broker has rejected the present time as a timestamp.
func (c timestampCondition) recordRefusal(topic string, err error) {
	c.condition.Update(timestampsRefused, "a broker rejects the current time as a timestamp", "synchronize the clocks of the exporter and the brokers",
		"topic", topic, "error", err)
	c.condition.UpdateAfter(2*timestampPause, timestampsAccepted) // unless it happens again
}

func (c timestampCondition) close() { c.condition.Close() }
